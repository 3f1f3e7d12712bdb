// Reductions: global norm, finite check, and sums, means and maxima along a dim.
//
// Results do not depend on the thread count: what is summed is cut into blocks by size alone, and
// partial results are added in order. Threads: the OpenMP pool.
#ifndef CAPSTAN_KERNELS_CPU_REDUCE_H_
#define CAPSTAN_KERNELS_CPU_REDUCE_H_

#include <cstddef>
#include <cstdint>

namespace capstan::cpu {

struct ConstBuffer {
  const float* data = nullptr;
  std::int64_t n = 0;
};

// Sum of squares over `count` buffers, accumulated in double. Workspace: sum_squares_workspace
// bytes.
std::size_t sum_squares_workspace(const ConstBuffer* buffers, std::size_t count);
double sum_squares(const ConstBuffer* buffers, std::size_t count, void* workspace);

struct ClipScale {
  float norm;
  float scale;
};

// norm = sqrt(norm2); scale = min(1, clip / (norm + 1e-6)), or 1 where clip <= 0 (Pascanu et al.
// 2013). A norm that is not finite gives a scale that is not finite, or 0.
ClipScale clip_scale(double norm2, double clip);

// Whether no element of any buffer is an infinity or NaN.
bool all_finite(const ConstBuffer* buffers, std::size_t count);

// x [outer, n, inner] reduced over its middle dim to out [outer, inner].
struct ReduceParams {
  std::int64_t outer = 1;
  std::int64_t n = 0;
  std::int64_t inner = 1;
};

enum class Reduction { kSum, kMean, kMax };

std::size_t reduce_workspace(const ReduceParams& p);

// out = reduction of x (0 for a sum of nothing, -inf for a maximum of nothing), added to out where
// `accumulate` (sum and mean only; a maximum ignores it). A NaN makes any reduction it enters NaN.
void reduce(Reduction reduction, const ReduceParams& p, const float* x, float* out, bool accumulate,
            void* workspace);

}  // namespace capstan::cpu

#endif  // CAPSTAN_KERNELS_CPU_REDUCE_H_
