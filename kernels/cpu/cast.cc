#include "kernels/cpu/cast.h"

#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/cast.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd_math-inl.h"

// The conversions of mixed precision (float32 to and from the 16-bit floats) are vectorised; the
// rest, which no step spends time in, run element by element.
HWY_BEFORE_NAMESPACE();
namespace capstan::cpu {
namespace HWY_NAMESPACE {

using U16 = hn::Rebind<std::uint16_t, F32>;

void Bf16FromF32(std::int64_t n, const float* x, std::uint16_t* y) {
  const F32 d;
  const U32 du;
  const U16 d16;
  for_each_vector(d, n, [&](std::int64_t i, auto access) HWY_ATTR {
    const VF v = access.load(d, x + i);
    const auto bits = hn::BitCast(du, v);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
    const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fff))));
    // Rounding could carry a NaN to infinity: keep its upper bits and make it quiet.
    const auto quiet = hn::Or(hn::ShiftRight<16>(bits), hn::Set(du, 0x40));
    const auto nan = hn::RebindMask(du, hn::IsNaN(v));
    const auto result = hn::BitCast(I32(), hn::IfThenElse(nan, quiet, rounded));
    access.store(hn::DemoteTo(d16, result), d16, y + i);
  });
}

void F32FromBf16(std::int64_t n, const std::uint16_t* x, float* y) {
  const F32 d;
  const U32 du;
  const U16 d16;
  for_each_vector(d, n, [&](std::int64_t i, auto access) HWY_ATTR {
    const auto wide = hn::ShiftLeft<16>(hn::PromoteTo(du, access.load(d16, x + i)));
    prefetch_store(y + i);
    access.store(hn::BitCast(d, wide), d, y + i);
  });
}

#if HWY_TARGET == HWY_SCALAR

// Highway's own scalar conversion truncates.
void F16FromF32(std::int64_t n, const float* x, std::uint16_t* y) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = convert<F16>(x[i]).bits;
}

void F32FromF16(std::int64_t n, const std::uint16_t* x, float* y) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = convert<float>(F16{x[i]});
}

#else

void F16FromF32(std::int64_t n, const float* x, std::uint16_t* y) {
  const F32 d;
  const U16 d16;
  const hn::Rebind<hwy::float16_t, F32> half;
  for_each_vector(d, n, [&](std::int64_t i, auto access) HWY_ATTR {
    const auto v = hn::DemoteTo(half, access.load(d, x + i));
    access.store(hn::BitCast(d16, v), d16, y + i);
  });
}

void F32FromF16(std::int64_t n, const std::uint16_t* x, float* y) {
  const F32 d;
  const U16 d16;
  const hn::Rebind<hwy::float16_t, F32> half;
  for_each_vector(d, n, [&](std::int64_t i, auto access) HWY_ATTR {
    access.store(hn::PromoteTo(d, hn::BitCast(half, access.load(d16, x + i))), d, y + i);
  });
}

#endif  // HWY_TARGET == HWY_SCALAR

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace capstan::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace capstan::cpu {

HWY_EXPORT(Bf16FromF32);
HWY_EXPORT(F32FromBf16);
HWY_EXPORT(F16FromF32);
HWY_EXPORT(F32FromF16);

namespace {

// Calls visit with a null pointer of the type's storage.
template <class Visit>
void with_type(ScalarType type, Visit&& visit) {
  switch (type) {
    case ScalarType::kF32:
      return visit(static_cast<const float*>(nullptr));
    case ScalarType::kF64:
      return visit(static_cast<const double*>(nullptr));
    case ScalarType::kBf16:
      return visit(static_cast<const Bf16*>(nullptr));
    case ScalarType::kF16:
      return visit(static_cast<const F16*>(nullptr));
    case ScalarType::kI32:
      return visit(static_cast<const std::int32_t*>(nullptr));
    case ScalarType::kI64:
      return visit(static_cast<const std::int64_t*>(nullptr));
    case ScalarType::kU8:
      return visit(static_cast<const std::uint8_t*>(nullptr));
    case ScalarType::kBool:
      return visit(static_cast<const Bool*>(nullptr));
  }
}

template <class From, class To>
void cast_range(std::int64_t n, const From* src, To* dst) {
  if constexpr (std::is_same_v<From, To> && !std::is_same_v<To, Bool>) {
    std::memcpy(dst, src, static_cast<std::size_t>(n) * sizeof(To));
  } else if constexpr (std::is_same_v<From, float> && std::is_same_v<To, Bf16>) {
    HWY_DYNAMIC_DISPATCH(Bf16FromF32)(n, src, &dst->bits);
  } else if constexpr (std::is_same_v<From, Bf16> && std::is_same_v<To, float>) {
    HWY_DYNAMIC_DISPATCH(F32FromBf16)(n, &src->bits, dst);
  } else if constexpr (std::is_same_v<From, float> && std::is_same_v<To, F16>) {
    HWY_DYNAMIC_DISPATCH(F16FromF32)(n, src, &dst->bits);
  } else if constexpr (std::is_same_v<From, F16> && std::is_same_v<To, float>) {
    HWY_DYNAMIC_DISPATCH(F32FromF16)(n, &src->bits, dst);
  } else {
    for (std::int64_t i = 0; i < n; ++i) dst[i] = convert<To>(src[i]);
  }
}

}  // namespace

void cast(ScalarType from, ScalarType to, std::int64_t n, const void* src, void* dst) {
  with_type(from, [&](auto* from_tag) {
    with_type(to, [&](auto* to_tag) {
      using From = std::remove_cvref_t<decltype(*from_tag)>;
      using To = std::remove_cvref_t<decltype(*to_tag)>;
      const std::int64_t bytes = n * static_cast<std::int64_t>(sizeof(From) + sizeof(To));
      parallel_ranges(n, 64, bytes, [&](std::int64_t begin, std::int64_t end, int) {
        cast_range(end - begin, static_cast<const From*>(src) + begin,
                   static_cast<To*>(dst) + begin);
      });
    });
  });
}

}  // namespace capstan::cpu
#endif  // HWY_ONCE
