#include "runtime/run/compose.h"

#include <fnmatch.h>

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/str_join.h"
#include "runtime/program/autodiff.h"
#include "runtime/program/c_types.h"
#include "runtime/program/flow.h"
#include "runtime/program/program_service.h"
#include "runtime/run/fuse.h"
#include "runtime/status.h"

namespace capstan {
namespace {

constexpr const char* kForwardSegment = "forward/0";
constexpr const char* kUpdateSegment = "update";
constexpr const char* kBeginSegment = "begin";

// Builds one Program from the ingredients.
class Composer {
 public:
  Composer(const Ingredients& in, std::string name, bool training, const PhaseObserver& observer)
      : in_(in), training_(training), observer_(observer) {
    Program::Options options;
    options.name = std::move(name);
    options.microbatches = training ? in.microbatches : 1;
    options.micro_batch_size = in.micro_batch;
    options.sequence_length = in.sequence;
    options.mesh = in.mesh;
    options_ = std::move(options);
  }

  absl::StatusOr<std::unique_ptr<Program>> Loss() {
    Start();
    CAPSTAN_RETURN_IF_ERROR(EmitModel(CAPSTAN_MODE_FORWARD, 0));
    CAPSTAN_RETURN_IF_ERROR(EmitLoss());
    return Finish();
  }

  absl::StatusOr<std::unique_ptr<Program>> Generate(int mode, const GenerateShape& shape) {
    options_.micro_batch_size = shape.batch;
    options_.sequence_length = shape.tokens;
    Start();
    CAPSTAN_RETURN_IF_ERROR(EmitModel(mode, shape.cache_length));
    NewOp head{.kind = "linear", .inputs = {emitted_.hidden, emitted_.head_weight}};
    CAPSTAN_ASSIGN_OR_RETURN(OpId op, program_->AddOp({kForwardSegment}, std::move(head)));
    CAPSTAN_RETURN_IF_ERROR(program_->NameTensor(program_->op(op).outputs[0], kLogits));
    return Finish();
  }

 private:
  void Start() { program_ = std::make_unique<Program>(in_.ops, options_); }

  absl::StatusOr<TensorId> Input(const std::string& name, DType dtype, Dims shape, int scope,
                                 Placement placement = {}) {
    const TensorId existing = program_->FindTensor(name);
    if (existing != kNone) return existing;
    Tensor t;
    t.name = name;
    t.kind = CAPSTAN_INPUT;
    t.type.dtype = dtype;
    t.type.shape = std::move(shape);
    t.type.placement = std::move(placement);
    t.scope = scope;
    return program_->AddTensor(std::move(t));
  }

  // A field of the microbatch: this rank's samples of those of all ranks.
  absl::StatusOr<TensorId> Field(const std::string& name, DType dtype, Dims shape) {
    Placement cut;
    for (const std::string& axis : in_.batch_axes) cut.push_back({axis, CAPSTAN_SHARD, 0, 0, {}});
    return Input(name, dtype, std::move(shape), CAPSTAN_SCOPE_MICROBATCH, std::move(cut));
  }

  // x summed (or its maximum) over every axis it is partial over, under a name the host reads.
  absl::StatusOr<TensorId> Total(const std::string& segment, TensorId x, const char* name) {
    TensorId total = x;
    const Placement placement = program_->tensor(x).placement();
    for (const AxisPlacement& item : placement) {
      if (item.kind != CAPSTAN_PARTIAL) continue;
      NewOp reduce{.kind = "all_reduce", .inputs = {total}, .attrs = {{"axis", item.axis}}};
      if (item.reduce == CAPSTAN_MAX) reduce.attrs.Set("reduce", std::string("max"));
      CAPSTAN_ASSIGN_OR_RETURN(OpId op, program_->AddOp({segment}, std::move(reduce)));
      total = program_->op(op).outputs[0];
    }
    if (total != x) CAPSTAN_RETURN_IF_ERROR(program_->NameTensor(total, name));
    return total;
  }

