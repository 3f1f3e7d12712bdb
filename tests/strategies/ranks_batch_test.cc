// What several ranks say of a batch, in the words of one.
#include <cstdlib>

#include "tests/strategies/ranks_fixture.h"

namespace capstan::strategies_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class RanksBatch : public ManyRanks {
 protected:
  RanksBatch() { ::setenv("CAPSTAN_PLUGIN_PATH", CAPSTAN_PLUGINS ":" CAPSTAN_TEST_PLUGINS, 1); }
  ~RanksBatch() override { ::unsetenv("CAPSTAN_PLUGIN_PATH"); }

  // The dataset of the tests that has targets for one step only.
  std::string Unlabelled(const std::string& strategies) {
    std::string text = ConfigText(kGpt2Uneven, strategies);
    const std::string tokens = "plugin = \"tokens\"", source = "[[data.source]]";
    text.replace(text.find(tokens), tokens.size(), "plugin = \"unlabelled\"");
    const size_t begin = text.find(source);
    text.erase(begin, text.find("[batch]") - begin);
    return folder_.Write("unlabelled.toml", text);
  }
};

TEST_F(RanksBatch, AStepWithNothingToLearnFromIsRefusedLikeThatOfOneRank) {
  const auto sentence =
      AllOf(HasSubstr("samples 36 to 71 have no target tokens; nothing to learn from"),
            Not(HasSubstr("optimizer.lr")));
  const Outcome one = Train(Unlabelled(""), "one", 1);
  EXPECT_EQ(one.exit_code, 1) << one.err;
  EXPECT_THAT(one.err, sentence);
  for (const char* strategy : {"dp", "zero3"}) {
    const Outcome three = Train(Unlabelled(Strategy(strategy)), strategy, 3);
    EXPECT_EQ(three.exit_code, 1) << three.err;
    EXPECT_THAT(three.err, sentence);
  }
}

}  // namespace
}  // namespace capstan::strategies_test
