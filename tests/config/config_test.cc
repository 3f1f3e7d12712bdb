// runtime/config.h: whole configurations.
#include "runtime/config.h"

#include <filesystem>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/config/fake_components.h"

namespace capstan::testing_config {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

// kMinimal with one piece of text replaced.
absl::StatusOr<Config> LoadReplaced(const std::string& from, const std::string& to) {
  std::string text = kMinimal;
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  static const FakeComponents* components = new FakeComponents;
  return Load(*components, text);
}

TEST(Config, TheLeastThatLoadsHasDefaultsForTheRest) {
  const absl::StatusOr<Config> config = LoadWith("");
  ASSERT_TRUE(config.ok()) << config.status();
  const RunConfig& run = config->run;
  EXPECT_EQ(run.name, "run");
  EXPECT_EQ(run.dir, (std::filesystem::current_path() / "runs/run").string());
  EXPECT_EQ(run.steps, 10);
  EXPECT_FALSE(run.tokens.has_value());
  EXPECT_EQ(run.seed, 1337u);
  EXPECT_THAT(run.mesh, IsEmpty());
  EXPECT_EQ(run.micro_batch, 1);
  EXPECT_EQ(run.global_batch, 4);
  EXPECT_EQ(run.sequence_length, 8);
  EXPECT_EQ(run.comm_timeout_s, 300);
  EXPECT_EQ(run.weights, "");
  EXPECT_THAT(run.trainable, testing::ElementsAre("*"));
  EXPECT_EQ(run.clip_norm, 1.0);
  EXPECT_EQ(run.schedule.kind, "constant");
  EXPECT_EQ(run.checkpoint_keep, 3);
  EXPECT_EQ(config->device.id, "cpu");
  EXPECT_EQ(config->precision.id, "fp32");
  EXPECT_EQ(config->checkpoint.id, "safetensors");
  ASSERT_EQ(config->trackers.size(), 1u);
  EXPECT_EQ(config->trackers[0].id, "jsonl");
  EXPECT_THAT(config->strategies, IsEmpty());
  EXPECT_EQ(config->model.options.Int("layers"), 12);
}

TEST(Config, EveryHostKeyArrives) {
  const absl::StatusOr<Config> config =
      LoadReplaced("[run]\nsteps = 10",
                   "[comm]\nplugin = \"shm\"\ntimeout_s = 5\n[checkpoint]\nevery = 7\nkeep = 2\n"
                   "[run]\nname = \"x\"\ndir = \"out\"\nepochs = 0.5\nseed = 3");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->run.name, "x");
  EXPECT_EQ(config->run.dir, "/cfg/out");
  EXPECT_EQ(config->run.epochs, 0.5);
  EXPECT_EQ(config->run.seed, 3u);
  EXPECT_EQ(config->run.comm_timeout_s, 5);
  EXPECT_EQ(config->run.checkpoint_every, 7);
  EXPECT_EQ(config->run.checkpoint_keep, 2);
}

TEST(Config, DataModelAndScheduleKeysArrive) {
  const absl::StatusOr<Config> config = LoadWith(
      "[optimizer.schedule]\nkind = \"wsd\"\nwarmup_steps = 2\ndecay_steps = 3\nmin_lr = 1e-5\n",
      {"data.validation.every=5", "data.validation.batches=2", "data.validation.path=v.bin",
       "model.weights=w", "model.trainable=[\"*.lora\"]", "optimizer.clip_norm=0"});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->run.validation_every, 5);
  EXPECT_EQ(config->run.validation_batches, 2);
  EXPECT_EQ(config->run.weights, (std::filesystem::current_path() / "w").string());
  EXPECT_THAT(config->run.trainable, testing::ElementsAre("*.lora"));
  EXPECT_EQ(config->run.clip_norm, 0);
  EXPECT_EQ(config->run.schedule.kind, "wsd");
  EXPECT_EQ(config->run.schedule.decay_steps, 3);
  EXPECT_EQ(config->run.schedule.min_lr, 1e-5);
  EXPECT_EQ(config->data.options.String("validation.path"),
            (std::filesystem::current_path() / "v.bin").string());
}

TEST(Config, HostKeysAreNotPassedToTheComponent) {
  const absl::StatusOr<Config> config = LoadWith("");
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->optimizer.options.Find("lr"), nullptr);
  EXPECT_EQ(config->data.options.Find("sequence_length"), nullptr);
  EXPECT_EQ(config->data.options.Find("plugin"), nullptr);
}

