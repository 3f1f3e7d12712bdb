// The memory plan: values that live together do not overlap; values that do not share memory.
#include "runtime/exec/plan.h"

#include <gtest/gtest.h>

#include "runtime/program/program.h"

namespace capstan {
namespace {

class PlanTest : public testing::Test {
 protected:
  PlanTest() { EXPECT_TRUE(RegisterStandardOps(ops_).ok()); }

  Program Make(int64_t microbatches) {
    Program::Options options;
    options.microbatches = microbatches;
    return Program(&ops_, options);
  }

  static TensorId Input(Program& p, const std::string& name, Dims shape, int kind = CAPSTAN_INPUT) {
    Tensor t;
    t.name = name;
    t.kind = kind;
    t.type.shape = std::move(shape);
    t.scope = CAPSTAN_SCOPE_MICROBATCH;
    return p.AddTensor(t).value();
  }

  static TensorId Op1(Program& p, const std::string& segment, const std::string& kind,
                      std::vector<TensorId> in, Attrs attrs = {}) {
    const OpId op =
        p.AddOp({segment}, NewOp{.kind = kind, .inputs = std::move(in), .attrs = std::move(attrs)})
            .value();
    return p.op(op).outputs[0];
  }

  OpRegistry ops_;
};

TEST_F(PlanTest, ValuesAliveTogetherDoNotOverlap) {
  Program p = Make(3);
  const TensorId x = Input(p, "x", {16, 64});
  std::vector<TensorId> chain{Op1(p, "forward/0", "exp", {x})};
  for (int i = 0; i < 12; ++i)
    chain.push_back(Op1(p, "forward/0", i % 2 ? "exp" : "square", {chain.back()}));
  TensorId sum = Op1(p, "backward/0", "add", {chain[12], chain[0]});
  for (int i = 1; i < 12; ++i) sum = Op1(p, "backward/0", "mul", {chain[12 - i], sum});
  ASSERT_TRUE(p.NameTensor(sum, "result").ok());
  p.SetDefaultSchedule();
  MemoryPlan plan;
  const absl::Status added = plan.Add(p, nullptr, 1);
  ASSERT_TRUE(added.ok()) << added;
  // All of the chain is read again backward, so in one microbatch all of it has places of its own.
  for (int m = 0; m < 3; ++m) {
    std::vector<std::pair<int64_t, int64_t>> taken;
    for (size_t i = 0; i < chain.size(); ++i) {
      const int64_t offset = plan.Find(p, chain[i], m)->offset;
      for (const auto& [begin, end] : taken) {
        EXPECT_TRUE(offset >= end || offset + 4096 <= begin)
            << "value " << i << ", microbatch " << m;
      }
      taken.emplace_back(offset, offset + 4096);
    }
  }
  // Microbatches run one after the other, so the arena holds one of them, not three.
  EXPECT_LE(plan.region_bytes().at(kArena), int64_t{4096} * (13 + 4));
}

TEST_F(PlanTest, ElementwiseOpsWriteOverAnOperandThatDies) {
  Program p = Make(1);
  const TensorId x = Input(p, "x", {1024});
  const TensorId a = Op1(p, "forward/0", "exp", {x});
  const TensorId b = Op1(p, "forward/0", "square", {a});
  ASSERT_TRUE(p.NameTensor(b, "result").ok());
  p.SetDefaultSchedule();
  MemoryPlan plan;
  ASSERT_TRUE(plan.Add(p, nullptr, 1).ok());
  EXPECT_EQ(plan.region_bytes().at(kArena), 4096);
  EXPECT_EQ(plan.Find(p, a, 0)->offset, plan.Find(p, b, 0)->offset);
}

TEST_F(PlanTest, ANamedOperandIsKeptForTheHost) {
  Program p = Make(1);
  const TensorId x = Input(p, "x", {1024});
  const TensorId a = Op1(p, "forward/0", "exp", {x});
  const TensorId b = Op1(p, "forward/0", "square", {a});
  ASSERT_TRUE(p.NameTensor(a, "kept").ok());
  p.SetDefaultSchedule();
  MemoryPlan plan;
  ASSERT_TRUE(plan.Add(p, nullptr, 1).ok());
  EXPECT_NE(plan.Find(p, a, 0)->offset, plan.Find(p, b, 0)->offset);
}

TEST_F(PlanTest, TheFirstWriteToAGradientOverwritesAndLaterOnesAdd) {
  Program p = Make(3);
  const TensorId x = Input(p, "x", {8});
  const TensorId g = Input(p, "w.grad", {8}, CAPSTAN_GRADIENT);
  ASSERT_TRUE(p.AddOp({"backward/0"},
                      NewOp{.kind = "accumulate", .inputs = {x}, .attrs = {}, .outputs = {g}})
                  .ok());
  p.SetDefaultSchedule();
  MemoryPlan plan;
  ASSERT_TRUE(plan.Add(p, nullptr, 1).ok());
  const std::vector<PlannedLaunch>& launches = plan.launches(p);
  ASSERT_EQ(launches.size(), 3u);
  EXPECT_EQ(launches[0].accumulate, 0u);
  EXPECT_EQ(launches[1].accumulate, 1u);
  EXPECT_EQ(launches[2].accumulate, 1u);
}

TEST_F(PlanTest, OpsOfTheFirstAndLastMicrobatchRunOnce) {
  Program p = Make(4);
  const TensorId x = Input(p, "x", {8});
  for (int rule : {CAPSTAN_FIRST_MICROBATCH, CAPSTAN_LAST_MICROBATCH}) {
    NewOp op{.kind = "exp", .inputs = {x}};
    op.when.microbatch = rule;
    ASSERT_TRUE(p.AddOp({"forward/0"}, op).ok());
  }
  p.SetDefaultSchedule();
  MemoryPlan plan;
  ASSERT_TRUE(plan.Add(p, nullptr, 1).ok());
  const std::vector<PlannedLaunch>& launches = plan.launches(p);
  ASSERT_EQ(launches.size(), 2u);
  EXPECT_EQ(launches[0].microbatch, 0);
  EXPECT_EQ(launches[1].microbatch, 3);
}

TEST_F(PlanTest, AScheduleThatReadsBeforeItWritesIsRefused) {
  Program p = Make(1);
  const TensorId x = Input(p, "x", {8});
  const TensorId a = Op1(p, "forward/0", "exp", {x});
  Op1(p, "backward/0", "square", {a});
  ASSERT_TRUE(p.SetSchedule({{"backward/0", 0}, {"forward/0", 0}}).ok());
  MemoryPlan plan;
  const absl::Status added = plan.Add(p, nullptr, 1);
  ASSERT_FALSE(added.ok());
  EXPECT_NE(std::string(added.message()).find("before the schedule has run"), std::string::npos)
      << added;
}

TEST_F(PlanTest, MicrobatchInputsHaveAPlaceEach) {
  Program p = Make(2);
  const TensorId x = Input(p, "x", {8});
  Op1(p, "forward/0", "exp", {x});
  p.SetDefaultSchedule();
  MemoryPlan plan;
  ASSERT_TRUE(plan.Add(p, nullptr, 1).ok());
  EXPECT_EQ(plan.region_bytes().at(kInputs), 128);
  EXPECT_NE(plan.Find(p, x, 0)->offset, plan.Find(p, x, 1)->offset);
}

}  // namespace
}  // namespace capstan
