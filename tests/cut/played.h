// Pipeline schedules as text, and all stages of one played together.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plugins/strategy/pp/schedules.h"
#include "runtime/run/pipeline_times.h"

namespace capstan::cut_test {

// "F0 F1 B0 B1", with .CHUNK (of the stage) where it is not 0: what a schedule file says.
std::string Text(const std::vector<pp::Step>& steps, int64_t stages);

// What every stage of a pipeline runs.
std::vector<std::vector<PipelineStep>> Lists(const pp::Schedule& schedule,
                                             const pp::Pipeline& pipeline);

// Milliseconds of a piece of work on every stage alike. In a schedule that does not split the backward
// pass, B takes backward + weight.
struct Times {
  double forward = 1, backward = 1, weight = 1, hop = 0;
};

// Fails the test if the schedule cannot be played to its end.
PipelineTimeline Play(const pp::Schedule& schedule, const pp::Pipeline& pipeline,
                      const Times& times);

}  // namespace capstan::cut_test
