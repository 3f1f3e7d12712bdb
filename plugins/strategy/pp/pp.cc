// Pipeline parallelism: ranks along an axis hold consecutive chunks of layers; values cross the borders
// as messages, microbatches follow each other through the stages by a schedule (schedules.h).
#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "plugins/strategy/pp/cut.h"
#include "plugins/strategy/pp/stages.h"

namespace capstan::pp {
namespace {

using sdk::Op;
using sdk::OpInfo;
using sdk::Tensor;
using sdk::TensorInfo;

constexpr capstan_option kOptions[] = {
    sdk::string_option("axis", "\"pp\"", "The mesh axis whose ranks are the stages, in order."),
    sdk::string_option("schedule", "\"1f1b\"", "The order of microbatches through the stages.")
        .choices("gpipe|1f1b|interleaved|zb_h1"),
    sdk::path_option("schedule_file", "\"\"",
                     "A file with the steps of each stage, instead of `schedule`."),
    sdk::int_option("chunks", "1", "Chunks of layers a stage (interleaved).").range(1, 1000),
    sdk::ints_option("split", "[]", "Layers of each chunk; empty: balanced by their FLOPs."),
};

// Where the model is split is settled while all ranks of a stage have the same shapes: strategies that
// divide heads or words unevenly would have each of them count other FLOPs.
constexpr const char* kLayersPhase = "pipeline_layers";
constexpr const char* kSplitPhase = "pipeline_split";
constexpr const char* kGradientPhase = "pipeline_gradient";
constexpr const char* kNormPhase = "pipeline_norm";
constexpr capstan_phase kPhases[] = {
    sdk::make_phase(kLayersPhase, CAPSTAN_PHASE_PRECISION),
    sdk::make_phase(CAPSTAN_PHASE_PIPELINE),
    sdk::make_phase(kSplitPhase, CAPSTAN_PHASE_DIFFERENTIATE),
    sdk::make_phase(kGradientPhase, nullptr, CAPSTAN_PHASE_COMPRESS),
    sdk::make_phase(kNormPhase, CAPSTAN_PHASE_FINISH),
    sdk::make_phase(CAPSTAN_PHASE_SCHEDULE),
};

constexpr const char* kUpdate = "update";

std::unique_ptr<Schedule> schedule_of(const sdk::Options& options) {
  const std::string file = options.get_string("schedule_file");
  if (file.empty()) return make_schedule(options.get_string("schedule"));
  if (options.from_user("schedule")) {
    throw sdk::usage_error(sdk::text("[[strategy]] pp: schedule = \"",
                                     options.get_string("schedule"), "\" and schedule_file = \"",
                                     file, "\" are both given; leave one out"));
  }
  return std::make_unique<FromFile>(file);
}

class PipelineParallel {
 public:
  PipelineParallel(const sdk::Host& host, const sdk::Options& options)
      : host_(host),
        axis_{options.get_string("axis"), host.axis_size(options.get_string("axis")),
              host.axis_index(options.get_string("axis"))},
        schedule_(schedule_of(options)),
        chunks_(options.get_int("chunks")),
        split_(options.get_ints("split")),
        uses_{sdk::make_axis(axis_.name.c_str(), CAPSTAN_AXIS_MODEL)} {}

  std::span<const capstan_phase> phases() const noexcept { return kPhases; }
  std::span<const capstan_axis_use> axes() const noexcept { return uses_; }

  void rewrite(std::string_view phase, sdk::Program& program) {
    if (axis_.size == 1) return;
    const bool train = program.name() == "train";
    if (phase == kLayersPhase) return split_layers(program);
    if (phase == CAPSTAN_PHASE_PIPELINE) return cut(program);
    if (phase == CAPSTAN_PHASE_SCHEDULE) return set_schedule(program, train);
    if (!train) return;
    if (phase == kSplitPhase && schedule_->splits_backward()) split_backward(program);
    if (phase == kGradientPhase) sum_tied(program);
    if (phase == kNormPhase) sum_norm(program);
  }

 private:
  Pipeline pipeline(const sdk::Program& program) const {
    return {axis_.size, chunks_, program.microbatches()};
  }

  void split_layers(const sdk::Program& program) {
    starts_ = chunk_starts(program, program.ops(forward_segment(0)), axis_.size * chunks_, split_);
  }