  absl::Status EmitModel(int mode, int64_t cache_length) {
    const int64_t batch = options_.micro_batch_size, sequence = options_.sequence_length;
    capstan_emit emit{};
    emit.struct_size = sizeof(emit);
    emit.mode = mode;
    emit.training = training_;
    emit.batch = batch;
    emit.sequence = sequence;
    emit.cache_length = cache_length;
    emit.dtype = in_.precision.vtable->dtype(in_.precision.self, CAPSTAN_ROLE_PARAMETER);
    emit.position = {sizeof(capstan_position), kForwardSegment, kNone, 0};
    CAPSTAN_ASSIGN_OR_RETURN(emit.tokens, Field("tokens", kI32, {batch, sequence}));
    CAPSTAN_ASSIGN_OR_RETURN(emit.token_position, Field("position", kI32, {batch, sequence}));
    CAPSTAN_ASSIGN_OR_RETURN(emit.sample, Field(kInputSample, kI64, {batch}));
    CAPSTAN_ASSIGN_OR_RETURN(emit.step, Input(kInputStep, kI64, {1}, CAPSTAN_SCOPE_STEP));
    emit.cache_position = emit.last = kNone;
    if (mode != CAPSTAN_MODE_FORWARD) {
      CAPSTAN_ASSIGN_OR_RETURN(emit.cache_position, Field(kInputCachePosition, kI32, {batch}));
      CAPSTAN_ASSIGN_OR_RETURN(emit.last, Field(kInputLast, kI32, {batch}));
    }
    program_->AddSegment(kForwardSegment);
    ProgramHandle handle(*program_);
    emit.program = handle.get();
    emitted_.struct_size = sizeof(emitted_);
    CAPSTAN_RETURN_IF_ERROR(
        Annotate(FromC(in_.model.vtable->emit(in_.model.self, &emit, &emitted_)),
                 StrCat("model '", in_.model.id, "'")));
    return Freeze();
  }

  // [model] trainable: parameters that match no pattern keep their values.
  absl::Status Freeze() {
    if (in_.trainable.empty()) return absl::OkStatus();
    std::vector<bool> used(in_.trainable.size(), false);
    for (TensorId t = 0; t < program_->tensor_limit(); ++t) {
      if (!program_->TensorAlive(t) || program_->tensor(t).kind != CAPSTAN_PARAMETER) continue;
      bool match = false;
      for (size_t i = 0; i < in_.trainable.size(); ++i) {
        if (fnmatch(in_.trainable[i].c_str(), program_->tensor(t).name.c_str(), 0) != 0) continue;
        match = used[i] = true;
      }
      program_->mutable_tensor(t).trainable = program_->tensor(t).trainable && match;
    }
    for (size_t i = 0; i < used.size(); ++i) {
      if (used[i]) continue;
      return UsageError("model.trainable: pattern '", in_.trainable[i],
                        "' matches no parameter; `capstan dump` lists their names");
    }
    return absl::OkStatus();
  }

  absl::Status EmitLoss() {
    const capstan_objective_v1* objective = in_.objective.vtable;
    std::vector<capstan_tensor> fields;
    for (size_t i = 0;; ++i) {
      const capstan_field* field = objective->field(in_.objective.self, i);
      if (field == nullptr) break;
      Dims shape{options_.micro_batch_size};
      if (field->per_position != 0) shape.push_back(options_.sequence_length);
      CAPSTAN_ASSIGN_OR_RETURN(TensorId t, Field(field->name, field->dtype, shape));
      fields.push_back(t);
    }
    capstan_loss request{};
    request.struct_size = sizeof(request);
    CAPSTAN_ASSIGN_OR_RETURN(request.count, StepWeight());
    ProgramHandle handle(*program_);
    request.program = handle.get();
    request.position = {sizeof(capstan_position), kForwardSegment, kNone, 0};
    request.model = &emitted_;
    request.fields = fields.data();
    request.field_count = fields.size();
    request.training = training_;
    capstan_tensor loss = kNone;
    CAPSTAN_RETURN_IF_ERROR(Annotate(FromC(objective->emit(in_.objective.self, &request, &loss)),
                                     StrCat("objective '", in_.objective.id, "'")));
    if (!program_->TensorAlive(loss)) {
      return BugError("objective '", in_.objective.id, "' gave no loss tensor");
    }
    program_->mutable_tensor(loss).loss_root = true;
    CAPSTAN_RETURN_IF_ERROR(StopRequest());
    Tensor metric;
    metric.name = kMetricLoss;
    metric.kind = CAPSTAN_STATE;
    metric.role = "metric";
    metric.type = program_->tensor(loss).type;
    metric.type.dtype = ScalarDType();
    CAPSTAN_ASSIGN_OR_RETURN(TensorId sum, program_->AddTensor(std::move(metric)));
    NewOp add{.kind = "accumulate", .inputs = {loss}, .attrs = {}, .outputs = {sum}};
    return program_->AddOp({kForwardSegment}, std::move(add)).status();
  }

