#include "kernels/cpu/matmul.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <array>
#include <limits>
#include <numeric>

#include "kernels/cpu/reference/matmul.h"
#include "tests/kernels/compute_test_util.h"

namespace capstan::test {
namespace {

using cpu::LinearShape;

// Rounding of a float sum of `terms` products, relative to its typical size.
double sum_tolerance(std::int64_t terms) { return 1e-6 + 2e-7 * std::sqrt(double(terms)); }

std::vector<LinearShape> linear_shapes() {
  std::vector<LinearShape> shapes;
  for (const std::int64_t m : {1, 2, 3, 4, 5, 17, 65, 300}) {
    for (const auto& [n, k] : {std::pair{1, 1}, {3, 17}, {65, 3}, {64, 64}, {130, 257}}) {
      shapes.push_back({m, n, k});
    }
  }
  return shapes;
}

std::string name(const LinearShape& s) {
  return "M=" + std::to_string(s.M) + " N=" + std::to_string(s.N) + " K=" + std::to_string(s.K);
}

TEST(Matmul, LinearMatchesTheReferenceWithAndWithoutBias) {
  for (const LinearShape& s : linear_shapes()) {
    const auto x = random_values(s.M * s.K, 1), w = random_values(s.N * s.K, 2);
    const auto bias = random_values(s.N, 3);
    const auto xd = widen(x), wd = widen(w), bd = widen(bias);
    std::vector<double> plain(s.M * s.N), biased(s.M * s.N);
    reference::linear<double>(s.M, s.N, s.K, xd.data(), wd.data(), nullptr, plain.data());
    reference::linear<double>(s.M, s.N, s.K, xd.data(), wd.data(), bd.data(), biased.data());
    for_each_setting([&](const std::string& setting) {
      std::vector<float> y(s.M * s.N, std::numeric_limits<float>::quiet_NaN());
      cpu::linear(s, x.data(), w.data(), nullptr, y.data());
      expect_close(y, plain, sum_tolerance(s.K), name(s) + " " + setting);
      cpu::linear(s, x.data(), w.data(), bias.data(), y.data());
      expect_close(y, biased, sum_tolerance(s.K), name(s) + " bias " + setting);
    });
  }
}

TEST(Matmul, LinearGeluMatchesTheReferenceAndKeepsThePreActivation) {
  for (const LinearShape& s : linear_shapes()) {
    const auto x = random_values(s.M * s.K, 1), w = random_values(s.N * s.K, 2);
    const auto bias = random_values(s.N, 3);
    std::vector<double> pre_ref(s.M * s.N), y_ref(s.M * s.N);
    const auto xd = widen(x), wd = widen(w), bd = widen(bias);
    reference::linear_gelu<double>(s.M, s.N, s.K, xd.data(), wd.data(), bd.data(), pre_ref.data(),
                                   y_ref.data());
    for_each_setting([&](const std::string& setting) {
      std::vector<float> pre(s.M * s.N), y(s.M * s.N);
      cpu::linear_gelu(s, x.data(), w.data(), bias.data(), pre.data(), y.data());
      expect_close(pre, pre_ref, sum_tolerance(s.K), "pre " + name(s) + " " + setting);
      expect_close(y, y_ref, sum_tolerance(s.K), "y " + name(s) + " " + setting);
    });
  }
}

TEST(Matmul, GeluIsAccurateOverItsRangeAndInTheTails) {
  // K = 1 and a weight of 1 make the pre-activation the input itself.
  const LinearShape s{6, 2001, 1};
  std::vector<float> w(s.N), x(s.M, 1.0f);
  for (std::int64_t i = 0; i < s.N; ++i) w[i] = -50.0f + 0.05f * static_cast<float>(i);
  std::vector<float> pre(s.M * s.N), y(s.M * s.N);
  cpu::linear_gelu(s, x.data(), w.data(), nullptr, pre.data(), y.data());
  for (std::int64_t i = 0; i < s.N; ++i) {
    const double expected = reference::gelu_tanh<double>(w[i]);
    EXPECT_NEAR(y[i], expected, 1e-6 * std::max(1e-1, std::abs(expected))) << w[i];
  }
}

TEST(Matmul, InputGradientMatchesTheReference) {
  for (const LinearShape& s : linear_shapes()) {
    const auto dy = random_values(s.M * s.N, 4), w = random_values(s.N * s.K, 5);
    const auto start = random_values(s.M * s.K, 6);
    const auto dyd = widen(dy), wd = widen(w);
    for (const bool accumulate : {false, true}) {
      auto expected = widen(start);
      reference::linear_dx<double>(s.M, s.N, s.K, dyd.data(), wd.data(), accumulate,
                                   expected.data());
      for_each_setting([&](const std::string& setting) {
        auto dx = start;
        cpu::linear_dx(s, dy.data(), w.data(), accumulate, dx.data());
        expect_close(dx, expected, sum_tolerance(s.N), name(s) + " " + setting);
      });
    }
  }
}

TEST(Matmul, WeightAndBiasGradientsMatchTheReference) {
  for (const LinearShape& s : linear_shapes()) {
    const auto x = random_values(s.M * s.K, 7), dy = random_values(s.M * s.N, 8);
    const auto start_w = random_values(s.N * s.K, 9), start_b = random_values(s.N, 10);
    const auto xd = widen(x), dyd = widen(dy);
    for (const bool accumulate : {false, true}) {
      auto dw_ref = widen(start_w), db_ref = widen(start_b);
      reference::linear_dw<double>(s.M, s.N, s.K, xd.data(), dyd.data(), accumulate, dw_ref.data(),
                                   db_ref.data());
      for_each_setting([&](const std::string& setting) {
        auto dw = start_w, db = start_b;
        cpu::linear_dw(s, x.data(), dy.data(), accumulate, dw.data(), db.data());
        expect_close(dw, dw_ref, sum_tolerance(s.M), "dw " + name(s) + " " + setting);
        expect_close(db, db_ref, sum_tolerance(s.M), "db " + name(s) + " " + setting);
        auto without_bias = start_w;
        cpu::linear_dw(s, x.data(), dy.data(), accumulate, without_bias.data(), nullptr);
        EXPECT_EQ(without_bias, dw);
      });
    }
  }
}

TEST(Matmul, BiasGradientOfManyRowsKeepsPrecision) {
  // A constant column: a naive running float sum of 100000 times 0.1 is off by 1e-4 relative.
  const LinearShape s{100000, 3, 1};
  const std::vector<float> x(s.M, 0.0f), dy(s.M * s.N, 0.1f);
  std::vector<float> dw(s.N * s.K), db(s.N);
  cpu::linear_dw(s, x.data(), dy.data(), false, dw.data(), db.data());
  for (const float v : db) EXPECT_NEAR(v, 1e5 * double(0.1f), 1e4 * 3e-6);
}

TEST(Matmul, ResultsAreTheSameFromRunToRun) {
  const LinearShape s{300, 257, 129};
  const auto x = random_values(s.M * s.K, 1), dy = random_values(s.M * s.N, 2);
  std::vector<float> first(s.N * s.K), second(s.N * s.K), db1(s.N), db2(s.N);
  cpu::linear_dw(s, x.data(), dy.data(), false, first.data(), db1.data());
  cpu::linear_dw(s, x.data(), dy.data(), false, second.data(), db2.data());
  EXPECT_EQ(first, second);
  EXPECT_EQ(db1, db2);
}

TEST(Matmul, GeneralProductMatchesTheReferenceForEveryTranspositionAndBatch) {
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      for (const std::int64_t batch : {1, 2, 5}) {
        for (const bool accumulate : {false, true}) {
          cpu::MatmulParams p;
          p.batch = batch;
          p.M = 17;
          p.N = 33;
          p.K = 9;
          p.transpose_a = ta;
          p.transpose_b = tb;
          p.stride_a = p.M * p.K + 3;
          p.stride_b = 0;  // shared
          p.stride_c = p.M * p.N + 1;
          p.alpha = 0.5f;
          p.accumulate = accumulate;
          const auto a = random_values(batch * p.stride_a, 11), b = random_values(p.K * p.N, 12);
          const auto start = random_values(batch * p.stride_c, 13);
          const auto ad = widen(a), bd = widen(b);
          auto expected = widen(start);
          for (std::int64_t i = 0; i < batch; ++i) {
            reference::matmul<double>(p.M, p.N, p.K, ta, tb, 0.5, ad.data() + i * p.stride_a,
                                      bd.data(), accumulate, expected.data() + i * p.stride_c);
          }
          for_each_setting([&](const std::string& setting) {
            auto c = start;
            cpu::matmul(p, a.data(), b.data(), c.data());
            expect_close(c, expected, sum_tolerance(p.K), "matmul " + setting);
          });
        }
      }
    }
  }
}

