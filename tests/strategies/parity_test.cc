// Any strategy on any number of ranks is the same training as one rank: the same initial weights,
// samples, dropout and losses, within rounding.
//
// The suite runs a covering part of the product of strategies, ranks, microbatches, recomputation,
// dropout, clipping, tied and untied heads and sizes that do not divide. All of it (some minutes):
//     CAPSTAN_STRATEGY_SWEEP=1 ctest --test-dir build/release -R RanksParity
#include <cstdio>
#include <cstdlib>

#include "nlohmann/json.hpp"
#include "runtime/strings.h"
#include "tests/strategies/ranks_fixture.h"

namespace capstan::strategies_test {
namespace {

constexpr int kSteps = 3;

// A strategy's tables, and the mesh it needs besides dp = "auto".
struct Layout {
  std::string name, strategies;
  std::vector<std::string> set = {};
};

const Layout kDp{"dp", Strategy("dp", "bucket_mb = 0.004\n")};
const Layout kZero1{"zero1", Strategy("zero1", "bucket_mb = 0.004\n")};
const Layout kZero2{"zero2", Strategy("zero2", "bucket_mb = 0.0\n")};
const Layout kZero3{"zero3", Strategy("zero3", "bucket_mb = 0.004\n")};
const Layout kZero3Far{"zero3_far", Strategy("zero3", "prefetch = 2\n")};
const Layout kZero3Late{"zero3_late", Strategy("zero3", "prefetch = 0\nbucket_mb = 0.0\n")};
const Layout kFsdp{"fsdp", Strategy("fsdp", "unit_layers = 2\nprefetch = 2\n")};
const Layout kFsdpKeeps{"fsdp_keeps",
                        Strategy("fsdp", "reshard_after_forward = false\nprefetch = 0\n")};
const Layout kHybrid{"hybrid",
                     Strategy("fsdp", "axis = \"shard\"\nreplicate_axis = \"dp\"\n"),
                     {"mesh.shard=2", "mesh.order=[\"shard\",\"dp\"]"}};
const Layout kHybridKeeps{
    "hybrid_keeps",
    Strategy("fsdp",
             "axis = \"shard\"\nreplicate_axis = \"dp\"\nreshard_after_forward = false\n"
             "unit_layers = 2\nprefetch = 2\n"),
    {"mesh.shard=2", "mesh.order=[\"dp\",\"shard\"]"}};
// Shard groups of one rank.
const Layout kCopies{"copies", Strategy("fsdp", "axis = \"shard\"\nreplicate_axis = \"dp\"\n")};
const Layout kTwoAxes{
    "two_axes", Strategy("dp") + Strategy("dp", "id = \"second\"\naxis = \"ep\"\n"), {"mesh.ep=2"}};

struct ParityRun {
  Layout layout;
  int ranks;
  int64_t microbatches;
  std::string recompute = "";  // its policy
};

struct ParityCase {
  std::string name;
  ModelCase model;
  std::vector<std::string> set;  // of all runs, the one on one rank too
  std::vector<ParityRun> runs;
};

void PrintTo(const ParityCase& c, std::ostream* out) { *out << c.name; }

// What the suite runs: each pair of factors meets at least once.
const std::vector<ParityCase>& Cases() {
  static const std::vector<ParityCase> cases = {{"gpt2_uneven_dropout_clipped",
                                                 kGpt2Uneven,
                                                 {"model.dropout=0.2", "optimizer.clip_norm=0.5"},
                                                 {{kDp, 2, 3},
                                                  {kZero1, 3, 1, "selective"},
                                                  {kZero2, 4, 3, "full"},
                                                  {kZero3Late, 3, 3, "full"},
                                                  {kFsdp, 4, 1, "selective"},
                                                  {kFsdpKeeps, 2, 3},
                                                  {kHybrid, 4, 3, "full"}}},
                                                {"llama_uneven_unclipped",
                                                 kLlamaUneven,
                                                 {"optimizer.clip_norm=0.0"},
                                                 {{kDp, 3, 3, "full"},
                                                  {kZero1, 4, 3},
                                                  {kZero2, 3, 1, "selective"},
                                                  {kZero3Far, 4, 3},
                                                  {kFsdp, 3, 3},
                                                  {kHybridKeeps, 4, 1},
                                                  {kTwoAxes, 4, 3}}},
                                                {"llama_tied_clipped",
                                                 kLlamaTied,
                                                 {"optimizer.clip_norm=0.5"},
                                                 {{kDp, 4, 1, "selective"},
                                                  {kZero1, 2, 3, "full"},
                                                  {kZero2, 2, 1},
                                                  {kZero3, 2, 1, "selective"},
                                                  {kFsdpKeeps, 3, 1, "full"},
                                                  {kHybrid, 4, 1},
                                                  {kCopies, 2, 1}}}};
  return cases;
}

// Every strategy on every number of ranks, with and without accumulation and recomputation.
std::vector<ParityRun> Everything() {
  std::vector<ParityRun> runs;
  for (const Layout& layout : {kDp, kZero1, kZero2, kZero3, kZero3Far, kZero3Late, kFsdp,
                               kFsdpKeeps, kHybrid, kHybridKeeps, kCopies, kTwoAxes}) {
    for (const int ranks : {2, 3, 4}) {
      if (!layout.set.empty() && ranks != 4) continue;
      for (const int64_t microbatches : {1, 3}) {
        for (const char* recompute : {"", "selective", "full"}) {
          runs.push_back({layout, ranks, microbatches, recompute});
        }
      }
    }
  }
  return runs;
}

class RanksParity : public ManyRanks, public testing::WithParamInterface<ParityCase> {
 protected:
  void Compare(const ParityRun& run) {
    const std::string name = StrCat(run.layout.name, "_", run.ranks, "_", run.microbatches, "_",
                                    run.recompute.empty() ? "kept" : run.recompute);
    SCOPED_TRACE(name);
    std::string strategies = run.layout.strategies;
    if (!run.recompute.empty()) {
      strategies += Strategy("recompute", StrCat("policy = \"", run.recompute, "\"\n"));
    }
    std::vector<std::string> set = GetParam().set;
    set.insert(set.end(), run.layout.set.begin(), run.layout.set.end());
    const Outcome outcome =
        Train(Config(GetParam().model, strategies), name, run.ranks, run.microbatches, set);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    ExpectSameTraining("alone", name, kSteps);
  }
};

TEST_P(RanksParity, IsTheTrainingOfOneRank) {
  Run(Config(GetParam().model, ""), "alone", 1, 3, GetParam().set);
  ASSERT_FALSE(HasFatalFailure());
  ASSERT_EQ(Steps("alone").size(), size_t{kSteps});
  const bool sweep = std::getenv("CAPSTAN_STRATEGY_SWEEP") != nullptr;
  for (const ParityRun& run : sweep ? Everything() : GetParam().runs) Compare(run);
}

INSTANTIATE_TEST_SUITE_P(Cases, RanksParity, testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param.name; });

// ---- what must be equal to the last bit --------------------------------------------------------

class RanksExactly : public ManyRanks {};

TEST_F(RanksExactly, InitialWeightsAreThoseOfOneRank) {
  const std::vector<std::string> still = {"run.steps=1", "optimizer.lr=0.0",
                                          "optimizer.weight_decay=0.0"};
  Run(Config(kGpt2Uneven, ""), "alone", 1, 1, still);
  for (const Layout& layout : {kZero1, kZero3}) {
    Run(Config(kGpt2Uneven, layout.strategies), layout.name, 3, 1, still);
    const Weights alone = Saved("alone", 1), cut = Saved(layout.name, 1);
    ASSERT_FALSE(alone.empty());
    ASSERT_EQ(cut.size(), alone.size());
    for (const auto& [name, tensor] : alone) {
      EXPECT_EQ(cut.at(name).shape, tensor.shape) << name;
      EXPECT_EQ(cut.at(name).values, tensor.values) << layout.name << ": " << name;
    }
  }
}

TEST_F(RanksExactly, TheSameRunTwice) {
  for (const Layout& layout : {kDp, kFsdp}) {
    const std::string config = Config(kGpt2Uneven, layout.strategies);
    Run(config, layout.name + "_a", 3, 3, {"model.dropout=0.2"});
    Run(config, layout.name + "_b", 3, 3, {"model.dropout=0.2"});
    EXPECT_EQ(Steps(layout.name + "_a"), Steps(layout.name + "_b"));
    EXPECT_TRUE(SavedBytes(layout.name + "_a", kSteps) == SavedBytes(layout.name + "_b", kSteps))
        << layout.name;
  }
}

// Where the axis has one rank the strategy does nothing.
TEST_F(RanksExactly, AStrategyOnOneRankIsNone) {
  Run(Config(kLlamaUneven, ""), "alone", 1);
  Run(Config(kLlamaUneven, kZero3.strategies), "zero3", 1);
  EXPECT_EQ(Steps("alone"), Steps("zero3"));
  EXPECT_TRUE(SavedBytes("alone", kSteps) == SavedBytes("zero3", kSteps));
}

// A run fails when the device's own count of a region differs from the plan by one byte; what it says it
// holds is what `capstan plan` says of its rank.
TEST_F(RanksExactly, ARankAllocatesWhatPlanPredicts) {
  for (const Layout& layout : {kZero1, kZero2, kZero3}) {
    const std::string config = Config(kGpt2Uneven, layout.strategies);
    const std::vector<std::string> train = Arguments(config, layout.name, 3, 1, {});
    std::vector<std::string> plan = {"plan", config, "--world", "3", "--json"};
    for (size_t i = 0; i < train.size(); ++i) {
      if (train[i] == "--set") plan.insert(plan.end(), {"--set", train[i + 1]});
    }
    const Outcome planned = Capstan(plan), trained = Capstan(train);
    ASSERT_EQ(planned.exit_code, 0) << planned.err;
    ASSERT_EQ(trained.exit_code, 0) << trained.err;
    const double bytes = nlohmann::json::parse(planned.out)["memory"]["total_bytes"];
    char megabytes[48];
    std::snprintf(megabytes, sizeof(megabytes), ", %.1f MB a rank, ", 1e-6 * bytes);
    EXPECT_THAT(trained.out, testing::HasSubstr(megabytes)) << layout.name;
  }
}

// ---- other Programs of a run -------------------------------------------------------------------

TEST_F(RanksExactly, ValidationLossesAreThoseOfOneRank) {
  const std::vector<std::string> set = {"data.validation.path=" + (folder_ / "data/val-*.ctok"),
                                        "data.validation.every=1", "data.validation.batches=1"};
  Run(Config(kLlamaUneven, ""), "alone", 1, 3, set);
  Run(Config(kLlamaUneven, kZero3.strategies), "zero3", 3, 1, set);
  const std::vector<StepRecord> alone = Steps("alone", "validation");
  EXPECT_EQ(alone.size(), size_t{kSteps});
  ExpectSameSteps(alone, Steps("zero3", "validation"));
}

}  // namespace
}  // namespace capstan::strategies_test
