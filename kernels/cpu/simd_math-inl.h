// float32 vector mathematics and loop drivers, compiled once for each SIMD target.
//
// Polynomials were fitted by weighted minimax (Lawson iteration) over the reduced range; the stated
// errors are relative and include rounding, as tests/kernels/activation_test.cc measures them
// through the kernels on every target.
#if defined(CAPSTAN_KERNELS_CPU_SIMD_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CAPSTAN_KERNELS_CPU_SIMD_MATH_INL_H_
#undef CAPSTAN_KERNELS_CPU_SIMD_MATH_INL_H_
#else
#define CAPSTAN_KERNELS_CPU_SIMD_MATH_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace capstan::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using I32 = hn::RebindToSigned<F32>;
using U32 = hn::RebindToUnsigned<F32>;
using VF = hn::Vec<F32>;
using VI = hn::Vec<I32>;

// ---- memory access --------------------------------------------------------------------------

struct FullAccess {
  template <class D>
  HWY_INLINE hn::Vec<D> load(D d, const hn::TFromD<D>* p) const {
    return hn::LoadU(d, p);
  }
  template <class D>
  HWY_INLINE void store(hn::Vec<D> v, D d, hn::TFromD<D>* p) const {
    hn::StoreU(v, d, p);
  }
};

// The first `count` lanes; memory past them is neither read nor written, lanes past them read 0.
struct TailAccess {
  std::size_t count;
  template <class D>
  HWY_INLINE hn::Vec<D> load(D d, const hn::TFromD<D>* p) const {
#if HWY_MEM_OPS_MIGHT_FAULT
    HWY_ALIGN hn::TFromD<D> lanes[HWY_MAX_BYTES / sizeof(hn::TFromD<D>)] = {};
    for (std::size_t i = 0; i < count; ++i) lanes[i] = p[i];
    return hn::Load(d, lanes);
#else
    return hn::MaskedLoad(hn::FirstN(d, count), d, p);
#endif
  }
  template <class D>
  HWY_INLINE void store(hn::Vec<D> v, D d, hn::TFromD<D>* p) const {
#if HWY_MEM_OPS_MIGHT_FAULT
    HWY_ALIGN hn::TFromD<D> lanes[HWY_MAX_BYTES / sizeof(hn::TFromD<D>)];
    hn::Store(v, d, lanes);
    for (std::size_t i = 0; i < count; ++i) p[i] = lanes[i];
#else
    hn::BlendedStore(v, hn::FirstN(d, count), d, p);
#endif
  }
};

// Calls f(offset, access) for each vector of [0, n): whole vectors first, then one tail. The same
// arithmetic runs in both, so a value never depends on where a range was cut.
template <class D, class F>
HWY_INLINE void for_each_vector(D d, std::int64_t n, F&& f) {
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) f(i, FullAccess{});
  if (i < n) f(i, TailAccess{static_cast<std::size_t>(n - i)});
}

// Asks for the cache line 1 KiB ahead of a store. Hardware prefetchers follow loads; a stream of
// stores that misses waits for each line to be read first, and costs a quarter of the bandwidth.
HWY_INLINE void prefetch_store(const float* p) {
  // By address: the line may lie past the end of the buffer, where fetching is harmless.
  const std::uintptr_t ahead = reinterpret_cast<std::uintptr_t>(p) + 1024;
  __builtin_prefetch(reinterpret_cast<const void*>(ahead), 1, 2);
}

// ---- helpers ---------------------------------------------------------------------------------

HWY_INLINE VF constant(float v) { return hn::Set(F32(), v); }

// Horner, lowest coefficient first.
HWY_INLINE VF horner(VF, float c0) { return constant(c0); }
template <class... Rest>
HWY_INLINE VF horner(VF x, float c0, Rest... rest) {
  return hn::MulAdd(horner(x, rest...), x, constant(c0));
}

// 2^n for integer n in [-126, 127].
HWY_INLINE VF exp2_integer(VI n) {
  const I32 di;
  return hn::BitCast(F32(), hn::ShiftLeft<23>(hn::Add(n, hn::Set(di, 127))));
}

// ---- exp ---------------------------------------------------------------------------------------

// Adding it rounds to an integer n and leaves n + 127, the exponent of 2^n, in the lowest bits.
constexpr float kExponentRounder = 12582912.0f + 127.0f;
constexpr float kLog2E = 1.44269504f;

// 2^(x * factor) for x * factor in [-126, 127]. The product enters unrounded where the target
// fuses, so the error stays below 2e-7 relative, plus |x * factor| * 6e-8 on targets that do not.
HWY_INLINE VF exp2_product(VF x, VF factor) {
  const VF shifted = hn::MulAdd(x, factor, constant(kExponentRounder));
  const VF r = hn::MulSub(x, factor, hn::Sub(shifted, constant(kExponentRounder)));
  const VF p = horner(r, 6.9314697759e-01f, 2.4022242080e-01f, 5.5507337542e-02f, 9.6715128696e-03f,
                      1.3264723893e-03f);
  const VI power = hn::ShiftLeft<23>(hn::BitCast(I32(), shifted));
  return hn::Mul(hn::MulAdd(r, p, constant(1.0f)), hn::BitCast(F32(), power));
}

