#include "plugins/comm/common/reduce.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#include "sdk/program.h"

namespace capstan::comm {
namespace {

struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};
struct Bool {
  uint8_t value;
};

// Conversions without branches and without arithmetic on subnormal numbers, so that they vectorise
// and hold in threads that flush subnormals to zero.
float widen(Bf16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }
float widen(F16 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16;
  const uint32_t magnitude = x.bits & 0x7fffu;
  const uint32_t normal = (magnitude << 13) + ((127u - 15u) << 23);
  const uint32_t special = (magnitude << 13) | 0x7f800000u;  // infinity, NaN
  const uint32_t subnormal =
      std::bit_cast<uint32_t>(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f);
  const uint32_t finite = magnitude < 0x0400u ? subnormal : normal;
  return std::bit_cast<float>(sign | (magnitude >= 0x7c00u ? special : finite));
}

uint16_t narrow_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet_nan = (bits >> 16) | 0x0040u;
  return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet_nan : rounded);
}
uint16_t narrow_f16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  // Adding 0.5 puts the last bit of the sum at 2^-24, the spacing of f16's subnormals.
  const uint32_t subnormal =
      std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  const uint32_t normal =
      (magnitude - ((127u - 15u) << 23) + 0x0fffu + ((magnitude >> 13) & 1u)) >> 13;
  const uint32_t finite = magnitude < 0x38800000u ? subnormal : normal;
  const uint32_t infinity = 0x7c00u;
  const uint32_t bounded = magnitude >= 0x477ff000u ? infinity : finite;  // 65520 and above
  const uint32_t quiet_nan = 0x7e00u | ((magnitude >> 13) & 0x01ffu);
  return static_cast<uint16_t>(sign | (magnitude > 0x7f800000u ? quiet_nan : bounded));
}

// How elements of T are accumulated: in which type, and how they get there and back.
template <class T>
struct Accumulate {
  using Type = T;
  static T load(T x) { return x; }
  static T store(T x) { return x; }
};
template <class T>
requires std::is_integral_v<T>
struct Accumulate<T> {
  using Type = std::make_unsigned_t<T>;  // wraps
  static Type load(T x) { return static_cast<Type>(x); }
  static T store(Type x) { return static_cast<T>(x); }
};
template <>
struct Accumulate<Bf16> {
  using Type = float;
  static float load(Bf16 x) { return widen(x); }
  static Bf16 store(float x) { return {narrow_bf16(x)}; }
};
template <>
struct Accumulate<F16> {
  using Type = float;
  static float load(F16 x) { return widen(x); }
  static F16 store(float x) { return {narrow_f16(x)}; }
};
template <>
struct Accumulate<Bool> {
  using Type = uint8_t;
  static uint8_t load(Bool x) { return x.value != 0 ? 1 : 0; }
  static Bool store(uint8_t x) { return {static_cast<uint8_t>(x != 0 ? 1 : 0)}; }
};

template <class T>
struct Sum {
  using A = typename Accumulate<T>::Type;
  static A apply(A a, A b) {
    if constexpr (std::is_same_v<T, Bool>) {
      return static_cast<A>(a | b);
    } else {
      return static_cast<A>(a + b);
    }
  }
};
template <class T>
struct Max {
  using A = typename Accumulate<T>::Type;
  static A apply(A a, A b) {
    if constexpr (std::is_floating_point_v<A>) {
      return a > b || a != a ? a : b;
    } else if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(a) > static_cast<T>(b) ? a : b;
    } else {
      return a > b ? a : b;
    }
  }
};

// Elements reduced at a time: the accumulators and one piece of a source stay in the first-level
// cache.
constexpr size_t kBlock = 1024;

