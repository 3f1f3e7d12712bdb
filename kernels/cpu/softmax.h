// Softmax over rows.
#ifndef CAPSTAN_KERNELS_CPU_SOFTMAX_H_
#define CAPSTAN_KERNELS_CPU_SOFTMAX_H_

#include <cstdint>

namespace capstan::cpu {

// y[r] = exp(x[r] - max) / sum, x and y [rows, columns]. -inf entries give 0; a row of nothing but
// -inf gives NaN. y may be x. Threads: the OpenMP pool; results do not depend on their number.
void softmax_forward(std::int64_t rows, std::int64_t columns, const float* x, float* y);

// dx = y * (dy - sum(dy * y)), from the forward *output* y. dx may be dy or y.
void softmax_backward(std::int64_t rows, std::int64_t columns, const float* dy, const float* y,
                      float* dx);

}  // namespace capstan::cpu

#endif  // CAPSTAN_KERNELS_CPU_SOFTMAX_H_
