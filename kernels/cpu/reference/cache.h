// Cache writes element by element: the oracle of kernels/cpu/cache.h.
#ifndef CAPSTAN_KERNELS_CPU_REFERENCE_CACHE_H_
#define CAPSTAN_KERNELS_CPU_REFERENCE_CACHE_H_

#include <cstdint>

#include "kernels/cpu/cache.h"

namespace capstan::reference {

// Sequences that do not fit are left alone.
template <class T>
void cache_write(const cpu::CacheParams& p, const T* src, const std::int32_t* position, T* cache) {
  for (std::int64_t b = 0; b < p.batch; ++b) {
    if (position[b] < 0 || position[b] + p.seq > p.capacity) continue;
    for (std::int64_t t = 0; t < p.seq; ++t) {
      for (std::int64_t c = 0; c < p.channels; ++c) {
        cache[(b * p.capacity + position[b] + t) * p.channels + c] =
            src[(b * p.seq + t) * p.channels + c];
      }
    }
  }
}

}  // namespace capstan::reference

#endif  // CAPSTAN_KERNELS_CPU_REFERENCE_CACHE_H_
