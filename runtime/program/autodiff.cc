#include "runtime/program/autodiff.h"

#include <algorithm>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "runtime/status.h"

namespace capstan {
namespace {

constexpr std::string_view kForward = "forward/";

class Differentiator final : public VjpContext {
 public:
  Differentiator(Program& program, const DifferentiateOptions& options)
      : program_(program), options_(options) {}

  absl::Status Run() {
    CAPSTAN_RETURN_IF_ERROR(MarkRequired());
    std::vector<std::string> chunks;
    for (const Segment& s : program_.segments()) {
      if (s.name.starts_with(kForward)) chunks.push_back(s.name.substr(kForward.size()));
    }
    std::reverse(chunks.begin(), chunks.end());
    for (const std::string& chunk : chunks) {
      segment_ = "backward/" + chunk;
      program_.AddSegment(segment_);
      const int forward = program_.FindSegment(std::string(kForward) + chunk);
      const std::vector<OpId> ops = program_.segments()[forward].ops;
      for (auto it = ops.rbegin(); it != ops.rend(); ++it) CAPSTAN_RETURN_IF_ERROR(Visit(*it));
    }
    return FlushParameterCotangents();
  }

  Program& program() override { return program_; }
  const Op& op() const override { return program_.op(current_); }
  const std::string& segment() const override { return segment_; }

  TensorId cotangent(size_t output) const override {
    auto it = cotangents_.find(op().outputs[output]);
    return it == cotangents_.end() ? kNone : it->second;
  }

  bool needs(size_t input) const override {
    return input < op().inputs.size() && required_.contains(op().inputs[input]);
  }

  TensorId gradient_of(size_t input) override {
    if (input >= op().inputs.size() || op().inputs[input] == kNone) return kNone;
    const TensorId p = op().inputs[input];
    const Tensor& parameter = program_.tensor(p);
    if (parameter.kind != CAPSTAN_PARAMETER || !parameter.trainable) return kNone;
    return Gradient(p);
  }

  absl::Status SetCotangent(size_t input, TensorId fresh) override {
    if (input >= op().inputs.size() || op().inputs[input] == kNone) {
      return BugError(program_.OpText(current_), " has no input ", input,
                      " to give a cotangent to");
    }
    if (!program_.TensorAlive(fresh)) {
      return BugError(program_.OpText(current_), ": the cotangent of input ", input,
                      " is no tensor of the program");
    }
    const TensorId primal = op().inputs[input];
    CAPSTAN_RETURN_IF_ERROR(CheckCotangent(primal, fresh));
    auto [it, first] = cotangents_.try_emplace(primal, fresh);
    if (first) return absl::OkStatus();
    NewOp sum{.kind = "add", .inputs = {it->second, fresh}};
    sum.layer = op().layer;
    sum.role = CAPSTAN_ROLE_DATA_GRADIENT;
    CAPSTAN_ASSIGN_OR_RETURN(OpId added, program_.AddOp({segment_}, std::move(sum)));
    cotangents_[primal] = program_.op(added).outputs[0];
    return absl::OkStatus();
  }

  absl::StatusOr<OpId> EmitOp(NewOp fresh) override {
    if (in_place_) {  // value-and-gradient: stands where the forward op stood
      fresh.outputs[0] = root_;
      return program_.AddOp({program_.segments()[op().segment].name, current_}, std::move(fresh));
    }
    return program_.AddOp({segment_}, std::move(fresh));
  }

 private:
  // Tensors whose value depends on a trainable parameter through differentiable ops.
  absl::Status MarkRequired() {
    for (TensorId t = 0; t < program_.tensor_limit(); ++t) {
      if (!program_.TensorAlive(t)) continue;
      const Tensor& tensor = program_.tensor(t);
      if (tensor.kind == CAPSTAN_PARAMETER && tensor.trainable) required_.insert(t);
      has_root_ = has_root_ || tensor.loss_root;
    }
    for (const Segment& s : program_.segments()) {
      if (!s.name.starts_with(kForward)) continue;
      for (OpId o : s.ops) {
        const Op& op = program_.op(o);
        // A stage of a pipeline need have nothing to differentiate.
        has_root_ = has_root_ || op.kind() == "send";
        // What another stage sends may depend on its parameters.
        if (Receives(op)) required_.insert(op.outputs[0]);
        const bool flows = std::any_of(op.inputs.begin(), op.inputs.end(),
                                       [&](TensorId t) { return required_.contains(t); });
        if (!flows) continue;
        for (TensorId t : op.outputs) {
          if (IsFloat(program_.tensor(t).dtype())) required_.insert(t);
        }
      }
    }
    if (!has_root_) {
      return BugError("program '", program_.options().name,
                      "' has no loss to differentiate; the objective must mark one (loss_root)");
    }
    return absl::OkStatus();
  }

  static bool Receives(const Op& op) {
    return op.kind() == "recv" && op.attrs.Int("requires_grad", 1) != 0;
  }