  // The weight of the step that losses are divided by. Each rank knows its own samples'.
  absl::StatusOr<TensorId> StepWeight() {
    Placement partial;
    for (const std::string& axis : in_.batch_axes) {
      partial.push_back({axis, CAPSTAN_PARTIAL, 0, CAPSTAN_SUM, {}});
    }
    CAPSTAN_ASSIGN_OR_RETURN(TensorId own, Input(kInputCount, ScalarDType(), {1},
                                                 CAPSTAN_SCOPE_STEP, std::move(partial)));
    return Total(kBeginSegment, own, kTotalCount);
  }

  // A rank that was asked to stop tells the others, so that all stop after the same step.
  absl::Status StopRequest() {
    Placement any;
    for (const auto& [axis, size] : in_.mesh.axes) {
      if (size > 1) any.push_back({axis, CAPSTAN_PARTIAL, 0, CAPSTAN_MAX, {}});
    }
    if (!training_ || any.empty()) return absl::OkStatus();
    CAPSTAN_ASSIGN_OR_RETURN(TensorId stop,
                             Input(kInputStop, kF32, {1}, CAPSTAN_SCOPE_STEP, std::move(any)));
    return Total(kBeginSegment, stop, kTotalStop).status();
  }

  absl::StatusOr<std::unique_ptr<Program>> Finish() {
    CAPSTAN_ASSIGN_OR_RETURN(std::vector<std::string> phases, PhaseOrder(in_));
    for (const std::string& phase : phases) {
      if (observer_) observer_(*program_, phase, true);
      CAPSTAN_RETURN_IF_ERROR(Phase(phase));
      if (observer_) observer_(*program_, phase, false);
    }
    return std::move(program_);
  }

  absl::Status Phase(const std::string& phase) {
    CAPSTAN_RETURN_IF_ERROR(HostPhase(phase));
    for (const Instance<capstan_strategy_v1>& s : in_.strategies) {
      for (size_t i = 0;; ++i) {
        const capstan_phase* own = s.vtable->phase(s.self, i);
        if (own == nullptr) break;
        if (phase != own->id) continue;
        ProgramHandle handle(*program_);
        CAPSTAN_RETURN_IF_ERROR(Annotate(
            FromC(s.vtable->rewrite(s.self, phase.c_str(), handle.get())),
            StrCat("strategy '", s.id, "', phase '", phase, "', program '", options_.name, "'")));
        CAPSTAN_RETURN_IF_ERROR(Annotate(
            program_->Infer(), StrCat("after strategy '", s.id, "', phase '", phase, "'")));
      }
    }
    if (phase == CAPSTAN_PHASE_SCHEDULE) return Tidy();
    return absl::OkStatus();
  }

  absl::Status HostPhase(const std::string& phase) {
    if (phase == CAPSTAN_PHASE_PRECISION) {
      ProgramHandle handle(*program_);
      CAPSTAN_RETURN_IF_ERROR(
          Annotate(FromC(in_.precision.vtable->rewrite(in_.precision.self, handle.get())),
                   StrCat("precision '", in_.precision.id, "'")));
      return program_->Infer();
    }
    if (phase == CAPSTAN_PHASE_FUSE) {
      if (!in_.device.empty()) CAPSTAN_RETURN_IF_ERROR(DecomposePluginOps(*program_, in_.device));
      return FuseLinearGelu(*program_, in_.fusions);
    }
    if (phase == CAPSTAN_PHASE_SCHEDULE) {
      const TensorId loss = program_->FindTensor(kMetricLoss);
      if (loss != kNone) {
        CAPSTAN_RETURN_IF_ERROR(Total(kUpdateSegment, loss, kTotalLoss).status());
      }
      program_->SetDefaultSchedule();
      return absl::OkStatus();
    }
    if (!training_) return absl::OkStatus();
    if (phase == CAPSTAN_PHASE_DIFFERENTIATE) {
      DifferentiateOptions options;
      options.gradient_dtype =
          in_.precision.vtable->dtype(in_.precision.self, CAPSTAN_ROLE_GRADIENT);
      return Differentiate(*program_, options);
    }
    // While the Program still has every parameter of the model.
    if (phase == CAPSTAN_PHASE_PIPELINE) {
      CAPSTAN_RETURN_IF_ERROR(CheckTrainable());
      return CheckGroups();
    }
    if (phase == CAPSTAN_PHASE_FINISH) return ClipPhase();
    if (phase == CAPSTAN_PHASE_UPDATE) return UpdatePhase();
    return absl::OkStatus();
  }

