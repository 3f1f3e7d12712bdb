// How often an all-reduce of a size is repeated, the same for all who are compared.
#ifndef CAPSTAN_TESTS_BENCH_COMM_BENCH_SIZES_H_
#define CAPSTAN_TESTS_BENCH_COMM_BENCH_SIZES_H_

#include <algorithm>
#include <cstddef>

namespace capstan::bench {

// About 0.2 s at 1 us + 8 GB/s.
inline int TurnsFor(size_t bytes) {
  const double seconds = 1e-6 + static_cast<double>(bytes) / 8e9;
  return std::clamp(static_cast<int>(0.2 / seconds), 3, 20000);
}

}  // namespace capstan::bench

#endif  // CAPSTAN_TESTS_BENCH_COMM_BENCH_SIZES_H_