  absl::Status Visit(OpId o) {
    current_ = o;
    const Op& op = program_.op(o);
    // The border of a pipeline stage: the cotangent of what was sent is received, and the other way.
    if (Receives(op)) return cotangent(0) == kNone ? absl::OkStatus() : ApplyRule();
    if (op.kind() == "send")
      return required_.contains(op.inputs[0]) ? ApplyRule() : absl::OkStatus();
    const bool differentiable_path = std::any_of(op.inputs.begin(), op.inputs.end(),
                                                 [&](TensorId t) { return required_.contains(t); });
    if (!differentiable_path) return absl::OkStatus();
    for (TensorId t : op.outputs) {
      if (program_.tensor(t).loss_root) return VisitRoot(t);
    }
    bool flows = false;
    for (size_t j = 0; j < op.outputs.size(); ++j) flows = flows || cotangent(j) != kNone;
    if (!flows) return absl::OkStatus();
    return ApplyRule();
  }

  absl::Status ApplyRule() {
    if (!op().when.Always()) {
      return UnsupportedError(program_.OpText(current_),
                              " is on the way from a loss to a trainable parameter, but runs only "
                              "under a condition; make it unconditional, or freeze the parameter");
    }
    if (!op().def->vjp) {
      return BugError(program_.OpText(current_),
                      " is on the way from a loss to a trainable parameter, but op '", op().kind(),
                      "' has no differentiation rule; freeze the parameter or define a vjp");
    }
    return Annotate(op().def->vjp(*this), StrCat("differentiating ", program_.OpText(current_)));
  }

  absl::Status VisitRoot(TensorId root) {
    const OpDef* def = op().def;
    if (def->value_and_grad.empty()) {
      NewOp one{.kind = "fill", .inputs = {}};
      const Tensor& t = program_.tensor(root);
      one.attrs = Attrs{{"value", 1.0}, {"shape", t.shape()}, {"dtype", DTypeName(t.dtype())}};
      CAPSTAN_ASSIGN_OR_RETURN(OpId seed, program_.AddOp({segment_}, std::move(one)));
      cotangents_[root] = program_.op(seed).outputs[0];
      return ApplyRule();
    }
    // One op gives loss and gradients in one pass; it takes the place of the forward op.
    root_ = root;
    in_place_ = true;
    const std::vector<TensorId> inputs = op().inputs;
    absl::StatusOr<std::vector<TensorId>> outputs =
        Emit(def->value_and_grad, inputs, op().attrs, def->value_and_grad_targets, op().role);
    in_place_ = false;
    if (!outputs.ok()) return outputs.status();
    return program_.RemoveOp(current_);
  }

  absl::Status CheckCotangent(TensorId primal, TensorId cotangent) {
    const Placement& value = program_.tensor(primal).placement();
    const Placement& given = program_.tensor(cotangent).placement();
    if (program_.tensor(primal).shape() != program_.tensor(cotangent).shape()) {
      return BugError(program_.OpText(current_), ": the cotangent of ", program_.TensorName(primal),
                      " has shape ", ShapeString(program_.tensor(cotangent).shape()),
                      ", the value ", ShapeString(program_.tensor(primal).shape()));
    }
    for (const auto& [axis, size] : program_.options().mesh.axes) {
      const AxisPlacement v = PlacementOn(value, axis);
      const AxisPlacement c = PlacementOn(given, axis);
      bool good = true;
      if (v.kind == CAPSTAN_SHARD || v.kind == CAPSTAN_VARYING) good = c == v;
      if (v.kind == CAPSTAN_PARTIAL) good = c.kind == CAPSTAN_REPLICATE;
      if (v.kind == CAPSTAN_REPLICATE)
        good = c.kind == CAPSTAN_REPLICATE || c.kind == CAPSTAN_PARTIAL;
      if (good) continue;
      return absl::InvalidArgumentError(
          StrCat(program_.OpText(current_), ": ", program_.TensorName(primal), " is ",
                 PlacementString(v), " over ", axis, " but its cotangent is ", PlacementString(c),
                 v.kind == CAPSTAN_PARTIAL
                     ? "; a value that is partial needs reduce_from_group before its next use"
                     : "; use the collective whose backward gives that placement"));
    }
    return absl::OkStatus();
  }

  TensorId Gradient(TensorId p) {
    auto it = gradients_.find(p);
    if (it != gradients_.end()) return it->second;
    const Tensor parameter = program_.tensor(p);
    Tensor g;
    g.name = parameter.name + ".grad";
    g.kind = CAPSTAN_GRADIENT;
    g.type = parameter.type;
    const bool wide = SameDType(parameter.dtype(), kF64);
    g.type.dtype = wide ? kF64 : options_.gradient_dtype;
    g.global_shape = parameter.global_shape;
    g.slice_start = parameter.slice_start;
    g.dim_axes = parameter.dim_axes;
    g.layer = parameter.layer;
    g.of = p;
    absl::StatusOr<TensorId> id = program_.AddTensor(std::move(g));
    const TensorId result = id.ok() ? *id : kNone;
    gradients_[p] = result;
    return result;
  }

