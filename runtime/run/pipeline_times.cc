#include "runtime/run/pipeline_times.h"

#include <algorithm>
#include <optional>
#include <tuple>

#include "absl/container/flat_hash_map.h"
#include "runtime/status.h"
#include "runtime/strings.h"

namespace capstan {
namespace {

using Key = std::tuple<int, int64_t, int64_t>;

Key KeyOf(const PipelineStep& s) { return {static_cast<int>(s.work), s.chunk, s.microbatch}; }

// Plays all lists; a stage stands still while what its next step waits for has not been made.
class Player {
 public:
  Player(const std::vector<std::vector<PipelineStep>>& lists, double hop)
      : lists_(lists), hop_(hop), next_(lists.size(), 0) {}

  absl::Status ListSteps() {
    for (size_t stage = 0; stage < lists_.size(); ++stage) {
      for (const PipelineStep& step : lists_[stage]) {
        const auto [listed, fresh] = done_.try_emplace(KeyOf(step), Done{stage, -1});
        if (!fresh) {
          return UsageError("pipeline: stage ", stage, " lists ", PipelineStepName(step),
                            ", which stage ", listed->second.stage,
                            " lists already; each step runs once");
        }
        last_chunk_ = std::max(last_chunk_, step.chunk);
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<PipelineTimeline> Play(
      const std::function<double(size_t, const PipelineStep&)>& duration) {
    timeline_.stages.resize(lists_.size());
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t stage = 0; stage < lists_.size(); ++stage) {
        while (next_[stage] < lists_[stage].size() && Run(stage, duration)) moved = true;
      }
    }
    for (size_t stage = 0; stage < lists_.size(); ++stage) {
      if (next_[stage] < lists_[stage].size()) return Stuck(stage);
    }
    return std::move(timeline_);
  }

 private:
  struct Done {
    size_t stage;
    double end;  // negative: not yet
  };

  // What a step waits for; at most two.
  std::vector<PipelineStep> Needs(const PipelineStep& s) const {
    std::vector<PipelineStep> needs;
    if (s.work == PipelineWork::kForward) {
      if (s.chunk > 0) needs.push_back({PipelineWork::kForward, s.chunk - 1, s.microbatch});
    } else if (s.work == PipelineWork::kBackward) {
      needs.push_back({PipelineWork::kForward, s.chunk, s.microbatch});
      if (s.chunk < last_chunk_)
        needs.push_back({PipelineWork::kBackward, s.chunk + 1, s.microbatch});
    } else {
      needs.push_back({PipelineWork::kBackward, s.chunk, s.microbatch});
    }
    return needs;
  }

  // When what a step waits for has arrived at its stage; nullopt: not made yet.
  std::optional<double> Ready(size_t stage, const PipelineStep& step) const {
    double ready = 0;
    for (const PipelineStep& need : Needs(step)) {
      const auto made = done_.find(KeyOf(need));
      if (made == done_.end() || made->second.end < 0) return std::nullopt;
      ready = std::max(ready, made->second.end + (made->second.stage == stage ? 0 : hop_));
    }
    return ready;
  }

  bool Run(size_t stage, const std::function<double(size_t, const PipelineStep&)>& duration) {
    const PipelineStep& step = lists_[stage][next_[stage]];
    const std::optional<double> ready = Ready(stage, step);
    if (!ready) return false;
    std::vector<PipelineInterval>& ran = timeline_.stages[stage];
    const double start = std::max(*ready, ran.empty() ? 0 : ran.back().end);
    ran.push_back({step, start, start + duration(stage, step)});
    done_.at(KeyOf(step)).end = ran.back().end;
    ++next_[stage];
    return true;
  }

  // What the step a stage stands at waits for.
  PipelineStep Missing(size_t stage) const {
    for (const PipelineStep& need : Needs(lists_[stage][next_[stage]])) {
      const auto made = done_.find(KeyOf(need));
      if (made == done_.end() || made->second.end < 0) return need;
    }
    return {};
  }

  absl::Status Stuck(size_t stage) const {
    // Along the chain of who waits for whom, to where it closes or ends.
    for (size_t i = 0;; ++i) {
      const PipelineStep need = Missing(stage);
      const std::string step = PipelineStepName(lists_[stage][next_[stage]]);
      const auto made = done_.find(KeyOf(need));
      if (made == done_.end()) {
        return UsageError("pipeline: ", step, " of stage ", stage, " waits for ",
                          PipelineStepName(need), ", which no stage runs");
      }
      if (i >= lists_.size()) {
        return UsageError("pipeline: stages wait for each other: ", step, " of stage ", stage,
                          " waits for ", PipelineStepName(need), " of stage ", made->second.stage,
                          ", which that stage lists too late to be reached; move it forward");
      }
      stage = made->second.stage;
    }
  }

  const std::vector<std::vector<PipelineStep>>& lists_;
  double hop_;
  std::vector<size_t> next_;  // by stage, the step it stands at
  int64_t last_chunk_ = 0;
  absl::flat_hash_map<Key, Done> done_;
  PipelineTimeline timeline_;
};

}  // namespace

std::string PipelineStepName(const PipelineStep& step) {
  const char* letter = step.work == PipelineWork::kForward    ? "F"
                       : step.work == PipelineWork::kBackward ? "B"
                                                              : "W";
  if (step.chunk == 0) return StrCat(letter, step.microbatch);
  return StrCat(letter, step.microbatch, ".", step.chunk);
}

double PipelineTimeline::end() const {
  double end = 0;
  for (const auto& stage : stages) end = std::max(end, stage.empty() ? 0 : stage.back().end);
  return end;
}

double PipelineTimeline::longest_stage() const {
  double longest = 0;
  for (const auto& stage : stages) {
    if (!stage.empty()) longest = std::max(longest, stage.back().end - stage.front().start);
  }
  return longest;
}

double PipelineTimeline::busy(size_t stage) const {
  double sum = 0;
  for (const PipelineInterval& i : stages[stage]) sum += i.end - i.start;
  return sum;
}

namespace {

double Busiest(const PipelineTimeline& timeline) {
  double most = 0;
  for (size_t s = 0; s < timeline.stages.size(); ++s) most = std::max(most, timeline.busy(s));
  return most;
}

}  // namespace

double PipelineTimeline::bubble_rate() const {
  const double cost = longest_stage();
  return cost > 0 ? (cost - Busiest(*this)) / cost : 0;
}

double PipelineTimeline::bubble_over_ideal() const {
  const double ideal = Busiest(*this);
  return ideal > 0 ? (end() - ideal) / ideal : 0;
}

absl::StatusOr<PipelineTimeline> SimulatePipeline(
    const std::vector<std::vector<PipelineStep>>& stages,
    const std::function<double(size_t stage, const PipelineStep& step)>& duration, double hop) {
  Player player(stages, hop);
  CAPSTAN_RETURN_IF_ERROR(player.ListSteps());
  return player.Play(duration);
}

}  // namespace capstan
