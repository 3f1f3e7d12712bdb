// Counters of a slot that begin again with each use, without anyone resetting them: the upper half
// holds the number of the use, the lower half the count.
#ifndef CAPSTAN_PLUGINS_COMM_SHM_USE_COUNTER_H_
#define CAPSTAN_PLUGINS_COMM_SHM_USE_COUNTER_H_

#include <atomic>
#include <cstdint>
#include <limits>

namespace capstan::shm {

// The count of `use`: 0 before its first step, as good as infinite once a later use has begun.
inline uint32_t use_count(const std::atomic<uint64_t>& counter, uint32_t use) {
  const uint64_t now = counter.load();
  const auto ahead = static_cast<int32_t>(static_cast<uint32_t>(now >> 32) - use);
  if (ahead > 0) return std::numeric_limits<uint32_t>::max();
  return ahead < 0 ? 0 : static_cast<uint32_t>(now);
}

// Adds one, up to `most`; the count before, `most` or more when there was nothing left to add.
inline uint32_t use_advance(std::atomic<uint64_t>& counter, uint32_t use, uint32_t most) {
  uint64_t now = counter.load();
  while (true) {
    const auto ahead = static_cast<int32_t>(static_cast<uint32_t>(now >> 32) - use);
    if (ahead > 0) return most;
    const uint32_t count = ahead < 0 ? 0 : static_cast<uint32_t>(now);
    if (count >= most) return count;
    const uint64_t next = uint64_t{use} << 32 | (count + 1);
    if (counter.compare_exchange_weak(now, next)) return count;
  }
}

// Takes one back, unless a later use has begun.
inline void use_retreat(std::atomic<uint64_t>& counter, uint32_t use) {
  uint64_t now = counter.load();
  while (static_cast<uint32_t>(now >> 32) == use) {
    if (counter.compare_exchange_weak(now, now - 1)) return;
  }
}

}  // namespace capstan::shm

#endif  // CAPSTAN_PLUGINS_COMM_SHM_USE_COUNTER_H_
