// Reductions as plain loops: the oracle of kernels/cpu/reduce.h.
#ifndef CAPSTAN_KERNELS_CPU_REFERENCE_REDUCE_H_
#define CAPSTAN_KERNELS_CPU_REFERENCE_REDUCE_H_

#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/cpu/reduce.h"

namespace capstan::reference {

template <class T>
void reduce(cpu::Reduction reduction, const cpu::ReduceParams& p, const T* x, T* out) {
  for (std::int64_t o = 0; o < p.outer; ++o) {
    for (std::int64_t i = 0; i < p.inner; ++i) {
      T sum = 0, max = -std::numeric_limits<T>::infinity();
      for (std::int64_t k = 0; k < p.n; ++k) {
        const T value = x[(o * p.n + k) * p.inner + i];
        sum += value;
        if (value > max || std::isnan(value)) max = std::isnan(max) ? max : value;
      }
      T& result = out[o * p.inner + i];
      result = reduction == cpu::Reduction::kMax    ? max
               : reduction == cpu::Reduction::kMean ? sum / T(p.n)
                                                    : sum;
    }
  }
}

inline double sum_squares(const cpu::ConstBuffer* buffers, std::size_t count) {
  long double sum = 0;
  for (std::size_t b = 0; b < count; ++b) {
    for (std::int64_t i = 0; i < buffers[b].n; ++i) {
      sum += static_cast<long double>(buffers[b].data[i]) * buffers[b].data[i];
    }
  }
  return static_cast<double>(sum);
}

}  // namespace capstan::reference

#endif  // CAPSTAN_KERNELS_CPU_REFERENCE_REDUCE_H_
