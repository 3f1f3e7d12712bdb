// What strategies say of themselves: the order of their phases, and which go together.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>

#include "runtime/run/compose.h"
#include "sdk/strategy.h"

namespace capstan {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// A strategy that only talks.
struct Talker {
  std::vector<capstan_phase> phases;
  std::vector<capstan_axis_use> axes;
  std::vector<const char*> conflicts, needs;  // null-terminated when asked
};

const capstan_strategy_v1 kVtable = [] {
  capstan_strategy_v1 v{};
  v.struct_size = sizeof(v);
  v.phase = [](void* self, size_t i) -> const capstan_phase* {
    const auto& list = static_cast<Talker*>(self)->phases;
    return i < list.size() ? &list[i] : nullptr;
  };
  v.axis = [](void* self, size_t i) -> const capstan_axis_use* {
    const auto& list = static_cast<Talker*>(self)->axes;
    return i < list.size() ? &list[i] : nullptr;
  };
  v.conflicts = [](void* self) -> const char* const* {
    return static_cast<Talker*>(self)->conflicts.data();
  };
  v.needs = [](void* self) -> const char* const* {
    return static_cast<Talker*>(self)->needs.data();
  };
  return v;
}();

class Strategies : public testing::Test {
 protected:
  Strategies() { in_.mesh.axes = {{"tp", 2}, {"dp", 2}, {"pp", 1}}; }

  Talker& Add(const std::string& id, const std::string& component) {
    Talker& talker = talkers_.emplace_back();
    talker.conflicts = talker.needs = {nullptr};
    in_.strategies.push_back({id, &kVtable, &talker, component});
    return talker;
  }

  void Uses(Talker& talker, const char* axis, int32_t role) {
    talker.axes.push_back(sdk::make_axis(axis, role));
  }

  std::string Refusal() const { return std::string(CheckStrategies(in_).message()); }

  // Phases between two standard ones.
  std::vector<std::string> Between(const std::string& first, const std::string& last) const {
    const auto order = PhaseOrder(in_);
    if (!order.ok()) return {std::string(order.status().message())};
    auto from = std::find(order->begin(), order->end(), first);
    const auto to = std::find(from, order->end(), last);
    return {std::next(from), to};
  }

  Ingredients in_;
  std::deque<Talker> talkers_;
};

TEST_F(Strategies, PhasesWithOneAnchorKeepTheOrderOfTheConfiguration) {
  Add("a", "a").phases = {sdk::make_phase("a1", CAPSTAN_PHASE_GRADIENT)};
  Add("b", "b").phases = {sdk::make_phase("b1", CAPSTAN_PHASE_GRADIENT),
                          sdk::make_phase("b2", nullptr, CAPSTAN_PHASE_COMPRESS)};
  EXPECT_THAT(Between(CAPSTAN_PHASE_GRADIENT, CAPSTAN_PHASE_COMPRESS),
              testing::ElementsAre("a1", "b1", "b2"));
}

TEST_F(Strategies, APhaseMayBePlacedByAStrategyThatComesLater) {
  Add("a", "a").phases = {sdk::make_phase("second", "first")};
  Add("b", "b").phases = {sdk::make_phase("first", CAPSTAN_PHASE_TENSOR)};
  EXPECT_THAT(Between(CAPSTAN_PHASE_TENSOR, CAPSTAN_PHASE_SEQUENCE),
              testing::ElementsAre("first", "second"));
}

TEST_F(Strategies, APhaseThatIsNotPlacedIsRefused) {
  Add("mine", "a").phases = {sdk::make_phase("lost", "nowhere")};
  const auto order = PhaseOrder(in_);
  ASSERT_FALSE(order.ok());
  EXPECT_THAT(std::string(order.status().message()),
              AllOf(HasSubstr("'mine' (plugin \"a\")"), HasSubstr("'lost'")));
}

TEST_F(Strategies, ConflictsAndNeedsMeanThePluginWhateverItsId) {
  Uses(Add("mine", "dp"), "dp", CAPSTAN_AXIS_DATA);
  Uses(Add("cut", "tp"), "tp", CAPSTAN_AXIS_MODEL);
  Add("sp", "sp").needs = {"tp", nullptr};
  EXPECT_EQ(Refusal(), "");
  Add("zero1", "zero1").conflicts = {"dp", nullptr};
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("'zero1'"), HasSubstr("'mine' (plugin \"dp\")"),
                               HasSubstr("cannot be combined")));
}

TEST_F(Strategies, WhatIsNeededAndMissingIsNamed) {
  Uses(Add("dp", "dp"), "dp", CAPSTAN_AXIS_DATA);
  Add("sp", "sp").needs = {"tp", nullptr};
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("'sp'"), HasSubstr("plugin = \"tp\"")));
}

TEST_F(Strategies, AnAxisCutsTheModelForOneStrategyOnly) {
  Uses(Add("dp", "dp"), "dp", CAPSTAN_AXIS_DATA);
  Uses(Add("tp", "tp"), "tp", CAPSTAN_AXIS_MODEL);
  Talker& pipeline = Add("pp", "pp");
  Uses(pipeline, "tp", CAPSTAN_AXIS_MODEL);
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("'tp'"), HasSubstr("'pp'"), HasSubstr("mesh.tp"),
                               HasSubstr("axis of its own")));
  pipeline.axes = {sdk::make_axis("dp", CAPSTAN_AXIS_MODEL)};
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("mesh.dp"), HasSubstr("shares the batch"),
                               HasSubstr("cuts the model")));
  pipeline.axes = {sdk::make_axis("pp", CAPSTAN_AXIS_MODEL)};  // of size 1
  EXPECT_EQ(Refusal(), "");
}

TEST_F(Strategies, OnePluginTwiceOverAnAxisIsRefused) {
  Uses(Add("tp", "tp"), "tp", CAPSTAN_AXIS_MODEL);
  Uses(Add("a", "zero1"), "dp", CAPSTAN_AXIS_DATA);
  Uses(Add("b", "zero1"), "dp", CAPSTAN_AXIS_DATA);
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("'a'"), HasSubstr("'b'"), HasSubstr("mesh.dp")));
}

TEST_F(Strategies, APluginThatCutsTheModelDoesSoOnce) {
  Uses(Add("tp", "tp"), "tp", CAPSTAN_AXIS_MODEL);
  Uses(Add("more", "tp"), "dp", CAPSTAN_AXIS_MODEL);
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("'tp'"), HasSubstr("'more' (plugin \"tp\")"),
                               HasSubstr("remove one")));
}

TEST_F(Strategies, AnAxisThatNoStrategyUsesIsRefused) {
  Uses(Add("tp", "tp"), "tp", CAPSTAN_AXIS_MODEL);
  EXPECT_THAT(Refusal(), HasSubstr("mesh.dp = 2, but no strategy uses axis 'dp'"));
}

}  // namespace
}  // namespace capstan
