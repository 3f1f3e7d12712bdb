// Unary functions with their derivatives, and SwiGLU.
//
// Dense float32, any shape (n elements). Threads: the OpenMP pool. Outputs may be the same buffer
// as any input of the same shape (never partly overlapping). Results do not depend on the thread
// count.
#ifndef CAPSTAN_KERNELS_CPU_ACTIVATION_H_
#define CAPSTAN_KERNELS_CPU_ACTIVATION_H_

#include <cstdint>

namespace capstan::cpu {

enum class Unary {
  kGeluTanh,  // 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) (Hendrycks and Gimpel 2016)
  kGeluErf,   // x Phi(x), exact
  kRelu,      // derivative 0 at 0
  kSilu,      // x sigmoid(x)
  kSigmoid,
  kTanh,
  kExp,
  kLog,
  kSqrt,
  kRsqrt,
  kReciprocal,
  kNeg,
  kSquare,
  kAbs,  // derivative 0 at 0
};

// y[i] = f(x[i]).
void unary_forward(Unary function, std::int64_t n, const float* x, float* y);

// dx[i] = dy[i] * f'(x[i]); x is the forward *input* (the pre-activation).
void unary_backward(Unary function, std::int64_t n, const float* dy, const float* x, float* dx);

// SwiGLU (Shazeer 2020): y = silu(gate) * up, each [rows, channels]. Row strides (in elements, 0:
// channels) let gate and up be the two halves of one [rows, 2 * channels] product.
struct SwigluParams {
  std::int64_t rows = 0;
  std::int64_t channels = 0;
  std::int64_t gate_stride = 0;  // of gate, up, dgate and dup
  std::int64_t y_stride = 0;     // of y and dy
};

void swiglu_forward(const SwigluParams& p, const float* gate, const float* up, float* y);

// dgate may be gate, dup may be up; with equal strides either may be dy.
void swiglu_backward(const SwigluParams& p, const float* dy, const float* gate, const float* up,
                     float* dgate, float* dup);

}  // namespace capstan::cpu

#endif  // CAPSTAN_KERNELS_CPU_ACTIVATION_H_
