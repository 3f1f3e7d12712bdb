#include "plugins/comm/shm/combine.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "plugins/comm/common/reduce.h"
#include "sdk/program.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "plugins/comm/shm/combine.cc"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace capstan::shm {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// How elements come into a vector of the type they are added in, and leave it.
template <class T>
struct Plain {
  using D = hn::ScalableTag<T>;
  using V = hn::Vec<D>;
  static constexpr size_t kBytes = sizeof(T);
  static HWY_INLINE V load(const char* p) { return hn::LoadU(D(), reinterpret_cast<const T*>(p)); }
  static HWY_INLINE void store(V v, char* p) { hn::StoreU(v, D(), reinterpret_cast<T*>(p)); }
  static HWY_INLINE void stream(V v, char* p) { hn::Stream(v, D(), reinterpret_cast<T*>(p)); }
};

struct Bf16 {
  using D = hn::ScalableTag<float>;
  using V = hn::Vec<D>;
  static constexpr size_t kBytes = 2;
  static HWY_INLINE V load(const char* p) {
    const hn::Rebind<uint16_t, D> half;
    const hn::RebindToUnsigned<D> wide;
    const auto bits = hn::LoadU(half, reinterpret_cast<const uint16_t*>(p));
    return hn::BitCast(D(), hn::ShiftLeft<16>(hn::PromoteTo(wide, bits)));
  }
  // To nearest, ties to even.
  static HWY_INLINE void store(V v, char* p) {
    const hn::Rebind<uint16_t, D> half;
    const hn::RebindToUnsigned<D> wide;
    const hn::RebindToSigned<D> narrowing;
    const auto bits = hn::BitCast(wide, v);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(wide, 1));
    const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(wide, 0x7fff))));
    const auto quiet = hn::Or(hn::ShiftRight<16>(bits), hn::Set(wide, 0x40));
    const auto out = hn::IfThenElse(hn::RebindMask(wide, hn::IsNaN(v)), quiet, rounded);
    hn::StoreU(hn::DemoteTo(half, hn::BitCast(narrowing, out)), half,
               reinterpret_cast<uint16_t*>(p));
  }
  static HWY_INLINE void stream(V v, char* p) { store(v, p); }
};

#if HWY_TARGET != HWY_SCALAR
struct F16 {
  using D = hn::ScalableTag<float>;
  using V = hn::Vec<D>;
  using Half = hn::Rebind<hwy::float16_t, D>;
  using Bits = hn::Rebind<uint16_t, D>;
  static constexpr size_t kBytes = 2;
  static HWY_INLINE V load(const char* p) {
    const auto bits = hn::LoadU(Bits(), reinterpret_cast<const uint16_t*>(p));
    return hn::PromoteTo(D(), hn::BitCast(Half(), bits));
  }
  static HWY_INLINE void store(V v, char* p) {
    hn::StoreU(hn::BitCast(Bits(), hn::DemoteTo(Half(), v)), Bits(),
               reinterpret_cast<uint16_t*>(p));
  }
  static HWY_INLINE void stream(V v, char* p) { store(v, p); }
};
#endif

struct Sum {
  template <class V>
  static HWY_INLINE V apply(V a, V b) {
    return hn::Add(a, b);
  }
};

// A NaN on either side stays.
struct FloatMax {
  template <class V>
  static HWY_INLINE V apply(V a, V b) {
    return hn::IfThenElse(hn::Or(hn::Gt(a, b), hn::IsNaN(a)), a, b);
  }
};
struct IntMax {
  template <class V>
  static HWY_INLINE V apply(V a, V b) {
    return hn::Max(a, b);
  }
};

// Elements reduced per turn of the loop: four vectors, so that their additions overlap.
constexpr size_t kUnroll = 4;

template <class Way, class Op, bool kDivide, bool kStream>
HWY_INLINE void Turn(const char* const* sources, size_t n, char* const* targets, size_t m,
                     size_t at, typename Way::V divisor) {
  using V = typename Way::V;
  const size_t step = hn::Lanes(typename Way::D()) * Way::kBytes;
  V a = Way::load(sources[0] + at), b = Way::load(sources[0] + at + step),
    c = Way::load(sources[0] + at + 2 * step), d = Way::load(sources[0] + at + 3 * step);
  for (size_t r = 1; r < n; ++r) {
    const char* p = sources[r] + at;
    a = Op::apply(a, Way::load(p));
    b = Op::apply(b, Way::load(p + step));
    c = Op::apply(c, Way::load(p + 2 * step));
    d = Op::apply(d, Way::load(p + 3 * step));
  }
  if constexpr (kDivide) {
    a = hn::Div(a, divisor);
    b = hn::Div(b, divisor);
    c = hn::Div(c, divisor);
    d = hn::Div(d, divisor);
  }
  for (size_t j = 0; j < m; ++j) {
    char* p = targets[j] + at;
    if constexpr (kStream) {
      Way::stream(a, p);
      Way::stream(b, p + step);
      Way::stream(c, p + 2 * step);
      Way::stream(d, p + 3 * step);
    } else {
      Way::store(a, p);
      Way::store(b, p + step);
      Way::store(c, p + 2 * step);
      Way::store(d, p + 3 * step);
    }
  }
}

