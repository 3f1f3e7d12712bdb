#include "runtime/run/learning_rate.h"

#include <gtest/gtest.h>

namespace capstan {
namespace {

Schedule Make(const std::string& kind, int64_t warmup, double low, int64_t decay = 0) {
  Schedule s;
  s.kind = kind;
  s.warmup_steps = warmup;
  s.min_lr = low;
  s.decay_steps = decay;
  return s;
}

TEST(LearningRate, WarmUpRisesLinearlyToTheBase) {
  const Schedule s = Make("constant", 4, 0);
  EXPECT_DOUBLE_EQ(LearningRate(s, 1.0, 0, 100), 0.25);
  EXPECT_DOUBLE_EQ(LearningRate(s, 1.0, 3, 100), 1.0);
  EXPECT_DOUBLE_EQ(LearningRate(s, 1.0, 99, 100), 1.0);
}

TEST(LearningRate, CosineEndsAtTheMinimumAndHalvesInTheMiddle) {
  const Schedule s = Make("cosine", 0, 0.1);
  EXPECT_DOUBLE_EQ(LearningRate(s, 1.0, 0, 101), 1.0);
  EXPECT_NEAR(LearningRate(s, 1.0, 50, 101), 0.55, 1e-12);
  EXPECT_NEAR(LearningRate(s, 1.0, 100, 101), 0.1, 1e-12);
}

TEST(LearningRate, LinearFallsEvenly) {
  const Schedule s = Make("linear", 0, 0.0);
  EXPECT_NEAR(LearningRate(s, 2.0, 25, 101), 1.5, 1e-12);
  EXPECT_NEAR(LearningRate(s, 2.0, 100, 101), 0.0, 1e-12);
}

TEST(LearningRate, WsdIsFlatThenFallsToTheMinimum) {
  const Schedule s = Make("wsd", 2, 0.2, 10);
  EXPECT_DOUBLE_EQ(LearningRate(s, 1.0, 50, 100), 1.0);
  EXPECT_DOUBLE_EQ(LearningRate(s, 1.0, 89, 100), 1.0);
  EXPECT_NEAR(LearningRate(s, 1.0, 94, 100), 0.6, 1e-12);
  EXPECT_NEAR(LearningRate(s, 1.0, 99, 100), 0.2, 1e-12);
}

TEST(LearningRate, ASingleStepIsDefined) {
  for (const char* kind : {"constant", "linear", "cosine", "wsd"}) {
    const double rate = LearningRate(Make(kind, 0, 0.1), 1.0, 0, 1);
    EXPECT_GE(rate, 0.1) << kind;
    EXPECT_LE(rate, 1.0) << kind;
  }
}

}  // namespace
}  // namespace capstan
