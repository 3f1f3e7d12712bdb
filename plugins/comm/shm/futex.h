// Sleeping on a 32-bit word of memory that processes share.
#ifndef CAPSTAN_PLUGINS_COMM_SHM_FUTEX_H_
#define CAPSTAN_PLUGINS_COMM_SHM_FUTEX_H_

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdint>

namespace capstan::shm {

using Clock = std::chrono::steady_clock;

// Sleeps while the word holds `value`, for at most `limit`. May return early for no reason. True: the
// time is over.
inline bool futex_wait(std::atomic<uint32_t>& word, uint32_t value, Clock::duration limit) {
  const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(limit).count();
  if (ns <= 0) return true;
  const timespec time = {ns / 1000000000, ns % 1000000000};
  return syscall(SYS_futex, &word, FUTEX_WAIT, value, &time, nullptr, 0) < 0 && errno == ETIMEDOUT;
}

inline void futex_wake(std::atomic<uint32_t>& word, int sleepers = INT_MAX) {
  syscall(SYS_futex, &word, FUTEX_WAKE, sleepers, nullptr, nullptr, 0);
}

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// The longest sleep before a sleeper looks again by itself, and rings those it waits for. Wake-ups come
// at once; this bounds the damage of one that was not sent.
constexpr auto kLongestSleep = std::chrono::milliseconds(50);

}  // namespace capstan::shm

#endif  // CAPSTAN_PLUGINS_COMM_SHM_FUTEX_H_
