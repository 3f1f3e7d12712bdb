// Splits a range of independent work items over the OpenMP pool.
#ifndef CAPSTAN_KERNELS_CPU_PARALLEL_H_
#define CAPSTAN_KERNELS_CPU_PARALLEL_H_

#include <omp.h>

#include <algorithm>
#include <cstdint>

namespace capstan::cpu {

// Below this many bytes of traffic a parallel region costs more than it saves (about 3 us).
constexpr std::int64_t kBytesPerThread = 64 * 1024;

// Threads worth waking for `bytes` of memory traffic.
inline int useful_threads(std::int64_t bytes) {
  const std::int64_t worth = bytes / kBytesPerThread;
  return static_cast<int>(std::clamp<std::int64_t>(worth, 1, omp_get_max_threads()));
}

// Calls body(begin, end, thread) on consecutive parts of [0, count), one a thread. Part borders are
// multiples of `align`. `bytes` is the traffic of the whole loop. The body must not depend on where
// the borders fall: that is what makes results independent of the thread count.
template <class Body>
void parallel_ranges(std::int64_t count, std::int64_t align, std::int64_t bytes, Body&& body) {
  const std::int64_t units = (count + align - 1) / align;
  const int wanted = static_cast<int>(std::min<std::int64_t>(useful_threads(bytes), units));
  if (wanted <= 1) {
    if (count > 0) body(std::int64_t{0}, count, 0);
    return;
  }
#pragma omp parallel num_threads(wanted)
  {
    const std::int64_t threads = omp_get_num_threads();  // fewer than wanted inside another region
    const std::int64_t thread = omp_get_thread_num();
    const std::int64_t begin = std::min(count, units * thread / threads * align);
    const std::int64_t end = std::min(count, units * (thread + 1) / threads * align);
    if (begin < end) body(begin, end, static_cast<int>(thread));
  }
}

}  // namespace capstan::cpu

#endif  // CAPSTAN_KERNELS_CPU_PARALLEL_H_
