// Losses. Each is a sum over tokens divided by the step's weight `count`, so losses and gradients
// of microbatches, data-parallel ranks and sequence shards add.

#include "runtime/ops/op_builder.h"
#include "runtime/ops/vjp_rule.h"
#include "runtime/status.h"

namespace capstan::ops {
namespace {

constexpr char kCutVocabulary[] =
    "a vocabulary cut over ranks needs lce_stats, all_gather and lce_merge";

// Maximum, exponential, sum and division of one logit; the gradient adds a subtraction and scaling.
constexpr double kSoftmax = 4, kSoftmaxGrad = 6;

double LogitFlops(const InferContext& ctx) {
  const Tensor& h = *ctx.inputs[0];
  const double rows = Count(&h) / static_cast<double>(h.shape().back());
  return 2 * rows * Count(ctx.inputs[1]);
}
double Logits(const InferContext& ctx) {
  return LogitFlops(ctx) / 2 / static_cast<double>(ctx.inputs[0]->shape().back());
}

// The head's product, and the softmax of each logit.
OpCost LinearLossCost(const InferContext& ctx) {
  return Costs(ctx, LogitFlops(ctx) + kSoftmax * Logits(ctx));
}
// Logits, dh and dweight: three products of one size.
OpCost LinearLossGradCost(const InferContext& ctx) {
  return Costs(ctx, 3 * LogitFlops(ctx) + kSoftmaxGrad * Logits(ctx));
}
// Input 5: logits that were kept.
OpCost CutLossGradCost(const InferContext& ctx) {
  return Costs(ctx, (ctx.has(5) ? 2 : 3) * LogitFlops(ctx) + kSoftmaxGrad * Logits(ctx));
}

absl::Status CheckVocab(InferContext& ctx) {
  const int64_t valid = ctx.attrs->Int("valid_vocab", 0);
  const int64_t rows = ctx.inputs[1]->shape()[0];
  if (ctx.attrs->Has("vocab_start") || (valid >= 0 && valid <= rows)) return absl::OkStatus();
  return UsageError(ctx.op, ": valid_vocab=", valid, " must lie in 0 (all) to the ", rows,
                    " rows of ", Name(*ctx.inputs[1]));
}

absl::Status CheckLogitVocab(InferContext& ctx) {
  const int64_t valid = ctx.attrs->Int("valid_vocab", 0);
  const int64_t columns = ctx.inputs[0]->shape().back();
  if (valid >= 0 && valid <= columns) return absl::OkStatus();
  return UsageError(ctx.op, ": valid_vocab=", valid, " must lie in 0 (all) to ", columns);
}

bool IsOne(Vjp& v, TensorId t) {
  const OpId producer = v.program().Producer(t);
  if (producer == kNone) return false;
  const Op& op = v.program().op(producer);
  return op.kind() == "fill" && op.attrs.Float("value", 0) == 1;
}

// The gradient ops give the gradient of the loss for a cotangent of one. Every term of it is
// divided by count, so another cotangent d is the same gradient with count / d.
absl::StatusOr<TensorId> ScaledCount(Vjp& v, TensorId count) {
  if (IsOne(v, v.dy())) return count;
  return v.Make("div", {count, v.dy()});
}

// `count` and `first`: inputs of the op; outputs of `kind` are a plain loss, then cotangents.
VjpFn LossVjp(std::string kind, size_t count, std::vector<int> targets) {
  return [=](VjpContext& ctx) -> absl::Status {
    Vjp v(ctx);
    CAPSTAN_RETURN_IF_ERROR(v.OnlyFirstOutput());
    if (v.dy() == kNone) return absl::OkStatus();
    CAPSTAN_ASSIGN_OR_RETURN(TensorId scaled, ScaledCount(v, v.in(count)));
    std::vector<TensorId> inputs;
    for (size_t i = 0; i < count; ++i) inputs.push_back(v.in(i));
    inputs.push_back(scaled);
    return v.Into(kind, std::move(inputs), v.attrs(), targets);
  };
}

// The gradient skips the gathered statistics: each rank has kept its own logits or makes them again,
// and knows the log-sum-exp over all ranks.
absl::Status MergeVjp(VjpContext& ctx) {
  Vjp v(ctx);
  CAPSTAN_RETURN_IF_ERROR(v.OnlyFirstOutput());
  if (v.dy() == kNone) return absl::OkStatus();
  if (v.in(3) == kNone || v.in(4) == kNone) {
    return UsageError(v.Text(),
                      ": give it h and weight of lce_stats as inputs 3 and 4; its "
                      "gradient is theirs");
  }
  CAPSTAN_ASSIGN_OR_RETURN(TensorId scaled, ScaledCount(v, v.in(2)));
  Attrs attrs = v.Keep({"vocab_start", "valid_vocab"});
  std::vector<TensorId> inputs = {v.in(3), v.in(4), v.in(1), v.out(1), scaled};
  if (v.in(5) != kNone) inputs.push_back(v.in(5));
  return v.Into("lce_grad", std::move(inputs), std::move(attrs), {3, 4});
}

absl::Status CheckMerge(InferContext& ctx) {
  const bool both = ctx.has(3) == ctx.has(4) && (ctx.has(3) || !ctx.has(5));
  if (both && (!ctx.has(3) || ctx.attrs->Has("vocab_start"))) return absl::OkStatus();
  return UsageError(ctx.op,
                    ": for a gradient give h, weight and the attribute vocab_start, as "
                    "lce_stats has them, and the logits if they are kept; else leave all out");
}

std::vector<OpBuilder> WholeVocabulary() {
  return {
      OpBuilder("linear_cross_entropy", "h f *k, weight f vk, targets i32 *, count w . -> loss w .")
          .Attrs("valid_vocab int")
          .Sum("*")
          .Whole("vk", kCutVocabulary)
          .Check(CheckVocab)
          .Vjp(LossVjp("linear_cross_entropy_grad", 3, {-1, 0, 1}))
          .ValueAndGrad("linear_cross_entropy_grad", {-1, 0, 1})
          .Cost(LinearLossCost),
      OpBuilder("linear_cross_entropy_grad",
                "h f *k, weight f vk, targets i32 *, count w . "
                "-> loss w ., dh f *k, +dweight f vk")
          .Flags(0)
          .Attrs("valid_vocab int")
          .Sum("*")
          .Whole("vk", kCutVocabulary)
          .Check(CheckVocab)
          .Cost(LinearLossGradCost),
      OpBuilder("cross_entropy", "logits f *v, targets i32 *, count w . -> loss w .")
          .Attrs("valid_vocab int")
          .Sum("*")
          .Whole("v", kCutVocabulary)
          .Check(CheckLogitVocab)
          .Vjp(LossVjp("cross_entropy_grad", 2, {-1, 0}))
          .ValueAndGrad("cross_entropy_grad", {-1, 0})
          .Cost(PerInputElement(kSoftmax)),
      OpBuilder("cross_entropy_grad",
                "logits f *v, targets i32 *, count w . -> loss w ., dlogits f *v")
          .Attrs("valid_vocab int")
          .Sum("*")
          .Whole("v", kCutVocabulary)
          .Check(CheckLogitVocab)
          .Cost(PerInputElement(kSoftmaxGrad)),
  };
}

std::vector<OpBuilder> CutVocabulary() {
  constexpr int64_t kStats = 3;  // maximum, sum of exponentials, target logit
  return {
      OpBuilder("lce_stats", "h f *k, weight f vk, targets i32 * -> stats w *s")
          .Attrs("vocab_start! int, valid_vocab int")
          .Size('s', kStats)
          .Varying("v")
          .Whole("k")
          .Cost(LinearLossCost),
      OpBuilder("ce_stats", "logits f *v, targets i32 * -> stats w *s")
          .Attrs("vocab_start! int, valid_vocab int")
          .Size('s', kStats)
          .Varying("v")
          .Cost(PerInputElement(kSoftmax)),
      OpBuilder("lce_merge",
                "stats w r*s, targets i32 *, count w ., h? f *k, weight? f vk, logits? f *v "
                "-> loss w ., lse w *")
          .Attrs("vocab_start int, valid_vocab int")
          .Size('s', kStats)
          .Sum("*")
          .Whole("rsk")
          .Ignore({4, 5})
          .Check(CheckMerge)
          .Vjp(MergeVjp)
          .Cost([](const InferContext& ctx) {
            const double out = Bytes(ctx.outputs[0]) + Bytes(ctx.outputs[1]);
            const double stats = Bytes(ctx.inputs[0]) + Bytes(ctx.inputs[1]);
            return OpCost{3 * Count(ctx.inputs[0]), stats, out};
          }),
      OpBuilder("lce_grad",
                "h f *k, weight f vk, targets i32 *, lse w *, count w ., logits? f *v "
                "-> dh f *k, +dweight f vk")
          .Flags(0)
          .Attrs("vocab_start! int, valid_vocab int")
          .Sum("v*")
          .Whole("k")
          .Cost(CutLossGradCost),
  };
}

}  // namespace

absl::Status RegisterLossOps(OpRegistry& registry) {
  CAPSTAN_RETURN_IF_ERROR(AddAll(registry, WholeVocabulary()));
  return AddAll(registry, CutVocabulary());
}

}  // namespace capstan::ops
