// Parameter updates element by element: the oracle of kernels/cpu/optimizer.h.
#ifndef CAPSTAN_KERNELS_CPU_REFERENCE_OPTIMIZER_H_
#define CAPSTAN_KERNELS_CPU_REFERENCE_OPTIMIZER_H_

#include <cmath>
#include <cstdint>

#include "kernels/cpu/optimizer.h"

namespace capstan::reference {

template <class T>
void adamw(const cpu::AdamwParams& p, std::int64_t n, T lr, std::int64_t step, T grad_scale,
           const T* grad, T* param, T* m, T* v) {
  const T beta1 = T(p.beta1), beta2 = T(p.beta2);
  for (std::int64_t i = 0; i < n; ++i) {
    const T g = grad[i] * grad_scale;
    param[i] *= T(1) - lr * T(p.weight_decay);
    m[i] = beta1 * m[i] + (T(1) - beta1) * g;
    v[i] = beta2 * v[i] + (T(1) - beta2) * g * g;
    const T m_hat = m[i] / (T(1) - std::pow(beta1, T(step)));
    const T v_hat = v[i] / (T(1) - std::pow(beta2, T(step)));
    param[i] -= lr * m_hat / (std::sqrt(v_hat) + T(p.eps));
  }
}

// `buffer` may be null where momentum is 0.
template <class T>
void sgd(const cpu::SgdParams& p, std::int64_t n, T lr, T grad_scale, const T* grad, T* param,
         T* buffer) {
  for (std::int64_t i = 0; i < n; ++i) {
    const T g = grad[i] * grad_scale + T(p.weight_decay) * param[i];
    T direction = g;
    if (buffer != nullptr) {
      buffer[i] = T(p.momentum) * buffer[i] + g;
      direction = p.nesterov ? g + T(p.momentum) * buffer[i] : buffer[i];
    }
    param[i] -= lr * direction;
  }
}

}  // namespace capstan::reference

#endif  // CAPSTAN_KERNELS_CPU_REFERENCE_OPTIMIZER_H_