  // Of scalars that meet activations: f64 programs are f64 throughout.
  DType ScalarDType() const {
    const DType parameter = in_.precision.vtable->dtype(in_.precision.self, CAPSTAN_ROLE_PARAMETER);
    return SameDType(parameter, kF64) ? kF64 : kF32;
  }

  std::vector<TensorId> Gradients() const { return UpdatedGradients(*program_); }

  absl::Status RefusePartial() const {
    std::map<std::string, int> partial;
    for (TensorId t : Gradients()) {
      for (const AxisPlacement& p : program_->tensor(t).placement())
        partial[p.axis] += p.kind == CAPSTAN_PARTIAL;
    }
    for (const auto& [axis, count] : partial) {
      if (count == 0) continue;
      return UsageError("gradients of ", count, count == 1 ? " parameter are" : " parameters are",
                        " partial over ", axis,
                        "; add a strategy that reduces them (dp, zero1, zero2, zero3, fsdp)");
    }
    return absl::OkStatus();
  }

  static absl::Status NothingTrains() {
    return UsageError("no parameter is trainable; check model.trainable");
  }

  absl::Status CheckTrainable() const {
    for (TensorId t = 0; t < program_->tensor_limit(); ++t) {
      if (program_->TensorAlive(t) && program_->tensor(t).kind == CAPSTAN_PARAMETER &&
          program_->tensor(t).trainable)
        return absl::OkStatus();
    }
    return NothingTrains();
  }

  // One stage of a pipeline may have no parameter to train.
  bool IsStage() const {
    for (OpId o = 0; o < program_->op_limit(); ++o) {
      if (program_->OpAlive(o) &&
          (program_->op(o).kind() == "send" || program_->op(o).kind() == "recv"))
        return true;
    }
    return false;
  }

  absl::Status ClipPhase() {
    CAPSTAN_RETURN_IF_ERROR(RefusePartial());
    const std::vector<TensorId> gradients = Gradients();
    if (gradients.empty() && !IsStage()) return NothingTrains();
    program_->AddSegment(kUpdateSegment);
    guard_ = kNone;
    if (in_.precision.vtable->finish != nullptr) {
      ProgramHandle handle(*program_);
      CAPSTAN_RETURN_IF_ERROR(
          FromC(in_.precision.vtable->finish(in_.precision.self, handle.get(), &guard_)));
    }
    CAPSTAN_ASSIGN_OR_RETURN(TensorId norm2, SumSquares(gradients));
    NewOp clip{.kind = "clip_scale", .inputs = {norm2}, .attrs = Attrs{{"clip", in_.clip_norm}}};
    CAPSTAN_ASSIGN_OR_RETURN(OpId scale, program_->AddOp({kUpdateSegment}, std::move(clip)));
    gradient_scale_ = program_->op(scale).outputs[1];
    return program_->NameTensor(program_->op(scale).outputs[0], kGradNorm);
  }

