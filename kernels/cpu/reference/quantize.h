// Blockwise int8 quantisation: the oracle of kernels/cpu/quantize.h.
#ifndef CAPSTAN_KERNELS_CPU_REFERENCE_QUANTIZE_H_
#define CAPSTAN_KERNELS_CPU_REFERENCE_QUANTIZE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace capstan::reference {

template <class T>
void quantize_int8(std::int64_t n, std::int64_t block, const T* x, std::int8_t* codes, T* scales) {
  for (std::int64_t start = 0; start < n; start += block) {
    const std::int64_t end = std::min(n, start + block);
    T max = 0;
    for (std::int64_t i = start; i < end; ++i) max = std::max(max, std::fabs(x[i]));
    scales[start / block] = max / T(127);
    for (std::int64_t i = start; i < end; ++i) {
      codes[i] = max == T(0) ? std::int8_t{0}
                             : static_cast<std::int8_t>(std::nearbyint(x[i] * (T(127) / max)));
    }
  }
}

template <class T>
void dequantize_int8(std::int64_t n, std::int64_t block, const std::int8_t* codes, const T* scales,
                     T* y) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = T(codes[i]) * scales[i / block];
}

}  // namespace capstan::reference

#endif  // CAPSTAN_KERNELS_CPU_REFERENCE_QUANTIZE_H_
