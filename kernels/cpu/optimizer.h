// Parameter updates, each in one pass over its tensors.
//
// Dense float32 of n elements. lr, step and grad_scale are one-element tensors: what varies by step
// is an input. Threads: the OpenMP pool; results do not depend on their number.
#ifndef CAPSTAN_KERNELS_CPU_OPTIMIZER_H_
#define CAPSTAN_KERNELS_CPU_OPTIMIZER_H_

#include <cstdint>

namespace capstan::cpu {

struct AdamwParams {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;  // outside the square root
  double weight_decay = 0.0;
};

// AdamW (Loshchilov and Hutter 2019, algorithm 2, decay scaled by the learning rate):
//   g = grad * grad_scale;  param *= 1 - lr * weight_decay
//   m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
//   param -= lr * (m / (1 - beta1^step)) / (sqrt(v / (1 - beta2^step)) + eps)
// `step` counts from 1. grad is read only.
void adamw(const AdamwParams& p, std::int64_t n, const float* lr, const std::int64_t* step,
           const float* grad_scale, const float* grad, float* param, float* m, float* v);

struct SgdParams {
  double momentum = 0.0;
  bool nesterov = false;
  double weight_decay = 0.0;  // coupled: added to the gradient
};

// Stochastic gradient descent with momentum (Sutskever et al. 2013, in the form without dampening):
//   g = grad * grad_scale + weight_decay * param;  buffer = momentum * buffer + g
//   param -= lr * (nesterov ? g + momentum * buffer : buffer)
// buffer starts at zero. It may be null where momentum is 0: then param -= lr * g.
void sgd(const SgdParams& p, std::int64_t n, const float* lr, const float* grad_scale,
         const float* grad, float* param, float* buffer);

}  // namespace capstan::cpu

#endif  // CAPSTAN_KERNELS_CPU_OPTIMIZER_H_
