// Parameter updates, and the global norm and finite check before them.

#include "absl/strings/str_join.h"
#include "runtime/ops/op_builder.h"
#include "runtime/status.h"

namespace capstan::ops {
namespace {

constexpr uint32_t kUpdate = CAPSTAN_OP_SIDE_EFFECT;

// The sentence the host gives for all parameters at once, for this one.
absl::Status RefusePartialGradient(const InferContext& ctx) {
  const Tensor& grad = *ctx.inputs[0];
  std::vector<std::string> axes;
  for (const AxisPlacement& item : grad.placement()) {
    if (item.kind == CAPSTAN_PARTIAL) axes.push_back(item.axis);
  }
  if (axes.empty()) return absl::OkStatus();
  return UsageError(ctx.op, ": gradients of 1 parameter are partial over ",
                    absl::StrJoin(axes, ", "), " (", Name(*ctx.given_outputs[0]),
                    "); add a strategy that reduces them (dp, zero1, zero2, zero3, fsdp)");
}

absl::Status PrepareUpdate(InferContext& ctx, Labels&) { return RefusePartialGradient(ctx); }

// Gradient, parameter and states are cut alike.
absl::Status CheckUpdate(InferContext& ctx) {
  const Tensor& grad = *ctx.inputs[0];
  for (const Tensor* out : ctx.given_outputs) {
    for (const Placement* list : {&grad.placement(), &out->placement()}) {
      for (const AxisPlacement& item : *list) {
        const AxisPlacement g = PlacementOn(grad.placement(), item.axis);
        const AxisPlacement o = PlacementOn(out->placement(), item.axis);
        if (g == o) continue;
        return UsageError(ctx.op, ": gradient ", Name(grad), " is ", PlacementWords(g), " over ",
                          item.axis, " but ", Name(*out), " is ", PlacementWords(o),
                          "; update the part of it that the gradient covers");
      }
    }
  }
  return absl::OkStatus();
}

// Updated outputs are read and written.
CostFn UpdateCost(double flops) {
  return [flops](const InferContext& ctx) {
    OpCost cost = Costs(ctx, flops * Count(ctx.inputs[0]));
    cost.bytes_read += cost.bytes_written;
    return cost;
  };
}

// ---- sums over many tensors

// The axes that cut x. Partial values have no norm yet.
absl::StatusOr<Placement> Cuts(const InferContext& ctx, const Tensor& x) {
  CAPSTAN_RETURN_IF_ERROR(RefusePartial(ctx, x, "and its elements are not known yet"));
  return x.placement();
}

bool SameAxes(const Placement& a, const Placement& b) {
  if (a.size() != b.size()) return false;
  for (const AxisPlacement& item : a) {
    if (PlacementOn(b, item.axis).kind != item.kind) return false;
  }
  return true;
}

// A replicated tensor's squares are on every rank and a cut one's are not, so one sum over ranks
// cannot count each element once for both.
absl::Status InferSumSquares(InferContext& ctx) {
  const Tensor& first = *ctx.inputs[0];
  DType dtype = kF32;
  for (const Tensor* x : ctx.inputs) {
    if (!IsFloat(x->dtype())) return UsageError(ctx.op, ": ", Name(*x), " is not a float tensor");
    if (SameDType(x->dtype(), kF64)) dtype = kF64;
    CAPSTAN_ASSIGN_OR_RETURN(Placement cuts, Cuts(ctx, *x));
    if (SameAxes(cuts, first.placement())) continue;
    return UsageError(ctx.op, ": ", Name(first), " is placed ", PlacementString(first.placement()),
                      " but ", Name(*x), " ", PlacementString(cuts),
                      "; emit one sum_squares for each placement, all_reduce each over its axes, "
                      "then add them");
  }
  Placement out;
  for (AxisPlacement item : first.placement()) {
    if (item.kind == CAPSTAN_SHARD) item.kind = CAPSTAN_PARTIAL;
    out.push_back({item.axis, item.kind, 0, CAPSTAN_SUM, {}});
  }
  ctx.outputs.push_back({dtype, {1}, std::move(out)});
  return absl::OkStatus();
}

// Over an axis that cuts an input each rank has its own answer.
absl::Status InferAllFinite(InferContext& ctx) {
  Placement out;
  for (const Tensor* x : ctx.inputs) {
    if (!IsFloat(x->dtype())) return UsageError(ctx.op, ": ", Name(*x), " is not a float tensor");
    CAPSTAN_ASSIGN_OR_RETURN(Placement cuts, Cuts(ctx, *x));
    for (const AxisPlacement& item : cuts) {
      SetPlacement(out, {item.axis, CAPSTAN_VARYING, 0, CAPSTAN_SUM, {}});
    }
  }
  ctx.outputs.push_back({kBool, {1}, std::move(out)});
  return absl::OkStatus();
}

CostFn PerElementOfAll(double flops) {
  return [flops](const InferContext& ctx) {
    double n = 0;
    for (const Tensor* x : ctx.inputs) n += Count(x);
    return Costs(ctx, flops * n);
  };
}

std::vector<OpBuilder> Updates() {
  return {
      OpBuilder("adamw",
                "grad x *, lr r ., step i64 ., grad_scale r . "
                "-> !param x *, !exp_avg x *, !exp_avg_sq x *")
          .Flags(kUpdate)
          .Attrs("beta1! float, beta2! float, eps! float, weight_decay! float")
          .Prepare(PrepareUpdate)
          .Check(CheckUpdate)
          .Cost(UpdateCost(14)),
      OpBuilder("sgd", "grad x *, lr r ., grad_scale r . -> !param x *, !momentum x *")
          .Flags(kUpdate)
          .Attrs("momentum! float, nesterov int, weight_decay! float")
          .Prepare(PrepareUpdate)
          .Check(CheckUpdate)
          .Cost(UpdateCost(7)),
      OpBuilder("sgd_plain", "grad x *, lr r ., grad_scale r . -> !param x *")
          .Flags(kUpdate)
          .Attrs("weight_decay! float")
          .Prepare(PrepareUpdate)
          .Check(CheckUpdate)
          .Cost(UpdateCost(5)),
  };
}

std::vector<OpBuilder> Norms() {
  return {
      OpBuilder("sum_squares", "x... x * -> y f32 .")
          .Infer(InferSumSquares)
          .Cost(PerElementOfAll(2)),
      OpBuilder("all_finite", "x... x * -> y bool .")
          .Infer(InferAllFinite)
          .Cost(PerElementOfAll(1)),
      OpBuilder("clip_scale", "norm2 w . -> norm w ., scale w .")
          .Attrs("clip! float")
          .Cost(PerOutputElement(4)),
  };
}

}  // namespace

absl::Status RegisterUpdateOps(OpRegistry& registry) {
  CAPSTAN_RETURN_IF_ERROR(AddAll(registry, Norms()));
  return AddAll(registry, Updates());
}

}  // namespace capstan::ops
