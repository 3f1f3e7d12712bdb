#include "kernels/cpu/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/quantize.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace capstan::cpu {
namespace HWY_NAMESPACE {

using I8 = hn::Rebind<std::int8_t, F32>;

void QuantizeBlock(std::int64_t n, const float* x, std::int8_t* codes, float* scale) {
  constexpr float kSmallest = 2e-36f;  // below it 127 / max overflows
  const F32 d;
  const I32 di;
  const I8 d8;
  // Of the magnitudes' bit patterns, which order as the magnitudes do, with NaN above all.
  VI top = hn::Zero(di);
  for_each_vector(d, n, [&](std::int64_t i, auto access) HWY_ATTR {
    top = hn::Max(top, hn::BitCast(di, hn::Abs(access.load(d, x + i))));
  });
  const std::int32_t bits = hn::GetLane(hn::MaxOfLanes(di, top));
  float max;
  std::memcpy(&max, &bits, sizeof(max));
  if (max < kSmallest || !std::isfinite(max)) {
    *scale = max < kSmallest ? 0.0f : max;
    std::memset(codes, 0, static_cast<std::size_t>(n));
    return;
  }
  *scale = max / 127.0f;
  const VF inverse = hn::Set(d, 127.0f / max);
  for_each_vector(d, n, [&](std::int64_t i, auto access) HWY_ATTR {
    const VI code = hn::NearestInt(hn::Mul(access.load(d, x + i), inverse));
    access.store(hn::DemoteTo(d8, code), d8, codes + i);
  });
}

void DequantizeBlock(std::int64_t n, const std::int8_t* codes, float scale, float* y) {
  const F32 d;
  const I32 di;
  const I8 d8;
  const VF s = hn::Set(d, scale);
  for_each_vector(d, n, [&](std::int64_t i, auto access) HWY_ATTR {
    prefetch_store(y + i);
    const VI code = hn::PromoteTo(di, access.load(d8, codes + i));
    access.store(hn::Mul(hn::ConvertTo(d, code), s), d, y + i);
  });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace capstan::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace capstan::cpu {

HWY_EXPORT(QuantizeBlock);
HWY_EXPORT(DequantizeBlock);

void quantize_int8(std::int64_t n, std::int64_t block, const float* x, std::int8_t* codes,
                   float* scales) {
  const std::int64_t blocks = (n + block - 1) / block;
  parallel_ranges(blocks, 1, n * 5, [&](std::int64_t begin, std::int64_t end, int) {
    const auto kernel = HWY_DYNAMIC_DISPATCH(QuantizeBlock);
    for (std::int64_t b = begin; b < end; ++b) {
      kernel(std::min(block, n - b * block), x + b * block, codes + b * block, scales + b);
    }
  });
}

void dequantize_int8(std::int64_t n, std::int64_t block, const std::int8_t* codes,
                     const float* scales, float* y) {
  const std::int64_t blocks = (n + block - 1) / block;
  parallel_ranges(blocks, 1, n * 5, [&](std::int64_t begin, std::int64_t end, int) {
    const auto kernel = HWY_DYNAMIC_DISPATCH(DequantizeBlock);
    for (std::int64_t b = begin; b < end; ++b) {
      kernel(std::min(block, n - b * block), codes + b * block, scales[b], y + b * block);
    }
  });
}

}  // namespace capstan::cpu
#endif  // HWY_ONCE
