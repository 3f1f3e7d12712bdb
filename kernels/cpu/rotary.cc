#include "kernels/cpu/rotary.h"

#include <cmath>
#include <cstring>
#include <numbers>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rotary.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace capstan::cpu {
namespace HWY_NAMESPACE {

using F64 = hn::ScalableTag<double>;

// Splits the angles position * frequency[i] into quadrants and remainders in [-pi/4, pi/4].
HWY_INLINE void reduce_angles(const double* frequency, std::int64_t padded, double position,
                              float* rest, float* quadrant) {
  const F64 d;
  const hn::Rebind<float, F64> df;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t i = 0; i < padded; i += lanes) {
    const auto angle = hn::Mul(hn::LoadU(d, frequency + i), hn::Set(d, position));
    const auto q = hn::Round(hn::Mul(angle, hn::Set(d, 2.0 / std::numbers::pi)));
    auto r = hn::NegMulAdd(q, hn::Set(d, 1.5707963267341256), angle);  // pi/2 in two parts
    r = hn::NegMulAdd(q, hn::Set(d, 6.077100506506192e-11), r);
    hn::StoreU(hn::DemoteTo(df, r), df, rest + i);
    // Only the quadrant mod 4 matters, and in that range the float is exact.
    const auto turns = hn::Mul(hn::Set(d, 4.0), hn::Floor(hn::Mul(q, hn::Set(d, 0.25))));
    hn::StoreU(hn::DemoteTo(df, hn::Sub(q, turns)), df, quadrant + i);
  }
}

// cos and sin of position * frequency[i], i in [0, padded), padded a multiple of 16.
HWY_INLINE void fill_table(const double* frequency, std::int64_t padded, double position,
                           bool inverse, float* cosine, float* sine) {
  const F32 d;
  const I32 di;
  reduce_angles(frequency, padded, position, cosine, sine);
  for (std::int64_t i = 0; i < padded; i += static_cast<std::int64_t>(hn::Lanes(d))) {
    const VI quadrant = hn::ConvertTo(di, hn::LoadU(d, sine + i));
    const SinCosVF sc = vsincos_reduced(hn::LoadU(d, cosine + i), quadrant);
    hn::StoreU(sc.cos, d, cosine + i);
    hn::StoreU(inverse ? hn::Neg(sc.sin) : sc.sin, d, sine + i);
  }
}

HWY_INLINE void rotate_halves(const float* x, float* y, std::int64_t half, const float* cosine,
                              const float* sine) {
  const F32 d;
  for_each_vector(d, half, [&](std::int64_t i, auto access) HWY_ATTR {
    const VF a = access.load(d, x + i);
    const VF b = access.load(d, x + half + i);
    const VF c = access.load(d, cosine + i);
    const VF s = access.load(d, sine + i);
    prefetch_store(y + i);
    prefetch_store(y + half + i);
    access.store(hn::NegMulAdd(b, s, hn::Mul(a, c)), d, y + i);
    access.store(hn::MulAdd(a, s, hn::Mul(b, c)), d, y + half + i);
  });
}

HWY_INLINE void rotate_pairs(const float* x, float* y, std::int64_t half, const float* cosine,
                             const float* sine) {
  const F32 d;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t i = 0;
  for (; i + lanes <= half; i += lanes) {
    VF a, b;
    prefetch_store(y + 2 * i);
    prefetch_store(y + 2 * i + lanes);
    hn::LoadInterleaved2(d, x + 2 * i, a, b);
    const VF c = hn::LoadU(d, cosine + i);
    const VF s = hn::LoadU(d, sine + i);
    hn::StoreInterleaved2(hn::NegMulAdd(b, s, hn::Mul(a, c)), hn::MulAdd(a, s, hn::Mul(b, c)), d,
                          y + 2 * i);
  }
  for (; i < half; ++i) {
    const float a = x[2 * i], b = x[2 * i + 1];
    y[2 * i] = a * cosine[i] - b * sine[i];
    y[2 * i + 1] = a * sine[i] + b * cosine[i];
  }
}

