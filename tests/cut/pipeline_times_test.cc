// The simulation of a pipeline's step: by hand, against published measurements, and what it refuses.
#include "runtime/run/pipeline_times.h"

#include <gmock/gmock.h>

#include <fstream>
#include <map>
#include <sstream>

#include "tests/cut/played.h"

namespace capstan::cut_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr PipelineWork kF = PipelineWork::kForward, kB = PipelineWork::kBackward,
                       kW = PipelineWork::kWeight;

double Second(size_t, const PipelineStep&) { return 1; }

TEST(PipelineTimes, OfTwoUnequalStagesByHand) {
  // Stage 0: F takes 2, B 3; stage 1: F takes 4, B 5. A hop takes 1.
  const std::vector<std::vector<PipelineStep>> stages = {
      {{kF, 0, 0}, {kF, 0, 1}, {kB, 0, 0}, {kB, 0, 1}},
      {{kF, 1, 0}, {kB, 1, 0}, {kF, 1, 1}, {kB, 1, 1}}};
  const auto duration = [](size_t stage, const PipelineStep& step) {
    return step.work == kF ? (stage == 0 ? 2.0 : 4.0) : (stage == 0 ? 3.0 : 5.0);
  };
  const auto timeline = SimulatePipeline(stages, duration, 1);
  ASSERT_TRUE(timeline.ok()) << timeline.status();
  std::vector<double> starts[2], ends[2];
  for (size_t s = 0; s < 2; ++s) {
    for (const PipelineInterval& i : timeline->stages[s]) {
      starts[s].push_back(i.start);
      ends[s].push_back(i.end);
    }
  }
  EXPECT_THAT(starts[0], ElementsAre(0, 2, 13, 22));
  EXPECT_THAT(ends[0], ElementsAre(2, 4, 16, 25));
  EXPECT_THAT(starts[1], ElementsAre(3, 7, 12, 16));
  EXPECT_THAT(ends[1], ElementsAre(7, 12, 16, 21));
  EXPECT_EQ(timeline->end(), 25);
  EXPECT_EQ(timeline->longest_stage(), 25);
  EXPECT_EQ(timeline->busy(0), 10);
  EXPECT_EQ(timeline->busy(1), 18);
  EXPECT_DOUBLE_EQ(timeline->bubble_rate(), 7.0 / 25);
  EXPECT_DOUBLE_EQ(timeline->bubble_over_ideal(), 7.0 / 18);
}

TEST(PipelineTimes, ChunksOfOneStageNeedNoHop) {
  const auto timeline = SimulatePipeline(
      {{{kF, 0, 0}, {kF, 1, 0}, {kB, 1, 0}, {kW, 1, 0}, {kB, 0, 0}, {kW, 0, 0}}}, Second, 100);
  ASSERT_TRUE(timeline.ok()) << timeline.status();
  EXPECT_EQ(timeline->end(), 6);
  EXPECT_EQ(timeline->bubble_rate(), 0);
}

// A stage that starts late is not charged for it: stages need not wait for each other between steps.
TEST(PipelineTimes, CostOfAStepIsTheLongestStage) {
  const auto timeline = SimulatePipeline(
      {{{kF, 0, 0}, {kB, 0, 0}}, {{kF, 1, 0}, {kB, 1, 0}, {kW, 1, 0}, {kF, 1, 1}}, {{kF, 0, 1}}},
      Second, 0);
  ASSERT_TRUE(timeline.ok()) << timeline.status();
  EXPECT_EQ(timeline->end(), 5);            // of stage 1, which starts at 1
  EXPECT_EQ(timeline->longest_stage(), 4);  // of both
}

TEST(PipelineTimes, NothingToRunTakesNoTime) {
  const auto timeline = SimulatePipeline({{}, {}}, Second, 1);
  ASSERT_TRUE(timeline.ok()) << timeline.status();
  EXPECT_EQ(timeline->end(), 0);
  EXPECT_EQ(timeline->longest_stage(), 0);
  EXPECT_EQ(timeline->bubble_rate(), 0);
  EXPECT_EQ(timeline->bubble_over_ideal(), 0);
}

