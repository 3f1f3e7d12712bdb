// Element-wise arithmetic and softmax: the oracle of kernels/cpu/elementwise.h and softmax.h.
#ifndef CAPSTAN_KERNELS_CPU_REFERENCE_ELEMENTWISE_H_
#define CAPSTAN_KERNELS_CPU_REFERENCE_ELEMENTWISE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/cpu/elementwise.h"

namespace capstan::reference {

template <class T>
void binary(const cpu::BinaryParams& p, const T* a, const T* b, T* y) {
  for (std::int64_t i = 0; i < p.outer * p.inner; ++i) {
    const T other = p.broadcast == cpu::BroadcastB::kNone      ? b[i]
                    : p.broadcast == cpu::BroadcastB::kLeading ? b[i % p.inner]
                                                               : b[0];
    switch (p.op) {
      case cpu::Binary::kAdd:
        y[i] = a[i] + other;
        break;
      case cpu::Binary::kSub:
        y[i] = a[i] - other;
        break;
      case cpu::Binary::kMul:
        y[i] = a[i] * other;
        break;
      case cpu::Binary::kDiv:
        y[i] = a[i] / other;
        break;
    }
  }
}

template <class T>
void softmax_forward(std::int64_t rows, std::int64_t columns, const T* x, T* y) {
  for (std::int64_t r = 0; r < rows; ++r, x += columns, y += columns) {
    const T max = *std::max_element(x, x + columns);
    T sum = 0;
    for (std::int64_t c = 0; c < columns; ++c) sum += y[c] = std::exp(x[c] - max);
    for (std::int64_t c = 0; c < columns; ++c) y[c] /= sum;
  }
}

template <class T>
void softmax_backward(std::int64_t rows, std::int64_t columns, const T* dy, const T* y, T* dx) {
  for (std::int64_t r = 0; r < rows; ++r, dy += columns, y += columns, dx += columns) {
    T dot = 0;
    for (std::int64_t c = 0; c < columns; ++c) dot += dy[c] * y[c];
    for (std::int64_t c = 0; c < columns; ++c) dx[c] = y[c] * (dy[c] - dot);
  }
}

}  // namespace capstan::reference

#endif  // CAPSTAN_KERNELS_CPU_REFERENCE_ELEMENTWISE_H_
