#include "kernels/cpu/random_fill.h"

#include <algorithm>
#include <numbers>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/random_fill.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/philox-inl.h"
#include "kernels/cpu/simd_math-inl.h"

#ifndef CAPSTAN_KERNELS_CPU_RANDOM_FILL_ARGS_
#define CAPSTAN_KERNELS_CPU_RANDOM_FILL_ARGS_
namespace capstan::cpu {
struct RandomFillArgs {
  PhiloxKey key;
  bool normal;
  float offset;  // low, or mean
  float scale;   // high - low, or standard deviation
};
}  // namespace capstan::cpu
#endif  // CAPSTAN_KERNELS_CPU_RANDOM_FILL_ARGS_

HWY_BEFORE_NAMESPACE();
namespace capstan::cpu {
namespace HWY_NAMESPACE {

// Initial weights should not depend on which SIMD target a rank happens to run, so this file uses
// no fused multiply-add (it is compiled with -ffp-contract=off): products and sums round alike
// everywhere.
HWY_INLINE VF add_product(VF a, VF b, VF c) { return hn::Add(hn::Mul(a, b), c); }

HWY_INLINE VF plain_horner(VF, float c0) { return constant(c0); }
template <class... Rest>
HWY_INLINE VF plain_horner(VF x, float c0, Rest... rest) {
  return add_product(plain_horner(x, rest...), x, constant(c0));
}

// Words to uniforms: (w >> 8) * 2^-24, in [0, 1).
HWY_INLINE VF to_uniform(hn::Vec<U32> words) {
  const VI bits = hn::BitCast(I32(), hn::ShiftRight<8>(words));
  return hn::Mul(hn::ConvertTo(F32(), bits), constant(0x1p-24f));
}

// sqrt(-2 log u) for u in [2^-24, 1].
HWY_INLINE VF radius(VF u) {
  const F32 d;
  const I32 di;
  const VI bits = hn::BitCast(di, u);
  const VI exponent = hn::ShiftRight<23>(hn::Sub(bits, hn::Set(di, 0x3f3504f3)));
  const VF m = hn::BitCast(d, hn::Sub(bits, hn::ShiftLeft<23>(exponent)));
  const VF f = hn::Sub(m, constant(1.0f));
  const VF p = plain_horner(f, 3.3333312603e-01f, -2.5000009604e-01f, 2.0002118732e-01f,
                            -1.6667995667e-01f, 1.4219550908e-01f, -1.2405591417e-01f,
                            1.1888174598e-01f, -1.1675641304e-01f, 6.7466013285e-02f);
  const VF f2 = hn::Mul(f, f);
  VF log = hn::Sub(hn::Mul(hn::Mul(f2, f), p), hn::Mul(f2, constant(0.5f)));
  log = add_product(hn::ConvertTo(d, exponent), constant(0.693147181f), hn::Add(log, f));
  return hn::Sqrt(hn::Max(hn::Zero(d), hn::Mul(log, constant(-2.0f))));
}

// cos and sin of 2 pi u for u in [0, 1): the quadrant splits off exactly.
HWY_INLINE SinCosVF turn(VF u) {
  const I32 di;
  const VF quarters = hn::Mul(u, constant(4.0f));
  const VF q = hn::Round(quarters);
  const VF r = hn::Mul(hn::Sub(quarters, q), constant(std::numbers::pi_v<float> / 2));
  const VF z = hn::Mul(r, r);
  const VF s = add_product(
      hn::Mul(r, z), plain_horner(z, -1.6666654908e-01f, 8.3321758370e-03f, -1.9516976469e-04f), r);
  const VF c = add_product(
      hn::Mul(z, z), plain_horner(z, 4.1666646807e-02f, -1.3887364467e-03f, 2.4438089109e-05f),
      hn::Sub(constant(1.0f), hn::Mul(z, constant(0.5f))));
  return to_quadrant(s, c, hn::ConvertTo(di, q));
}

// Standard normals of `count` word pairs (radius, angle), a multiple of the lanes: the pair becomes
// (r cos, r sin).
HWY_INLINE void normals(const std::uint32_t* words, std::int64_t pairs, VF scale, VF offset,
                        float* values) {
  const F32 d;
  const U32 du;
  for (std::int64_t i = 0; i < pairs; i += static_cast<std::int64_t>(hn::Lanes(d))) {
    hn::Vec<U32> radius_words, angle_words;
    hn::LoadInterleaved2(du, words + 2 * i, radius_words, angle_words);
    const VF u = hn::Add(to_uniform(radius_words), constant(0x1p-24f));  // (0, 1]
    const VF r = hn::Mul(radius(u), scale);
    const SinCosVF t = turn(to_uniform(angle_words));
    hn::StoreInterleaved2(add_product(r, t.cos, offset), add_product(r, t.sin, offset), d,
                          values + 2 * i);
  }
}

HWY_INLINE void uniforms(const std::uint32_t* words, std::int64_t count, VF scale, VF offset,
                         float* values) {
  const F32 d;
  const U32 du;
  for (std::int64_t i = 0; i < count; i += static_cast<std::int64_t>(hn::Lanes(d))) {
    hn::Store(add_product(to_uniform(hn::Load(du, words + i)), scale, offset), d, values + i);
  }
}

// out[0..count) = elements [first, first + count) of the global order.
void RandomRun(const RandomFillArgs& a, std::uint64_t first, std::int64_t count, float* out) {
  constexpr std::int64_t kMaxWords = 16 * HWY_MAX_BYTES / 8;
  HWY_ALIGN std::uint32_t words[kMaxWords];
  HWY_ALIGN float values[kMaxWords];
  const std::int64_t step = 4 * philox_step_counters();
  const VF scale = constant(a.scale), offset = constant(a.offset);
  std::uint64_t counter = first / 4;
  std::int64_t skip = static_cast<std::int64_t>(first % 4);
  for (std::int64_t done = 0; done < count;) {
    philox_step(counter, 0, a.key, words);
    if (a.normal) {
      normals(words, step / 2, scale, offset, values);
    } else {
      uniforms(words, step, scale, offset, values);
    }
    const std::int64_t n = std::min(step - skip, count - done);
    std::copy(values + skip, values + skip + n, out + done);
    counter += static_cast<std::uint64_t>(step / 4);
    done += n;
    skip = 0;
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace capstan::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace capstan::cpu {

HWY_EXPORT(RandomRun);

namespace {

// Merges trailing dims that the slice covers whole, so that runs are as long as they can be.
RandomFillParams merged(RandomFillParams p) {
  while (p.rank > 1 && p.start[p.rank - 1] == 0 &&
         p.shape[p.rank - 1] == p.global_shape[p.rank - 1]) {
    const std::int64_t inner = p.shape[p.rank - 1];
    --p.rank;
    p.start[p.rank - 1] *= inner;
    p.shape[p.rank - 1] *= inner;
    p.global_shape[p.rank - 1] *= inner;
  }
  if (p.rank == 0) {
    p.rank = 1;
    p.shape[0] = p.global_shape[0] = 1;
    p.start[0] = 0;
  }
  return p;
}

// Global index of the first element of row `row` of the slice (rows: all dims but the last).
std::uint64_t row_start(const RandomFillParams& p, std::int64_t row) {
  std::uint64_t index = 0;
  std::uint64_t pitch = static_cast<std::uint64_t>(p.global_shape[p.rank - 1]);
  for (int dim = p.rank - 2; dim >= 0; --dim) {
    index += static_cast<std::uint64_t>(p.start[dim] + row % p.shape[dim]) * pitch;
    pitch *= static_cast<std::uint64_t>(p.global_shape[dim]);
    row /= p.shape[dim];
  }
  return index + static_cast<std::uint64_t>(p.start[p.rank - 1]);
}

void fill(const RandomFillParams& params, const RandomFillArgs& args, float* out) {
  const RandomFillParams p = merged(params);
  const std::int64_t inner = p.shape[p.rank - 1];
  std::int64_t total = 1;
  for (int dim = 0; dim < p.rank; ++dim) total *= p.shape[dim];
  parallel_ranges(total, 16, total * 16, [&](std::int64_t begin, std::int64_t end, int) {
    const auto run = HWY_DYNAMIC_DISPATCH(RandomRun);
    while (begin < end) {
      const std::int64_t row = begin / inner;
      const std::int64_t column = begin - row * inner;
      const std::int64_t count = std::min(end - begin, inner - column);
      run(args, row_start(p, row) + static_cast<std::uint64_t>(column), count, out + begin);
      begin += count;
    }
  });
}

}  // namespace

void random_uniform(const RandomFillParams& p, float low, float high, float* out) {
  fill(p, RandomFillArgs{p.key, false, low, high - low}, out);
}

void random_normal(const RandomFillParams& p, float mean, float stddev, float* out) {
  fill(p, RandomFillArgs{p.key, true, mean, stddev}, out);
}

}  // namespace capstan::cpu
#endif  // HWY_ONCE
