// Unary functions and SwiGLU against the reference in double, and the reference against
// differences.
#include "kernels/cpu/activation.h"

#include <limits>

#include "kernels/cpu/reference/activation.h"
#include "tests/kernels/memory_bound_util.h"

namespace capstan::cpu {
namespace {

using namespace capstan::testing;  // NOLINT: the tests' vocabulary

struct Function {
  Unary unary;
  const char* name;
  float low, high;   // domain swept
  double tolerance;  // relative, of the value
  double floor;      // absolute
};
const Function kFunctions[] = {
    {Unary::kGeluTanh, "gelu_tanh", -12, 12, 2e-6, 1e-9},
    {Unary::kGeluErf, "gelu_erf", -12, 12, 2e-6, 1e-9},
    {Unary::kRelu, "relu", -3, 3, 0, 0},
    {Unary::kSilu, "silu", -16, 16, 2e-6, 1e-9},
    {Unary::kSilu, "silu, far out", -90, 90, 6e-6, 1e-35},
    {Unary::kSigmoid, "sigmoid", -16, 16, 2e-6, 0},
    {Unary::kSigmoid, "sigmoid, far out", -80, 90, 6e-6, 0},
    {Unary::kTanh, "tanh", -12, 12, 5e-7, 0},
    {Unary::kExp, "exp", -87, 88, 3e-7, 0},
    {Unary::kLog, "log", 1e-30f, 30, 3e-7, 3e-8},
    {Unary::kSqrt, "sqrt", 1e-3f, 100, 1e-7, 0},
    {Unary::kRsqrt, "rsqrt", 1e-3f, 100, 2e-7, 0},
    {Unary::kReciprocal, "reciprocal", 1e-3f, 100, 1e-7, 0},
    {Unary::kNeg, "neg", -3, 3, 0, 0},
    {Unary::kSquare, "square", -3, 3, 1e-7, 0},
    {Unary::kAbs, "abs", -3, 3, 0, 0},
};

TEST(Unary, MatchesTheReferenceOverItsDomain) {
  everywhere([] {
    for (const Function& f : kFunctions) {
      const Floats x = random_floats(100003, 7, f.low, f.high);
      Floats y(x.size());
      Doubles expected(x.size());
      unary_forward(f.unary, static_cast<std::int64_t>(x.size()), x.data(), y.data());
      for (std::size_t i = 0; i < x.size(); ++i) {
        expected[i] = reference::unary_value<double>(f.unary, x[i]);
      }
      expect_relative(y, expected, f.tolerance, f.floor, f.name);
    }
  });
}

TEST(Unary, DerivativeMatchesTheReferenceOverItsDomain) {
  everywhere([] {
    for (const Function& f : kFunctions) {
      const float low = std::max(f.low, -30.0f), high = std::min(f.high, 30.0f);
      const Floats x = random_floats(50021, 7, low, high);
      const Floats dy = random_floats(50021, 8);
      Floats dx(x.size());
      Doubles expected(x.size());
      unary_backward(f.unary, static_cast<std::int64_t>(x.size()), dy.data(), x.data(), dx.data());
      for (std::size_t i = 0; i < x.size(); ++i) {
        expected[i] = dy[i] * reference::unary_derivative<double>(f.unary, x[i]);
      }
      // 1 - tanh^2 and sigmoid (1 - sigmoid) cancel; their error is absolute.
      expect_relative(dx, expected, 2e-6, 1e-6, f.name);
    }
  });
}

TEST(Unary, HandlesEveryTailLengthAndAliasing) {
  for (std::int64_t n = 0; n <= 70; ++n) {
    const Floats x = random_floats(n, 3), dy = random_floats(n, 4);
    Floats y(x.size() + 1, 42.0f), in_place = x, dx = dy;
    unary_forward(Unary::kGeluTanh, n, x.data(), y.data());
    unary_forward(Unary::kGeluTanh, n, in_place.data(), in_place.data());
    unary_backward(Unary::kSilu, n, dx.data(), x.data(), dx.data());
    EXPECT_EQ(y.back(), 42.0f) << "wrote past " << n;
    for (std::size_t i = 0; i < x.size(); ++i) {
      ASSERT_NEAR(y[i], reference::unary_value<double>(Unary::kGeluTanh, x[i]), 1e-6);
      ASSERT_EQ(y[i], in_place[i]);
      ASSERT_NEAR(dx[i], dy[i] * reference::unary_derivative<double>(Unary::kSilu, x[i]), 1e-6);
    }
  }
}

float one(Unary f, float x) {
  float y;
  unary_forward(f, 1, &x, &y);
  return y;
}

TEST(Unary, KeepsTheEdgesOfFloat) {
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(one(Unary::kExp, -inf), 0.0f);
  EXPECT_EQ(one(Unary::kExp, inf), inf);
  EXPECT_EQ(one(Unary::kExp, 89.0f), inf);
  EXPECT_EQ(one(Unary::kExp, 0.0f), 1.0f);
  EXPECT_NEAR(one(Unary::kExp, -100.0f), 3.7835059e-44, 2e-45);  // subnormal
  EXPECT_EQ(one(Unary::kLog, 0.0f), -inf);
  EXPECT_EQ(one(Unary::kLog, inf), inf);
  EXPECT_EQ(one(Unary::kLog, 1.0f), 0.0f);
  EXPECT_TRUE(std::isnan(one(Unary::kLog, -1.0f)));
  EXPECT_NEAR(one(Unary::kLog, 1e-42f), std::log(1e-42f), 1e-4);  // subnormal
  EXPECT_EQ(one(Unary::kTanh, inf), 1.0f);
  EXPECT_EQ(one(Unary::kTanh, -inf), -1.0f);
  EXPECT_NEAR(one(Unary::kSigmoid, -inf), 0.0f, 1e-37);
  EXPECT_EQ(one(Unary::kSigmoid, inf), 1.0f);
  EXPECT_EQ(one(Unary::kGeluTanh, 100.0f), 100.0f);
  EXPECT_EQ(one(Unary::kGeluErf, 100.0f), 100.0f);
  EXPECT_NEAR(one(Unary::kGeluTanh, -100.0f), 0.0f, 1e-35);
  EXPECT_NEAR(one(Unary::kGeluErf, -100.0f), 0.0f, 1e-34);
  EXPECT_TRUE(std::isfinite(one(Unary::kGeluTanh, -1e30f)));
  EXPECT_EQ(one(Unary::kTanh, 1e-20f), 1e-20f);
}

TEST(Unary, PassesNanThrough) {
  for (const Function& f : kFunctions) {
    EXPECT_TRUE(std::isnan(one(f.unary, std::numeric_limits<float>::quiet_NaN()))) << f.name;
  }
}

TEST(UnaryReference, DerivativesAreDerivatives) {
  for (const Function& f : kFunctions) {
    Doubles x = widen(random_floats(50, 9, std::max(f.low, -3.0f) + 0.1f, std::min(f.high, 3.0f)));
    for (std::size_t i = 0; i < x.size(); ++i) {
      const auto value = [&] { return reference::unary_value<double>(f.unary, x[i]); };
      const double slope = reference::unary_derivative<double>(f.unary, x[i]);
      ASSERT_NEAR(slope, central_difference(value, x, i, 1e-6), 1e-6 * std::max(1.0, slope * slope))
          << f.name << " at " << x[i];
    }
  }
}

TEST(Swiglu, MatchesTheReferenceDenseAndInOneBuffer) {
  everywhere([] {
    for (const auto& [rows, channels] :
         {std::pair<std::int64_t, std::int64_t>{1, 1}, {3, 17}, {65, 33}, {200, 320}}) {
      for (bool fused : {false, true}) {
        const std::int64_t stride = fused ? 2 * channels : channels;
        const SwigluParams p{rows, channels, fused ? stride : 0, 0};
        Floats gate_up = random_floats(2 * rows * channels, 5, -6, 6);
        const float* gate = gate_up.data();
        const float* up = gate + (fused ? channels : rows * channels);
        const Floats dy = random_floats(rows * channels, 6);
        Floats y(dy.size()), grads(gate_up.size());
        float* dgate = grads.data();
        float* dup = dgate + (up - gate);
        swiglu_forward(p, gate, up, y.data());
        swiglu_backward(p, dy.data(), gate, up, dgate, dup);
        for (std::int64_t i = 0; i < rows * channels; ++i) {
          const std::int64_t at = i / channels * stride + i % channels;
          const double expected = reference::swiglu<double>(gate[at], up[at]);
          ASSERT_NEAR(y[i], expected, 1e-6 * std::max(1.0, std::fabs(expected)));
          double g, u;
          reference::swiglu_backward<double>(dy[i], gate[at], up[at], &g, &u);
          ASSERT_NEAR(dgate[at], g, 1e-6 * std::max(1.0, std::fabs(g)));
          ASSERT_NEAR(dup[at], u, 1e-6 * std::max(1.0, std::fabs(u)));
        }
      }
    }
  });
}

TEST(Swiglu, GradientsMayReplaceTheirInputs) {
  const SwigluParams p{7, 19, 0, 0};
  Floats gate = random_floats(133, 1), up = random_floats(133, 2);
  const Floats dy = random_floats(133, 3);
  Floats dgate(133), dup(133);
  swiglu_backward(p, dy.data(), gate.data(), up.data(), dgate.data(), dup.data());
  swiglu_backward(p, dy.data(), gate.data(), up.data(), gate.data(), up.data());
  EXPECT_EQ(gate, dgate);
  EXPECT_EQ(up, dup);
}

TEST(SwigluReference, GradientsAreDerivatives) {
  Doubles x = {0.7, -1.3};
  double dgate, dup;
  reference::swiglu_backward<double>(1.5, x[0], x[1], &dgate, &dup);
  const auto loss = [&] { return 1.5 * reference::swiglu(x[0], x[1]); };
  EXPECT_NEAR(dgate, central_difference(loss, x, 0), 1e-8);
  EXPECT_NEAR(dup, central_difference(loss, x, 1), 1e-8);
}

}  // namespace
}  // namespace capstan::cpu
