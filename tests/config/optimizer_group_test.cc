// [[optimizer.group]]: other options, or another optimizer, for some parameters.
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/config/fake_components.h"

namespace capstan::testing_config {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(OptimizerGroups, TheLastOneTakesTheRest) {
  const absl::StatusOr<Config> config = LoadWith("");
  ASSERT_TRUE(config.ok());
  ASSERT_EQ(config->optimizer_groups.size(), 1u);
  const OptimizerGroup& rest = config->optimizer_groups[0];
  EXPECT_THAT(rest.match, ElementsAre("*"));
  EXPECT_EQ(rest.lr, 1e-3);
  EXPECT_EQ(rest.weight_decay, 0);
  EXPECT_FALSE(rest.weight_decay_set);
  EXPECT_EQ(rest.optimizer.component, config->optimizer.component);
}

TEST(OptimizerGroups, OverrideTheTableAboveKeyByKey) {
  const absl::StatusOr<Config> config = LoadWith(
      "weight_decay = 0.1\neps = 1e-6\nbetas = [0.8, 0.9]\n"
      "[[optimizer.group]]\nmatch = [\"*.bias\", \"*.norm.*\"]\nweight_decay = 0.0\neps = 1e-4\n");
  ASSERT_TRUE(config.ok()) << config.status();
  ASSERT_EQ(config->optimizer_groups.size(), 2u);
  const OptimizerGroup& group = config->optimizer_groups[0];
  EXPECT_THAT(group.match, ElementsAre("*.bias", "*.norm.*"));
  EXPECT_EQ(group.weight_decay, 0.0);
  EXPECT_TRUE(group.weight_decay_set);
  EXPECT_EQ(group.lr, 1e-3);
  EXPECT_EQ(group.optimizer.options.Float("eps"), 1e-4);
  EXPECT_EQ(group.optimizer.options.Find("betas")->floats[0], 0.8);
  EXPECT_EQ(config->optimizer_groups[1].weight_decay, 0.1);
  EXPECT_EQ(config->optimizer_groups[1].optimizer.options.Float("eps"), 1e-6);
}

TEST(OptimizerGroups, AnotherPluginStartsFromItsOwnDefaults) {
  const absl::StatusOr<Config> config = LoadWith(
      "eps = 1e-6\n[[optimizer.group]]\nplugin = \"sgd\"\nmatch = [\"wte\"]\nmomentum = 0.9\n");
  ASSERT_TRUE(config.ok()) << config.status();
  const OptimizerGroup& group = config->optimizer_groups[0];
  EXPECT_EQ(group.optimizer.id, "sgd");
  EXPECT_EQ(group.lr, 0.01);
  EXPECT_EQ(group.optimizer.options.Float("momentum"), 0.9);
  EXPECT_EQ(group.optimizer.options.Find("eps"), nullptr);
}

TEST(OptimizerGroups, MistakesNameTheGroup) {
  EXPECT_EQ(Problem(LoadWith("[[optimizer.group]]\nlr = 0.1\n")),
            "/cfg/run.toml:13: optimizer.group.0.match is missing (Patterns of the parameter names "
            "in this group); add match = [\"...\"] to [optimizer.group.0].");
  EXPECT_EQ(Problem(LoadWith("[[optimizer.group]]\nmatch = [\"*\"]\nbeta = [0.1]\n")),
            "/cfg/run.toml:15: [optimizer.group.0] has no option \"beta\" (plugin \"adamw\"); did "
            "you mean \"betas\"?");
  EXPECT_THAT(Problem(LoadWith("[[optimizer.group]]\nmatch = [\"*\"]\nclip_norm = 1.0\n")),
              HasSubstr("has no option \"clip_norm\""));
}

TEST(OptimizerGroups, MistakesAboveAreNotRepeatedForGroups) {
  const std::string problem =
      Problem(LoadWith("eps = \"x\"\n[[optimizer.group]]\nmatch = [\"*\"]\n"));
  EXPECT_THAT(problem, testing::StartsWith("/cfg/run.toml:13: optimizer.eps must be a number"));
  EXPECT_THAT(problem, testing::Not(HasSubstr("group")));
}

TEST(OptimizerGroups, AreAListOfTables) {
  EXPECT_THAT(Problem(LoadWith("[optimizer.group]\nmatch = [\"*\"]\n")),
              HasSubstr("write [[optimizer.group]]."));
}

}  // namespace
}  // namespace capstan::testing_config
