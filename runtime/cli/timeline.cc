// `capstan timeline`: when each stage of a pipeline works and waits, predicted from the Programs that
// would run and, where the run left traces, as it was.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "runtime/cli/cli.h"
#include "runtime/run/files.h"
#include "runtime/run/pipeline_drawing.h"
#include "runtime/run/session.h"
#include "runtime/status.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;

constexpr int kColumns = 100;

constexpr std::pair<std::string_view, PipelineWork> kSegments[] = {
    {"forward/", PipelineWork::kForward},
    {"backward/", PipelineWork::kBackward},
    {"backward_weight/", PipelineWork::kWeight}};

// "backward/2" is the backward pass of chunk 2; nullopt for other segments.
std::optional<PipelineStep> StepOf(std::string_view segment, int64_t microbatch) {
  for (const auto& [prefix, work] : kSegments) {
    int64_t chunk = 0;
    if (segment.starts_with(prefix) &&
        absl::SimpleAtoi(ToAbsl(segment.substr(prefix.size())), &chunk))
      return PipelineStep{work, chunk, microbatch};
  }
  return std::nullopt;
}

std::string SegmentOf(const PipelineStep& step) {
  for (const auto& [prefix, work] : kSegments) {
    if (work == step.work) return StrCat(std::string(prefix), step.chunk);
  }
  return "";
}

// What one stage runs and how long it takes by its FLOPs.
struct Stage {
  int64_t rank = 0;
  std::string axis;  // that its messages go along, "" where it sends none
  std::vector<PipelineStep> steps;
  std::map<std::string, double> seconds;  // by segment
};

absl::StatusOr<Stage> ComposeStage(const TimelineArguments& arguments, int64_t rank, int64_t world,
                                   double flops) {
  CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<HostEnvironment> host, HostEnvironment::Create());
  host->SetRanks({rank, world});
  CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<Session> session,
                           Session::Open(arguments.config, arguments.set, host.get()));
  CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<Program> train, ComposeTrain(session->ingredients()));
  Stage stage;
  stage.rank = rank;
  for (const Segment& segment : train->segments()) {
    double sum = 0;
    for (OpId o : segment.ops) {
      CAPSTAN_ASSIGN_OR_RETURN(const OpCost cost, train->Cost(o));
      sum += cost.flops;
      const Op& op = train->op(o);
      if (op.attrs.Has("peer")) stage.axis = op.attrs.String("axis", "");
    }
    stage.seconds[segment.name] = sum / flops;
  }
  for (const ScheduleEntry& entry : train->schedule()) {
    if (const auto step = StepOf(entry.segment, entry.microbatch)) stage.steps.push_back(*step);
  }
  return stage;
}

absl::StatusOr<PipelineTimeline> Predict(const std::vector<Stage>& stages, double hop_s) {
  std::vector<std::vector<PipelineStep>> steps;
  for (const Stage& s : stages) steps.push_back(s.steps);
  return SimulatePipeline(
      steps,
      [&](size_t s, const PipelineStep& step) { return stages[s].seconds.at(SegmentOf(step)); },
      hop_s);
}

std::string TracePath(const std::string& run_dir, const std::string& step, int64_t rank,
                      int64_t world) {
  return StrCat(run_dir, "/trace/", step, world == 1 ? "" : StrCat("-rank-", rank), ".json");
}

// The newest step that all stages left a trace of, "step-00000007"; "" when there is none.
std::string NewestTrace(const std::string& run_dir, const std::vector<Stage>& stages,
                        int64_t world) {
  std::error_code error;
  std::string newest;
  for (const auto& entry : fs::directory_iterator(run_dir + "/trace", error)) {
    const std::string name = entry.path().filename().string();
    const std::string step = name.substr(0, name.find_first_of(".-", std::strlen("step-")));
    if (!name.starts_with("step-") || step <= newest) continue;
    const bool whole = std::all_of(stages.begin(), stages.end(), [&](const Stage& s) {
      return fs::exists(TracePath(run_dir, step, s.rank, world), error);
    });
    if (whole) newest = step;
  }
  return newest;
}

// A stage's steps of a trace, in seconds of its clock, by when they began.
absl::StatusOr<std::vector<PipelineInterval>> ReadTrace(const std::string& path) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  const auto refuse = [&] { return DataError(path, " is not a trace; run train --trace again"); };
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object() || !json.contains("traceEvents")) return refuse();
  std::map<std::pair<std::string, int64_t>, PipelineInterval> found;
  for (const auto& event : json["traceEvents"]) {
    if (!event.is_object()) return refuse();
    if (event.value("ph", "") != "X") continue;
    if (!event.contains("args") || !event["args"].is_object()) return refuse();
    const int64_t microbatch = event["args"].value("microbatch", int64_t{-1});
    const std::string segment = event.value("cat", ""), name = event.value("name", "");
    const auto step = StepOf(segment, microbatch);
    // Messages are waited for between the stage's own ops.
    const bool message =
        name.starts_with("wait for") || name.starts_with("send") || name.starts_with("recv");
    if (!step || message) continue;
    const double start = event.value("ts", 0.0) * 1e-6;
    const double end = start + event.value("dur", 0.0) * 1e-6;
    auto [it, fresh] = found.try_emplace({segment, microbatch}, *step, start, end);
    it->second.start = std::min(it->second.start, start);
    it->second.end = std::max(it->second.end, end);
  }
  std::vector<PipelineInterval> intervals;
  for (const auto& [key, interval] : found) intervals.push_back(interval);
  std::sort(intervals.begin(), intervals.end(),
            [](const auto& a, const auto& b) { return a.start < b.start; });
  return intervals;
}