// ---- GELU, tanh form ----------------------------------------------------------------------------
// x * 0.5 (1 + tanh u) = x / (1 + e^-2u), u = sqrt(2/pi) (x + 0.044715 x^3): one exponential. Whatever
// applies it, alone or behind a product, gives the same bits.

constexpr float kGeluScale = 0.7978845608f;  // sqrt(2/pi)
constexpr float kGeluCubic = 0.044715f;

// Past 10 the gate is 0 or 1 to float accuracy; cut off there, e^-2u stays finite.
HWY_INLINE VF gelu_cut(VF x) { return hn::Max(constant(-10.0f), hn::Min(constant(10.0f), x)); }
// 1 + e^-2u of a value that was cut.
HWY_INLINE VF gelu_denominator(VF x) {
  constexpr float kLinear = -2.0f * kLog2E * kGeluScale;
  const VF factor = hn::MulAdd(hn::Mul(x, x), constant(kLinear * kGeluCubic), constant(kLinear));
  return hn::Add(constant(1.0f), exp2_product(x, factor));
}
HWY_INLINE VF vgelu_tanh(VF x) { return hn::Div(x, gelu_denominator(gelu_cut(x))); }

// ---- more exponentials --------------------------------------------------------------------------

// e^x for x <= 0, flushed to 0 below -87: what softmax needs.
HWY_INLINE VF vexp_nonpositive(VF x) {
  const VF floor = constant(-87.0f);
  // The second operand of Min and Max survives a NaN.
  const VF y = exp2_product(hn::Max(floor, x), constant(kLog2E));
  return hn::IfThenZeroElse(hn::Lt(x, floor), y);
}

// e^x. 0 below -104 (gradual underflow above), inf above 88.73, NaN for NaN. Error below 2e-7.
HWY_INLINE VF vexp(VF x) {
  x = hn::Max(constant(-104.5f), hn::Min(constant(89.0f), x));
  const VF n = hn::Round(hn::Mul(x, constant(kLog2E)));
  VF r = hn::NegMulAdd(n, constant(0.693359375f), x);
  r = hn::NegMulAdd(n, constant(-2.12194440e-4f), r);
  const VF q = horner(r, 4.9999993050e-01f, 1.6666514789e-01f, 4.1668456833e-02f, 8.3694190433e-03f,
                      1.3813142359e-03f);
  const VF e = hn::MulAdd(hn::Mul(r, r), q, hn::Add(r, constant(1.0f)));
  // Two factors, so that results below 2^-126 and above 2^127 round once and correctly.
  const VI whole = hn::ConvertTo(I32(), n);
  const VI half = hn::ShiftRight<1>(whole);
  return hn::Mul(hn::Mul(e, exp2_integer(half)), exp2_integer(hn::Sub(whole, half)));
}

// ---- log ---------------------------------------------------------------------------------------

// Natural logarithm; -inf at 0, NaN below, inf at inf. Error below 2e-7 (absolute near 1: 1e-7
// |x-1|).
HWY_INLINE VF vlog(VF x) {
  const F32 d;
  const I32 di;
  const auto tiny = hn::Lt(x, constant(1.17549435e-38f));
  const VF scaled = hn::IfThenElse(tiny, hn::Mul(x, constant(8388608.0f)), x);  // denormals: * 2^23
  const VI bits = hn::BitCast(di, scaled);
  // Exponent such that the mantissa lies in [sqrt(1/2), sqrt(2)).
  const VI shifted = hn::Sub(bits, hn::Set(di, 0x3f3504f3));
  const VI exponent = hn::ShiftRight<23>(shifted);
  const VF m = hn::BitCast(d, hn::Sub(bits, hn::ShiftLeft<23>(exponent)));
  const VF e = hn::Sub(hn::ConvertTo(d, exponent), hn::IfThenElseZero(tiny, constant(23.0f)));
  const VF f = hn::Sub(m, constant(1.0f));
  const VF p = horner(f, 3.3333312603e-01f, -2.5000009604e-01f, 2.0002118732e-01f,
                      -1.6667995667e-01f, 1.4219550908e-01f, -1.2405591417e-01f, 1.1888174598e-01f,
                      -1.1675641304e-01f, 6.7466013285e-02f);
  const VF f2 = hn::Mul(f, f);
  VF y = hn::MulAdd(hn::Mul(f2, f), p, hn::Mul(e, constant(-2.12194440e-4f)));
  y = hn::NegMulAdd(constant(0.5f), f2, y);
  y = hn::MulAdd(e, constant(0.693359375f), hn::Add(y, f));
  y = hn::IfThenElse(hn::Eq(x, hn::Zero(d)), hn::Neg(hn::Inf(d)), y);
  y = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), hn::NaN(d), y);
  // inf and NaN pass through.
  const auto finite = hn::Lt(x, hn::Inf(d));
  return hn::IfThenElse(finite, y, x);
}

