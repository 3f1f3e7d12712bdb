#include <gtest/gtest.h>

#include "tests/sdk/bench.h"

namespace capstan {
namespace {

class CausalLm : public testing::Test {
 protected:
  Bench bench_;
  Instance<capstan_objective_v1> objective_ =
      bench_.make<capstan_objective_v1>("objective", "causal_lm", "").value();
};

TEST_F(CausalLm, NeedsTokensTargetsAndPositions) {
  std::vector<std::string> names;
  for (size_t i = 0; const capstan_field* f = objective_.vtable->field(objective_.self, i); ++i) {
    names.push_back(f->name);
    EXPECT_EQ(f->per_position, 1);
    EXPECT_EQ(f->dtype.bits, 32);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"tokens", "targets", "position"}));
}

TEST_F(CausalLm, WeighsASequenceByItsTargets) {
  const int32_t tokens[4] = {1, 2, 3, 4}, targets[4] = {2, -1, 4, -1}, position[4] = {0, 1, 2, 3};
  const void* fields[] = {tokens, targets, position};
  EXPECT_EQ(objective_.vtable->weight(objective_.self, fields, 4), 2.0);
  EXPECT_EQ(objective_.vtable->weight(objective_.self, fields, 1), 1.0);
  EXPECT_STREQ(objective_.vtable->unit(objective_.self), "target tokens");
}

TEST_F(CausalLm, NeverMakesLogits) {
  bench_.compose("gpt2", "layers = 1\nwidth = 8\nheads = 2\nvocabulary = 11\nmax_sequence = 8\n");
  const auto program = ComposeEval(bench_.ingredients());
  ASSERT_TRUE(program.ok()) << program.status();
  EXPECT_NE(KindsOf(**program, "forward/0").find("linear_cross_entropy"), std::string::npos);
  for (OpId o : OpsOf(**program, "forward/0")) {
    for (TensorId t : (*program)->op(o).outputs) {
      const Dims& shape = (*program)->tensor(t).shape();
      EXPECT_FALSE(shape.size() == 3 && shape[2] == 11) << (*program)->OpText(o);
    }
  }
}

}  // namespace
}  // namespace capstan
