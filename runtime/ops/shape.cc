// Ops that move elements or sum along a dim.

#include <algorithm>
#include <numeric>

#include "runtime/ops/op_builder.h"
#include "runtime/ops/vjp_rule.h"
#include "runtime/status.h"

namespace capstan::ops {
namespace {

// The attribute `dim`, in [0, limit).
absl::StatusOr<int> DimAttr(const InferContext& ctx, size_t limit) {
  const int64_t dim = ctx.attrs->Int("dim", 0);
  if (dim >= 0 && dim < static_cast<int64_t>(limit)) return static_cast<int>(dim);
  return UsageError(ctx.op, ": dim=", dim, " must lie in [0, ", limit, ")");
}

absl::Status Answer(InferContext& ctx, Dims shape, absl::StatusOr<Placement> placement) {
  if (!placement.ok()) return placement.status();
  ctx.outputs.push_back({ctx.inputs[0]->dtype(), std::move(shape), *std::move(placement)});
  return absl::OkStatus();
}

// ---- reshape

// Dim d of `from`, as the outermost factor of a dim of `to`: the one with as many elements before
// it. Dims of one element make that ambiguous; then the dim of equal size is meant. -1: none.
int ReshapedDim(const Dims& from, const Dims& to, int d) {
  const int64_t before =
      std::accumulate(from.begin(), from.begin() + d, int64_t{1}, std::multiplies<int64_t>());
  int found = -1;
  int64_t prefix = 1;
  for (size_t e = 0; e < to.size(); ++e) {
    if (prefix == before) {
      if (to[e] == from[d]) return static_cast<int>(e);
      const bool nests = to[e] != 0 && (from[d] % to[e] == 0 || to[e] % from[d] == 0);
      if (nests && to[e] != 1) found = static_cast<int>(e);
    }
    prefix *= to[e];
  }
  return found;
}

// Global ranges along a dim that was merged with inner dims or split.
absl::Status ReshapeRanges(const InferContext& ctx, int64_t from, int64_t to,
                           std::vector<int64_t>& ranges) {
  for (int64_t& r : ranges) {
    if (r * to % from != 0) {
      return UsageError(ctx.op, ": ", Name(*ctx.inputs[0]),
                        " is cut at a place that the new shape has no border at");
    }
    r = r * to / from;
  }
  return absl::OkStatus();
}

absl::Status InferReshape(InferContext& ctx) {
  const Tensor& x = *ctx.inputs[0];
  const Dims shape = ctx.attrs->Ints("shape");
  if (ElementCount(shape) != x.elements()) {
    return UsageError(ctx.op, ": ", Name(x), " ", ShapeString(x.shape()), " cannot be reshaped to ",
                      ShapeString(shape), ": ", x.elements(), " and ", ElementCount(shape),
                      " elements (both are this rank's shapes)");
  }
  CAPSTAN_ASSIGN_OR_RETURN(Placement placement, CarryPlacement(ctx, x, [&](int d) {
                             return x.elements() == 0 ? -1 : ReshapedDim(x.shape(), shape, d);
                           }));
  for (AxisPlacement& item : placement) {
    if (item.kind != CAPSTAN_SHARD) continue;
    const int before = PlacementOn(x.placement(), item.axis).dim;
    CAPSTAN_RETURN_IF_ERROR(ReshapeRanges(ctx, x.shape()[before], shape[item.dim], item.ranges));
  }
  return Answer(ctx, shape, std::move(placement));
}

absl::Status ReshapeVjp(VjpContext& ctx) {
  Vjp v(ctx);
  if (v.dy() == kNone || !v.needs(0)) return absl::OkStatus();
  return v.Into("reshape", {v.dy()}, {{"shape", v.input(0).shape()}}, {0});
}

// ---- transpose

absl::Status InferTranspose(InferContext& ctx) {
  const Tensor& x = *ctx.inputs[0];
  const Dims perm = ctx.attrs->Ints("perm");
  Dims sorted = perm;
  std::sort(sorted.begin(), sorted.end());
  Dims all(x.shape().size());
  std::iota(all.begin(), all.end(), 0);
  if (sorted != all) {
    return UsageError(ctx.op, ": perm=", ShapeString(perm), " must name each of the ", all.size(),
                      " dims of ", Name(x), " once");
  }
  Dims shape;
  for (int64_t from : perm) shape.push_back(x.shape()[from]);
  return Answer(ctx, shape, CarryPlacement(ctx, x, [&](int d) {
                  return static_cast<int>(std::find(perm.begin(), perm.end(), d) - perm.begin());
                }));
}

absl::Status TransposeVjp(VjpContext& ctx) {
  Vjp v(ctx);
  if (v.dy() == kNone || !v.needs(0)) return absl::OkStatus();
  const Dims perm = v.attrs().Ints("perm");
  Dims inverse(perm.size());
  for (size_t i = 0; i < perm.size(); ++i) inverse[perm[i]] = static_cast<int64_t>(i);
  return v.Into("transpose", {v.dy()}, {{"perm", inverse}}, {0});
}

// ---- slice and pad
//
// With the attribute `axis`, slice takes this rank's part of a replicated tensor (parts may
// overlap), and pad puts a part back among zeros, giving a partial sum.

absl::Status InferSlice(InferContext& ctx) {
  const Tensor& x = *ctx.inputs[0];
  CAPSTAN_ASSIGN_OR_RETURN(int dim, DimAttr(ctx, x.shape().size()));
  const int64_t start = ctx.attrs->Int("start", 0), size = ctx.attrs->Int("size", 0);
  if (start < 0 || size < 0 || start + size > x.shape()[dim]) {
    return UsageError(ctx.op, ": elements ", start, " to ", start + size, " of dim ", dim, " of ",
                      Name(x), " ", ShapeString(x.shape()), " do not exist");
  }
  CAPSTAN_ASSIGN_OR_RETURN(Placement placement,
                           CarryPlacement(ctx, x, [&](int d) { return d == dim ? -1 : d; }));
  const std::string axis = ctx.attrs->String("axis", "");
  if (!axis.empty()) {
    const AxisPlacement have = PlacementOn(placement, axis);
    if (have.kind != CAPSTAN_REPLICATE) {
      return UsageError(ctx.op, ": ", Name(x), " is ", PlacementWords(have), " over ", axis,
                        "; a slice over an axis is of a tensor replicated over it");
    }
    SetPlacement(placement, {axis, CAPSTAN_SHARD, dim, CAPSTAN_SUM, {start, start + size}});
  }
  Dims shape = x.shape();
  shape[dim] = size;
  return Answer(ctx, std::move(shape), std::move(placement));
}

absl::Status InferPad(InferContext& ctx) {
  const Tensor& x = *ctx.inputs[0];
  CAPSTAN_ASSIGN_OR_RETURN(int dim, DimAttr(ctx, x.shape().size()));
  const int64_t start = ctx.attrs->Int("start", 0), size = ctx.attrs->Int("size", 0);
  if (start < 0 || start + x.shape()[dim] > size) {
    return UsageError(ctx.op, ": dim ", dim, " of ", Name(x), " ", ShapeString(x.shape()),
                      " does not fit at ", start, " in ", size, " elements");
  }
  const std::string axis = ctx.attrs->String("axis", "");
  Tensor carried = x;
  if (!axis.empty()) {
    const AxisPlacement have = PlacementOn(x.placement(), axis);
    if (have.kind != CAPSTAN_SHARD || have.dim != dim) {
      return UsageError(ctx.op, ": ", Name(x), " is ", PlacementWords(have), " over ", axis,
                        "; a pad over an axis is of a tensor cut along the same dim over it");
    }
    SetPlacement(carried.type.placement, {axis, CAPSTAN_PARTIAL, 0, CAPSTAN_SUM, {}});
  }
  Dims shape = x.shape();
  shape[dim] = size;
  return Answer(ctx, std::move(shape),
                CarryPlacement(ctx, carried, [&](int d) { return d == dim ? -1 : d; }));
}

// slice and pad undo each other; `other` has the elements that x has along dim.
VjpFn SliceVjp(std::string other) {
  return [other](VjpContext& ctx) -> absl::Status {
    Vjp v(ctx);
    if (v.dy() == kNone || !v.needs(0)) return absl::OkStatus();
    const int64_t dim = v.attrs().Int("dim", 0);
    Attrs attrs = v.Keep({"dim", "start", "axis"});
    attrs.Set("size", v.input(0).shape()[dim]);
    return v.Into(other, {v.dy()}, std::move(attrs), {0});
  };
}

// ---- concat

absl::Status PrepareConcat(InferContext& ctx, Labels& labels) {
  CAPSTAN_ASSIGN_OR_RETURN(int dim, DimAttr(ctx, ctx.inputs[0]->shape().size()));
  // A label of its own for each input, for sizes may differ; no output has it, so no axis may cut
  // it.
  constexpr size_t kMost = 100;
  if (ctx.inputs.size() > kMost) {
    return UsageError(ctx.op, ": takes at most ", kMost, " tensors; concatenate in two steps");
  }
  int64_t total = 0;
  for (size_t i = 0; i < ctx.inputs.size(); ++i) {
    total += ctx.inputs[i]->shape()[dim];
    labels.in[i][dim] = static_cast<char>(128 + i);
  }
  labels.out[0][dim] = 'z';
  labels.Bind('z', total, "the parts");
  return absl::OkStatus();
}

absl::Status ConcatVjp(VjpContext& ctx) {
  Vjp v(ctx);
  if (v.dy() == kNone) return absl::OkStatus();
  const int64_t dim = v.attrs().Int("dim", 0);
  int64_t start = 0;
  for (size_t i = 0; v.in(i) != kNone; ++i) {
    const int64_t size = v.input(i).shape()[dim];
    CAPSTAN_RETURN_IF_ERROR(v.Into("slice", {v.dy()},
                                   {{"dim", dim}, {"start", start}, {"size", size}},
                                   {static_cast<int>(i)}));
    start += size;
  }
  return absl::OkStatus();
}

// ---- reductions and broadcast

absl::Status PrepareReduce(InferContext& ctx, Labels& labels) {
  CAPSTAN_ASSIGN_OR_RETURN(int dim, DimAttr(ctx, ctx.inputs[0]->shape().size()));
  labels.in[0][dim] = 'z';
  labels.out[0].erase(dim, 1);
  return absl::OkStatus();
}

// Every element of the summed dim has the sum's cotangent. Over an axis that cuts that dim, each
// rank repeats it for its own elements.
absl::Status ReduceSumVjp(VjpContext& ctx) {
  Vjp v(ctx);
  if (v.dy() == kNone || !v.needs(0)) return absl::OkStatus();
  const Tensor x = v.input(0);
  const int64_t dim = v.attrs().Int("dim", 0);
  Attrs attrs{{"dim", dim}, {"size", x.shape()[dim]}};
  Placement cut;
  for (const AxisPlacement& item : x.placement()) {
    if (item.kind == CAPSTAN_SHARD && item.dim == dim) cut.push_back(item);
  }
  if (!cut.empty()) attrs.Set("placement", PlacementString(cut));
  return v.Into("broadcast", {v.dy()}, std::move(attrs), {0});
}

absl::Status InferBroadcast(InferContext& ctx) {
  const Tensor& x = *ctx.inputs[0];
  CAPSTAN_ASSIGN_OR_RETURN(int dim, DimAttr(ctx, x.shape().size() + 1));
  const int64_t size = ctx.attrs->Int("size", 0);
  if (size < 0) return UsageError(ctx.op, ": size=", size, " is negative");
  CAPSTAN_ASSIGN_OR_RETURN(Placement placement,
                           CarryPlacement(ctx, x, [&](int d) { return d < dim ? d : d + 1; }));
  CAPSTAN_ASSIGN_OR_RETURN(Placement cut, ParsePlacement(ctx.attrs->String("placement", "")));
  for (const AxisPlacement& item : cut) {
    const AxisPlacement have = PlacementOn(placement, item.axis);
    if (have.kind != CAPSTAN_REPLICATE || item.kind != CAPSTAN_SHARD || item.dim != dim) {
      return UsageError(ctx.op, ": attribute placement may only cut the new dim ", dim,
                        ", over axes that ", Name(x), " is replicated over; it is ",
                        PlacementWords(have), " over ", item.axis);
    }
    SetPlacement(placement, item);
  }
  Dims shape = x.shape();
  shape.insert(shape.begin() + dim, size);
  return Answer(ctx, std::move(shape), std::move(placement));
}

// ---- gather

OpCost GatherCost(const InferContext& ctx) {
  const double out = Bytes(ctx.outputs[0]);
  return {0, Bytes(ctx.inputs[1]) + out, out};
}

absl::Status GatherVjp(VjpContext& ctx) {
  Vjp v(ctx);
  if (v.dy() == kNone || !v.needs(0)) return absl::OkStatus();
  return v.Into("gather_grad", {v.in(1), v.dy()}, {{"rows", v.input(0).shape()[0]}}, {0});
}

// Reads and writes what it produces.
OpCost MoveCost(const InferContext& ctx) {
  const double out = Bytes(ctx.outputs[0]);
  return {0, std::min(out, Bytes(ctx.inputs[0])), out};
}

std::vector<OpBuilder> Moves() {
  return {
      OpBuilder("reshape", "x t * -> y t ?")
          .Attrs("shape! ints")
          .Infer(InferReshape)
          .Vjp(ReshapeVjp)
          .Cost(MoveCost),
      OpBuilder("transpose", "x t * -> y t ?")
          .Attrs("perm! ints")
          .Infer(InferTranspose)
          .Vjp(TransposeVjp)
          .Cost(MoveCost),
      OpBuilder("slice", "x t * -> y t ?")
          .Attrs("dim! int, start! int, size! int, axis string")
          .Infer(InferSlice)
          .Vjp(SliceVjp("pad"))
          .Cost(MoveCost),
      OpBuilder("pad", "x t * -> y t ?")
          .Attrs("dim! int, start! int, size! int, axis string")
          .Infer(InferPad)
          .Vjp(SliceVjp("slice"))
          .Cost(MoveCost),
      OpBuilder("concat", "x... t * -> y t *")
          .Attrs("dim! int")
          .Partials(Partial::kMove)
          .Prepare(PrepareConcat)
          .Vjp(ConcatVjp),
      OpBuilder("broadcast", "x t * -> y t ?")
          .Attrs("dim! int, size! int, placement placement")
          .Infer(InferBroadcast)
          .Vjp(OneOp("reduce_sum", {kCotangent}, {0}, {"dim"}))
          .Cost(MoveCost),
  };
}

std::vector<OpBuilder> Sums() {
  return {
      OpBuilder("reduce_sum", "x f * -> y f *")
          .Attrs("dim! int")
          .Sum("z")
          .LinearIn({0})
          .Prepare(PrepareReduce)
          .Vjp(ReduceSumVjp)
          .Cost(PerInputElement(1)),
      OpBuilder("reduce_max", "x f * -> y f *")
          .Attrs("dim! int")
          .Sum("z")
          .Reduce(CAPSTAN_MAX)
          .Prepare(PrepareReduce)
          .Cost(PerInputElement(1)),
      OpBuilder("gather", "x f rc, index i32 * -> y f *c")
          .LinearIn({0})
          .Whole("r")
          .Vjp(GatherVjp)
          .Cost(GatherCost),
      OpBuilder("gather_grad", "index i32 *, dy f *c -> dx f rc")
          .Attrs("rows! int")
          .Size('r', "rows")
          .Sum("*")
          .LinearIn({1})
          .Cost([](const InferContext& ctx) { return Costs(ctx, Count(ctx.inputs[1])); }),
  };
}

}  // namespace

absl::Status RegisterShapeOps(OpRegistry& registry) {
  CAPSTAN_RETURN_IF_ERROR(AddAll(registry, Moves()));
  return AddAll(registry, Sums());
}

}  // namespace capstan::ops
