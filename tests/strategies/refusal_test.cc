// What is refused before anything runs: compositions that would train wrongly, or not at all.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/program/flow.h"
#include "runtime/status.h"
#include "sdk/strategy.h"
#include "tests/strategies/composed.h"

namespace capstan::strategies_test {
namespace {

using cli_test::Folder;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kAll[] = {"dp", "zero1", "zero2", "zero3", "fsdp"};

class Refusal : public testing::Test {
 protected:
  std::string Config(const std::string& strategies) {
    return folder_.Write("run.toml", ConfigText(kGpt2Even, strategies));
  }
  // Why rank `rank` of `world` is refused, which is a mistake in the configuration.
  std::string Why(const std::string& strategies, int64_t rank, int64_t world,
                  const std::vector<std::string>& overrides = {},
                  const std::function<void(Ingredients&)>& change = {}) {
    Rank refused(Config(strategies), rank, world, overrides);
    refused.Compose(change);
    EXPECT_FALSE(refused.status().ok());
    EXPECT_EQ(ExitCode(refused.status()), kExitUsage) << refused.status();
    return std::string(refused.status().message());
  }
  Folder folder_;
};

// ---- a strategy that does half its work --------------------------------------------------------

constexpr capstan_phase kGradientPhase = sdk::make_phase(CAPSTAN_PHASE_GRADIENT);

// The same strategy with other phases.
const capstan_strategy_v1* WithPhases(const capstan_strategy_v1* whole,
                                      const capstan_phase* (*phase)(void*, size_t)) {
  static capstan_strategy_v1 half;
  half = *whole;
  half.phase = phase;
  return &half;
}

TEST_F(Refusal, AStrategyThatForgetsToPublish) {
  for (const char* strategy : {"zero1", "zero2"}) {
    const std::string why = Why(Strategy(strategy), 0, 2, {}, [](Ingredients& in) {
      in.strategies[0].vtable =
          WithPhases(in.strategies[0].vtable, [](void*, size_t i) -> const capstan_phase* {
            return i == 0 ? &kGradientPhase : nullptr;
          });
    });
    EXPECT_THAT(why, AllOf(HasSubstr("@wte.weight is out of date: adamw("),
                           HasSubstr("wrote only @wte.weight.shard, this rank's part over dp"),
                           HasSubstr("at the end of the step (and 35 more)"),
                           HasSubstr("gather it, for example all_gather(@wte.weight.shard) into "
                                     "@wte.weight in phase publish")))
        << strategy;
  }
}

TEST_F(Refusal, GradientsThatAreStillPartialAtTheirUpdate) {
  const auto idle = [](Ingredients& in) {
    in.strategies[0].vtable = WithPhases(
        in.strategies[0].vtable, [](void*, size_t) -> const capstan_phase* { return nullptr; });
  };
  for (const char* strategy : kAll) {
    EXPECT_THAT(Why(Strategy(strategy), 1, 2, {}, idle),
                HasSubstr("gradients of 36 parameters are partial over dp; add a strategy that "
                          "reduces them (dp, zero1, zero2, zero3, fsdp)"))
        << strategy;
  }
}

// The batch is cut over both axes, the second strategy sums over neither.
TEST_F(Refusal, GradientsThatAreSummedOverOneOfTwoBatchAxes) {
  const std::string why = Why(Strategy("dp") + Strategy("dp", "id = \"second\"\naxis = \"ep\"\n"),
                              0, 4, {"mesh.ep=2"}, [](Ingredients& in) {
                                ASSERT_EQ(in.batch_ranks, 4);
                                in.strategies[1].vtable = WithPhases(
                                    in.strategies[1].vtable,
                                    [](void*, size_t) -> const capstan_phase* { return nullptr; });
                              });
  EXPECT_THAT(why, HasSubstr("gradients of 36 parameters are partial over ep"));
}

// ---- CheckFlow on edited Programs --------------------------------------------------------------

TEST_F(Refusal, ReadingAParameterOfWhichOnlyAPartIsNew) {
  Rank rank(Config(Strategy("zero1")), 0, 2);
  rank.Compose();
  ASSERT_EQ(rank.status(), absl::OkStatus());
  Program& program = rank.mutable_program();
  ASSERT_EQ(CheckFlow(program), absl::OkStatus());
  const std::vector<OpId> update = program.segments()[program.FindSegment("update")].ops;
  const auto gather = std::find_if(update.begin(), update.end(),
                                   [&](OpId o) { return program.op(o).kind() == "all_gather"; });
  ASSERT_NE(gather, update.end());
  const TensorId table = program.FindTensor("wte.weight");
  NewOp reader{.kind = "sum_squares", .inputs = {table}};
  ASSERT_TRUE(program.AddOp({"update", *gather}, reader).ok());
  EXPECT_THAT(std::string(CheckFlow(program).message()),
              AllOf(HasSubstr("sum_squares(@wte.weight): @wte.weight is out of date"),
                    HasSubstr("gather it before this op")));
}

TEST_F(Refusal, ReadingAParameterThatWasGatheredIsFine) {
  Rank rank(Config(Strategy("zero1")), 0, 2);
  rank.Compose();
  ASSERT_EQ(rank.status(), absl::OkStatus());
  Program& program = rank.mutable_program();
  NewOp reader{.kind = "sum_squares", .inputs = {program.FindTensor("wte.weight")}};
  ASSERT_TRUE(program.AddOp({"update"}, reader).ok());
  EXPECT_EQ(CheckFlow(program), absl::OkStatus());
}

TEST_F(Refusal, AStepThatLeavesOneParameterOutOfDateNamesIt) {
  Rank rank(Config(Strategy("zero1", "bucket_mb = 0.0\n")), 0, 2);
  rank.Compose();
  ASSERT_EQ(rank.status(), absl::OkStatus());
  Program& program = rank.mutable_program();
  const OpId gather = program.Producer(program.FindTensor("h.1.mlp.up.bias"));
  std::vector<OpId> gathers;
  for (const OpId o : program.segments()[program.FindSegment("update")].ops) {
    const std::vector<TensorId>& outputs = program.op(o).outputs;
    const TensorId bias = program.FindTensor("h.1.mlp.up.bias");
    if (program.op(o).kind() == "all_gather" &&
        std::find(outputs.begin(), outputs.end(), bias) != outputs.end()) {
      gathers.push_back(o);
    }
  }
  ASSERT_EQ(gathers.size(), 1u);
  EXPECT_EQ(gathers[0], gather);
  ASSERT_TRUE(program.RemoveOp(gathers[0]).ok());
  EXPECT_THAT(std::string(CheckFlow(program).message()),
              AllOf(HasSubstr("@h.1.mlp.up.bias is out of date"),
                    HasSubstr("at the end of the step; gather it")));
}

// ---- compositions ------------------------------------------------------------------------------

TEST_F(Refusal, TwoStrategiesThatReduceTheSameGradients) {
  for (const char* first : kAll) {
    for (const char* second : kAll) {
      if (std::string(first) == second) continue;
      EXPECT_THAT(Why(Strategy(first) + Strategy(second), 0, 2),
                  AllOf(HasSubstr("cannot be combined; remove one [[strategy]]"), HasSubstr(first),
                        HasSubstr(second)));
    }
  }
}

TEST_F(Refusal, AnAxisThatNoStrategyUses) {
  for (const char* strategy : kAll) {
    EXPECT_THAT(Why(Strategy(strategy), 0, 4, {"mesh.tp=2"}),
                HasSubstr("mesh.tp = 2, but no strategy uses axis 'tp'; add one or set it to 1"));
    // Misspelt: the strategy's own axis has one rank.
    EXPECT_THAT(Why(Strategy(strategy, "axis = \"data\"\n"), 0, 2),
                HasSubstr("mesh.dp = 2, but no strategy uses axis 'dp'"));
  }
  EXPECT_THAT(Why("", 0, 2, {"mesh.dp=2"}),
              HasSubstr("mesh.dp = 2, but no strategy uses axis 'dp'"));
}

TEST_F(Refusal, AWorldThatDoesNotFactor) {
  EXPECT_THAT(Why(Strategy("dp"), 0, 3, {"mesh.dp=2"}),
              AllOf(HasSubstr("dp = 2"), HasSubstr("makes 2 ranks"), HasSubstr("this run has 3")));
  EXPECT_THAT(Why(Strategy("dp"), 0, 3, {"mesh.tp=2"}),
              AllOf(HasSubstr("3 ranks are no multiple"), HasSubstr("start 4 ranks")));
}

TEST_F(Refusal, ARankThatTheMeshDoesNotHave) {
  EXPECT_THAT(Why(Strategy("dp"), 3, 3),
              HasSubstr("rank 3 does not exist: the mesh has 3 ranks, numbered from 0"));
}

TEST_F(Refusal, AGlobalBatchThatTheRanksCannotShare) {
  EXPECT_THAT(Why(Strategy("zero2"), 0, 4, {"batch.global=22", "batch.micro=2"}),
              AllOf(HasSubstr("batch.global is 22"), HasSubstr("4 ranks along dp"),
                    HasSubstr("batch.micro = 2"), HasSubstr("a multiple of 8; for example 24")));
}

TEST_F(Refusal, HybridShardingOverOneAxis) {
  EXPECT_THAT(Why(Strategy("fsdp", "replicate_axis = \"dp\"\n"), 0, 2),
              AllOf(HasSubstr("axis and replicate_axis are both \"dp\""),
                    HasSubstr("leave replicate_axis out")));
}

// ---- one rank ----------------------------------------------------------------------------------

// Without the first line, which says the mesh.
std::string Body(const Program& program) {
  const std::string text = DumpProgram(program);
  return text.substr(text.find('\n'));
}

TEST_F(Refusal, AnAxisOfOneRankChangesNothing) {
  const auto alone = Composed(folder_.Write("alone.toml", ConfigText(kGpt2Even, "")), 0, 1);
  ASSERT_NE(alone, nullptr);
  for (const char* strategy : kAll) {
    const auto one = Composed(Config(Strategy(strategy)), 0, 1);
    ASSERT_NE(one, nullptr);
    EXPECT_EQ(Body(one->program()), Body(alone->program())) << strategy;
  }
  const auto hybrid =
      Composed(Config(Strategy("fsdp", "axis = \"shard\"\nreplicate_axis = \"dp\"\n")), 0, 1);
  ASSERT_NE(hybrid, nullptr);
  EXPECT_EQ(Body(hybrid->program()), Body(alone->program()));
}

TEST_F(Refusal, AutoTakesAllRanks) {
  for (const int64_t world : {2, 3, 8}) {
    const auto rank = Composed(Config(Strategy("zero3")), world - 1, world);
    ASSERT_NE(rank, nullptr);
    EXPECT_EQ(rank->program().options().mesh.Size("dp"), world);
    EXPECT_EQ(rank->program().options().microbatches, 24 / world);
  }
}

}  // namespace
}  // namespace capstan::strategies_test