// ---- sigmoid, tanh, Gaussian -------------------------------------------------------------------

// 1 / (1 + e^-x), error below 4e-7 relative; x is cut off at +-87, where the result is 0 or 1 to
// float accuracy.
HWY_INLINE VF vsigmoid(VF x) {
  const VF cut = hn::Max(constant(-87.0f), hn::Min(constant(87.0f), x));
  const VF e = exp2_product(cut, constant(-kLog2E));
  return hn::Div(constant(1.0f), hn::Add(constant(1.0f), e));
}

// Hyperbolic tangent, error below 3e-7 relative.
HWY_INLINE VF vtanh(VF x) {
  const VF z = hn::Mul(x, x);
  const VF t = horner(z, -3.3333283924e-01f, 1.3331491249e-01f, -5.3743495261e-02f,
                      2.0650579003e-02f, -5.7170365606e-03f);
  const VF small = hn::MulAdd(hn::Mul(x, z), t, x);
  const VF a = hn::Abs(x);
  const VF e = exp2_product(hn::Min(constant(40.0f), a), constant(-2.0f * kLog2E));
  const VF large = hn::Div(hn::Sub(constant(1.0f), e), hn::Add(constant(1.0f), e));
  return hn::IfThenElse(hn::Lt(a, constant(0.625f)), small, hn::CopySign(large, x));
}

struct GaussianVF {
  VF cdf;      // standard normal distribution function Phi(x)
  VF density;  // e^(-x^2/2) / sqrt(2 pi)
};

// Both from one exponential: Phi(-a) = e^(-a^2/2) t P(t), t = 1/(1 + 0.3 a). Error below 4e-7
// relative for |x| < 3, growing as the rounding of x^2/2 does in the tail, which stops falling at
// 1e-37 (|x| = 13).
HWY_INLINE GaussianVF vgaussian(VF x) {
  const F32 d;
  const VF a = hn::Abs(x);
  const VF square = hn::Min(constant(170.0f), hn::Mul(a, a));
  const VF e = exp2_product(square, constant(-0.5f * kLog2E));
  const VF t = hn::Div(constant(1.0f), hn::MulAdd(a, constant(0.3f), constant(1.0f)));
  const VF p = horner(t, 1.1962929811e-01f, 1.2075396817e-01f, 9.9913409321e-02f, 1.2856192204e-01f,
                      -5.3684240768e-02f, 2.0635418971e-01f, -1.5720349531e-01f, 3.5674875787e-02f);
  const VF tail = hn::Mul(hn::Mul(e, t), p);
  const VF cdf = hn::IfThenElse(hn::Gt(x, hn::Zero(d)), hn::Sub(constant(1.0f), tail), tail);
  return GaussianVF{cdf, hn::Mul(e, constant(0.3989422804f))};
}

// ---- sine and cosine ---------------------------------------------------------------------------

struct SinCosVF {
  VF sin;
  VF cos;
};

// Turns sine s and cosine c of an angle in [-pi/4, pi/4] by `quadrant` (any integer; mod 4 counts)
// right angles.
HWY_INLINE SinCosVF to_quadrant(VF s, VF c, VI quadrant) {
  const F32 d;
  const I32 di;
  const VI one = hn::Set(di, 1);
  const VI two = hn::Set(di, 2);
  const auto swap = hn::RebindMask(d, hn::Eq(hn::And(quadrant, one), one));
  const VF sin_sign = hn::BitCast(d, hn::ShiftLeft<30>(hn::And(quadrant, two)));
  const VF cos_sign = hn::BitCast(d, hn::ShiftLeft<30>(hn::And(hn::Add(quadrant, one), two)));
  return SinCosVF{hn::Xor(hn::IfThenElse(swap, c, s), sin_sign),
                  hn::Xor(hn::IfThenElse(swap, s, c), cos_sign)};
}

// From an angle already reduced to r in [-pi/4, pi/4] and its quadrant. Absolute error below 1e-7.
HWY_INLINE SinCosVF vsincos_reduced(VF r, VI quadrant) {
  const VF z = hn::Mul(r, r);
  const VF s = hn::MulAdd(hn::Mul(r, z),
                          horner(z, -1.6666654908e-01f, 8.3321758370e-03f, -1.9516976469e-04f), r);
  const VF c =
      hn::MulAdd(hn::Mul(z, z), horner(z, 4.1666646807e-02f, -1.3887364467e-03f, 2.4438089109e-05f),
                 hn::NegMulAdd(z, constant(0.5f), constant(1.0f)));
  return to_quadrant(s, c, quadrant);
}

// ---- reductions --------------------------------------------------------------------------------

HWY_INLINE float sum_lanes(VF v) { return hn::GetLane(hn::SumOfLanes(F32(), v)); }

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace capstan::cpu
HWY_AFTER_NAMESPACE();

#endif  // CAPSTAN_KERNELS_CPU_SIMD_MATH_INL_H_
