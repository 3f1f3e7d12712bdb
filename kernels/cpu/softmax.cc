#include "kernels/cpu/softmax.h"

#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/softmax.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace capstan::cpu {
namespace HWY_NAMESPACE {

HWY_INLINE float row_max(const float* x, std::int64_t n) {
  const F32 d;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  float result = -std::numeric_limits<float>::infinity();
  VF a = hn::Set(d, result), b = a;
  std::int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    a = hn::Max(a, hn::LoadU(d, x + i));
    b = hn::Max(b, hn::LoadU(d, x + i + lanes));
  }
  for (; i + lanes <= n; i += lanes) a = hn::Max(a, hn::LoadU(d, x + i));
  for (; i < n; ++i) result = x[i] > result ? x[i] : result;
  const float vector_max = hn::GetLane(hn::MaxOfLanes(d, hn::Max(a, b)));
  return vector_max > result ? vector_max : result;
}

void SoftmaxForwardRows(std::int64_t rows, std::int64_t n, const float* x, float* y) {
  const F32 d;
  for (std::int64_t r = 0; r < rows; ++r, x += n, y += n) {
    const VF max = hn::Set(d, row_max(x, n));
    VF sum = hn::Zero(d);
    float tail_sum = 0.0f;
    for_each_vector(d, n, [&](std::int64_t i, auto access) HWY_ATTR {
      const VF e = vexp_nonpositive(hn::Sub(access.load(d, x + i), max));
      prefetch_store(y + i);
      access.store(e, d, y + i);
      if constexpr (std::is_same_v<decltype(access), FullAccess>) {
        sum = hn::Add(sum, e);
      } else {  // a tail's spare lanes hold exp(-max)
        tail_sum = sum_lanes(hn::IfThenElseZero(hn::FirstN(d, access.count), e));
      }
    });
    const VF inverse = hn::Set(d, 1.0f / (sum_lanes(sum) + tail_sum));
    for_each_vector(d, n, [&](std::int64_t i, auto access) HWY_ATTR {
      access.store(hn::Mul(access.load(d, y + i), inverse), d, y + i);
    });
  }
}

void SoftmaxBackwardRows(std::int64_t rows, std::int64_t n, const float* dy, const float* y,
                         float* dx) {
  const F32 d;
  for (std::int64_t r = 0; r < rows; ++r, dy += n, y += n, dx += n) {
    VF dot = hn::Zero(d);
    for_each_vector(d, n, [&](std::int64_t i, auto access) HWY_ATTR {
      dot = hn::MulAdd(access.load(d, dy + i), access.load(d, y + i), dot);
    });
    const VF mean = hn::Set(d, sum_lanes(dot));
    for_each_vector(d, n, [&](std::int64_t i, auto access) HWY_ATTR {
      prefetch_store(dx + i);
      const VF v = hn::Sub(access.load(d, dy + i), mean);
      access.store(hn::Mul(v, access.load(d, y + i)), d, dx + i);
    });
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace capstan::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace capstan::cpu {

HWY_EXPORT(SoftmaxForwardRows);
HWY_EXPORT(SoftmaxBackwardRows);

void softmax_forward(std::int64_t rows, std::int64_t columns, const float* x, float* y) {
  parallel_ranges(rows, 1, rows * columns * 8, [&](std::int64_t begin, std::int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(SoftmaxForwardRows)
    (end - begin, columns, x + begin * columns, y + begin * columns);
  });
}

void softmax_backward(std::int64_t rows, std::int64_t columns, const float* dy, const float* y,
                      float* dx) {
  parallel_ranges(rows, 1, rows * columns * 12, [&](std::int64_t begin, std::int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(SoftmaxBackwardRows)
    (end - begin, columns, dy + begin * columns, y + begin * columns, dx + begin * columns);
  });
}

}  // namespace capstan::cpu
#endif  // HWY_ONCE