  // Cotangents of parameters that reached them through plain ops (a cast, a slice).
  absl::Status FlushParameterCotangents() {
    std::vector<TensorId> pending;
    for (const auto& [primal, cotangent] : cotangents_) {
      const Tensor& t = program_.tensor(primal);
      if (t.kind == CAPSTAN_PARAMETER && t.trainable) pending.push_back(primal);
    }
    std::sort(pending.begin(), pending.end());
    for (TensorId p : pending) {
      const TensorId gradient = Gradient(p);
      if (gradient == kNone) {
        return BugError("the gradient of ", program_.TensorName(p), " cannot be made: its name '",
                        program_.tensor(p).name, ".grad' is taken; rename that tensor");
      }
      NewOp store{.kind = "accumulate", .inputs = {cotangents_[p]}, .outputs = {gradient}};
      store.role = CAPSTAN_ROLE_WEIGHT_GRADIENT;
      store.layer = program_.tensor(p).layer;
      CAPSTAN_RETURN_IF_ERROR(program_.AddOp({segment_}, std::move(store)).status());
    }
    return absl::OkStatus();
  }

  Program& program_;
  DifferentiateOptions options_;
  std::string segment_;
  OpId current_ = kNone;
  TensorId root_ = kNone;
  bool in_place_ = false;
  bool has_root_ = false;
  absl::flat_hash_set<TensorId> required_;
  absl::flat_hash_map<TensorId, TensorId> cotangents_;
  absl::flat_hash_map<TensorId, TensorId> gradients_;
};

// Values marked save=no are made again at the head of their first use in each backward segment. From
// the last to the first, for a value's copy may read another such value.
absl::Status ReemitUnsaved(Program& program) {
  for (TensorId t = program.tensor_limit(); t-- > 0;) {
    if (!program.TensorAlive(t) || program.tensor(t).save != CAPSTAN_SAVE_NO) continue;
    absl::flat_hash_map<int, TensorId> copies;
    for (OpId user : program.Users(t)) {
      const int segment = program.op(user).segment;
      const std::string name = program.segments()[segment].name;
      if (!name.starts_with("backward")) continue;
      if (!copies.contains(segment)) {
        CAPSTAN_ASSIGN_OR_RETURN(copies[segment], CloneProducer(program, t, {name, user}));
      }
      const std::vector<TensorId> inputs = program.op(user).inputs;
      for (size_t i = 0; i < inputs.size(); ++i) {
        if (inputs[i] == t) CAPSTAN_RETURN_IF_ERROR(program.SetInput(user, i, copies[segment]));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TensorId> CloneProducer(Program& program, TensorId t, const InsertPoint& at) {
  const OpId producer = program.Producer(t);
  if (producer == kNone) {
    return BugError("tensor ", program.TensorName(t), " has no producer to clone");
  }
  const Op original = program.op(producer);
  if (!original.def->is(CAPSTAN_OP_PURE) && !original.def->is(CAPSTAN_OP_RANDOM)) {
    return BugError("op ", program.OpText(producer), " has effects and cannot be recomputed");
  }
  NewOp clone{.kind = original.kind(), .inputs = original.inputs, .attrs = original.attrs};
  clone.layer = original.layer;
  clone.when = original.when;
  CAPSTAN_ASSIGN_OR_RETURN(OpId made, program.AddOp(at, std::move(clone)));
  const size_t index =
      std::find(original.outputs.begin(), original.outputs.end(), t) - original.outputs.begin();
  return program.op(made).outputs[index];
}

absl::Status Differentiate(Program& program, const DifferentiateOptions& options) {
  CAPSTAN_RETURN_IF_ERROR(Differentiator(program, options).Run());
  CAPSTAN_RETURN_IF_ERROR(ReemitUnsaved(program));
  RemoveDeadOps(program);
  return absl::OkStatus();
}

int RemoveDeadOps(Program& program) {
  int removed = 0;
  for (size_t s = program.segments().size(); s-- > 0;) {
    const std::vector<OpId> ops = program.segments()[s].ops;
    for (auto it = ops.rbegin(); it != ops.rend(); ++it) {
      const Op& op = program.op(*it);
      if (!op.def->is(CAPSTAN_OP_PURE) && !op.def->is(CAPSTAN_OP_RANDOM)) continue;
      const bool live = std::any_of(op.outputs.begin(), op.outputs.end(), [&](TensorId t) {
        const Tensor& out = program.tensor(t);
        return out.kind != CAPSTAN_ACTIVATION || out.loss_root || !out.name.empty() ||
               program.IsRead(t);
      });
      if (!live && program.RemoveOp(*it).ok()) ++removed;
    }
  }
  return removed;
}

}  // namespace capstan
