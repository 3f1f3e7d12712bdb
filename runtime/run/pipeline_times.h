// When the steps of a pipeline run: a simulation of one training step from the order in which each
// stage runs its work and how long each piece takes. Knows no Programs, plugins or clocks, so that it
// serves predictions (`capstan timeline`) and measured durations alike.
//
//   F of chunk c waits for F of chunk c - 1, B of chunk c for F of chunk c and B of chunk c + 1, W of
//   chunk c for B of chunk c, all of the same microbatch. A stage runs its list in order. What crosses
//   from one stage to another arrives `hop` after the step that made it ended; sending does not hold
//   the sender up.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace capstan {

// kBackward is the whole backward pass where a pipeline has no kWeight, else the gradients of
// activations alone, and kWeight those of weights.
enum class PipelineWork { kForward, kBackward, kWeight };

struct PipelineStep {
  PipelineWork work = PipelineWork::kForward;
  int64_t chunk = 0;  // of the whole pipeline, from the first layers to the last
  int64_t microbatch = 0;
  friend bool operator==(const PipelineStep&, const PipelineStep&) = default;
};

// "F3", and "F3.1" for a chunk other than 0: microbatch, chunk.
std::string PipelineStepName(const PipelineStep& step);

// In the unit of the durations given; the step of the whole pipeline begins at 0.
struct PipelineInterval {
  PipelineStep step;
  double start = 0, end = 0;
};

struct PipelineTimeline {
  std::vector<std::vector<PipelineInterval>> stages;  // as given, in order

  double end() const;  // when the last stage is done
  // The longest time from a stage's first start to its last end: the cost of a step where stages need
  // not wait for each other between steps (Qi et al. 2023, section 2.2).
  double longest_stage() const;
  double busy(size_t stage) const;  // sum of its durations
  // What share of longest_stage() the busiest stage is idle (Qi et al.'s bubble rate).
  double bubble_rate() const;
  // Idle time over busy time of the busiest stage (Narayanan et al. 2021, section 2.1): of end().
  double bubble_over_ideal() const;
};

// `duration` of a step on a stage; asked once for each. `hop`: from a stage to another. Refuses lists
// that wait for each other or for a step no stage runs, and steps listed twice, naming them. Any thread.
absl::StatusOr<PipelineTimeline> SimulatePipeline(
    const std::vector<std::vector<PipelineStep>>& stages,
    const std::function<double(size_t stage, const PipelineStep& step)>& duration, double hop);

}  // namespace capstan
