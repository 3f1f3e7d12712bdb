#include "kernels/cpu/cache.h"

#include <cstring>

#include "kernels/cpu/parallel.h"

namespace capstan::cpu {

std::int64_t cache_write(const CacheParams& p, const void* src, const std::int32_t* position,
                         void* cache) {
  const std::int64_t row = p.channels * static_cast<std::int64_t>(p.element_size);
  const auto fits = [&](std::int64_t b) {
    return position[b] >= 0 && position[b] + p.seq <= p.capacity;
  };
  const std::int64_t tokens = p.batch * p.seq;
  parallel_ranges(tokens, 1, 2 * tokens * row, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t token = begin; token < end; ++token) {
      const std::int64_t b = token / p.seq;
      if (!fits(b)) continue;
      const std::int64_t slot = b * p.capacity + position[b] + (token - b * p.seq);
      std::memcpy(static_cast<char*>(cache) + slot * row,
                  static_cast<const char*>(src) + token * row, static_cast<std::size_t>(row));
    }
  });
  for (std::int64_t b = 0; b < p.batch; ++b) {
    if (!fits(b)) return b;
  }
  return -1;
}

std::int64_t select_position(const CacheParams& p, const void* x, const std::int32_t* index,
                             void* out) {
  const std::int64_t row = p.channels * static_cast<std::int64_t>(p.element_size);
  const auto inside = [&](std::int64_t b) { return index[b] >= 0 && index[b] < p.seq; };
  parallel_ranges(p.batch, 1, 2 * p.batch * row, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t b = begin; b < end; ++b) {
      char* to = static_cast<char*>(out) + b * row;
      if (inside(b)) {
        std::memcpy(to, static_cast<const char*>(x) + (b * p.seq + index[b]) * row,
                    static_cast<std::size_t>(row));
      } else {
        std::memset(to, 0, static_cast<std::size_t>(row));
      }
    }
  });
  for (std::int64_t b = 0; b < p.batch; ++b) {
    if (!inside(b)) return b;
  }
  return -1;
}

}  // namespace capstan::cpu
