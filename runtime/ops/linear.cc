// Dense layers: embedding, linear, matmul and their gradients.

#include "runtime/ops/op_builder.h"
#include "runtime/ops/vjp_rule.h"
#include "runtime/status.h"
#include "runtime/strings.h"

namespace capstan::ops {
namespace {

// ---- embedding

// A cut table gives zero rows for ids of other ranks; `vocab_start` says where this rank's begin.
absl::Status CheckEmbedding(InferContext& ctx) {
  for (const AxisPlacement& item : ctx.inputs[1]->placement()) {
    if (item.kind != CAPSTAN_SHARD || item.dim != 0 || ctx.attrs->Has("vocab_start")) continue;
    return UsageError(ctx.op, ": table ", Name(*ctx.inputs[1]), " is cut by rows over ", item.axis,
                      "; give the attribute vocab_start, the global row of its first one");
  }
  return absl::OkStatus();
}

absl::Status EmbeddingVjp(VjpContext& ctx) {
  Vjp v(ctx);
  if (v.dy() == kNone || !v.needs(1)) return absl::OkStatus();
  const Tensor table = v.input(1);
  Attrs attrs = v.Keep({"vocab_start"});
  attrs.Set("vocab", table.shape()[0]);
  // Over an axis that cuts the rows, neither ids nor dy say so; the gradient is cut as the table.
  Placement rows;
  for (const AxisPlacement& item : table.placement()) {
    if (item.kind == CAPSTAN_SHARD && item.dim == 0) rows.push_back(item);
  }
  if (!rows.empty()) attrs.Set("placement", PlacementString(rows));
  return v.Into("embedding_grad", {v.in(0), v.dy()}, std::move(attrs), {1});
}

absl::Status CheckEmbeddingGrad(InferContext& ctx) {
  CAPSTAN_ASSIGN_OR_RETURN(Placement rows, ParsePlacement(ctx.attrs->String("placement", "")));
  for (const AxisPlacement& item : rows) {
    const AxisPlacement have = PlacementOn(ctx.outputs[0].placement, item.axis);
    if (item.kind != CAPSTAN_SHARD || item.dim != 0) {
      return UsageError(ctx.op, ": attribute placement may only cut dim 0, the rows");
    }
    if (have.kind != CAPSTAN_REPLICATE) {
      return UsageError(ctx.op, ": the table's rows are cut over ", item.axis,
                        " but the gradient would be ", PlacementWords(have),
                        " over it; ids and dy ", "must be replicated over ", item.axis);
    }
    SetPlacement(ctx.outputs[0].placement, item);
  }
  return absl::OkStatus();
}

// Only the rows named by ids are read.
OpCost EmbeddingCost(const InferContext& ctx) {
  const double out = Bytes(ctx.outputs[0]);
  return {0, Bytes(ctx.inputs[0]) + out, out};
}

// ---- linear

double ProductFlops(const Tensor& x, const Dims& weight) {
  const double rows = Count(&x) / static_cast<double>(x.shape().back());
  return 2 * rows * static_cast<double>(weight[0]) * static_cast<double>(weight[1]);
}

OpCost LinearCost(const InferContext& ctx) {
  const double bias = ctx.has(2) ? static_cast<double>(ElementCount(ctx.outputs[0].shape)) : 0;
  return Costs(ctx, ProductFlops(*ctx.inputs[0], ctx.inputs[1]->shape()) + bias);
}

OpCost LinearGeluCost(const InferContext& ctx) {
  constexpr double kGelu = 8;
  OpCost cost = LinearCost(ctx);
  cost.flops += kGelu * static_cast<double>(ElementCount(ctx.outputs[0].shape));
  return cost;
}

OpCost LinearDwCost(const InferContext& ctx) {
  return Costs(ctx, ProductFlops(*ctx.inputs[0], ctx.outputs[0].shape));
}

absl::Status LinearBackward(Vjp& v, TensorId dy) {
  CAPSTAN_RETURN_IF_ERROR(v.Into("linear_dx", {dy, v.in(1)}, {}, {0}));
  CAPSTAN_RETURN_IF_ERROR(v.Into("linear_dw", {v.in(0), dy}, {}, {1}));
  return v.Into("bias_grad", {dy}, {}, {2});
}

absl::Status LinearVjp(VjpContext& ctx) {
  Vjp v(ctx);
  return v.dy() == kNone ? absl::OkStatus() : LinearBackward(v, v.dy());
}

absl::Status LinearGeluVjp(VjpContext& ctx) {
  Vjp v(ctx);
  TensorId dpre = v.dy(1);
  if (v.dy(0) != kNone) {
    CAPSTAN_ASSIGN_OR_RETURN(TensorId through,
                             v.Make("gelu_grad", {v.dy(0), v.out(1)}, v.Keep({"approximate"})));
    if (dpre != kNone) {
      CAPSTAN_ASSIGN_OR_RETURN(through, v.Make("add", {dpre, through}));
    }
    dpre = through;
  }
  return dpre == kNone ? absl::OkStatus() : LinearBackward(v, dpre);
}

// ---- matmul

absl::Status PrepareMatmul(InferContext& ctx, Labels& labels) {
  auto swap_last = [](std::string& dims) {
    std::swap(dims[dims.size() - 1], dims[dims.size() - 2]);
  };
  if (ctx.attrs->Int("transpose_a", 0) != 0) swap_last(labels.in[0]);
  if (ctx.attrs->Int("transpose_b", 0) != 0) swap_last(labels.in[1]);
  return absl::OkStatus();
}

OpCost MatmulCost(const InferContext& ctx) {
  const Dims& a = ctx.inputs[0]->shape();
  const int64_t k = ctx.attrs->Int("transpose_a", 0) != 0 ? a[a.size() - 2] : a.back();
  return Costs(
      ctx, 2.0 * static_cast<double>(k) * static_cast<double>(ElementCount(ctx.outputs[0].shape)));
}

// y = A B with A = a or a^T: dA = dy B^T, dB = A^T dy, transposed back where the input was.
absl::Status MatmulVjp(VjpContext& ctx) {
  Vjp v(ctx);
  if (v.dy() == kNone) return absl::OkStatus();
  const int64_t ta = v.attrs().Int("transpose_a", 0) != 0;
  const int64_t tb = v.attrs().Int("transpose_b", 0) != 0;
  auto product = [&](size_t input, TensorId l, TensorId r, int64_t tl, int64_t tr) {
    return v.Into("matmul", {l, r}, {{"transpose_a", tl}, {"transpose_b", tr}},
                  {static_cast<int>(input)});
  };
  const TensorId a = v.in(0), b = v.in(1), dy = v.dy();
  CAPSTAN_RETURN_IF_ERROR(ta ? product(0, b, dy, tb, 1) : product(0, dy, b, 0, 1 - tb));
  return tb ? product(1, dy, a, 1, ta) : product(1, a, dy, 1 - ta, 0);
}

std::vector<OpBuilder> LinearOps() {
  return {
      OpBuilder("linear", "x f *k, weight f nk, bias? f n -> y f *n")
          .Sum("k")
          .LinearIn({0})
          .Bias(2)
          .Vjp(LinearVjp)
          .Cost(LinearCost),
      OpBuilder("linear_dx", "dy f *n, weight f nk -> dx f *k")
          .Sum("n")
          .LinearIn({0})
          .Cost(LinearCost),
      OpBuilder("linear_dw", "x f *k, dy f *n -> +dweight f nk")
          .Flags(0)
          .Sum("*")
          .LinearIn({0, 1})
          .Cost(LinearDwCost),
      OpBuilder("bias_grad", "dy f *n -> +dbias f n")
          .Flags(0)
          .Sum("*")
          .LinearIn({0})
          .Cost(PerInputElement(1)),
      OpBuilder("linear_gelu", "x f *k, weight f nk, bias? f n -> y f *n, pre f *n")
          .Attrs("approximate tanh|none")
          .Whole("k", "use linear, reduce_from_group and gelu")
          .Vjp(LinearGeluVjp)
          .Cost(LinearGeluCost),
      OpBuilder("matmul", "a f *mk, b f *kn -> y f *mn")
          .Attrs("transpose_a int, transpose_b int")
          .Sum("k")
          .LinearIn({0, 1})
          .Prepare(PrepareMatmul)
          .Vjp(MatmulVjp)
          .Cost(MatmulCost),
  };
}

std::vector<OpBuilder> EmbeddingOps() {
  return {
      OpBuilder("embedding", "ids i32 *, table f vc -> y f *c")
          .Attrs("vocab_start int")
          .Sum("v")
          .LinearIn({1})
          .Check(CheckEmbedding)
          .Vjp(EmbeddingVjp)
          .Cost(EmbeddingCost),
      OpBuilder("embedding_grad", "ids i32 *, dy f *c -> +dtable f vc")
          .Flags(0)
          .Attrs("vocab! int, vocab_start int, placement placement")
          .Size('v', "vocab")
          .Sum("*")
          .LinearIn({1})
          .Check(CheckEmbeddingGrad)
          .Cost([](const InferContext& ctx) { return Costs(ctx, Count(ctx.inputs[1])); }),
  };
}

}  // namespace

absl::Status RegisterLinearOps(OpRegistry& registry) {
  CAPSTAN_RETURN_IF_ERROR(AddAll(registry, EmbeddingOps()));
  return AddAll(registry, LinearOps());
}

}  // namespace capstan::ops
