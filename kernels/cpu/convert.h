// Conversion of single elements between types, by the rules kernels/cpu/cast.h states.
#ifndef CAPSTAN_KERNELS_CPU_CONVERT_H_
#define CAPSTAN_KERNELS_CPU_CONVERT_H_

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace capstan::cpu {

// Storage of the 16-bit floats: distinct types, so that overloads can tell them apart.
struct Bf16 {
  std::uint16_t bits;
};
struct F16 {
  std::uint16_t bits;
};
struct Bool {
  std::uint8_t value;
};

// Rounds a double to a binary float of `mantissa` stored bits and `exponent` bits (IEEE 754-2019
// interchange layout), to nearest, ties to even, by arithmetic on the value alone.
inline std::uint16_t round_to_binary16(double x, int mantissa, int exponent) {
  const int bias = (1 << (exponent - 1)) - 1;
  const std::uint16_t infinity = static_cast<std::uint16_t>(((1 << exponent) - 1) << mantissa);
  const std::uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  if (std::isnan(x)) {
    return static_cast<std::uint16_t>(sign | infinity | (1 << (mantissa - 1)));
  }
  if (std::isinf(x)) return static_cast<std::uint16_t>(sign | infinity);
  const double a = std::fabs(x);
  int e = a == 0.0 ? 1 - bias : std::ilogb(a);
  if (e < 1 - bias) e = 1 - bias;                                   // subnormal spacing
  const double ulps = std::nearbyint(std::ldexp(a, mantissa - e));  // ties to even
  const std::int64_t units = static_cast<std::int64_t>(ulps);
  // `units` counts spacings of exponent e: the hidden bit, where present, carries into the
  // exponent.
  const std::int64_t bits = (static_cast<std::int64_t>(e + bias - 1) << mantissa) + units;
  return bits >= infinity ? static_cast<std::uint16_t>(sign | infinity)
                          : static_cast<std::uint16_t>(sign | bits);
}

inline double widen(std::uint16_t bits, int mantissa, int exponent) {
  const int bias = (1 << (exponent - 1)) - 1;
  const int e = (bits >> mantissa) & ((1 << exponent) - 1);
  const int fraction = bits & ((1 << mantissa) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (e == (1 << exponent) - 1) {
    return fraction != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  }
  if (e == 0) return sign * std::ldexp(fraction, 1 - bias - mantissa);
  return sign * std::ldexp(fraction + (1 << mantissa), e - bias - mantissa);
}

// The value of an element as double, or as int64 for integers, which double cannot always hold.
template <class T>
auto load_wide(T x) {
  if constexpr (std::is_same_v<T, Bf16>) {
    return widen(x.bits, 7, 8);
  } else if constexpr (std::is_same_v<T, F16>) {
    return widen(x.bits, 10, 5);
  } else if constexpr (std::is_same_v<T, Bool>) {
    return static_cast<std::int64_t>(x.value != 0);
  } else if constexpr (std::is_floating_point_v<T>) {
    return static_cast<double>(x);
  } else {
    return static_cast<std::int64_t>(x);
  }
}

// Saturating conversion to an integer type.
template <class T>
T to_integer(double x) {
  if (std::isnan(x)) return 0;
  // The upper bound of int64 is no double; its successor 2^63 is.
  const double upper = std::ldexp(1.0, std::numeric_limits<T>::digits);
  if (x >= upper) return std::numeric_limits<T>::max();
  if (x <= static_cast<double>(std::numeric_limits<T>::min())) {
    return std::numeric_limits<T>::min();
  }
  return static_cast<T>(x);
}

template <class T>
T to_integer(std::int64_t x) {
  if (x > static_cast<std::int64_t>(std::numeric_limits<T>::max())) {
    return std::numeric_limits<T>::max();
  }
  if (x < static_cast<std::int64_t>(std::numeric_limits<T>::min())) {
    return std::numeric_limits<T>::min();
  }
  return static_cast<T>(x);
}

template <class To, class From>
To convert(From x) {
  const auto wide = load_wide(x);
  if constexpr (std::is_same_v<To, Bf16>) {
    return Bf16{round_to_binary16(static_cast<double>(wide), 7, 8)};
  } else if constexpr (std::is_same_v<To, F16>) {
    return F16{round_to_binary16(static_cast<double>(wide), 10, 5)};
  } else if constexpr (std::is_same_v<To, Bool>) {
    return Bool{static_cast<std::uint8_t>(wide != 0)};
  } else if constexpr (std::is_floating_point_v<To>) {
    return static_cast<To>(wide);
  } else {
    return to_integer<To>(wide);
  }
}

}  // namespace capstan::cpu

#endif  // CAPSTAN_KERNELS_CPU_CONVERT_H_