  // Over all ranks, each element of each gradient counted once: gradients cut by the same axes are
  // summed together and then over those axes.
  absl::StatusOr<TensorId> SumSquares(const std::vector<TensorId>& gradients) {
    std::map<std::vector<std::string>, std::vector<TensorId>> alike;
    for (TensorId g : gradients) {
      std::vector<std::string> axes;
      for (const AxisPlacement& item : program_->tensor(g).placement()) axes.push_back(item.axis);
      std::sort(axes.begin(), axes.end());
      alike[axes].push_back(g);
    }
    TensorId sum = kNone;
    for (const auto& [axes, list] : alike) {
      NewOp squares{.kind = "sum_squares", .inputs = list};
      CAPSTAN_ASSIGN_OR_RETURN(OpId op, program_->AddOp({kUpdateSegment}, std::move(squares)));
      TensorId part = program_->op(op).outputs[0];
      for (const std::string& axis : axes) {
        NewOp reduce{.kind = "all_reduce", .inputs = {part}, .attrs = {{"axis", axis}}};
        CAPSTAN_ASSIGN_OR_RETURN(OpId r, program_->AddOp({kUpdateSegment}, std::move(reduce)));
        part = program_->op(r).outputs[0];
      }
      if (sum == kNone) {
        sum = part;
        continue;
      }
      NewOp add{.kind = "add", .inputs = {sum, part}};
      CAPSTAN_ASSIGN_OR_RETURN(OpId a, program_->AddOp({kUpdateSegment}, std::move(add)));
      sum = program_->op(a).outputs[0];
    }
    if (sum != kNone) return sum;
    NewOp none{.kind = "fill", .inputs = {}};
    none.attrs = Attrs{{"value", 0.0}, {"shape", Dims{1}}, {"dtype", DTypeName(ScalarDType())}};
    CAPSTAN_ASSIGN_OR_RETURN(OpId zero, program_->AddOp({kUpdateSegment}, std::move(none)));
    return program_->op(zero).outputs[0];
  }

  const UpdateGroup& GroupOf(const std::string& parameter) const {
    for (const UpdateGroup& group : in_.optimizers) {
      for (const std::string& pattern : group.match) {
        if (fnmatch(pattern.c_str(), parameter.c_str(), 0) == 0) return group;
      }
    }
    return in_.optimizers.back();
  }

  // A group that governs no parameter is a misspelt pattern.
  absl::Status CheckGroups() const {
    for (size_t g = 0; g + 1 < in_.optimizers.size(); ++g) {
      const std::vector<std::string>& patterns = in_.optimizers[g].match;
      const auto matches = [&](const Tensor& t) {
        return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
          return fnmatch(pattern.c_str(), t.name.c_str(), 0) == 0;
        });
      };
      bool used = false;
      for (TensorId t = 0; t < program_->tensor_limit() && !used; ++t) {
        used = program_->TensorAlive(t) && program_->tensor(t).kind == CAPSTAN_PARAMETER &&
               matches(program_->tensor(t));
      }
      if (used) continue;
      return UsageError("optimizer.group.", g, ": match = [", absl::StrJoin(patterns, ", "),
                        "] matches no parameter; `capstan dump` lists their names");
    }
    return absl::OkStatus();
  }

  absl::Status UpdatePhase() {
    for (TensorId gradient : Gradients()) CAPSTAN_RETURN_IF_ERROR(UpdateOne(gradient));
    return absl::OkStatus();
  }

