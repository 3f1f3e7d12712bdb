// Rotary embedding pair by pair, as complex multiplication: the oracle of kernels/cpu/rotary.h.
#ifndef CAPSTAN_KERNELS_CPU_REFERENCE_ROTARY_H_
#define CAPSTAN_KERNELS_CPU_REFERENCE_ROTARY_H_

#include <cmath>
#include <complex>
#include <cstdint>
#include <numbers>

#include "kernels/cpu/rotary.h"

namespace capstan::reference {

// The frequency of one pair, from wavelengths as the Llama 3.1 release describes the scaling.
inline double rotary_frequency(const cpu::RotaryParams& p, std::int64_t dim, std::int64_t pair) {
  const double plain = 1.0 / std::pow(p.theta, 2.0 * double(pair) / double(dim));
  const cpu::RotaryScaling& s = p.scaling;
  if (s.original_max_position == 0) return plain;
  const double original = double(s.original_max_position);
  const double wavelength = 2.0 * std::numbers::pi / plain;
  if (wavelength < original / s.high_freq_factor) return plain;
  if (wavelength > original / s.low_freq_factor) return plain / s.factor;
  const double smooth =
      (original / wavelength - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
  return (1.0 - smooth) * plain / s.factor + smooth * plain;
}

// Strides 0 mean dense, as in the fast kernel.
template <class T>
void rotary(const cpu::RotaryParams& p, const T* x, const std::int32_t* position, T* y) {
  const std::int64_t dim = p.rotary_dim == 0 ? p.head_dim : p.rotary_dim;
  const std::int64_t dense = p.heads * p.head_dim;
  const std::int64_t x_stride = p.x_stride == 0 ? dense : p.x_stride;
  const std::int64_t y_stride = p.y_stride == 0 ? dense : p.y_stride;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    for (std::int64_t t = 0; t < p.seq; ++t) {
      for (std::int64_t h = 0; h < p.heads; ++h) {
        const T* from = x + (b * p.seq + t) * x_stride + h * p.head_dim;
        T* to = y + (b * p.seq + t) * y_stride + h * p.head_dim;
        for (std::int64_t c = dim; c < p.head_dim; ++c) to[c] = from[c];
        for (std::int64_t i = 0; i < dim / 2; ++i) {
          const double angle = position[b * p.position_stride + t] * rotary_frequency(p, dim, i);
          const std::complex<double> turn = std::polar(1.0, p.inverse ? -angle : angle);
          const std::int64_t first = p.interleaved ? 2 * i : i;
          const std::int64_t second = p.interleaved ? 2 * i + 1 : i + dim / 2;
          const std::complex<double> z =
              std::complex<double>(double(from[first]), double(from[second])) * turn;
          to[first] = T(z.real());
          to[second] = T(z.imag());
        }
      }
    }
  }
}

}  // namespace capstan::reference

#endif  // CAPSTAN_KERNELS_CPU_REFERENCE_ROTARY_H_