HWY_INLINE void rotate_token(const RotaryParams& p, const float* x, float* y, const float* cosine,
                             const float* sine) {
  for (std::int64_t h = 0; h < p.heads; ++h, x += p.head_dim, y += p.head_dim) {
    if (p.interleaved) {
      rotate_pairs(x, y, p.rotary_dim / 2, cosine, sine);
    } else {
      rotate_halves(x, y, p.rotary_dim / 2, cosine, sine);
    }
    if (p.rotary_dim < p.head_dim && x != y) {
      std::memcpy(y + p.rotary_dim, x + p.rotary_dim,
                  static_cast<std::size_t>(p.head_dim - p.rotary_dim) * sizeof(float));
    }
  }
}

// Tokens [begin, end): of the sequence, each for every batch row, where positions are shared; of
// the batch's B * T tokens where they are not. `p` has its defaults resolved.
void RotaryTokens(const RotaryParams& p, std::int64_t begin, std::int64_t end,
                  const double* frequency, std::int64_t padded, const float* x,
                  const std::int32_t* position, float* y, float* table) {
  float* cosine = table;
  float* sine = table + padded;
  const bool shared = p.position_stride == 0;
  for (std::int64_t token = begin; token < end; ++token) {
    const std::int64_t row = shared ? 0 : token / p.seq;
    const std::int64_t t = token - row * p.seq;
    const std::int32_t at = position[row * p.position_stride + t];
    fill_table(frequency, padded, at, p.inverse, cosine, sine);
    for (std::int64_t b = row; b < (shared ? p.batch : row + 1); ++b) {
      rotate_token(p, x + (b * p.seq + t) * p.x_stride, y + (b * p.seq + t) * p.y_stride, cosine,
                   sine);
    }
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace capstan::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace capstan::cpu {

HWY_EXPORT(RotaryTokens);

namespace {

RotaryParams with_defaults(RotaryParams p) {
  if (p.rotary_dim == 0) p.rotary_dim = p.head_dim;
  if (p.x_stride == 0) p.x_stride = p.heads * p.head_dim;
  if (p.y_stride == 0) p.y_stride = p.heads * p.head_dim;
  return p;
}

// Pairs rounded up to whole vectors of every target.
std::int64_t padded_pairs(const RotaryParams& p) { return (p.rotary_dim / 2 + 15) / 16 * 16; }

}  // namespace

void rotary_frequencies(const RotaryParams& params, double* out) {
  const RotaryParams p = with_defaults(params);
  const RotaryScaling& s = p.scaling;
  const double original = static_cast<double>(s.original_max_position);
  for (std::int64_t i = 0; i < p.rotary_dim / 2; ++i) {
    const double exponent = 2.0 * static_cast<double>(i) / static_cast<double>(p.rotary_dim);
    double frequency = std::pow(p.theta, -exponent);
    if (s.original_max_position > 0) {
      // Turns within the original context: few for long wavelengths, which are stretched.
      const double turns = original * frequency / (2.0 * std::numbers::pi);
      if (turns < s.low_freq_factor) {
        frequency /= s.factor;
      } else if (turns <= s.high_freq_factor) {
        const double kept = (turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
        frequency *= kept + (1.0 - kept) / s.factor;
      }
    }
    out[i] = frequency;
  }
}

std::size_t rotary_workspace(const RotaryParams& params) {
  const std::int64_t padded = padded_pairs(with_defaults(params));
  const std::int64_t tables = 2 * padded * omp_get_max_threads();
  return static_cast<std::size_t>(padded) * sizeof(double) +
         static_cast<std::size_t>(tables) * sizeof(float);
}

void rotary(const RotaryParams& params, const float* x, const std::int32_t* position, float* y,
            void* workspace) {
  const RotaryParams p = with_defaults(params);
  const std::int64_t padded = padded_pairs(p);
  double* frequency = static_cast<double*>(workspace);
  std::fill(frequency, frequency + padded, 0.0);
  rotary_frequencies(p, frequency);
  float* tables = reinterpret_cast<float*>(frequency + padded);
  const std::int64_t tokens = p.position_stride == 0 ? p.seq : p.batch * p.seq;
  const std::int64_t bytes = p.batch * p.seq * p.heads * p.head_dim * 8;
  parallel_ranges(tokens, 1, bytes, [&](std::int64_t begin, std::int64_t end, int thread) {
    HWY_DYNAMIC_DISPATCH(RotaryTokens)
    (p, begin, end, frequency, padded, x, position, y, tables + thread * 2 * padded);
  });
}

}  // namespace capstan::cpu
#endif  // HWY_ONCE
