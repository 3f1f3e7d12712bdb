// Random tensors whose values depend on the global coordinate alone.
#ifndef CAPSTAN_KERNELS_CPU_RANDOM_FILL_H_
#define CAPSTAN_KERNELS_CPU_RANDOM_FILL_H_

#include <cstdint>

#include "kernels/common/philox.h"

namespace capstan::cpu {

constexpr int kRandomFillMaxRank = 8;

// A hyper-rectangle [start, start + shape) of a tensor of global_shape.
struct RandomFillParams {
  int rank = 0;
  std::int64_t global_shape[kRandomFillMaxRank] = {};
  std::int64_t start[kRandomFillMaxRank] = {};
  std::int64_t shape[kRandomFillMaxRank] = {};
  PhiloxKey key;
};

// out, dense in `shape`, gets the values that the whole tensor has there: element i of the
// row-major global order is drawn from word i % 4 of Philox(key) at counter i / 4 (normals from the
// word pairs (0, 1) and (2, 3)). Bit-identical for any slicing, thread count and SIMD width of one
// machine type. Threads: the OpenMP pool.
void random_uniform(const RandomFillParams& p, float low, float high, float* out);
void random_normal(const RandomFillParams& p, float mean, float stddev, float* out);

}  // namespace capstan::cpu

#endif  // CAPSTAN_KERNELS_CPU_RANDOM_FILL_H_
