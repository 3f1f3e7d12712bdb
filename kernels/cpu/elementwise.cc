#include "kernels/cpu/elementwise.h"

#include <algorithm>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/elementwise.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace capstan::cpu {
namespace HWY_NAMESPACE {

template <Binary kOp>
HWY_INLINE VF apply(VF a, VF b) {
  if constexpr (kOp == Binary::kAdd) return hn::Add(a, b);
  if constexpr (kOp == Binary::kSub) return hn::Sub(a, b);
  if constexpr (kOp == Binary::kMul) return hn::Mul(a, b);
  if constexpr (kOp == Binary::kDiv) return hn::Div(a, b);
}

template <Binary kOp>
HWY_INLINE void binary_run(bool scalar, std::int64_t n, const float* a, const float* b, float* y) {
  const F32 d;
  if (scalar) {
    const VF value = hn::Set(d, *b);
    for_each_vector(d, n, [&](std::int64_t i, auto access) HWY_ATTR {
      prefetch_store(y + i);
      access.store(apply<kOp>(access.load(d, a + i), value), d, y + i);
    });
    return;
  }
  for_each_vector(d, n, [&](std::int64_t i, auto access) HWY_ATTR {
    prefetch_store(y + i);
    access.store(apply<kOp>(access.load(d, a + i), access.load(d, b + i)), d, y + i);
  });
}

void BinaryRun(Binary op, bool scalar, std::int64_t n, const float* a, const float* b, float* y) {
  switch (op) {
    case Binary::kAdd:
      return binary_run<Binary::kAdd>(scalar, n, a, b, y);
    case Binary::kSub:
      return binary_run<Binary::kSub>(scalar, n, a, b, y);
    case Binary::kMul:
      return binary_run<Binary::kMul>(scalar, n, a, b, y);
    case Binary::kDiv:
      return binary_run<Binary::kDiv>(scalar, n, a, b, y);
  }
}

void ScaleRun(std::int64_t n, float factor, const float* x, float* y, bool accumulate) {
  const F32 d;
  const VF f = hn::Set(d, factor);
  if (accumulate) {
    for_each_vector(d, n, [&](std::int64_t i, auto access) HWY_ATTR {
      access.store(hn::MulAdd(access.load(d, x + i), f, access.load(d, y + i)), d, y + i);
    });
    return;
  }
  for_each_vector(d, n, [&](std::int64_t i, auto access) HWY_ATTR {
    prefetch_store(y + i);
    access.store(hn::Mul(access.load(d, x + i), f), d, y + i);
  });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace capstan::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace capstan::cpu {

HWY_EXPORT(BinaryRun);
HWY_EXPORT(ScaleRun);

namespace {

constexpr std::int64_t kAlign = 16;

template <class T>
void fill_typed(std::int64_t n, const void* value, void* out) {
  T v;
  std::memcpy(&v, value, sizeof(T));
  T* to = static_cast<T*>(out);
  parallel_ranges(
      n, 64, n * static_cast<std::int64_t>(sizeof(T)),
      [&](std::int64_t begin, std::int64_t end, int) { std::fill(to + begin, to + end, v); });
}

}  // namespace

void binary(const BinaryParams& p, const float* a, const float* b, float* y) {
  const bool scalar = p.broadcast == BroadcastB::kScalar;
  const bool rows = p.broadcast == BroadcastB::kLeading;
  const std::int64_t n = p.outer * p.inner;
  const std::int64_t bytes = n * (p.broadcast == BroadcastB::kNone ? 12 : 8);
  parallel_ranges(n, kAlign, bytes, [&](std::int64_t begin, std::int64_t end, int) {
    const auto run = HWY_DYNAMIC_DISPATCH(BinaryRun);
    if (!rows) {
      run(p.op, scalar, end - begin, a + begin, scalar ? b : b + begin, y + begin);
      return;
    }
    while (begin < end) {  // one row, or its part, at a time
      const std::int64_t column = begin % p.inner;
      const std::int64_t count = std::min(end - begin, p.inner - column);
      run(p.op, false, count, a + begin, b + column, y + begin);
      begin += count;
    }
  });
}

void scale(std::int64_t n, float factor, const float* x, float* y) {
  accumulate(n, factor, x, y, false);
}

void accumulate(std::int64_t n, float factor, const float* x, float* y, bool accumulate) {
  parallel_ranges(n, kAlign, n * 12, [&](std::int64_t begin, std::int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(ScaleRun)(end - begin, factor, x + begin, y + begin, accumulate);
  });
}

void fill(std::int64_t n, std::size_t element_size, const void* value, void* out) {
  switch (element_size) {
    case 1:
      return fill_typed<std::uint8_t>(n, value, out);
    case 2:
      return fill_typed<std::uint16_t>(n, value, out);
    case 4:
      return fill_typed<std::uint32_t>(n, value, out);
    default:
      return fill_typed<std::uint64_t>(n, value, out);
  }
}

void copy(std::int64_t bytes, const void* src, void* dst) {
  const char* from = static_cast<const char*>(src);
  char* to = static_cast<char*>(dst);
  parallel_ranges(bytes, 64, 2 * bytes, [&](std::int64_t begin, std::int64_t end, int) {
    std::memcpy(to + begin, from + begin, static_cast<std::size_t>(end - begin));
  });
}

}  // namespace capstan::cpu
#endif  // HWY_ONCE