template <class T, template <class> class Op>
void reduce_blocks(std::span<const void* const> sources, void* out, size_t count, double divisor) {
  using Way = Accumulate<T>;
  using A = typename Way::Type;
  alignas(64) A sum[kBlock];
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t n = std::min(kBlock, count - begin);
    const T* first = static_cast<const T*>(sources[0]) + begin;
    for (size_t i = 0; i < n; ++i) sum[i] = Way::load(first[i]);
    for (size_t r = 1; r < sources.size(); ++r) {
      const T* source = static_cast<const T*>(sources[r]) + begin;
      for (size_t i = 0; i < n; ++i) sum[i] = Op<T>::apply(sum[i], Way::load(source[i]));
    }
    if constexpr (std::is_floating_point_v<A>) {
      if (divisor != 1.0) {
        for (size_t i = 0; i < n; ++i) sum[i] = sum[i] / static_cast<A>(divisor);
      }
    }
    T* to = static_cast<T*>(out) + begin;
    for (size_t i = 0; i < n; ++i) to[i] = Way::store(sum[i]);
  }
}

// Calls visit(T{}) with the type that holds an element.
template <class Visit>
void with_type(capstan_dtype d, Visit&& visit) {
  if (sdk::same_dtype(d, sdk::kF32)) return visit(float{});
  if (sdk::same_dtype(d, sdk::kF64)) return visit(double{});
  if (sdk::same_dtype(d, sdk::kBF16)) return visit(Bf16{});
  if (sdk::same_dtype(d, sdk::kF16)) return visit(F16{});
  if (sdk::same_dtype(d, sdk::kBool)) return visit(Bool{});
  const bool is_signed = d.code == CAPSTAN_DTYPE_INT;
  if (d.bits == 8) return is_signed ? visit(int8_t{}) : visit(uint8_t{});
  if (d.bits == 16) return is_signed ? visit(int16_t{}) : visit(uint16_t{});
  if (d.bits == 32) return is_signed ? visit(int32_t{}) : visit(uint32_t{});
  return is_signed ? visit(int64_t{}) : visit(uint64_t{});
}

constexpr capstan_dtype kDtypes[] = {
    sdk::kF32,
    sdk::kF64,
    sdk::kBF16,
    sdk::kF16,
    {CAPSTAN_DTYPE_INT, 8, 1},
    {CAPSTAN_DTYPE_INT, 16, 1},
    {CAPSTAN_DTYPE_INT, 32, 1},
    {CAPSTAN_DTYPE_INT, 64, 1},
    {CAPSTAN_DTYPE_UINT, 8, 1},
    {CAPSTAN_DTYPE_UINT, 16, 1},
    {CAPSTAN_DTYPE_UINT, 32, 1},
    {CAPSTAN_DTYPE_UINT, 64, 1},
    sdk::kBool,
};

}  // namespace

std::span<const capstan_dtype> dtypes() { return kDtypes; }

size_t element_bytes(capstan_dtype dtype) {
  const bool known = std::any_of(std::begin(kDtypes), std::end(kDtypes),
                                 [&](capstan_dtype d) { return sdk::same_dtype(d, dtype); });
  return known ? dtype.bits / 8u : 0;
}

bool can_reduce(capstan_dtype dtype, int32_t reduce) {
  if (reduce == CAPSTAN_COMM_SUM || reduce == CAPSTAN_COMM_MAX) return element_bytes(dtype) != 0;
  return reduce == CAPSTAN_COMM_AVERAGE &&
         (dtype.code == CAPSTAN_DTYPE_FLOAT || dtype.code == CAPSTAN_DTYPE_BFLOAT);
}

void reduce_in_order(capstan_dtype dtype, int32_t reduce, std::span<const void* const> sources,
                     void* out, size_t count) {
  const double divisor = reduce == CAPSTAN_COMM_AVERAGE ? static_cast<double>(sources.size()) : 1.0;
  with_type(dtype, [&]<class T>(T) {
    if (reduce == CAPSTAN_COMM_MAX) {
      reduce_blocks<T, Max>(sources, out, count, 1.0);
    } else {
      reduce_blocks<T, Sum>(sources, out, count, divisor);
    }
  });
}

void divide(capstan_dtype dtype, void* data, size_t count, double divisor) {
  const void* source = data;
  with_type(dtype, [&]<class T>(T) {
    reduce_blocks<T, Sum>(std::span(&source, 1), data, count, divisor);
  });
}

}  // namespace capstan::comm