  absl::Status UpdateOne(TensorId gradient) {
    const Tensor parameter = program_->tensor(program_->tensor(gradient).of);
    const std::string name = ParameterName(*program_, parameter.id);
    const UpdateGroup& group = GroupOf(name);
    const capstan_optimizer_v1* optimizer = group.optimizer.vtable;
    TensorView view;
    view.Fill(parameter);
    std::vector<capstan_tensor> states;
    for (size_t i = 0;; ++i) {
      const capstan_optimizer_state* wanted = optimizer->state(group.optimizer.self, &view.desc, i);
      if (wanted == nullptr) break;
      Tensor state;
      state.name = StrCat(name, ".", std::string(wanted->role));
      state.kind = CAPSTAN_STATE;
      state.role = wanted->role;
      state.of = parameter.id;
      state.layer = parameter.layer;
      state.type = parameter.type;
      state.type.dtype = wanted->dtype;
      state.init = {CAPSTAN_INIT_CONSTANT, wanted->initial, 0};
      if (wanted->scalar != 0) {
        state.type.shape = {1};
        state.type.placement.clear();
      } else {
        state.global_shape = parameter.global_shape;
        state.slice_start = parameter.slice_start;
      }
      CAPSTAN_ASSIGN_OR_RETURN(TensorId id, program_->AddTensor(std::move(state)));
      states.push_back(id);
    }
    capstan_update update{};
    update.struct_size = sizeof(update);
    update.position = {sizeof(capstan_position), kUpdateSegment, kNone, 0};
    update.parameter = parameter.id;
    update.gradient = gradient;
    update.states = states.data();
    update.state_count = states.size();
    CAPSTAN_ASSIGN_OR_RETURN(update.learning_rate,
                             Input(group.lr_input, ScalarDType(), {1}, CAPSTAN_SCOPE_STEP));
    CAPSTAN_ASSIGN_OR_RETURN(update.step, Input(kInputStep, kI64, {1}, CAPSTAN_SCOPE_STEP));
    update.gradient_scale = gradient_scale_;
    update.guard = guard_;
    update.weight_decay =
        group.decay_all || parameter.shape().size() >= 2 ? group.weight_decay : 0.0;
    ProgramHandle handle(*program_);
    update.program = handle.get();
    return Annotate(
        FromC(optimizer->emit(group.optimizer.self, &update)),
        StrCat("optimizer '", group.optimizer.id, "', parameter '", parameter.name, "'"));
  }

  // Drops what nothing reads: dead ops, and inputs this composition has no use for.
  absl::Status Tidy() {
    RemoveDeadOps(*program_);
    for (TensorId t = 0; t < program_->tensor_limit(); ++t) {
      if (!program_->TensorAlive(t) || program_->tensor(t).kind != CAPSTAN_INPUT) continue;
      if (!program_->IsRead(t)) CAPSTAN_RETURN_IF_ERROR(program_->RemoveTensor(t));
    }
    return CheckFlow(*program_);
  }

  const Ingredients& in_;
  bool training_;
  const PhaseObserver& observer_;
  Program::Options options_;
  std::unique_ptr<Program> program_;
  capstan_emitted emitted_{};
  TensorId gradient_scale_ = kNone;
  TensorId guard_ = kNone;
};

}  // namespace

std::vector<TensorId> UpdatedGradients(const Program& program) {
  std::vector<TensorId> all;
  std::set<TensorId> divided;
  for (TensorId t = 0; t < program.tensor_limit(); ++t) {
    if (!program.TensorAlive(t) || program.tensor(t).kind != CAPSTAN_GRADIENT) continue;
    if (!program.TensorAlive(program.tensor(t).of)) continue;
    all.push_back(t);
    divided.insert(program.tensor(t).view_of);
  }
  std::erase_if(all, [&](TensorId t) { return divided.contains(t); });
  return all;
}

int64_t ParameterElements(const Program& program) {
  int64_t elements = 0;
  for (TensorId t = 0; t < program.tensor_limit(); ++t) {
    if (!program.TensorAlive(t) || program.tensor(t).view_of != kNone) continue;
    if (program.tensor(t).kind == CAPSTAN_PARAMETER) elements += program.tensor(t).elements();
  }
  return elements;
}

std::string ParameterName(const Program& program, TensorId t) {
  while (program.tensor(t).view_of != kNone) t = program.tensor(t).view_of;
  return program.tensor(t).name;
}

absl::StatusOr<std::unique_ptr<Program>> ComposeTrain(const Ingredients& in,
                                                      const PhaseObserver& observer) {
  CAPSTAN_RETURN_IF_ERROR(CheckStrategies(in));
  return Composer(in, "train", true, observer).Loss();
}

absl::StatusOr<std::unique_ptr<Program>> ComposeEval(const Ingredients& in,
                                                     const PhaseObserver& observer) {
  CAPSTAN_RETURN_IF_ERROR(CheckStrategies(in));
  return Composer(in, "eval", false, observer).Loss();
}

absl::StatusOr<std::unique_ptr<Program>> ComposeGenerate(const Ingredients& in, int mode,
                                                         const GenerateShape& shape,
                                                         const PhaseObserver& observer) {
  const char* name = mode == CAPSTAN_MODE_PREFILL ? "prefill" : "decode";
  return Composer(in, name, false, observer).Generate(mode, shape);
}

}  // namespace capstan
