// From components to Programs: the forward graph of the model and its loss, rewritten by strategies
// phase by phase, differentiated, updated, scheduled. Needs no data, no weights and no device.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "plugin_api/model.h"
#include "plugin_api/objective.h"
#include "plugin_api/optimizer.h"
#include "plugin_api/precision.h"
#include "plugin_api/strategy.h"
#include "runtime/program/program.h"

namespace capstan {

// An instance of a component: its vtable and its self. Destroyed by whoever created it.
template <typename Vtable>
struct Instance {
  std::string id;
  const Vtable* vtable = nullptr;
  void* self = nullptr;
  std::string component = {};  // what the plugin calls it, where `id` may be the configuration's
};

// Parameters that share an optimizer and its options. The first group whose pattern matches wins;
// the last has no patterns and takes the rest.
struct UpdateGroup {
  Instance<capstan_optimizer_v1> optimizer;
  std::vector<std::string> match;  // fnmatch patterns on the parameter's name
  double weight_decay = 0;
  bool decay_all = false;  // false: weight decay only on parameters with two or more dims
  std::string lr_input;    // name of the input scalar this group's rate comes in
};

struct Ingredients {
  const OpRegistry* ops = nullptr;
  MeshView mesh;
  Instance<capstan_model_v1> model;
  Instance<capstan_objective_v1> objective;
  Instance<capstan_precision_v1> precision;
  std::vector<Instance<capstan_strategy_v1>> strategies;  // in the order of the config
  std::vector<UpdateGroup> optimizers;
  std::vector<std::string> trainable;  // patterns; empty: all
  std::string device;  // id, "cpu": plugins' ops it has no kernel for are decomposed; "": none are
  std::vector<std::string> fusions;  // of the device
  double clip_norm = 0;
  int64_t micro_batch = 1, microbatches = 1, sequence = 1;
  // Axes the batch is sharded over, outermost first; this rank's place among all their ranks.
  std::vector<std::string> batch_axes;
  int64_t batch_ranks = 1, batch_index = 0;
};

// Called around every phase with the Program as it stands.
using PhaseObserver =
    std::function<void(const Program& program, const std::string& phase, bool before)>;

// Names of the input tensors and host-read values.
inline constexpr const char* kInputSample = "sample";
inline constexpr const char* kInputStep = "step";
inline constexpr const char* kInputCount = "count";
inline constexpr const char* kInputStop = "stop";  // 1: this rank was asked to stop
inline constexpr const char* kInputCachePosition = "cache_position";
inline constexpr const char* kInputLast = "last";
inline constexpr const char* kMetricLoss = "metric.loss";
// Over all ranks, where the batch is sharded: the loss, and the weight of the step.
inline constexpr const char* kTotalLoss = "loss.total";
inline constexpr const char* kTotalCount = "count.total";
inline constexpr const char* kTotalStop = "stop.total";
inline constexpr const char* kGradNorm = "grad_norm";
inline constexpr const char* kLogits = "logits";

absl::StatusOr<std::unique_ptr<Program>> ComposeTrain(const Ingredients& in,
                                                      const PhaseObserver& observer = {});
// The loss alone, no dropout; `microbatches` of in is ignored (1).
absl::StatusOr<std::unique_ptr<Program>> ComposeEval(const Ingredients& in,
                                                     const PhaseObserver& observer = {});

struct GenerateShape {
  int64_t batch = 1;
  int64_t tokens = 1;        // T: prompt length for prefill, 1 for decode
  int64_t cache_length = 1;  // S
};
// `mode`: CAPSTAN_MODE_PREFILL or _DECODE. Gives named values "logits" [B,1,V].
absl::StatusOr<std::unique_ptr<Program>> ComposeGenerate(const Ingredients& in, int mode,
                                                         const GenerateShape& shape,
                                                         const PhaseObserver& observer = {});

// What the gradient phase left to update from: of each parameter, or of a part of it, the gradient;
// where parts (views) were made of a gradient, those in its place. A bucket belongs to no parameter.
std::vector<TensorId> UpdatedGradients(const Program& program);
// The name a parameter is known by, also where `t` is only a part of it (a view).
std::string ParameterName(const Program& program, TensorId t);

// The phases of a run in order, those of strategies included.
absl::StatusOr<std::vector<std::string>> PhaseOrder(const Ingredients& in);

// What a strategy uses which mesh axis for.
std::vector<capstan_axis_use> AxisUses(const Instance<capstan_strategy_v1>& strategy);

// Before this phase the Program is that of the whole model: adapters are in, nothing is cut.
inline constexpr const char* kFirstCuttingPhase = CAPSTAN_PHASE_EXPERT;
// Elements of a Program's parameters: of those a rank holds, once the Program is cut.
int64_t ParameterElements(const Program& program);

// Refuses strategies that conflict or lack one they need, and mesh axes that no strategy uses.
absl::Status CheckStrategies(const Ingredients& in);

}  // namespace capstan
