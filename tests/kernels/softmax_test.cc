// Softmax over rows against the reference, and the reference against differences.
#include "kernels/cpu/softmax.h"

#include <limits>

#include "kernels/cpu/reference/elementwise.h"
#include "tests/kernels/memory_bound_util.h"

namespace capstan::cpu {
namespace {

using namespace capstan::testing;  // NOLINT: the tests' vocabulary

TEST(Softmax, MatchesTheReference) {
  everywhere([] {
    for (std::int64_t columns : {1, 3, 17, 32, 65, 1000}) {
      const std::int64_t rows = 40;
      const Floats x = random_floats(rows * columns, 1, -20, 20),
                   dy = random_floats(rows * columns, 2);
      Floats y(x.size()), dx(x.size()), in_place = x;
      Doubles y64(x.size()), dx64(x.size());
      softmax_forward(rows, columns, x.data(), y.data());
      softmax_forward(rows, columns, in_place.data(), in_place.data());
      reference::softmax_forward<double>(rows, columns, widen(x).data(), y64.data());
      expect_close(y, y64, 1e-6, "forward");
      EXPECT_EQ(y, in_place);
      softmax_backward(rows, columns, dy.data(), y.data(), dx.data());
      reference::softmax_backward<double>(rows, columns, widen(dy).data(), y64.data(), dx64.data());
      expect_close(dx, dx64, 1e-6, "backward");
    }
  });
}

TEST(Softmax, GivesMaskedEntriesNothingAndSurvivesLargeLogits) {
  const float inf = std::numeric_limits<float>::infinity();
  const Floats x = {-inf, 1e30f, 1e30f, -inf, -1e30f};
  Floats y(5);
  softmax_forward(1, 5, x.data(), y.data());
  EXPECT_EQ(y, (Floats{0.0f, 0.5f, 0.5f, 0.0f, 0.0f}));
}

TEST(Softmax, PassesNanThrough) {
  Floats x(20, 1.0f), y(20);
  x[3] = std::numeric_limits<float>::quiet_NaN();
  softmax_forward(1, 20, x.data(), y.data());
  EXPECT_TRUE(std::isnan(y[0]));
}

TEST(SoftmaxReference, TheGradientIsTheDerivative) {
  Doubles x = widen(random_floats(8, 1)), y(8), dx(8);
  const Doubles dy = widen(random_floats(8, 2));
  const auto loss = [&] {
    reference::softmax_forward<double>(2, 4, x.data(), y.data());
    return dot(y, dy);
  };
  loss();
  reference::softmax_backward<double>(2, 4, dy.data(), y.data(), dx.data());
  expect_gradient(loss, x, dx, "x");
}

}  // namespace
}  // namespace capstan::cpu
