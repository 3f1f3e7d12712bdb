// Random values by global index: the oracle of kernels/cpu/random_fill.h.
#ifndef CAPSTAN_KERNELS_CPU_REFERENCE_RANDOM_FILL_H_
#define CAPSTAN_KERNELS_CPU_REFERENCE_RANDOM_FILL_H_

#include <cmath>
#include <cstdint>
#include <numbers>

#include "kernels/common/philox.h"

namespace capstan::reference {

template <class T>
T random_uniform(PhiloxKey key, std::uint64_t index, T low, T high) {
  const Philox4 r = philox4x32(philox_counter(index / 4), key);
  return low + (high - low) * T(uniform_float(r.v[index % 4]));
}

template <class T>
T random_normal(PhiloxKey key, std::uint64_t index, T mean, T stddev) {
  const Philox4 r = philox4x32(philox_counter(index / 4), key);
  const int pair = static_cast<int>(index % 4 / 2) * 2;
  const T u = T(uniform_float(r.v[pair])) + T(0x1p-24);
  const T angle = T(2) * std::numbers::pi_v<T> * T(uniform_float(r.v[pair + 1]));
  const T radius = std::sqrt(T(-2) * std::log(u));
  return mean + stddev * radius * (index % 2 == 0 ? std::cos(angle) : std::sin(angle));
}

}  // namespace capstan::reference

#endif  // CAPSTAN_KERNELS_CPU_REFERENCE_RANDOM_FILL_H_
