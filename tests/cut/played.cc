#include "tests/cut/played.h"

#include <gtest/gtest.h>

#include "runtime/strings.h"

namespace capstan::cut_test {
namespace {

PipelineWork WorkOf(pp::Work work) {
  switch (work) {
    case pp::Work::kForward:
      return PipelineWork::kForward;
    case pp::Work::kBackward:
      return PipelineWork::kBackward;
    case pp::Work::kWeight:
      break;
  }
  return PipelineWork::kWeight;
}

}  // namespace

std::string Text(const std::vector<pp::Step>& steps, int64_t stages) {
  std::string text;
  for (const pp::Step& s : steps) {
    const PipelineStep local{WorkOf(s.work), s.chunk / stages, s.microbatch};
    StrAppend(&text, text.empty() ? "" : " ", PipelineStepName(local));
  }
  return text;
}

std::vector<std::vector<PipelineStep>> Lists(const pp::Schedule& schedule,
                                             const pp::Pipeline& pipeline) {
  std::vector<std::vector<PipelineStep>> lists(static_cast<size_t>(pipeline.stages));
  for (size_t stage = 0; stage < lists.size(); ++stage) {
    for (const pp::Step& s : schedule.steps(pipeline, static_cast<int64_t>(stage)))
      lists[stage].push_back({WorkOf(s.work), s.chunk, s.microbatch});
  }
  return lists;
}

PipelineTimeline Play(const pp::Schedule& schedule, const pp::Pipeline& pipeline,
                      const Times& times) {
  const double whole = schedule.splits_backward() ? 0 : times.weight;
  const auto duration = [&](size_t, const PipelineStep& step) {
    return step.work == PipelineWork::kForward    ? times.forward
           : step.work == PipelineWork::kBackward ? times.backward + whole
                                                  : times.weight;
  };
  absl::StatusOr<PipelineTimeline> timeline =
      SimulatePipeline(Lists(schedule, pipeline), duration, times.hop);
  EXPECT_TRUE(timeline.ok()) << timeline.status();
  return timeline.ok() ? *std::move(timeline) : PipelineTimeline{};
}

}  // namespace capstan::cut_test
