// What a rank sends and receives in a step, read off its Program (Rajbhandari et al. 2020, "ZeRO",
// section 7). Psi is the number of parameters. A reduce-scatter or an all-gather of Psi elements moves
// Psi (times (N-1)/N, left out here), an all-reduce twice that.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "nlohmann/json.hpp"
#include "runtime/exec/communicator.h"
#include "runtime/strings.h"
#include "tests/strategies/composed.h"

namespace capstan::strategies_test {
namespace {

using cli_test::Folder;

// Whole copies of a parameter's (or its gradient's) elements that a step moves, by collective.
struct Moved {
  int64_t all_reduced = 0, scattered = 0, gathered = 0;
  int64_t volume() const { return 2 * all_reduced + scattered + gathered; }
};

// The parameter that a tensor is, is a part of, or is the gradient of.
std::string ParameterOf(const Program& program, TensorId t) {
  const Tensor& tensor = program.tensor(t);
  if (tensor.kind == CAPSTAN_GRADIENT) return ParameterOf(program, tensor.of);
  if (tensor.kind == CAPSTAN_PARAMETER) {
    return tensor.view_of == kNone ? tensor.name : ParameterOf(program, tensor.view_of);
  }
  // A scattered block that is added to a gradient.
  for (const OpId user : program.Users(t)) {
    if (program.op(user).kind() == "accumulate") {
      return ParameterOf(program, program.op(user).outputs[0]);
    }
  }
  return "";  // a scalar of the step: its loss, its weight, the gradient norm
}

std::map<std::string, Moved> MovedBy(Rank& rank) {
  const Program& program = rank.program();
  const std::vector<int64_t> launches = LaunchesByOp(rank);
  std::map<std::string, Moved> moved;
  for (OpId id = 0; id < program.op_limit(); ++id) {
    if (!program.OpAlive(id) || !IsCommunication(program.op(id))) continue;
    const Op& op = program.op(id);
    const int64_t times = launches[static_cast<size_t>(id)];
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      const bool gathers = op.kind() == "all_gather";
      const std::string name = ParameterOf(program, gathers ? op.inputs[i] : op.outputs[i]);
      if (name.empty()) continue;
      if (gathers) {
        moved[name].gathered += times;
      } else if (op.kind() == "reduce_scatter") {
        moved[name].scattered += times;
      } else {
        moved[name].all_reduced += times;
      }
    }
  }
  return moved;
}

class Volume : public testing::Test {
 protected:
  // Of rank 1 of `world`, with `microbatches` a step.
  std::map<std::string, Moved> Of(const ModelCase& model, const std::string& strategies,
                                  int64_t world, int64_t microbatches,
                                  std::vector<std::string> overrides = {}) {
    const std::string config = folder_.Write("run.toml", ConfigText(model, strategies));
    overrides.push_back(StrCat("batch.global=", world * microbatches));
    const auto rank = Composed(config, 1, world, overrides);
    return rank == nullptr ? std::map<std::string, Moved>() : MovedBy(*rank);
  }

  // Parameters and their elements; which of them the backward pass of one rank reads.
  void Learn(const ModelCase& model) {
    const auto alone = Composed(folder_.Write("alone.toml", ConfigText(model, "")), 0, 1);
    ASSERT_NE(alone, nullptr);
    const Program& program = alone->program();
    for (TensorId t = 0; t < program.tensor_limit(); ++t) {
      if (!program.TensorAlive(t) || program.tensor(t).kind != CAPSTAN_PARAMETER) continue;
      const std::string& name = program.tensor(t).name;
      elements_[name] = program.tensor(t).elements();
      for (const OpId user : program.Users(t)) {
        const Segment& segment = program.segments()[static_cast<size_t>(program.op(user).segment)];
        if (segment.name.starts_with("backward")) read_backward_.insert(name);
      }
    }
  }

  int64_t Elements(const std::map<std::string, Moved>& moved, const std::set<std::string>& of) {
    int64_t sum = 0;
    for (const std::string& name : of) sum += moved.at(name).volume() * elements_.at(name);
    return sum;
  }
  std::set<std::string> All() const {
    std::set<std::string> names;
    for (const auto& [name, n] : elements_) names.insert(name);
    return names;
  }
  int64_t Psi() const {
    int64_t sum = 0;
    for (const auto& [name, n] : elements_) sum += n;
    return sum;
  }

