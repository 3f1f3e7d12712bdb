// runtime/suggest.h: misspelt names find the one that was meant, and only that.
#include "runtime/suggest.h"

#include <string>

#include "gtest/gtest.h"

namespace capstan {
namespace {

TEST(EditDistance, CountsInsertionsDeletionsReplacementsAndSwaps) {
  EXPECT_EQ(EditDistance("betas", "betas"), 0u);
  EXPECT_EQ(EditDistance("beta", "betas"), 1u);
  EXPECT_EQ(EditDistance("bteas", "betas"), 1u);
  EXPECT_EQ(EditDistance("", "abc"), 3u);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3u);
}

TEST(Nearest, FindsSlipsOfTheFinger) {
  EXPECT_EQ(Nearest("weigth_decay", {"lr", "weight_decay", "eps"}), "weight_decay");
  EXPECT_EQ(Nearest("steps", {"step", "seed"}), "step");
}

TEST(Nearest, IsSilentWhenNothingIsNear) {
  EXPECT_EQ(Nearest("momentum", {"lr", "eps"}), "");
  EXPECT_EQ(Nearest("x", {"lr"}), "");
  EXPECT_EQ(Nearest("anything", {}), "");
}

TEST(Nearest, CompletesAnUnambiguousStart) {
  EXPECT_EQ(Nearest("warmup", {"warmup_steps", "kind"}), "warmup_steps");
  EXPECT_EQ(Nearest("war", {"warmup_steps", "warning_level"}), "");
}

TEST(Nearest, SurvivesHugeNames) {
  EXPECT_EQ(Nearest(std::string(1 << 20, 'a'), {"lr", "eps"}), "");
}

TEST(DidYouMean, EndsTheSentenceEitherWay) {
  EXPECT_EQ(DidYouMean("lrr", {"lr"}), "; did you mean \"lr\"?");
  EXPECT_EQ(DidYouMean("zzz", {"lr"}), ".");
}

}  // namespace
}  // namespace capstan
