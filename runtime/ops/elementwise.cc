// Element-wise arithmetic, casts, constants and random values, quantisation.

#include "runtime/ops/op_builder.h"
#include "runtime/ops/vjp_rule.h"
#include "runtime/status.h"

namespace capstan::ops {
namespace {

constexpr uint32_t kElementwise = CAPSTAN_OP_PURE | CAPSTAN_OP_ELEMENTWISE;

// ---- add, sub, mul, div: b of a's shape, of a's trailing dims, or of one element

absl::Status PrepareBroadcast(InferContext& ctx, Labels& labels) {
  const Dims& a = ctx.inputs[0]->shape();
  const Dims& b = ctx.inputs[1]->shape();
  if (a != b && ElementCount(b) == 1) {
    labels.in[1] = std::string(b.size(), '.');
    return absl::OkStatus();
  }
  if (b.size() > a.size()) {
    return UsageError(ctx.op, ": ", Name(*ctx.inputs[1]), " ", ShapeString(b),
                      " must have the shape of ", Name(*ctx.inputs[0]), " ", ShapeString(a),
                      ", its trailing dims, or one element; swap them or insert a reshape");
  }
  labels.in[1] = labels.in[0].substr(a.size() - b.size());
  return absl::OkStatus();
}

absl::Status AddVjp(VjpContext& ctx) {
  Vjp v(ctx);
  if (v.dy() == kNone) return absl::OkStatus();
  if (v.needs(0)) CAPSTAN_RETURN_IF_ERROR(v.Set(0, v.dy()));
  return v.SetReduced(1, v.dy());
}

absl::Status SubVjp(VjpContext& ctx) {
  Vjp v(ctx);
  if (v.dy() == kNone) return absl::OkStatus();
  if (v.needs(0)) CAPSTAN_RETURN_IF_ERROR(v.Set(0, v.dy()));
  if (!v.needs(1)) return absl::OkStatus();
  CAPSTAN_ASSIGN_OR_RETURN(TensorId minus, v.Make("neg", {v.dy()}));
  return v.SetReduced(1, minus);
}

absl::Status MulVjp(VjpContext& ctx) {
  Vjp v(ctx);
  if (v.dy() == kNone) return absl::OkStatus();
  CAPSTAN_RETURN_IF_ERROR(v.Into("mul", {v.dy(), v.in(1)}, {}, {0}));
  if (!v.needs(1)) return absl::OkStatus();
  CAPSTAN_ASSIGN_OR_RETURN(TensorId full, v.Make("mul", {v.dy(), v.in(0)}));
  return v.SetReduced(1, full);
}

// d(a/b)/db = -(a/b)/b
absl::Status DivVjp(VjpContext& ctx) {
  Vjp v(ctx);
  if (v.dy() == kNone) return absl::OkStatus();
  CAPSTAN_RETURN_IF_ERROR(v.Into("div", {v.dy(), v.in(1)}, {}, {0}));
  if (!v.needs(1)) return absl::OkStatus();
  CAPSTAN_ASSIGN_OR_RETURN(TensorId full, v.Make("mul", {v.dy(), v.out(0)}));
  CAPSTAN_ASSIGN_OR_RETURN(full, v.Make("div", {full, v.in(1)}));
  CAPSTAN_ASSIGN_OR_RETURN(full, v.Make("neg", {full}));
  return v.SetReduced(1, full);
}

OpBuilder Binary(std::string kind, VjpFn vjp) {
  return OpBuilder(std::move(kind), "a f *, b f ? -> y f *")
      .Flags(kElementwise)
      .Prepare(PrepareBroadcast)
      .Vjp(std::move(vjp))
      .Cost(PerOutputElement(1));
}

// ---- cast

absl::Status CastVjp(VjpContext& ctx) {
  Vjp v(ctx);
  if (v.dy() == kNone || !v.needs(0)) return absl::OkStatus();
  return v.Into("cast", {v.dy()}, {{"dtype", DTypeName(v.input(0).dtype())}}, {0});
}

// ---- values from nothing

absl::Status InferConstant(InferContext& ctx) {
  const Dims shape = ctx.attrs->Ints("shape");
  for (int64_t n : shape) {
    if (n < 0) return UsageError(ctx.op, ": shape ", ShapeString(shape), " has a negative dim");
  }
  CAPSTAN_ASSIGN_OR_RETURN(DType dtype, ParseDType(ctx.attrs->String("dtype", "f32")));
  CAPSTAN_ASSIGN_OR_RETURN(Placement placement, ParsePlacement(ctx.attrs->String("placement", "")));
  ctx.outputs.push_back({dtype, shape, std::move(placement)});
  return absl::OkStatus();
}

// ---- quantisation: blocks along the last dim, one scale each

absl::Status PrepareQuantize(InferContext& ctx, Labels& labels) {
  const int64_t block = ctx.attrs->Int("block", 0);
  const Tensor& x = *ctx.inputs[0];
  if (x.shape().empty()) return UsageError(ctx.op, ": ", Name(x), " has no dims");
  const int64_t n = x.shape().back();
  const int last = static_cast<int>(x.shape().size()) - 1;
  if (block <= 0) return UsageError(ctx.op, ": attribute block=", block, " must be at least 1");
  bool cut = false;
  for (const AxisPlacement& item : x.placement()) {
    cut = cut || (item.kind == CAPSTAN_SHARD && item.dim == last);
  }
  // A block lies within one row and on one rank; a lone row may end in a short block.
  if (n % block != 0 && (cut || x.elements() != n)) {
    return UsageError(ctx.op, ": the ", n, " elements of the last dim of ", Name(x),
                      " are not whole blocks of ", block,
                      "; choose a block that divides them, or cut the tensor at block borders");
  }
  labels.Bind('n', (n + block - 1) / block, "the number of blocks");
  return absl::OkStatus();
}

// Ranges count elements along x; those of the scales count blocks.
absl::Status CheckQuantize(InferContext& ctx) {
  const Placement scales = ctx.outputs[1].placement;
  for (AxisPlacement item : scales) {
    const AxisPlacement x = PlacementOn(ctx.inputs[0]->placement(), item.axis);
    if (item.kind != CAPSTAN_SHARD || x.dim != item.dim) continue;
    const bool last = item.dim == static_cast<int>(ctx.inputs[0]->shape().size()) - 1;
    item.ranges = x.ranges;
    for (int64_t& r : item.ranges) r /= last ? ctx.attrs->Int("block", 1) : 1;
    SetPlacement(ctx.outputs[1].placement, item);
  }
  return absl::OkStatus();
}

std::vector<OpBuilder> Arithmetic() {
  return {
      Binary("add", AddVjp).Partials(Partial::kJoint),
      Binary("sub", SubVjp).Partials(Partial::kJoint),
      Binary("mul", MulVjp).LinearIn({0}),
      Binary("div", DivVjp).LinearIn({0}),
      OpBuilder("scale", "x f * -> y f *")
          .Flags(kElementwise)
          .Attrs("factor! float")
          .LinearIn({0})
          .Vjp(OneOp("scale", {kCotangent}, {0}, {"factor"}))
          .Cost(PerOutputElement(1)),
      OpBuilder("copy", "x t * -> y t *").Partials(Partial::kMove).Vjp(Identity()),
      OpBuilder("cast", "x t * -> y d *")
          .Attrs("dtype dtype")
          .Partials(Partial::kMove)
          .Vjp(CastVjp),
      OpBuilder("accumulate", "x x * -> +y x *").Flags(0).LinearIn({0}).Cost(PerOutputElement(1)),
  };
}

std::vector<OpBuilder> Constants() {
  constexpr uint32_t kRandom = CAPSTAN_OP_RANDOM;
  return {
      OpBuilder("fill", "-> y d ?")
          .Attrs("value! float, shape! ints, dtype dtype, placement placement")
          .Infer(InferConstant),
      OpBuilder("random_normal", "-> y d ?")
          .Flags(kRandom)
          .Attrs("key! int, mean float, std float, shape! ints, dtype dtype, placement placement, "
                 "global_shape ints, start ints")
          .Infer(InferConstant)
          .Cost(PerOutputElement(12)),
      OpBuilder("random_uniform", "-> y d ?")
          .Flags(kRandom)
          .Attrs("key! int, low float, high float, shape! ints, dtype dtype, placement placement, "
                 "global_shape ints, start ints")
          .Infer(InferConstant)
          .Cost(PerOutputElement(10)),
      OpBuilder("quantize", "x f *c -> codes i8 *c, scales f32 *n")
          .Attrs("block! int")
          .Tied("cn")
          .Prepare(PrepareQuantize)
          .Check(CheckQuantize)
          .Cost(PerInputElement(3)),
      OpBuilder("dequantize", "codes i8 *c, scales f32 *n -> x d *c")
          .Attrs("block! int, dtype dtype")
          .Tied("cn")
          .Prepare(PrepareQuantize)
          .Cost(PerInputElement(1)),
  };
}

}  // namespace

absl::Status RegisterElementwiseOps(OpRegistry& registry) {
  CAPSTAN_RETURN_IF_ERROR(AddAll(registry, Arithmetic()));
  return AddAll(registry, Constants());
}

}  // namespace capstan::ops