  Folder folder_;
  std::map<std::string, int64_t> elements_;
  std::set<std::string> read_backward_;
};

TEST_F(Volume, DpReducesEveryGradientOnceAStep) {
  Learn(kGpt2Uneven);
  for (const int64_t microbatches : {1, 3}) {
    for (const char* options : {"", "bucket_mb = 0.0\n", "bucket_mb = 0.002\n"}) {
      const auto moved = Of(kGpt2Uneven, Strategy("dp", options), 3, microbatches);
      ASSERT_EQ(moved.size(), elements_.size());
      for (const auto& [name, m] : moved) {
        EXPECT_EQ(m.all_reduced, 1) << name;
        EXPECT_EQ(m.scattered + m.gathered, 0) << name;
      }
      EXPECT_EQ(Elements(moved, All()), 2 * Psi());
    }
  }
}

TEST_F(Volume, DpReducesOnTheLastMicrobatch) {
  const std::string config = folder_.Write("run.toml", ConfigText(kGpt2Uneven, Strategy("dp")));
  const auto rank = Composed(config, 0, 2, {"batch.global=6"});
  ASSERT_NE(rank, nullptr);
  int reductions = 0;
  for (const PlannedLaunch& l : rank->plan().launches(rank->program())) {
    if (rank->program().op(l.op).kind() != "reduce_gradient") continue;
    ++reductions;
    EXPECT_EQ(l.microbatch, 2);
  }
  EXPECT_GT(reductions, 0);
}

// The rest of the backward pass runs beside a bucket's reduction: nothing waits for it before update.
TEST_F(Volume, DpOverlapsWithTheBackwardPass) {
  const std::string config =
      folder_.Write("run.toml", ConfigText(kGpt2Even, Strategy("dp", "bucket_mb = 0.004\n")));
  const auto rank = Composed(config, 0, 2, {"batch.global=6"});
  ASSERT_NE(rank, nullptr);
  const Program& program = rank->program();
  const std::vector<PlannedLaunch>& launches = rank->plan().launches(program);
  int early = 0;
  for (size_t i = 0; i < launches.size(); ++i) {
    if (program.op(launches[i].op).kind() != "reduce_gradient") continue;
    size_t waiter = i + 1;
    while (waiter < launches.size() &&
           std::count(launches[waiter].waits.begin(), launches[waiter].waits.end(),
                      static_cast<int>(i)) == 0) {
      ++waiter;
    }
    ASSERT_LT(waiter, launches.size());
    const int segment = program.op(launches[waiter].op).segment;
    EXPECT_EQ(program.segments()[static_cast<size_t>(segment)].name, "update");
    if (program.op(launches[i + 1].op).segment == program.op(launches[i].op).segment) ++early;
  }
  EXPECT_GE(early, 3) << "buckets that are reduced before the backward pass ends";
}

TEST_F(Volume, Zero1MovesAsMuchAsDp) {
  Learn(kGpt2Uneven);
  for (const int64_t microbatches : {1, 3}) {
    const auto moved = Of(kGpt2Uneven, Strategy("zero1"), 3, microbatches);
    ASSERT_EQ(moved.size(), elements_.size());
    for (const auto& [name, m] : moved) {
      EXPECT_EQ(m.scattered, 1) << name;
      EXPECT_EQ(m.gathered, 1) << name;
      EXPECT_EQ(m.all_reduced, 0) << name;
    }
    EXPECT_EQ(Elements(moved, All()), 2 * Psi());
  }
}

// Gradients that are not kept whole leave with each microbatch.
TEST_F(Volume, Zero2ScattersEveryMicrobatch) {
  Learn(kGpt2Uneven);
  for (const int64_t microbatches : {1, 3}) {
    const auto moved = Of(kGpt2Uneven, Strategy("zero2"), 3, microbatches);
    ASSERT_EQ(moved.size(), elements_.size());
    for (const auto& [name, m] : moved) {
      EXPECT_EQ(m.scattered, microbatches) << name;
      EXPECT_EQ(m.gathered, 1) << name;
    }
    EXPECT_EQ(Elements(moved, All()), (microbatches + 1) * Psi());
  }
}

// 3 Psi against 2 Psi where the backward pass reads the weight; the token table and a head whose
// gradient comes with the loss are gathered for the forward pass alone.
TEST_F(Volume, Zero3MovesHalfAsMuchAgainAsDp) {
  Learn(kLlamaUneven);
  ASSERT_EQ(read_backward_.size() + 2, elements_.size());
  const auto dp = Of(kLlamaUneven, Strategy("dp"), 3, 1);
  for (const char* options : {"", "prefetch = 0\n", "prefetch = 3\n", "bucket_mb = 0.001\n"}) {
    const auto zero3 = Of(kLlamaUneven, Strategy("zero3", options), 3, 1);
    ASSERT_EQ(zero3.size(), elements_.size());
    EXPECT_EQ(2 * Elements(zero3, read_backward_), 3 * Elements(dp, read_backward_));
    for (const auto& [name, m] : zero3) {
      EXPECT_EQ(m.scattered, 1) << name;
      EXPECT_EQ(m.gathered, read_backward_.contains(name) ? 2 : 1) << name;
    }
  }
}

TEST_F(Volume, Zero3GathersEveryMicrobatch) {
  Learn(kLlamaUneven);
  const auto one = Of(kLlamaUneven, Strategy("zero3"), 2, 1);
  const auto five = Of(kLlamaUneven, Strategy("zero3"), 2, 5);
  ASSERT_EQ(one.size(), elements_.size());
  for (const auto& [name, m] : one) {
    EXPECT_EQ(five.at(name).volume(), 5 * m.volume()) << name;
  }
}

// A tied table is used at both ends of the model and gathered at each.
TEST_F(Volume, ATiedHeadIsGatheredWithTheTableAndWithTheLoss) {
  const auto moved = Of(kLlamaTied, Strategy("zero3"), 2, 1);
  ASSERT_TRUE(moved.contains("model.embed_tokens.weight"));
  const Moved& table = moved.at("model.embed_tokens.weight");
  EXPECT_EQ(table.gathered, 2);
  EXPECT_EQ(table.scattered, 1);
}

TEST_F(Volume, FsdpMovesAsZero3WhateverItsUnits) {
  Learn(kLlamaUneven);
  const auto zero3 = Of(kLlamaUneven, Strategy("zero3"), 3, 2);
  for (const char* options : {"", "unit_layers = 2\n", "unit_layers = 100\nprefetch = 0\n"}) {
    const auto fsdp = Of(kLlamaUneven, Strategy("fsdp", options), 3, 2);
    ASSERT_EQ(fsdp.size(), elements_.size()) << options;
    for (const auto& [name, m] : fsdp) EXPECT_EQ(m.volume(), zero3.at(name).volume()) << name;
  }
}

// Parameters kept from the forward to the backward pass of a microbatch are gathered once.
TEST_F(Volume, FsdpThatKeepsGatheredParametersMovesAsMuchAsDp) {
  Learn(kLlamaUneven);
  const auto moved = Of(kLlamaUneven, Strategy("fsdp", "reshard_after_forward = false\n"), 3, 1);
  ASSERT_EQ(moved.size(), elements_.size());
  EXPECT_EQ(Elements(moved, All()), 2 * Psi());
}

// Bucket borders may fall anywhere, between two gradients that one op completes too.
TEST_F(Volume, BucketsOfAnySizeMoveTheSame) {
  for (const char* strategy : {"dp", "zero1", "zero2", "zero3", "fsdp"}) {
    const auto usual = Of(kGpt2Even, Strategy(strategy), 2, 2);
    ASSERT_GT(usual.size(), 30u);
    for (const char* megabytes : {"0.0", "0.00005", "0.0001", "0.001", "0.0011", "0.003"}) {
      const auto moved =
          Of(kGpt2Even, Strategy(strategy, StrCat("bucket_mb = ", megabytes, "\n")), 2, 2);
      ASSERT_EQ(moved.size(), usual.size());
      for (const auto& [name, m] : moved) {
        EXPECT_EQ(m.volume(), usual.at(name).volume()) << strategy << ", " << name;
      }
    }
  }
}

// Within a shard group as fsdp; over the copies an all-reduce of this rank's block, once a step.
TEST_F(Volume, HybridShardingSumsBlocksOverTheCopiesOnce) {
  Learn(kLlamaUneven);
  const auto moved =
      Of(kLlamaUneven, Strategy("fsdp", "axis = \"shard\"\nreplicate_axis = \"dp\"\n"), 4, 3,
         {"mesh.shard=2", "mesh.order=[\"shard\",\"dp\"]"});
  ASSERT_EQ(moved.size(), elements_.size());
  for (const auto& [name, m] : moved) {
    EXPECT_EQ(m.all_reduced, 1) << name;
    EXPECT_EQ(m.scattered, 3) << name;
    EXPECT_EQ(m.gathered, 3 * (read_backward_.contains(name) ? 2 : 1)) << name;
  }
}

// Either axis of hybrid sharding may have one rank.
TEST_F(Volume, HybridShardingOfOneGroupIsFsdpAndOfOneRankAGroupIsDp) {
  Learn(kLlamaUneven);
  const std::string hybrid = Strategy("fsdp", "axis = \"shard\"\nreplicate_axis = \"dp\"\n");
  const auto fsdp = Of(kLlamaUneven, Strategy("fsdp"), 3, 2);
  const auto one_group = Of(kLlamaUneven, hybrid, 3, 2, {"mesh.shard=3"});
  ASSERT_EQ(one_group.size(), elements_.size());
  for (const auto& [name, m] : one_group) {
    EXPECT_EQ(m.volume(), fsdp.at(name).volume()) << name;
    EXPECT_EQ(m.all_reduced, 0) << name;
  }
  const auto copies = Of(kLlamaUneven, hybrid, 3, 2);
  ASSERT_EQ(copies.size(), elements_.size());
  for (const auto& [name, m] : copies) {
    EXPECT_EQ(m.all_reduced, 1) << name;
    EXPECT_EQ(m.volume(), 2) << name;
  }
}

// `capstan plan` says so in bytes.
TEST_F(Volume, PlanPrintsIt) {
  Learn(kLlamaUneven);
  const auto table = [&](const char* strategy) {
    const std::string config =
        folder_.Write("run.toml", ConfigText(kLlamaUneven, Strategy(strategy)));
    const cli_test::Outcome o =
        cli_test::Capstan({"plan", config, "--world", "3", "--set", "batch.global=6", "--json"});
    EXPECT_EQ(o.exit_code, 0) << o.err;
    std::map<std::string, std::pair<double, double>> by_op;  // payload, sent
    const auto json = nlohmann::json::parse(o.out);
    for (const auto& row : json["communication"]) {
      EXPECT_EQ(row["axis"], "dp");
      by_op[row["op"]] = {row["payload_bytes"], row["sent_bytes"]};
    }
    return by_op;
  };
  const auto bytes = 4 * static_cast<double>(Psi());
  auto dp = table("dp"), zero1 = table("zero1"), zero2 = table("zero2");
  EXPECT_EQ(dp["reduce_gradient"].first, bytes);
  EXPECT_NEAR(dp["reduce_gradient"].second, bytes * 2 * 2 / 3, 1);
  EXPECT_EQ(zero1["reduce_scatter"].first, bytes);
  EXPECT_EQ(zero1["all_gather"].first, bytes);
  EXPECT_NEAR(zero1["all_gather"].second, bytes * 2 / 3, 1);
  EXPECT_EQ(zero2["reduce_scatter"].first, 2 * bytes) << "of two microbatches";
  EXPECT_EQ(zero2["all_gather"].first, bytes);
}

// What is gathered ahead is in memory beside what computes.
TEST_F(Volume, PrefetchCostsMemoryNotTraffic) {
  const std::string text = ConfigText(kLlamaEven, Strategy("fsdp", "prefetch = 0\n"));
  const std::string config = folder_.Write("run.toml", text);
  std::vector<int64_t> arenas;
  for (const char* ahead : {"0", "1", "4"}) {
    const auto rank =
        Composed(config, 0, 4,
                 {StrCat("strategy.fsdp.prefetch=", ahead), "model.layers=6", "batch.global=4"});
    ASSERT_NE(rank, nullptr);
    arenas.push_back(rank->region(kArena));
  }
  EXPECT_LT(arenas[0], arenas[1]);
  EXPECT_LT(arenas[1], arenas[2]);
}

}  // namespace
}  // namespace capstan::strategies_test
