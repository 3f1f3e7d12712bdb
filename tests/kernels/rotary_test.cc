// Rotary embedding against complex multiplication in double.
#include "kernels/cpu/rotary.h"

#include "kernels/cpu/reference/rotary.h"
#include "tests/kernels/memory_bound_util.h"

namespace capstan::cpu {
namespace {

using namespace capstan::testing;  // NOLINT: the tests' vocabulary

std::vector<std::int32_t> positions(std::int64_t n, std::int32_t base) {
  std::vector<std::int32_t> p(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < p.size(); ++i) p[i] = base + static_cast<std::int32_t>(i * 37 % 101);
  return p;
}

Floats run(const RotaryParams& p, const Floats& x, const std::vector<std::int32_t>& position) {
  Floats y(x.size(), -7.0f);
  Workspace workspace(rotary_workspace(p));
  rotary(p, x.data(), position.data(), y.data(), workspace.data());
  return y;
}

void expect_reference(const RotaryParams& p, std::int32_t base, const std::string& what) {
  const std::int64_t n = p.batch * p.seq * p.heads * p.head_dim;
  const Floats x = random_floats(n, 1);
  const auto position = positions(p.position_stride == 0 ? p.seq : p.batch * p.seq, base);
  Doubles expected(x.size());
  reference::rotary<double>(p, widen(x).data(), position.data(), expected.data());
  expect_close(run(p, x, position), expected, 3e-7, what);
}

TEST(Rotary, MatchesTheReference) {
  everywhere([] {
    for (std::int64_t dim : {2, 4, 6, 34, 64, 80, 128}) {
      for (bool interleaved : {false, true}) {
        for (bool shared : {false, true}) {
          for (bool inverse : {false, true}) {
            RotaryParams p;
            p.batch = 3, p.seq = 17, p.heads = 5, p.head_dim = dim;
            p.interleaved = interleaved, p.inverse = inverse;
            p.position_stride = shared ? 0 : p.seq;
            expect_reference(p, 0, "dim " + std::to_string(dim));
          }
        }
      }
    }
  });
}

TEST(Rotary, KeepsAccuracyAtLargePositions) {
  RotaryParams p;
  p.batch = 1, p.seq = 5, p.heads = 2, p.head_dim = 64;
  expect_reference(p, 1000000, "position 10^6");
  expect_reference(p, -50, "negative positions");
}

TEST(Rotary, ScalesFrequenciesAsLlama31) {
  RotaryParams p;
  p.batch = 2, p.seq = 9, p.heads = 2, p.head_dim = 128, p.theta = 500000.0;
  p.scaling = {8.0, 1.0, 4.0, 8192};
  expect_reference(p, 5000, "scaled");
  Doubles frequency(64);
  rotary_frequencies(p, frequency.data());
  EXPECT_EQ(frequency[0], 1.0);  // short wavelengths are kept
  EXPECT_NEAR(frequency[63] * 8.0, std::pow(500000.0, -126.0 / 128.0), 1e-12);
}

TEST(Rotary, LeavesChannelsPastTheRotaryDim) {
  RotaryParams p;
  p.batch = 1, p.seq = 4, p.heads = 3, p.head_dim = 20, p.rotary_dim = 8;
  for (bool interleaved : {false, true}) {
    p.interleaved = interleaved;
    expect_reference(p, 3, "partial");
  }
}

TEST(Rotary, TheInverseUndoesItInPlace) {
  RotaryParams p;
  p.batch = 2, p.seq = 8, p.heads = 3, p.head_dim = 24;
  const auto position = positions(p.seq, 11);
  const Floats x = random_floats(2 * 8 * 72, 2);
  Floats y = x;
  Workspace workspace(rotary_workspace(p));
  rotary(p, y.data(), position.data(), y.data(), workspace.data());
  EXPECT_NE(y, x);
  p.inverse = true;
  rotary(p, y.data(), position.data(), y.data(), workspace.data());
  expect_close(y, widen(x), 5e-7, "round trip");
}

TEST(Rotary, ReadsAColumnRangeOfAFusedProduct) {
  RotaryParams p;
  p.batch = 2, p.seq = 3, p.heads = 2, p.head_dim = 6, p.x_stride = 30;
  const Floats fused = random_floats(2 * 3 * 30, 5);
  const auto position = positions(p.seq, 1);
  Doubles expected(72);
  reference::rotary<double>(p, widen(fused).data(), position.data(), expected.data());
  Floats y(72);
  Workspace workspace(rotary_workspace(p));
  rotary(p, fused.data(), position.data(), y.data(), workspace.data());
  expect_close(y, expected, 3e-7, "strided");
}

TEST(RotaryReference, TheInverseIsTheGradient) {
  RotaryParams p;
  p.batch = 1, p.seq = 2, p.heads = 1, p.head_dim = 6;
  const auto position = positions(p.seq, 4);
  Doubles x = widen(random_floats(12, 1)), y(12), dx(12);
  const Doubles dy = widen(random_floats(12, 2));
  RotaryParams backward = p;
  backward.inverse = true;
  reference::rotary<double>(backward, dy.data(), position.data(), dx.data());
  const auto loss = [&] {
    reference::rotary<double>(p, x.data(), position.data(), y.data());
    return dot(y, dy);
  };
  expect_gradient(loss, x, dx, "x");
}

}  // namespace
}  // namespace capstan::cpu