  void cut(sdk::Program& program) {
    const std::vector<Op> ops = program.ops(forward_segment(0));
    Cutter cutter(program, axis_, axis_.size * chunks_, chunks_of(program, ops, starts_));
    Tied tied = cutter.run();
    if (program.name() == "train") tied_ = std::move(tied);
  }

  // Weight gradients into segments of their own, which the schedule puts where the stage would wait, and
  // with them what is made again for them alone.
  static void split_backward(sdk::Program& program) {
    constexpr std::string_view kBackward = "backward/";
    for (const std::string& segment : program.segments()) {
      if (!segment.starts_with(kBackward)) continue;
      const std::string weight = "backward_weight/" + segment.substr(kBackward.size());
      const std::vector<Op> ops = program.ops(segment);
      for (const Op op : ops) {
        if (program.get(op).role == CAPSTAN_ROLE_WEIGHT_GRADIENT) program.move(op, {weight, {}});
      }
      // From the last, for what is made again may be made of another such value.
      for (auto op = ops.rbegin(); op != ops.rend(); ++op) {
        if (const Op reader = only_reader(program, *op, weight))
          program.move(*op, {weight, reader});
      }
    }
  }

  // Of a forward value made again, the first op that reads it, where all do in `segment`.
  static Op only_reader(const sdk::Program& program, Op op, const std::string& segment) {
    const OpInfo info = program.get(op);
    const bool again = info.role == CAPSTAN_ROLE_NONE && (program.flags(op) & CAPSTAN_OP_PURE) != 0;
    if (!again || program.segment(op) == segment) return {};
    std::vector<Op> readers;
    for (const Tensor t : info.outputs) {
      for (const Op user : program.users(t)) readers.push_back(user);
    }
    for (const Op reader : readers) {
      if (program.segment(reader) != segment) return {};
    }
    if (readers.empty()) return {};
    const std::vector<Op> order = program.ops(segment);
    return *std::find_first_of(order.begin(), order.end(), readers.begin(), readers.end());
  }

  std::string parameter_of(const sdk::Program& program, Tensor gradient) const {
    TensorInfo of = program.get(program.get(gradient).of);
    while (of.view_of) of = program.get(of.view_of);
    return of.name;
  }

  // Gradients of what several stages hold: the first of them adds the others' and sends the sum back.
  void sum_tied(sdk::Program& program) const {
    for (const auto& [name, tied] : tied_) {
      if (!tied.held_by(axis_.index)) continue;
      for (const Tensor g : sdk::updated_gradients(program)) {
        if (parameter_of(program, g) == name) exchange(program, g, tied);
      }
    }
  }

  void exchange(sdk::Program& program, Tensor gradient, const TiedParameter& tied) const {
    const std::vector<int64_t>& stages = tied.stages;
    const int64_t channel = tied.channel;
    const TensorInfo info = program.get(gradient);
    const bool owner = stages.front() == axis_.index;
    sdk::Graph g(program, {kUpdate, {}});
    const auto receive = [&](int64_t peer, int64_t on) {
      sdk::Attrs attrs{{"axis", axis_.name}, {"peer", peer},
                       {"channel", on},      {"shape", info.shape},
                       {"requires_grad", 0}, {"dtype", sdk::dtype_name(info.dtype)}};
      const std::string placement = placement_text(info);
      if (!placement.empty()) attrs.set({"placement", placement});
      return g.emit1("recv", {}, std::move(attrs));
    };
    const auto send = [&](int64_t peer, int64_t on) {
      g.emit("send", {gradient},
             {{"axis", axis_.name}, {"peer", peer}, {"channel", on}, {"requires_grad", 0}});
    };
    if (!owner) {
      const auto place = std::find(stages.begin(), stages.end(), axis_.index) - stages.begin();
      send(stages.front(), channel + place);
      g.copy(receive(stages.front(), channel + place), gradient);
      return;
    }
    for (size_t i = 1; i < stages.size(); ++i)
      g.accumulate(receive(stages[i], channel + static_cast<int64_t>(i)), gradient);
    for (size_t i = 1; i < stages.size(); ++i) send(stages[i], channel + static_cast<int64_t>(i));
  }

