#include "kernels/cpu/linear_cross_entropy.h"

#include <gtest/gtest.h>

#include <limits>

#include "kernels/cpu/reference/linear_cross_entropy.h"
#include "tests/kernels/compute_test_util.h"

namespace capstan::test {
namespace {

using cpu::LinearCrossEntropyParams;

struct Case {
  std::int64_t M, K, V, valid, chunk;
  int ignore_every;  // every n-th row has no target; 0: all have, 1: none has
};

std::vector<Case> cases() {
  return {{1, 1, 1, 1, 0, 0},        {3, 17, 65, 65, 2, 0},     {17, 8, 300, 290, 4, 0},
          {40, 33, 100, 100, 7, 3},  {65, 20, 257, 200, 64, 2}, {5, 4, 10, 10, 0, 1},
          {30, 16, 5000, 4999, 8, 5}};
}

std::string name(const Case& c) {
  return "M=" + std::to_string(c.M) + " K=" + std::to_string(c.K) + " V=" + std::to_string(c.V) +
         " valid=" + std::to_string(c.valid) + " chunk=" + std::to_string(c.chunk) +
         " ignore=" + std::to_string(c.ignore_every);
}

struct Data {
  explicit Data(const Case& c) : h(random_values(c.M * c.K, 1)), w(random_values(c.V * c.K, 2)) {
    std::mt19937 engine(3);
    for (std::int64_t i = 0; i < c.M; ++i) {
      const bool ignored = c.ignore_every > 0 && i % c.ignore_every == 0;
      targets.push_back(ignored ? -1 : static_cast<std::int32_t>(engine() % c.valid));
    }
  }
  std::vector<float> h, w;
  std::vector<std::int32_t> targets;
};

LinearCrossEntropyParams params_of(const Case& c) {
  LinearCrossEntropyParams p;
  p.M = c.M;
  p.K = c.K;
  p.V = c.V;
  p.valid_vocab = c.valid == c.V ? -1 : c.valid;
  p.chunk_rows = c.chunk;
  return p;
}

constexpr float kWeight = 37.0f;
constexpr float kScale = 8.0f;

TEST(LinearCrossEntropy, LossMatchesTheReference) {
  for (const Case& c : cases()) {
    const Data data(c);
    const auto h = widen(data.h), w = widen(data.w);
    const double expected = reference::linear_cross_entropy<double>(
        c.M, c.K, c.V, c.valid, h.data(), w.data(), data.targets.data(), kWeight, 1, false, nullptr,
        nullptr);
    for_each_setting([&](const std::string& setting) {
      GuardedWorkspace workspace(cpu::linear_cross_entropy_workspace(params_of(c)));
      float loss = -1;
      cpu::linear_cross_entropy_loss(params_of(c), data.h.data(), data.w.data(),
                                     data.targets.data(), &kWeight, &loss, workspace.get());
      EXPECT_NEAR(loss, expected, 2e-6 * std::max(1.0, std::abs(expected))) << name(c) << setting;
    });
  }
}

TEST(LinearCrossEntropy, LossAndGradientsMatchTheReference) {
  for (const Case& c : cases()) {
    const Data data(c);
    const auto h = widen(data.h), w = widen(data.w);
    const auto start = random_values(c.V * c.K, 5);
    for (const bool accumulate : {false, true}) {
      std::vector<double> dh_ref(c.M * c.K), dw_ref = widen(start);
      const double expected = reference::linear_cross_entropy<double>(
          c.M, c.K, c.V, c.valid, h.data(), w.data(), data.targets.data(), kWeight, kScale,
          accumulate, dh_ref.data(), dw_ref.data());
      for_each_setting([&](const std::string& setting) {
        GuardedWorkspace workspace(cpu::linear_cross_entropy_workspace(params_of(c)));
        float loss = -1;
        std::vector<float> dh(c.M * c.K, 7.0f), dw = start;
        cpu::linear_cross_entropy(params_of(c), data.h.data(), data.w.data(), data.targets.data(),
                                  &kWeight, &kScale, accumulate, &loss, dh.data(), dw.data(),
                                  workspace.get());
        EXPECT_NEAR(loss, expected, 2e-6 * std::max(1.0, std::abs(expected))) << name(c) << setting;
        expect_close(dh, dh_ref, 5e-6, "dh " + name(c) + " " + setting);
        expect_close(dw, dw_ref, 5e-6, "dw " + name(c) + " " + setting);
      });
    }
  }
}

TEST(LinearCrossEntropy, PaddingRowsOfTheWeightGetNoGradientAndNoProbability) {
  const Case c{9, 5, 20, 11, 4, 0};
  Data data(c);
  for (std::int64_t i = c.valid * c.K; i < c.V * c.K; ++i)
    data.w[i] = 1e6f;  // would win if counted
  GuardedWorkspace workspace(cpu::linear_cross_entropy_workspace(params_of(c)));
  float loss = -1;
  std::vector<float> dh(c.M * c.K), dw(c.V * c.K, 7.0f);
  cpu::linear_cross_entropy(params_of(c), data.h.data(), data.w.data(), data.targets.data(),
                            &kWeight, nullptr, false, &loss, dh.data(), dw.data(), workspace.get());
  EXPECT_LT(loss, 100.0f);
  for (std::int64_t i = c.valid * c.K; i < c.V * c.K; ++i) EXPECT_EQ(dw[i], 0.0f) << i;
}

TEST(LinearCrossEntropy, NoTargetsGiveZeroLossAndZeroGradients) {
  const Case c{5, 4, 10, 10, 0, 1};
  const Data data(c);
  const float none = 0.0f;
  GuardedWorkspace workspace(cpu::linear_cross_entropy_workspace(params_of(c)));
  float loss = -1;
  std::vector<float> dh(c.M * c.K, 7.0f), dw(c.V * c.K, 7.0f);
  cpu::linear_cross_entropy(params_of(c), data.h.data(), data.w.data(), data.targets.data(), &none,
                            nullptr, false, &loss, dh.data(), dw.data(), workspace.get());
  EXPECT_EQ(loss, 0.0f);
  EXPECT_EQ(dh, std::vector<float>(dh.size(), 0.0f));
  EXPECT_EQ(dw, std::vector<float>(dw.size(), 0.0f));
}

TEST(LinearCrossEntropy, TargetOutsideTheVocabularyMakesTheLossNan) {
  const Case c{5, 4, 10, 8, 2, 0};
  Data data(c);
  data.targets[3] = 8;  // a padding row of the weight
  GuardedWorkspace workspace(cpu::linear_cross_entropy_workspace(params_of(c)));
  std::vector<float> dh(c.M * c.K), dw(c.V * c.K), stats(c.M * 3), lse(c.M), logits(c.M * c.V);
  float loss = 0;
  cpu::linear_cross_entropy_loss(params_of(c), data.h.data(), data.w.data(), data.targets.data(),
                                 &kWeight, &loss, workspace.get());
  EXPECT_TRUE(std::isnan(loss));
  cpu::linear_cross_entropy(params_of(c), data.h.data(), data.w.data(), data.targets.data(),
                            &kWeight, nullptr, false, &(loss = 0), dh.data(), dw.data(),
                            workspace.get());
  EXPECT_TRUE(std::isnan(loss));
  cpu::lce_stats(params_of(c), data.h.data(), data.w.data(), data.targets.data(), stats.data(),
                 workspace.get());
  cpu::lce_merge(1, c.M, stats.data(), data.targets.data(), &kWeight, &(loss = 0), lse.data());
  EXPECT_TRUE(std::isnan(loss));
  cpu::cross_entropy_forward({c.M, c.V, c.valid}, logits.data(), data.targets.data(), &kWeight,
                             &(loss = 0), lse.data());
  EXPECT_TRUE(std::isnan(loss));
}

// Splitting the rows into microbatches changes neither the summed loss nor the gradients.
TEST(LinearCrossEntropy, MicrobatchesAddUpToTheWhole) {
  const Case c{24, 12, 50, 50, 0, 5};
  const Data data(c);
  GuardedWorkspace workspace(cpu::linear_cross_entropy_workspace(params_of(c)));
  float whole = 0;
  std::vector<float> dh(c.M * c.K), dw(c.V * c.K);
  cpu::linear_cross_entropy(params_of(c), data.h.data(), data.w.data(), data.targets.data(),
                            &kWeight, nullptr, false, &whole, dh.data(), dw.data(),
                            workspace.get());
  float sum = 0;
  std::vector<float> dh2(c.M * c.K), dw2(c.V * c.K);
  for (std::int64_t first : {0, 10}) {
    auto p = params_of(c);
    p.M = first == 0 ? 10 : 14;
    float loss = 0;
    cpu::linear_cross_entropy(p, data.h.data() + first * c.K, data.w.data(),
                              data.targets.data() + first, &kWeight, nullptr, first != 0, &loss,
                              dh2.data() + first * c.K, dw2.data(), workspace.get());
    sum += loss;
  }
  EXPECT_NEAR(sum, whole, 1e-6);
  expect_close(dh2, widen(dh), 2e-6, "dh");
  expect_close(dw2, widen(dw), 2e-6, "dw");
}

class VocabularyCut : public ::testing::TestWithParam<std::int64_t> {};

TEST_P(VocabularyCut, ShardsGiveTheLossAndGradientsOfTheWhole) {
  const std::int64_t R = GetParam();
  const Case c{21, 10, 48, 33, 5, 4};  // with 3 shards of 16 the last holds one valid row
  const Data data(c);
  const auto h = widen(data.h), w = widen(data.w);
  std::vector<double> dh_ref(c.M * c.K), dw_ref(c.V * c.K);
  const double expected = reference::linear_cross_entropy<double>(
      c.M, c.K, c.V, c.valid, h.data(), w.data(), data.targets.data(), kWeight, kScale, false,
      dh_ref.data(), dw_ref.data());
  const std::int64_t rows = c.V / R;
  std::vector<float> stats(R * c.M * 3), lse(c.M), dw(c.V * c.K, 7.0f);
  const auto shard = [&](std::int64_t r) {
    auto p = params_of(c);
    p.V = rows;
    p.vocab_start = r * rows;
    return p;
  };
  GuardedWorkspace workspace(cpu::linear_cross_entropy_workspace(shard(0)));
  for (std::int64_t r = 0; r < R; ++r) {
    cpu::lce_stats(shard(r), data.h.data(), data.w.data() + r * rows * c.K, data.targets.data(),
                   stats.data() + r * c.M * 3, workspace.get());
    const std::int64_t valid = std::clamp<std::int64_t>(c.valid - r * rows, 0, rows);
    std::vector<double> stats_ref(c.M * 3);
    reference::lce_stats<double>(c.M, c.K, valid, r * rows, h.data(), w.data() + r * rows * c.K,
                                 data.targets.data(), stats_ref.data());
    for (std::int64_t i = 0; i < c.M * 3; ++i) {
      const float actual = stats[r * c.M * 3 + i];
      if (std::isinf(stats_ref[i])) {
        EXPECT_EQ(actual, stats_ref[i]);
      } else {
        EXPECT_NEAR(actual, stats_ref[i], 1e-5 * std::max(1.0, std::abs(stats_ref[i])));
      }
    }
  }
  float loss = -1;
  cpu::lce_merge(R, c.M, stats.data(), data.targets.data(), &kWeight, &loss, lse.data());
  EXPECT_NEAR(loss, expected, 2e-6 * std::abs(expected));
  std::vector<float> dh(c.M * c.K, 0.0f), part(c.M * c.K, 7.0f);
  for (std::int64_t r = 0; r < R; ++r) {
    const float* shard_weight = data.w.data() + r * rows * c.K;
    float* shard_dw = dw.data() + r * rows * c.K;
    cpu::lce_grad(shard(r), data.h.data(), shard_weight, data.targets.data(), lse.data(), &kWeight,
                  &kScale, nullptr, false, part.data(), shard_dw, workspace.get());
    for (std::size_t i = 0; i < dh.size(); ++i) dh[i] += part[i];

    // With the logits kept.
    std::vector<float> logits(c.M * rows), stats_kept(c.M * 3, 7.0f), dh_kept(part.size(), 7.0f),
        dw_kept(rows * c.K, 7.0f);
    reference::linear<float>(c.M, rows, c.K, data.h.data(), shard_weight, nullptr, logits.data());
    cpu::ce_stats(shard(r), logits.data(), data.targets.data(), stats_kept.data());
    for (std::int64_t i = 0; i < c.M * 3; ++i) {
      const float expected_stat = stats[r * c.M * 3 + i];
      if (std::isinf(expected_stat)) {
        EXPECT_EQ(stats_kept[i], expected_stat);
      } else {
        EXPECT_NEAR(stats_kept[i], expected_stat, 1e-5 * std::max(1.0f, std::abs(expected_stat)));
      }
    }
    cpu::lce_grad(shard(r), data.h.data(), shard_weight, data.targets.data(), lse.data(), &kWeight,
                  &kScale, logits.data(), false, dh_kept.data(), dw_kept.data(), workspace.get());
    expect_close(dh_kept, widen(part), 5e-6, "dh of kept logits");
    expect_close(dw_kept, widen(std::vector<float>(shard_dw, shard_dw + rows * c.K)), 5e-6,
                 "dw of kept logits");
  }
  expect_close(dh, dh_ref, 5e-6, "dh");
  expect_close(dw, dw_ref, 5e-6, "dw");
}

INSTANTIATE_TEST_SUITE_P(Shards, VocabularyCut, ::testing::Values(1, 2, 3, 4));

TEST(CrossEntropy, ForwardAndBackwardMatchTheReference) {
  for (const Case& c : cases()) {
    const Data data(c);
    const auto logits = random_values(c.M * c.V, 8, 3.0f);
    const auto wide = widen(logits);
    std::vector<double> expected(c.M * c.V);
    const double loss_ref = reference::cross_entropy_forward<double>(c.M, c.V, c.valid, wide.data(),
                                                                     data.targets.data(), kWeight);
    reference::cross_entropy_backward<double>(c.M, c.V, c.valid, wide.data(), data.targets.data(),
                                              kWeight, kScale, expected.data());
    for_each_setting([&](const std::string& setting) {
      const cpu::CrossEntropyParams p{c.M, c.V, c.valid};
      std::vector<float> lse(c.M), dlogits(c.M * c.V), in_place = logits;
      float loss = -1;
      cpu::cross_entropy_forward(p, logits.data(), data.targets.data(), &kWeight, &loss,
                                 lse.data());
      EXPECT_NEAR(loss, loss_ref, 2e-6 * std::max(1.0, loss_ref)) << name(c) << setting;
      cpu::cross_entropy_backward(p, logits.data(), data.targets.data(), lse.data(), &kWeight,
                                  &kScale, dlogits.data());
      expect_close(dlogits, expected, 2e-6, "dlogits " + name(c) + setting);
      cpu::cross_entropy_backward(p, in_place.data(), data.targets.data(), lse.data(), &kWeight,
                                  &kScale, in_place.data());
      EXPECT_EQ(in_place, dlogits);
    });
  }
}

TEST(LinearCrossEntropyReference, GradientsMatchFiniteDifferences) {
  const Case c{6, 4, 9, 7, 0, 3};
  const Data data(c);
  auto h = widen(data.h), w = widen(data.w);
  std::vector<double> dh(c.M * c.K), dw(c.V * c.K);
  const auto loss = [&] {
    return reference::linear_cross_entropy<double>(c.M, c.K, c.V, c.valid, h.data(), w.data(),
                                                   data.targets.data(), kWeight, 1.0, false,
                                                   nullptr, nullptr);
  };
  reference::linear_cross_entropy<double>(c.M, c.K, c.V, c.valid, h.data(), w.data(),
                                          data.targets.data(), kWeight, 1.0, false, dh.data(),
                                          dw.data());
  expect_gradient(h, dh, loss, "h");
  expect_gradient(w, dw, loss, "w");
}

}  // namespace
}  // namespace capstan::test