// Large enough that threads take parts of the rows and columns, with rests at both ends.
TEST(Matmul, PartsOfThreadsMakeTheWholeProduct) {
  const int before = omp_get_max_threads();
  for (const auto& [m, n, k] : {std::array<std::int64_t, 3>{1003, 517, 130}, {397, 1999, 97}}) {
    for (const bool ta : {false, true}) {
      for (const bool tb : {false, true}) {
        const auto a = random_values(m * k, 21), b = random_values(k * n, 22);
        const auto start = random_values(m * (n + 5), 23);  // rows lie apart
        const auto ad = widen(a), bd = widen(b);
        std::vector<double> product(m * n);
        reference::matmul<double>(m, n, k, ta, tb, 0.5, ad.data(), bd.data(), false,
                                  product.data());
        auto expected = widen(start);
        for (std::int64_t i = 0; i < m; ++i) {
          for (std::int64_t j = 0; j < n; ++j) expected[i * (n + 5) + j] += product[i * n + j];
        }
        for (const int threads : {1, 2, 3, 4, 6}) {
          omp_set_num_threads(threads);
          auto c = start;
          cpu::sgemm(ta, tb, m, n, k, 0.5f, a.data(), ta ? m : k, b.data(), tb ? k : n, 1.0f,
                     c.data(), n + 5);
          expect_close(c, expected, sum_tolerance(k), std::to_string(threads) + " threads");
        }
      }
    }
  }
  omp_set_num_threads(before);
}

