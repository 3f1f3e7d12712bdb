// The resolved configuration: complete, stable, without secrets, and the same run when loaded
// again.
#include <cstdlib>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/config/fake_components.h"

namespace capstan::testing_config {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr char kRich[] = R"(weight_decay = 0.1
[[optimizer.group]]
match = ["*.bias"]
weight_decay = 0.0
[[optimizer.group]]
plugin = "sgd"
match = ["wte"]
[optimizer.schedule]
kind = "cosine"
warmup_steps = 2
[mesh]
dp = "auto"
tp = 2
order = ["tp", "dp"]
[[data.source]]
path = "a b.bin"
[[data.source]]
path = "/data/c.bin"
weight = 2.5
[[strategy]]
plugin = "pp"
schedule = "gpipe"
cuts = [3, 6]
[[strategy]]
plugin = "tp"
id = "tensor"
[[tracker]]
plugin = "web"
token = {env = "CAPSTAN_TEST_SECRET"}
tags = ["a", "b\"c"]
)";

void ExpectSameOptions(const ComponentConfig& a, const ComponentConfig& b) {
  SCOPED_TRACE(a.table);
  EXPECT_EQ(a.table, b.table);
  EXPECT_EQ(a.id, b.id);
  EXPECT_EQ(a.component, b.component);
  ASSERT_EQ(a.options.entries().size(), b.options.entries().size());
  for (size_t i = 0; i < a.options.entries().size(); ++i) {
    const OptionEntry& x = a.options.entries()[i];
    const OptionEntry& y = b.options.entries()[i];
    SCOPED_TRACE(x.key);
    EXPECT_EQ(x.key, y.key);
    EXPECT_EQ(x.from_user, y.from_user);
    EXPECT_EQ(x.i, y.i);
    EXPECT_EQ(x.f, y.f);
    EXPECT_EQ(x.s, y.s);
    EXPECT_EQ(x.ints, y.ints);
    EXPECT_EQ(x.floats, y.floats);
    EXPECT_EQ(x.strings, y.strings);
  }
}

class ResolvedTest : public testing::Test {
 protected:
  void SetUp() override { setenv("CAPSTAN_TEST_SECRET", "hunter2", 1); }
  void TearDown() override { unsetenv("CAPSTAN_TEST_SECRET"); }

  Config LoadText(const std::string& text, const std::vector<std::string>& overrides = {}) {
    absl::StatusOr<Config> config = Load(components_, text, overrides);
    EXPECT_TRUE(config.ok()) << config.status() << "\n" << text;
    return config.ok() ? *config : Config();
  }

  FakeComponents components_;
};

TEST_F(ResolvedTest, LoadsToTheSameConfiguration) {
  const Config first = LoadText(std::string(kMinimal) + kRich);
  const Config second = LoadText(first.resolved_toml);
  EXPECT_EQ(first.resolved_toml, second.resolved_toml);
  ExpectSameOptions(first.device, second.device);
  ExpectSameOptions(first.model, second.model);
  ExpectSameOptions(first.data, second.data);
  ExpectSameOptions(first.optimizer, second.optimizer);
  ASSERT_EQ(first.strategies.size(), second.strategies.size());
  for (size_t i = 0; i < first.strategies.size(); ++i) {
    ExpectSameOptions(first.strategies[i], second.strategies[i]);
  }
  ExpectSameOptions(first.trackers.at(0), second.trackers.at(0));
  ASSERT_EQ(first.optimizer_groups.size(), second.optimizer_groups.size());
  for (size_t i = 0; i < first.optimizer_groups.size(); ++i) {
    ExpectSameOptions(first.optimizer_groups[i].optimizer, second.optimizer_groups[i].optimizer);
    EXPECT_EQ(first.optimizer_groups[i].match, second.optimizer_groups[i].match);
    EXPECT_EQ(first.optimizer_groups[i].lr, second.optimizer_groups[i].lr);
    EXPECT_EQ(first.optimizer_groups[i].weight_decay, second.optimizer_groups[i].weight_decay);
    EXPECT_EQ(first.optimizer_groups[i].weight_decay_set,
              second.optimizer_groups[i].weight_decay_set);
  }
  EXPECT_EQ(first.run.dir, second.run.dir);
  EXPECT_EQ(first.run.mesh.size(), second.run.mesh.size());
  EXPECT_EQ(first.run.schedule.warmup_steps, second.run.schedule.warmup_steps);
}

TEST_F(ResolvedTest, TheLeastConfigurationToo) {
  const Config first = LoadText(kMinimal);
  EXPECT_EQ(LoadText(first.resolved_toml).resolved_toml, first.resolved_toml);
}

TEST_F(ResolvedTest, HoldsDefaultsAndSaysTheyAreDefaults) {
  const Config config = LoadText(kMinimal);
  EXPECT_THAT(config.resolved_toml, HasSubstr("layers = 12\n"));
  EXPECT_THAT(config.resolved_toml, HasSubstr("\"model.layers\""));
  const Config again = LoadText(config.resolved_toml);
  EXPECT_FALSE(again.model.options.Find("layers")->from_user);
}

TEST_F(ResolvedTest, ADefaultThatIsOverriddenBecomesTheUsers) {
  const Config config = LoadText(kMinimal);
  const Config again = LoadText(config.resolved_toml, {"model.layers=12"});
  EXPECT_TRUE(again.model.options.Find("layers")->from_user);
}

TEST_F(ResolvedTest, NeverHoldsASecret) {
  const Config config = LoadText(std::string(kMinimal) + kRich);
  EXPECT_THAT(config.resolved_toml, HasSubstr("token = {env = \"CAPSTAN_TEST_SECRET\"}"));
  EXPECT_THAT(config.resolved_toml, Not(HasSubstr("hunter2")));
  EXPECT_EQ(config.trackers[0].options.String("token"), "hunter2");
}

TEST_F(ResolvedTest, DoesNotDependOnTheOrderOfTheFile) {
  const std::string reordered = R"([optimizer]
lr = 1e-3
plugin = "adamw"
[batch]
global = 4
[model]
plugin = "tiny"
[run]
steps = 10
[data]
sequence_length = 8
plugin = "tokens"
)";
  EXPECT_EQ(LoadText(reordered).resolved_toml, LoadText(kMinimal).resolved_toml);
}

TEST_F(ResolvedTest, PathsAreAbsoluteSoItCanBeMoved) {
  const Config config = LoadText(std::string(kMinimal) + kRich);
  EXPECT_THAT(config.resolved_toml, HasSubstr("path = \"/cfg/a b.bin\""));
}

TEST_F(ResolvedTest, AResolvedTableWrittenByHandIsRefused) {
  EXPECT_THAT(Problem(Load(components_, std::string(kMinimal) + "[resolved]\nx = 1\n")),
              HasSubstr("[resolved] is written by capstan"));
}

}  // namespace
}  // namespace capstan::testing_config