TEST(Config, AHostKeyTheComponentDeclaresIsItsOwn) {
  const absl::StatusOr<Config> config =
      LoadReplaced("plugin = \"adamw\"\nlr = 1e-3", "plugin = \"sgd\"");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->optimizer.options.Float("lr"), 0.01);  // sgd's default, passed to it
  EXPECT_EQ(config->optimizer_groups.back().lr, 0.01);     // and known to the host
}

TEST(Config, StrategiesKeepTheirOrder) {
  const absl::StatusOr<Config> config = LoadWith(
      "[[strategy]]\nplugin = \"pp\"\n[[strategy]]\nplugin = \"tp\"\n[[strategy]]\nplugin = "
      "\"dp\"\n",
      {"strategy.pp.schedule=gpipe"});
  ASSERT_TRUE(config.ok()) << config.status();
  ASSERT_EQ(config->strategies.size(), 3u);
  EXPECT_EQ(config->strategies[0].id, "pp");
  EXPECT_EQ(config->strategies[0].options.String("schedule"), "gpipe");
  EXPECT_EQ(config->strategies[1].table, "strategy.tp");
  EXPECT_EQ(config->strategies[2].id, "dp");
}

TEST(Config, TwoOfOnePluginNeedIds) {
  EXPECT_EQ(Problem(LoadWith("[[strategy]]\nplugin = \"tp\"\n[[strategy]]\nplugin = \"tp\"\n")),
            "/cfg/run.toml:15: two entries of strategy are called \"tp\"; give one of them an id = "
            "\"...\".");
  EXPECT_TRUE(
      LoadWith("[[strategy]]\nplugin = \"tp\"\n[[strategy]]\nplugin = \"tp\"\nid = \"b\"\n").ok());
}

TEST(Config, AnEmptyTrackerListMeansNone) {
  const absl::StatusOr<Config> config = LoadWith("", {"tracker=[]"});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(config->trackers, IsEmpty());
}

TEST(Config, WithoutACommPluginOneRankStillRuns) {
  FakeComponents components;
  components.Remove("comm", "shm");
  const absl::StatusOr<Config> absent = Load(components, kMinimal);
  ASSERT_TRUE(absent.ok()) << absent.status();
  EXPECT_FALSE(absent->comm.has_value());
  EXPECT_EQ(absent->run.comm_timeout_s, 300);
  EXPECT_THAT(Problem(Load(components, std::string(kMinimal) + "[comm]\nplugin = \"shm\"\n")),
              HasSubstr("there is no comm plugin \"shm\""));
}

TEST(Config, TheHostsOwnDriverNeedsNoPlugin) {
  const absl::StatusOr<Config> config = LoadWith("[driver]\nplugin = \"train\"\n");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_FALSE(config->driver.has_value());
  EXPECT_EQ(Problem(LoadWith("[driver]\nplugin = \"rl\"\n")),
            "/cfg/run.toml:14: driver: there is no driver plugin \"rl\".");
}

TEST(Config, APluginThatIsAPathIsLoadedFromTheFilesFolder) {
  FakeComponents components;
  const absl::StatusOr<Config> config =
      Load(components, std::string(kMinimal) + "[[strategy]]\nplugin = \"./libfoo.so\"\n");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(components.paths, testing::Contains("/cfg/libfoo.so"));
  EXPECT_EQ(config->strategies[0].id, "tp");
  const absl::StatusOr<Config> other =
      Load(components, std::string(kMinimal) +
                           "[[strategy]]\nplugin = \"tp\"\nplugin_path = \"x/libbar.so\"\n");
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_THAT(components.paths, testing::Contains("/cfg/x/libbar.so"));
}

TEST(Config, AnOverrideThatLooksLikeANumberCanBeAString) {
  const absl::StatusOr<Config> config = LoadWith("", {"run.name=2024"});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->run.name, "2024");
}

// ---- mistakes ----------------------------------------------------------------------------------

TEST(ConfigMistakes, TheLengthOfTheRunIsGivenOnce) {
  EXPECT_EQ(Problem(LoadReplaced("steps = 10", "seed = 1")),
            "/cfg/run.toml:1: the length of the run is missing; add steps, tokens or epochs to "
            "[run].");
  EXPECT_THAT(Problem(LoadReplaced("steps = 10", "steps = 10\ntokens = 5")),
              HasSubstr("exclude each other"));
}