TEST(Matmul, EmptyDimensionsGiveEmptyOrZeroResults) {
  std::vector<float> y(6, 5.0f);
  const std::vector<float> bias{1.0f, 2.0f, 3.0f};
  cpu::linear({0, 3, 4}, nullptr, nullptr, nullptr, y.data());
  EXPECT_EQ(y, std::vector<float>(6, 5.0f));
  cpu::linear({2, 3, 0}, nullptr, nullptr, bias.data(), y.data());
  EXPECT_EQ(y, (std::vector<float>{1, 2, 3, 1, 2, 3}));
  std::vector<float> dw{1.0f, 2.0f}, db{3.0f, 4.0f};
  cpu::linear_dw({0, 2, 1}, nullptr, nullptr, true, dw.data(), db.data());
  EXPECT_EQ(dw, (std::vector<float>{1.0f, 2.0f}));
  EXPECT_EQ(db, (std::vector<float>{3.0f, 4.0f}));
  cpu::linear_dw({0, 2, 1}, nullptr, nullptr, false, dw.data(), db.data());
  EXPECT_EQ(dw, (std::vector<float>{0.0f, 0.0f}));
  EXPECT_EQ(db, (std::vector<float>{0.0f, 0.0f}));
}

// The reference's gradients are the derivative of the reference's forward pass.
TEST(MatmulReference, LinearGradientsMatchFiniteDifferences) {
  const std::int64_t M = 4, N = 5, K = 3;
  auto x = widen(random_values(M * K, 1)), w = widen(random_values(N * K, 2));
  auto bias = widen(random_values(N, 3));
  const auto dy = widen(random_values(M * N, 4));
  const auto loss = [&] {
    std::vector<double> y(M * N);
    reference::linear<double>(M, N, K, x.data(), w.data(), bias.data(), y.data());
    return std::inner_product(y.begin(), y.end(), dy.begin(), 0.0);
  };
  std::vector<double> dx(M * K), dw(N * K), db(N);
  reference::linear_dx<double>(M, N, K, dy.data(), w.data(), false, dx.data());
  reference::linear_dw<double>(M, N, K, x.data(), dy.data(), false, dw.data(), db.data());
  expect_gradient(x, dx, loss, "x");
  expect_gradient(w, dw, loss, "w");
  expect_gradient(bias, db, loss, "bias");
}

}  // namespace
}  // namespace capstan::test
