#include "kernels/cpu/activation.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/activation.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace capstan::cpu {
namespace HWY_NAMESPACE {

// Each function: value(x), and derivative(x).
struct GeluTanh {
  static HWY_INLINE VF value(VF x) { return vgelu_tanh(x); }
  static HWY_INLINE VF derivative(VF x) {
    const VF c = gelu_cut(x);
    const VF s = hn::Div(constant(1.0f), gelu_denominator(c));
    const VF slope = hn::MulAdd(hn::Mul(c, c), constant(6.0f * kGeluScale * kGeluCubic),
                                constant(2.0f * kGeluScale));
    const VF ds = hn::NegMulAdd(s, s, s);
    return hn::MulAdd(hn::Mul(c, slope), ds, s);
  }
};

struct GeluErf {
  static HWY_INLINE VF value(VF x) { return hn::Mul(x, vgaussian(x).cdf); }
  static HWY_INLINE VF derivative(VF x) {
    const GaussianVF g = vgaussian(x);
    return hn::MulAdd(x, g.density, g.cdf);
  }
};

struct Relu {
  // Not Max(x, 0), which would turn a NaN into 0.
  static HWY_INLINE VF value(VF x) { return hn::IfThenZeroElse(hn::Lt(x, constant(0.0f)), x); }
  static HWY_INLINE VF derivative(VF x) {
    return hn::IfThenElseZero(hn::Gt(x, constant(0.0f)), constant(1.0f));
  }
};

struct Silu {
  static HWY_INLINE VF value(VF x) { return hn::Mul(x, vsigmoid(x)); }
  static HWY_INLINE VF derivative(VF x) {
    const VF s = vsigmoid(x);
    return hn::Mul(s, hn::MulAdd(x, hn::Sub(constant(1.0f), s), constant(1.0f)));
  }
};

struct Sigmoid {
  static HWY_INLINE VF value(VF x) { return vsigmoid(x); }
  static HWY_INLINE VF derivative(VF x) {
    const VF s = vsigmoid(x);
    return hn::Mul(s, hn::Sub(constant(1.0f), s));
  }
};

struct Tanh {
  static HWY_INLINE VF value(VF x) { return vtanh(x); }
  static HWY_INLINE VF derivative(VF x) {
    const VF t = vtanh(x);
    return hn::NegMulAdd(t, t, constant(1.0f));
  }
};

struct Exp {
  static HWY_INLINE VF value(VF x) { return vexp(x); }
  static HWY_INLINE VF derivative(VF x) { return vexp(x); }
};

struct Log {
  static HWY_INLINE VF value(VF x) { return vlog(x); }
  static HWY_INLINE VF derivative(VF x) { return hn::Div(constant(1.0f), x); }
};

struct Sqrt {
  static HWY_INLINE VF value(VF x) { return hn::Sqrt(x); }
  static HWY_INLINE VF derivative(VF x) { return hn::Div(constant(0.5f), hn::Sqrt(x)); }
};

struct Rsqrt {
  static HWY_INLINE VF value(VF x) { return hn::Div(constant(1.0f), hn::Sqrt(x)); }
  static HWY_INLINE VF derivative(VF x) {
    return hn::Div(constant(-0.5f), hn::Mul(x, hn::Sqrt(x)));
  }
};

struct Reciprocal {
  static HWY_INLINE VF value(VF x) { return hn::Div(constant(1.0f), x); }
  static HWY_INLINE VF derivative(VF x) { return hn::Div(constant(-1.0f), hn::Mul(x, x)); }
};

struct Neg {
  static HWY_INLINE VF value(VF x) { return hn::Neg(x); }
  static HWY_INLINE VF derivative(VF) { return constant(-1.0f); }
};

struct Square {
  static HWY_INLINE VF value(VF x) { return hn::Mul(x, x); }
  static HWY_INLINE VF derivative(VF x) { return hn::Add(x, x); }
};

struct Abs {
  static HWY_INLINE VF value(VF x) { return hn::Abs(x); }
  static HWY_INLINE VF derivative(VF x) {
    return hn::IfThenZeroElse(hn::Eq(x, constant(0.0f)), hn::CopySign(constant(1.0f), x));
  }
};

template <class F>
struct Forward {
  static void run(std::int64_t n, const float*, const float* x, float* y) {
    const F32 d;
    for_each_vector(d, n, [&](std::int64_t i, auto access) HWY_ATTR {
      prefetch_store(y + i);
      access.store(F::value(access.load(d, x + i)), d, y + i);
    });
  }
};

template <class F>
struct Backward {
  static void run(std::int64_t n, const float* dy, const float* x, float* dx) {
    const F32 d;
    for_each_vector(d, n, [&](std::int64_t i, auto access) HWY_ATTR {
      prefetch_store(dx + i);
      const VF slope = F::derivative(access.load(d, x + i));
      access.store(hn::Mul(access.load(d, dy + i), slope), d, dx + i);
    });
  }
};

template <template <class> class Pass>
HWY_INLINE void select(Unary function, std::int64_t n, const float* dy, const float* x,
                       float* out) {
  switch (function) {
    case Unary::kGeluTanh:
      return Pass<GeluTanh>::run(n, dy, x, out);
    case Unary::kGeluErf:
      return Pass<GeluErf>::run(n, dy, x, out);
    case Unary::kRelu:
      return Pass<Relu>::run(n, dy, x, out);
    case Unary::kSilu:
      return Pass<Silu>::run(n, dy, x, out);
    case Unary::kSigmoid:
      return Pass<Sigmoid>::run(n, dy, x, out);
    case Unary::kTanh:
      return Pass<Tanh>::run(n, dy, x, out);
    case Unary::kExp:
      return Pass<Exp>::run(n, dy, x, out);
    case Unary::kLog:
      return Pass<Log>::run(n, dy, x, out);
    case Unary::kSqrt:
      return Pass<Sqrt>::run(n, dy, x, out);
    case Unary::kRsqrt:
      return Pass<Rsqrt>::run(n, dy, x, out);
    case Unary::kReciprocal:
      return Pass<Reciprocal>::run(n, dy, x, out);
    case Unary::kNeg:
      return Pass<Neg>::run(n, dy, x, out);
    case Unary::kSquare:
      return Pass<Square>::run(n, dy, x, out);
    case Unary::kAbs:
      return Pass<Abs>::run(n, dy, x, out);
  }
}

void UnaryForwardRange(Unary function, std::int64_t n, const float* x, float* y) {
  select<Forward>(function, n, nullptr, x, y);
}

void UnaryBackwardRange(Unary function, std::int64_t n, const float* dy, const float* x,
                        float* dx) {
  select<Backward>(function, n, dy, x, dx);
}

void SwigluForwardRow(std::int64_t n, const float* gate, const float* up, float* y) {
  const F32 d;
  for_each_vector(d, n, [&](std::int64_t i, auto access) HWY_ATTR {
    prefetch_store(y + i);
    access.store(hn::Mul(Silu::value(access.load(d, gate + i)), access.load(d, up + i)), d, y + i);
  });
}

void SwigluBackwardRow(std::int64_t n, const float* dy, const float* gate, const float* up,
                       float* dgate, float* dup) {
  const F32 d;
  for_each_vector(d, n, [&](std::int64_t i, auto access) HWY_ATTR {
    prefetch_store(dgate + i);
    prefetch_store(dup + i);
    const VF g = access.load(d, gate + i);
    const VF u = access.load(d, up + i);
    const VF upstream = access.load(d, dy + i);
    const VF s = vsigmoid(g);
    const VF silu = hn::Mul(g, s);
    // silu' = s (1 + g (1 - s)) = s + silu (1 - s)
    const VF slope = hn::MulAdd(silu, hn::Sub(constant(1.0f), s), s);
    access.store(hn::Mul(hn::Mul(upstream, u), slope), d, dgate + i);
    access.store(hn::Mul(upstream, silu), d, dup + i);
  });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace capstan::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace capstan::cpu {

HWY_EXPORT(UnaryForwardRange);
HWY_EXPORT(UnaryBackwardRange);
HWY_EXPORT(SwigluForwardRow);
HWY_EXPORT(SwigluBackwardRow);

namespace {

// Elements a part of an element-wise loop is a multiple of: a cache line of float32.
constexpr std::int64_t kAlign = 16;

// Calls row(r, first, count) for the parts of rows [begin, end) elements of a [rows, channels]
// range.
template <class Row>
void for_each_row_part(std::int64_t begin, std::int64_t end, std::int64_t channels, Row&& row) {
  while (begin < end) {
    const std::int64_t r = begin / channels;
    const std::int64_t first = begin - r * channels;
    const std::int64_t count = std::min(end - begin, channels - first);
    row(r, first, count);
    begin += count;
  }
}

SwigluParams with_strides(SwigluParams p) {
  if (p.gate_stride == 0) p.gate_stride = p.channels;
  if (p.y_stride == 0) p.y_stride = p.channels;
  return p;
}

}  // namespace

void unary_forward(Unary function, std::int64_t n, const float* x, float* y) {
  parallel_ranges(n, kAlign, n * 8, [&](std::int64_t begin, std::int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(UnaryForwardRange)(function, end - begin, x + begin, y + begin);
  });
}

void unary_backward(Unary function, std::int64_t n, const float* dy, const float* x, float* dx) {
  parallel_ranges(n, kAlign, n * 12, [&](std::int64_t begin, std::int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(UnaryBackwardRange)
    (function, end - begin, dy + begin, x + begin, dx + begin);
  });
}

void swiglu_forward(const SwigluParams& params, const float* gate, const float* up, float* y) {
  const SwigluParams p = with_strides(params);
  const std::int64_t n = p.rows * p.channels;
  parallel_ranges(n, kAlign, n * 12, [&](std::int64_t begin, std::int64_t end, int) {
    const auto kernel = HWY_DYNAMIC_DISPATCH(SwigluForwardRow);
    for_each_row_part(begin, end, p.channels, [&](auto r, auto first, auto count) {
      const std::int64_t in = r * p.gate_stride + first;
      kernel(count, gate + in, up + in, y + r * p.y_stride + first);
    });
  });
}

void swiglu_backward(const SwigluParams& params, const float* dy, const float* gate,
                     const float* up, float* dgate, float* dup) {
  const SwigluParams p = with_strides(params);
  const std::int64_t n = p.rows * p.channels;
  parallel_ranges(n, kAlign, n * 20, [&](std::int64_t begin, std::int64_t end, int) {
    const auto kernel = HWY_DYNAMIC_DISPATCH(SwigluBackwardRow);
    for_each_row_part(begin, end, p.channels, [&](auto r, auto first, auto count) {
      const std::int64_t in = r * p.gate_stride + first;
      kernel(count, dy + r * p.y_stride + first, gate + in, up + in, dgate + in, dup + in);
    });
  });
}

}  // namespace capstan::cpu
#endif  // HWY_ONCE
