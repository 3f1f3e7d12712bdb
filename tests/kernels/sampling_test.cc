// Sampling: frequencies follow the reference's probabilities, and the edges.
#include "kernels/cpu/sampling.h"

#include <limits>

#include "kernels/cpu/reference/sampling.h"
#include "tests/kernels/memory_bound_util.h"

namespace capstan::cpu {
namespace {

using namespace capstan::testing;  // NOLINT: the tests' vocabulary

std::int64_t draw(const SamplingParams& p, const Floats& logits, double uniform) {
  Workspace workspace(sampling_workspace(p));
  return sample_token(p, logits.data(), uniform, workspace.data());
}

TEST(Sampling, SharesOfTheUnitIntervalAreTheProbabilities) {
  const Floats logits = random_floats(300, 1, -3, 3);
  for (const SamplingParams& p :
       {SamplingParams{300, 1.0f, 0, 1.0f}, SamplingParams{300, 0.7f, 0, 1.0f},
        SamplingParams{300, 1.0f, 10, 1.0f}, SamplingParams{300, 1.3f, 0, 0.8f},
        SamplingParams{300, 1.0f, 120, 0.9f}, SamplingParams{300, 1.0f, 1, 1.0f}}) {
    const Doubles expected = reference::sampling_probabilities<double>(p, logits.data());
    Doubles share(300);
    const int grid = 20000;
    for (int i = 0; i < grid; ++i) {
      share[static_cast<std::size_t>(draw(p, logits, (i + 0.5) / grid))] += 1.0 / grid;
    }
    for (std::size_t i = 0; i < 300; ++i) ASSERT_NEAR(share[i], expected[i], 1.01 / grid) << i;
  }
}

TEST(Sampling, ZeroTemperatureTakesTheFirstLargest) {
  const SamplingParams p{5, 0.0f, 0, 1.0f};
  EXPECT_EQ(draw(p, {1.0f, 7.0f, 3.0f, 7.0f, -2.0f}, 0.99), 1);
}

TEST(Sampling, TinyNucleusKeepsTheLargest) {
  const SamplingParams p{4, 1.0f, 0, 1e-6f};
  EXPECT_EQ(draw(p, {0.0f, 0.1f, 0.3f, 0.2f}, 0.999999), 2);
}

TEST(Sampling, IgnoresMaskedAndBadLogits) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const SamplingParams p{4, 1.0f, 0, 1.0f};
  for (double u : {0.0, 0.5, 0.9999999}) EXPECT_EQ(draw(p, {-inf, nan, 2.0f, -inf}, u), 2);
  EXPECT_EQ(draw(p, {-inf, nan, nan, -inf}, 0.5), -1);
  EXPECT_EQ(draw(p, {0.0f, inf, 0.0f, 0.0f}, 0.5), 1);
}

TEST(Sampling, TopKBreaksTiesByIndex) {
  const SamplingParams p{6, 1.0f, 2, 1.0f};
  const Floats logits(6, 1.0f);
  EXPECT_EQ(draw(p, logits, 0.25), 0);
  EXPECT_EQ(draw(p, logits, 0.75), 1);
}

TEST(Sampling, TheUniformDependsOnSampleAndPositionAlone) {
  const PhiloxKey key = derive_key(1, purpose_hash("sample"));
  EXPECT_EQ(sampling_uniform(key, 3, 5), sampling_uniform(key, 3, 5));
  EXPECT_NE(sampling_uniform(key, 3, 5), sampling_uniform(key, 5, 3));
  double sum = 0.0;
  for (int i = 0; i < 10000; ++i) sum += sampling_uniform(key, i, 0);
  EXPECT_NEAR(sum / 10000, 0.5, 0.015);
}

}  // namespace
}  // namespace capstan::cpu