// An included file's length, and an override's.
TEST(Config, AnotherLengthOfTheRunTakesThePlaceOfTheIncludedOne) {
  const absl::StatusOr<Config> config = LoadWith("", {"run.tokens=5120"});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_FALSE(config->run.steps.has_value());
  EXPECT_EQ(config->run.tokens, 5120);
  const absl::StatusOr<Config> back = LoadWith("", {"run.tokens=5120", "run.steps=7"});
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->run.steps, 7);
  EXPECT_FALSE(back->run.tokens.has_value());
}

TEST(ConfigMistakes, AnUnknownTableIsSuggested) {
  EXPECT_EQ(Problem(LoadWith("[optimiser]\n")),
            "/cfg/run.toml:13: there is no table [optimiser]; did you mean \"optimizer\"?");
}

TEST(ConfigMistakes, AnUnknownHostKeyIsSuggested) {
  EXPECT_EQ(Problem(LoadWith("", {"run.step=3"})),
            "--set run.step: [run] has no option \"step\"; did you mean \"steps\"?");
}

TEST(ConfigMistakes, HostAndComponentKeysAreSuggestedTogether) {
  EXPECT_THAT(Problem(LoadWith("", {"optimizer.clip_nrm=1"})),
              HasSubstr("did you mean \"clip_norm\"?"));
  EXPECT_THAT(Problem(LoadWith("", {"optimizer.beta=1"})), HasSubstr("did you mean \"betas\"?"));
}

TEST(ConfigMistakes, MissingTablesAreNamed) {
  static const FakeComponents components;
  const std::string problem = Problem(Load(components, ""));
  for (const char* key : {"length of the run", "model.plugin", "data.plugin", "optimizer.plugin",
                          "batch.global", "data.sequence_length", "optimizer.lr"}) {
    EXPECT_THAT(problem, HasSubstr(key));
  }
  EXPECT_THAT(problem, HasSubstr("the configuration has 7 problems:"));
}

TEST(ConfigMistakes, AnUnknownPluginPointsToItsLine) {
  EXPECT_EQ(Problem(LoadReplaced("\"tiny\"", "\"huge\"")),
            "/cfg/run.toml:4: model: there is no model plugin \"huge\".");
}

TEST(ConfigMistakes, PluginMustBeAString) {
  EXPECT_EQ(Problem(LoadReplaced("\"tiny\"", "3")),
            "/cfg/run.toml:4: model.plugin must be a string, but is the integer 3; for example "
            "plugin = \"...\".");
}

TEST(ConfigMistakes, AListWhereATableBelongsAndTheReverse) {
  EXPECT_THAT(
      Problem(LoadWith("[strategy]\nplugin = \"tp\"\n")),
      HasSubstr("/cfg/run.toml:13: strategy must be a list of tables, but is a table; write "
                "[[strategy]]."));
  EXPECT_THAT(Problem(LoadWith("[[device]]\nplugin = \"cpu\"\n")),
              HasSubstr("device must be a table, but is a list of tables; write [device]."));
}

TEST(ConfigMistakes, TheGlobalBatchIsAMultipleOfTheMicroBatch) {
  EXPECT_EQ(Problem(LoadReplaced("global = 4", "global = 4\nmicro = 3")),
            "/cfg/run.toml:9: batch.global is 4, but must be a multiple of batch.micro (3); for "
            "example 6.");
}

TEST(ConfigMistakes, TheScheduleFitsTheRun) {
  EXPECT_THAT(Problem(LoadWith("", {"optimizer.schedule.warmup_steps=11"})),
              HasSubstr("more than run.steps (10)"));
  EXPECT_THAT(Problem(LoadWith("", {"optimizer.schedule.min_lr=1.0"})),
              HasSubstr("optimizer.schedule.min_lr (1.0) is above optimizer.lr (0.001)"));
}

TEST(ConfigMistakes, AreAllReportedAtOnce) {
  const std::string problem = Problem(
      LoadWith("", {"run.seed=-1", "model.layers=0", "optimizer.betas=[2.0]", "batch.micro=x"}));
  EXPECT_THAT(problem, HasSubstr("the configuration has 4 problems:"));
  EXPECT_THAT(problem, HasSubstr("--set run.seed: run.seed is -1, but must be at least 0."));
  EXPECT_THAT(problem, HasSubstr("--set model.layers: model.layers is 0"));
}

TEST(ConfigMistakes, ExitWithTheUsageCode) {
  EXPECT_EQ(ExitCode(LoadWith("", {"run.seed=-1"}).status()), kExitUsage);
  EXPECT_EQ(ExitCode(LoadConfig("/nowhere.toml", {}, FakeComponents().Finder()).status()),
            kExitUsage);
}

}  // namespace
}  // namespace capstan::testing_config