// The elements that fill no turn, through small arrays.
template <class Way, class Op, bool kDivide>
void Rest(const char* const* sources, size_t n, char* const* targets, size_t m, size_t at,
          size_t bytes, typename Way::V divisor) {
  using V = typename Way::V;
  const size_t step = hn::Lanes(typename Way::D()) * Way::kBytes;
  alignas(64) char piece[HWY_MAX_BYTES];
  while (bytes > 0) {
    const size_t now = bytes < step ? bytes : step;
    std::memset(piece, 0, step);
    std::memcpy(piece, sources[0] + at, now);
    V v = Way::load(piece);
    for (size_t r = 1; r < n; ++r) {
      std::memcpy(piece, sources[r] + at, now);
      v = Op::apply(v, Way::load(piece));
    }
    if constexpr (kDivide) v = hn::Div(v, divisor);
    Way::store(v, piece);
    for (size_t j = 0; j < m; ++j) std::memcpy(targets[j] + at, piece, now);
    at += now;
    bytes -= now;
  }
}

template <class Way, class Op, bool kDivide>
void Loop(const char* const* sources, size_t n, char* const* targets, size_t m, size_t count,
          bool stream) {
  using D = typename Way::D;
  const auto divisor = hn::Set(D(), static_cast<hn::TFromD<D>>(n));
  const size_t turn = kUnroll * hn::Lanes(D()) * Way::kBytes;
  const size_t bytes = count * Way::kBytes;
  size_t at = 0;
  if (stream) {
    for (; at + turn <= bytes; at += turn) {
      Turn<Way, Op, kDivide, true>(sources, n, targets, m, at, divisor);
    }
    hwy::FlushStream();
  } else {
    for (; at + turn <= bytes; at += turn) {
      Turn<Way, Op, kDivide, false>(sources, n, targets, m, at, divisor);
    }
  }
  Rest<Way, Op, kDivide>(sources, n, targets, m, at, bytes - at, divisor);
}

template <class Way, class Max>
void Reduce(int32_t reduce, const char* const* sources, size_t n, char* const* targets, size_t m,
            size_t count, bool stream) {
  if (reduce == CAPSTAN_COMM_MAX)
    return Loop<Way, Max, false>(sources, n, targets, m, count, stream);
  if constexpr (std::is_same_v<Max, FloatMax>) {
    if (reduce == CAPSTAN_COMM_AVERAGE) {
      return Loop<Way, Sum, true>(sources, n, targets, m, count, stream);
    }
  }
  Loop<Way, Sum, false>(sources, n, targets, m, count, stream);
}

// False: not a dtype that has vectors here.
bool Combine(capstan_dtype dtype, int32_t reduce, const char* const* sources, size_t n,
             char* const* targets, size_t m, size_t count, bool stream) {
  const auto same = [&](capstan_dtype d) { return sdk::same_dtype(dtype, d); };
  if (same(sdk::kF32)) {
    Reduce<Plain<float>, FloatMax>(reduce, sources, n, targets, m, count, stream);
#if HWY_HAVE_FLOAT64
  } else if (same(sdk::kF64)) {
    Reduce<Plain<double>, FloatMax>(reduce, sources, n, targets, m, count, stream);
#endif
  } else if (same(sdk::kBF16)) {
    Reduce<Bf16, FloatMax>(reduce, sources, n, targets, m, count, stream);
#if HWY_TARGET != HWY_SCALAR
  } else if (same(sdk::kF16)) {
    Reduce<F16, FloatMax>(reduce, sources, n, targets, m, count, stream);
#endif
  } else if (same(sdk::kI32)) {
    Reduce<Plain<int32_t>, IntMax>(reduce, sources, n, targets, m, count, stream);
  } else if (same(sdk::kI64)) {
    Reduce<Plain<int64_t>, IntMax>(reduce, sources, n, targets, m, count, stream);
  } else {
    return false;
  }
  return true;
}

void Copy(const char* source, char* const* targets, size_t m, size_t bytes) {
  Loop<Plain<uint8_t>, Sum, false>(&source, 1, targets, m, bytes, true);
}

}  // namespace HWY_NAMESPACE
}  // namespace capstan::shm
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace capstan::shm {
namespace {

HWY_EXPORT(Combine);
HWY_EXPORT(Copy);

constexpr uintptr_t kStreamAlignment = 64;

// Streaming needs alignment, and gains nothing where the target was just read: its line is in the
// cache already.
bool can_stream(std::span<const char* const> sources, std::span<char* const> targets) {
  return std::all_of(targets.begin(), targets.end(), [&](const char* target) {
    return reinterpret_cast<uintptr_t>(target) % kStreamAlignment == 0 &&
           std::find(sources.begin(), sources.end(), target) == sources.end();
  });
}

void copy(const char* source, std::span<char* const> targets, size_t bytes, bool stream) {
  if (stream) {
    HWY_DYNAMIC_DISPATCH(Copy)(source, targets.data(), targets.size(), bytes);
    return;
  }
  for (char* target : targets) {
    if (target != source) std::memcpy(target, source, bytes);
  }
}

}  // namespace

void combine(capstan_dtype dtype, int32_t reduce, std::span<const char* const> sources,
             std::span<char* const> targets, size_t count, bool stream) {
  if (count == 0 || targets.empty()) return;
  stream = stream && can_stream(sources, targets);
  if (sources.size() == 1) {
    copy(sources[0], targets, count * (dtype.bits / 8u), stream);
    return;
  }
  if (HWY_DYNAMIC_DISPATCH(Combine)(dtype, reduce, sources.data(), sources.size(), targets.data(),
                                    targets.size(), count, stream)) {
    return;
  }
  const std::span<const void* const> plain(reinterpret_cast<const void* const*>(sources.data()),
                                           sources.size());
  comm::reduce_in_order(dtype, reduce, plain, targets[0], count);
  for (char* target : targets.subspan(1)) {
    std::memcpy(target, targets[0], count * (dtype.bits / 8u));
  }
}

}  // namespace capstan::shm
#endif  // HWY_ONCE
