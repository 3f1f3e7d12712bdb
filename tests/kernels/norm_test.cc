// Layer and RMS normalisation against the reference, and the reference against differences.
#include "kernels/cpu/norm.h"

#include "kernels/cpu/reference/norm.h"
#include "tests/kernels/memory_bound_util.h"

namespace capstan::cpu {
namespace {

using namespace capstan::testing;  // NOLINT: the tests' vocabulary

constexpr float kEps = 1e-5f;

struct Case {
  std::int64_t rows;
  std::int64_t channels;
};
const Case kCases[] = {{1, 1},  {1, 3},    {2, 17},    {3, 64},    {5, 65},
                       {33, 7}, {130, 96}, {257, 769}, {300, 1024}};

// Inputs in float, expected values in double.
struct NormCase {
  NormParams p;
  std::size_t size, channels, rows;
  Floats x, weight, bias, dy;
  Doubles y, mean, rstd, dx, dweight, dbias;

  NormCase(Case c, bool centred, bool accumulate)
      : p{c.rows, c.channels, kEps},
        size(static_cast<std::size_t>(c.rows * c.channels)),
        channels(static_cast<std::size_t>(c.channels)),
        rows(static_cast<std::size_t>(c.rows)),
        x(random_floats(c.rows * c.channels, 1)),
        weight(random_floats(c.channels, 2)),
        bias(random_floats(c.channels, 3)),
        dy(random_floats(c.rows * c.channels, 4)),
        y(size),
        mean(rows),
        rstd(rows),
        dx(size),
        dweight(channels, accumulate ? 0.5 : 0.0),
        dbias(channels, accumulate ? 0.5 : 0.0) {
    for (float& v : x) v += 3.0f;  // a mean that matters
    const Doubles x64 = widen(x), w64 = widen(weight), b64 = widen(bias), dy64 = widen(dy);
    if (centred) {
      reference::layer_norm_forward<double>(c.rows, c.channels, kEps, x64.data(), w64.data(),
                                            b64.data(), y.data(), mean.data(), rstd.data());
      reference::layer_norm_backward<double>(c.rows, c.channels, dy64.data(), x64.data(),
                                             w64.data(), mean.data(), rstd.data(), dx.data(),
                                             dweight.data(), dbias.data());
    } else {
      reference::rms_norm_forward<double>(c.rows, c.channels, kEps, x64.data(), w64.data(),
                                          y.data(), rstd.data());
      reference::rms_norm_backward<double>(c.rows, c.channels, dy64.data(), x64.data(), w64.data(),
                                           rstd.data(), dx.data(), dweight.data());
    }
  }
};

TEST(LayerNorm, MatchesTheReference) {
  everywhere([] {
    for (const Case& c : kCases) {
      for (bool accumulate : {false, true}) {
        const NormCase n(c, true, accumulate);
        const std::string what = std::to_string(c.rows) + "x" + std::to_string(c.channels);
        Floats y(n.size), mean(n.rows), rstd(n.rows), dx(n.size);
        layer_norm_forward(n.p, n.x.data(), n.weight.data(), n.bias.data(), y.data(), mean.data(),
                           rstd.data());
        expect_close(mean, n.mean, 1e-6, what + " mean");
        // One channel has no variance: y is the bias and rstd 1/sqrt(eps).
        expect_relative(rstd, n.rstd, 2e-5, 0, what + " rstd");
        expect_close(y, n.y, 1e-5, what + " y");
        Floats dweight(n.channels, 0.5f), dbias(n.channels, 0.5f);
        Workspace workspace(norm_backward_workspace(n.p));
        layer_norm_backward(n.p, n.dy.data(), n.x.data(), n.weight.data(), mean.data(), rstd.data(),
                            dx.data(), dweight.data(), dbias.data(), accumulate, workspace.data());
        expect_close(dx, n.dx, 2e-5, what + " dx");
        expect_close(dweight, n.dweight, 1e-5, what + " dweight");
        expect_close(dbias, n.dbias, 1e-5, what + " dbias");
      }
    }
  });
}

TEST(RmsNorm, MatchesTheReference) {
  everywhere([] {
    for (const Case& c : kCases) {
      for (bool accumulate : {false, true}) {
        const NormCase n(c, false, accumulate);
        const std::string what = std::to_string(c.rows) + "x" + std::to_string(c.channels);
        Floats y(n.size), rstd(n.rows), dx(n.size), dweight(n.channels, 0.5f);
        rms_norm_forward(n.p, n.x.data(), n.weight.data(), y.data(), rstd.data());
        expect_close(rstd, n.rstd, 1e-6, what + " rstd");
        expect_close(y, n.y, 1e-6, what + " y");
        Workspace workspace(norm_backward_workspace(n.p));
        rms_norm_backward(n.p, n.dy.data(), n.x.data(), n.weight.data(), rstd.data(), dx.data(),
                          dweight.data(), accumulate, workspace.data());
        expect_close(dx, n.dx, 1e-5, what + " dx");
        expect_close(dweight, n.dweight, 1e-5, what + " dweight");
      }
    }
  });
}

TEST(LayerNorm, WorksInPlaceAndWithoutOptionalOperands) {
  const NormCase n({40, 33}, true, false);
  Floats y = n.x, plain(n.size);
  layer_norm_forward(n.p, y.data(), n.weight.data(), n.bias.data(), y.data(), nullptr, nullptr);
  expect_close(y, n.y, 1e-5, "in place");
  layer_norm_forward(n.p, n.x.data(), nullptr, nullptr, plain.data(), nullptr, nullptr);
  for (std::size_t i = 0; i < n.size; ++i) {
    const std::size_t c = i % n.channels;
    ASSERT_NEAR(plain[i] * n.weight[c] + n.bias[c], n.y[i], 1e-5);
  }
  Floats mean(n.mean.begin(), n.mean.end()), rstd(n.rstd.begin(), n.rstd.end()), dx = n.dy;
  Workspace workspace(norm_backward_workspace(n.p));
  layer_norm_backward(n.p, dx.data(), n.x.data(), n.weight.data(), mean.data(), rstd.data(),
                      dx.data(), nullptr, nullptr, false, workspace.data());
  expect_close(dx, n.dx, 2e-5, "dx over dy");
}

TEST(LayerNorm, DoesNotDependOnTheThreadCount) {
  const NormCase n({300, 70}, true, false);
  const Floats mean(n.mean.begin(), n.mean.end()), rstd(n.rstd.begin(), n.rstd.end());
  std::vector<Floats> seen;
  with_thread_counts([&] {
    Floats dx(n.size), dweight(n.channels), dbias(n.channels);
    Workspace workspace(norm_backward_workspace(n.p));
    layer_norm_backward(n.p, n.dy.data(), n.x.data(), n.weight.data(), mean.data(), rstd.data(),
                        dx.data(), dweight.data(), dbias.data(), false, workspace.data());
    seen.push_back(dweight);
    seen.push_back(dbias);
  });
  EXPECT_EQ(seen[0], seen[2]);
  EXPECT_EQ(seen[1], seen[3]);
}

TEST(LayerNormReference, GradientsAreDerivatives) {
  const std::int64_t rows = 3, channels = 5;
  Doubles x = widen(random_floats(15, 1)), w = widen(random_floats(5, 2)),
          b = widen(random_floats(5, 3));
  const Doubles dy = widen(random_floats(15, 4));
  Doubles y(15), mean(3), rstd(3), dx(15), dw(5), db(5);
  const auto loss = [&] {
    reference::layer_norm_forward<double>(rows, channels, kEps, x.data(), w.data(), b.data(),
                                          y.data(), mean.data(), rstd.data());
    return dot(y, dy);
  };
  loss();
  reference::layer_norm_backward<double>(rows, channels, dy.data(), x.data(), w.data(), mean.data(),
                                         rstd.data(), dx.data(), dw.data(), db.data());
  expect_gradient(loss, x, dx, "x");
  expect_gradient(loss, w, dw, "weight");
  expect_gradient(loss, b, db, "bias");
}

TEST(RmsNormReference, GradientsAreDerivatives) {
  const std::int64_t rows = 3, channels = 5;
  Doubles x = widen(random_floats(15, 1)), w = widen(random_floats(5, 2));
  const Doubles dy = widen(random_floats(15, 4));
  Doubles y(15), rstd(3), dx(15), dw(5);
  const auto loss = [&] {
    reference::rms_norm_forward<double>(rows, channels, kEps, x.data(), w.data(), y.data(),
                                        rstd.data());
    return dot(y, dy);
  };
  loss();
  reference::rms_norm_backward<double>(rows, channels, dy.data(), x.data(), w.data(), rstd.data(),
                                       dx.data(), dw.data());
  expect_gradient(loss, x, dx, "x");
  expect_gradient(loss, w, dw, "weight");
}

}  // namespace
}  // namespace capstan::cpu