  // The squared norm of the whole model: a tied parameter counts on its owner's stage alone.
  void sum_norm(sdk::Program& program) const {
    Op clip;
    for (const Op op : program.ops(kUpdate)) {
      const OpInfo info = program.get(op);
      if (info.kind == "clip_scale") clip = op;
      if (info.kind == "sum_squares") count_once(program, op, info);
    }
    if (!clip) return;
    sdk::Graph g(program, program.before(clip));
    const Tensor part = g.emit1("reinterpret", {program.get(clip).inputs[0]},
                                {{"placement", sdk::text("{", axis_.name, ":P}")},
                                 {"reason", "each stage has the squares of its own parameters"}});
    program.set_input(clip, 0, g.all_reduce(part, axis_.name));
  }

  void count_once(sdk::Program& program, Op op, const OpInfo& info) const {
    OpInfo kept = info;
    std::erase_if(kept.inputs, [&](Tensor t) {
      const auto tied = tied_.find(parameter_of(program, t));
      return tied != tied_.end() && tied->second.stages.front() != axis_.index;
    });
    if (kept.inputs.size() == info.inputs.size()) return;
    const TensorInfo sum = program.get(info.outputs[0]);
    sdk::Graph g(program, program.before(op));
    Tensor fresh;
    if (!kept.inputs.empty()) {
      fresh = g.emit1("sum_squares", kept.inputs);
    } else {
      sdk::Attrs attrs{{"value", 0.0}, {"shape", sum.shape}, {"dtype", sdk::dtype_name(sum.dtype)}};
      const std::string placement = placement_text(sum);
      if (!placement.empty()) attrs.set({"placement", placement});
      fresh = g.emit1("fill", {}, std::move(attrs));
    }
    program.replace_uses(info.outputs[0], fresh);
    program.remove(op);
  }

  void warn_of_waiting(int64_t microbatches) const {
    if (microbatches >= axis_.size || host_.rank() != 0) return;
    const int64_t idle = 100 * (axis_.size - 1) / (microbatches + axis_.size - 1);
    host_.log(sdk::LogLevel::kWarning, "pp",
              sdk::text(axis_.size, " stages with microbatches = ", microbatches,
                        " a step wait for up to ", idle,
                        "% of it; raise batch.global or lower batch.micro"));
  }

  void set_schedule(sdk::Program& program, bool train) const {
    const std::vector<std::string> segments = program.segments();
    const auto has = [&](const std::string& name) {
      return std::find(segments.begin(), segments.end(), name) != segments.end();
    };
    std::vector<std::pair<std::string, int32_t>> list;
    if (has("begin")) list.emplace_back("begin", -1);
    if (train) {
      warn_of_waiting(program.microbatches());
      for (const Step& step : schedule_->steps(pipeline(program), axis_.index)) {
        const char* kind = step.work == Work::kForward    ? "forward/"
                           : step.work == Work::kBackward ? "backward/"
                                                          : "backward_weight/";
        const std::string name = sdk::text(kind, step.chunk);
        if (has(name)) list.emplace_back(name, static_cast<int32_t>(step.microbatch));
      }
    } else {
      for (int32_t m = 0; m < program.microbatches(); ++m) {
        for (int64_t c = axis_.index; c < axis_.size * chunks_; c += axis_.size)
          list.emplace_back(forward_segment(c), m);
      }
    }
    if (has(kUpdate)) list.emplace_back(kUpdate, -1);
    program.set_schedule(list);
  }

  sdk::Host host_;
  sdk::MeshAxis axis_;
  std::unique_ptr<Schedule> schedule_;
  int64_t chunks_;
  std::vector<int64_t> split_;
  std::vector<size_t> starts_;  // of the program being composed
  Tied tied_;                   // of the train program being composed
  capstan_axis_use uses_[1];
};

}  // namespace
}  // namespace capstan::pp

CAPSTAN_PLUGIN_ENTRY(
    "pp", "1.0.0", "Apache-2.0", "Pipeline parallelism.",
    capstan::sdk::strategy_component<capstan::pp::PipelineParallel>(
        "pp", "1.0.0",
        "Gives each rank of an axis consecutive layers and runs microbatches through "
        "them by a schedule.",
        capstan::pp::kOptions));