bool SameSteps(const std::vector<PipelineInterval>& measured,
               const std::vector<PipelineStep>& planned) {
  return std::equal(measured.begin(), measured.end(), planned.begin(), planned.end(),
                    [](const PipelineInterval& i, const PipelineStep& s) { return i.step == s; });
}

// The newest step that all stages left a trace of, in seconds from the first launch of any.
absl::StatusOr<std::optional<PipelineTimeline>> Measure(const std::string& config,
                                                        const std::string& run_dir,
                                                        const std::vector<Stage>& stages,
                                                        int64_t world) {
  const std::string newest = NewestTrace(run_dir, stages, world);
  if (newest.empty()) return std::nullopt;
  const auto refuse = [&](const std::string& path) {
    return UsageError(
        path, " is the trace of other work than ", config,
        " would run now (schedule, microbatches or layers a stage); train with --trace "
        "again, or remove it");
  };
  PipelineTimeline timeline;
  double first = std::numeric_limits<double>::infinity();
  for (const Stage& s : stages) {
    CAPSTAN_ASSIGN_OR_RETURN(std::vector<PipelineInterval> intervals,
                             ReadTrace(TracePath(run_dir, newest, s.rank, world)));
    if (!SameSteps(intervals, s.steps)) return refuse(TracePath(run_dir, newest, s.rank, world));
    if (!intervals.empty()) first = std::min(first, intervals.front().start);
    timeline.stages.push_back(std::move(intervals));
  }
  for (auto& stage : timeline.stages) {
    for (PipelineInterval& i : stage) i.start -= first, i.end -= first;
  }
  return timeline;
}

std::string Section(const std::string& title, const PipelineTimeline& t) {
  return StrCat("\n", title, "\n", TimelineText(t, kColumns),
                absl::StrFormat("  step %.4g ms, bubble %.4f of the ideal time, rate %.4f\n",
                                t.end() * 1e3, t.bubble_over_ideal(), t.bubble_rate()));
}

nlohmann::ordered_json TimelineJson(const PipelineTimeline& t) {
  nlohmann::ordered_json stages = nlohmann::ordered_json::array();
  for (const auto& stage : t.stages) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const PipelineInterval& i : stage) {
      list.push_back({{"step", PipelineStepName(i.step)}, {"start_s", i.start}, {"end_s", i.end}});
    }
    stages.push_back(std::move(list));
  }
  return {{"step_s", t.end()},
          {"bubble_over_ideal", t.bubble_over_ideal()},
          {"bubble_rate", t.bubble_rate()},
          {"stages", stages}};
}

}  // namespace

absl::StatusOr<int> TimelineCommand(const TimelineArguments& arguments) {
  std::vector<Stage> stages;
  std::string run_dir, mesh_text;
  int64_t world = 1;
  {
    CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<HostEnvironment> host, HostEnvironment::Create());
    host->SetRanks({0, arguments.world});
    CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<Session> session,
                             Session::Open(arguments.config, arguments.set, host.get()));
    run_dir = session->config().run.dir;
    const Mesh mesh = host->mesh();
    world = mesh.world();
    mesh_text = mesh.ToString();
    double flops = arguments.flops;
    if (flops <= 0) {
      CAPSTAN_ASSIGN_OR_RETURN(Device * device, session->device());
      CAPSTAN_ASSIGN_OR_RETURN(const capstan_roofline roofline, device->Measure(kF32));
      flops = roofline.matmul_flops;
    }
    // The first rank of each stage: the ranks of a stage run alike.
    CAPSTAN_ASSIGN_OR_RETURN(Stage first, ComposeStage(arguments, 0, world, flops));
    stages.push_back(std::move(first));
    if (!stages[0].axis.empty()) {
      for (const int32_t rank : mesh.Group({stages[0].axis}, 0)) {
        if (rank == 0) continue;
        CAPSTAN_ASSIGN_OR_RETURN(Stage stage, ComposeStage(arguments, rank, world, flops));
        stages.push_back(std::move(stage));
      }
    }
  }
  CAPSTAN_ASSIGN_OR_RETURN(const PipelineTimeline predicted,
                           Predict(stages, arguments.hop_ms * 1e-3));
  CAPSTAN_ASSIGN_OR_RETURN(const std::optional<PipelineTimeline> measured,
                           Measure(arguments.config, run_dir, stages, world));
  if (!arguments.svg.empty()) {
    std::vector<TimelineRow> rows = {{"predicted", predicted, 1}};
    if (measured) rows.push_back({"measured", *measured, 1});
    CAPSTAN_RETURN_IF_ERROR(WriteFileAtomically(arguments.svg, TimelineSvg(rows)));
  }
  if (arguments.json) {
    nlohmann::ordered_json report = {{"mesh", mesh_text}, {"predicted", TimelineJson(predicted)}};
    if (measured) report["measured"] = TimelineJson(*measured);
    std::printf("%s\n", report.dump(1).c_str());
    return kExitDone;
  }
  std::string text =
      StrCat(arguments.config, ": mesh ", mesh_text, ", ", stages.size(),
             stages.size() == 1 ? " stage" : " stages",
             "; digits: forward, letters: backward, w: weight gradients, dots: idle\n");
  text += Section("predicted by FLOPs", predicted);
  text += measured
              ? Section("measured", *measured)
              : StrCat("\nnot measured: train with --trace to compare (", run_dir, "/trace)\n");
  std::fputs(text.c_str(), stdout);
  return kExitDone;
}

}  // namespace capstan