TEST(PipelineTimes, StagesThatWaitForEachOtherAreNamed) {
  const auto timeline = SimulatePipeline({{{kF, 0, 0}, {kB, 0, 0}, {kF, 0, 1}, {kB, 0, 1}},
                                          {{kF, 1, 0}, {kF, 1, 1}, {kB, 1, 0}, {kB, 1, 1}}},
                                         Second, 0);
  ASSERT_FALSE(timeline.ok());
  const std::string message(timeline.status().message());
  const bool from0 = message.find("B0 of stage 0 waits for B0.1 of stage 1") != std::string::npos;
  const bool from1 = message.find("F1.1 of stage 1 waits for F1 of stage 0") != std::string::npos;
  EXPECT_TRUE(from0 || from1) << message;
}

// Stage 0 stands still as well, but it is stage 1's list that is wrong.
TEST(PipelineTimes, TheListInTheWrongOrderIsNamed) {
  const auto timeline =
      SimulatePipeline({{{kF, 0, 0}, {kB, 0, 0}}, {{kB, 1, 0}, {kF, 1, 0}}}, Second, 0);
  ASSERT_FALSE(timeline.ok());
  EXPECT_THAT(std::string(timeline.status().message()),
              HasSubstr("B0.1 of stage 1 waits for F0.1 of stage 1"));
}

TEST(PipelineTimes, AStepThatNoStageRunsIsNamed) {
  const auto timeline =
      SimulatePipeline({{{kF, 0, 0}, {kB, 0, 0}, {kB, 0, 1}}, {{kF, 1, 0}, {kB, 1, 0}}}, Second, 0);
  ASSERT_FALSE(timeline.ok());
  EXPECT_THAT(std::string(timeline.status().message()),
              HasSubstr("B1 of stage 0 waits for F1, which no stage runs"));
}

TEST(PipelineTimes, AStepListedTwiceIsNamed) {
  const auto timeline = SimulatePipeline({{{kF, 0, 0}}, {{kF, 1, 0}, {kF, 0, 0}}}, Second, 0);
  ASSERT_FALSE(timeline.ok());
  EXPECT_THAT(std::string(timeline.status().message()),
              HasSubstr("stage 1 lists F0, which stage 0 lists already"));
}

// Rows of the tables of Qi et al. 2023, "Zero Bubble Pipeline Parallelism": measured times of the parts
// of a step, and the bubble rates of schedules made of them.
std::vector<std::map<std::string, std::string>> PublishedRows() {
  std::ifstream in(CAPSTAN_REPOSITORY "/tests/cut/data/zero_bubble_tables.csv");
  std::vector<std::string> columns;
  std::vector<std::map<std::string, std::string>> rows;
  for (std::string line; std::getline(in, line);) {
    std::istringstream cells(line);
    std::vector<std::string> row;
    for (std::string cell; std::getline(cells, cell, ',');) row.push_back(cell);
    if (columns.empty()) {
      columns = row;
      continue;
    }
    rows.emplace_back();
    for (size_t i = 0; i < row.size(); ++i) rows.back()[columns[i]] = row[i];
  }
  return rows;
}

TEST(PipelineTimes, GivesThePublishedBubbleRates) {
  const auto rows = PublishedRows();
  ASSERT_EQ(rows.size(), 6u);
  for (const auto& row : rows) {
    const auto number = [&](const char* column) { return std::stod(row.at(column)); };
    const pp::Pipeline pipeline{static_cast<int64_t>(number("stages")), 1,
                                static_cast<int64_t>(number("microbatches"))};
    const Times times{number("f_ms"), number("b_ms"), number("w_ms"), number("comm_ms")};
    const auto rate = [&](const char* schedule) {
      return Play(*pp::make_schedule(schedule), pipeline, times).bubble_rate();
    };
    SCOPED_TRACE(row.at("model") + ", " + row.at("microbatches") + " microbatches");
    EXPECT_NEAR(rate("1f1b"), number("rate_1f1b"), 0.5e-4);
    EXPECT_NEAR(rate("zb_h1"), number("rate_zb_h1"), 0.5e-4);
  }
}

}  // namespace
}  // namespace capstan::cut_test
