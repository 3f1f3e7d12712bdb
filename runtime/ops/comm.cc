// Communication. The type of the operand over the op's axis is what each op is about; placements
// over other axes pass through.

#include <algorithm>
#include <numeric>

#include "runtime/ops/op_builder.h"
#include "runtime/ops/vjp_rule.h"
#include "runtime/status.h"

namespace capstan::ops {
namespace {

constexpr uint32_t kCollective = CAPSTAN_OP_COLLECTIVE | CAPSTAN_OP_PURE;

std::string Axis(const InferContext& ctx) { return ctx.attrs->String("axis", ""); }

AxisPlacement On(const InferContext& ctx) {
  return PlacementOn(ctx.inputs[0]->placement(), Axis(ctx));
}

absl::Status Unexpected(const InferContext& ctx, std::string_view wanted, std::string_view remedy) {
  return UsageError(ctx.op, ": ", Name(*ctx.inputs[0]), " is ", PlacementWords(On(ctx)), " over ",
                    Axis(ctx), ", but must be ", std::string(wanted), "; ", std::string(remedy));
}

// The output: x's type with this placement over the axis.
TensorType Changed(const InferContext& ctx, AxisPlacement to) {
  TensorType type = ctx.inputs[0]->type;
  to.axis = Axis(ctx);
  // A cut is appended, innermost: it divides what the axes before it left.
  AxisPlacement none;
  none.axis = to.axis;
  SetPlacement(type.placement, none);
  SetPlacement(type.placement, std::move(to));
  return type;
}

AxisPlacement Replicated() { return {}; }
AxisPlacement Cut(int dim) { return {"", CAPSTAN_SHARD, dim, CAPSTAN_SUM, {}}; }

absl::StatusOr<int> DimAttr(const InferContext& ctx, const char* name) {
  const int64_t dim = ctx.attrs->Int(name, 0);
  const size_t ndim = ctx.inputs[0]->shape().size();
  if (dim >= 0 && dim < static_cast<int64_t>(ndim)) return static_cast<int>(dim);
  return UsageError(ctx.op, ": ", name, "=", dim, " must lie in [0, ", ndim, ")");
}

// A list of tensors travels as one: each is typed by itself. `counts` holds the shares of the first
// tensor, then of the second, and so on.
CheckFn Each(absl::Status (*rule)(InferContext&)) {
  return [rule](InferContext& ctx) -> absl::Status {
    if (ctx.inputs.size() == 1) return rule(ctx);
    const Dims counts = ctx.attrs->Ints("counts");
    const size_t ranks = static_cast<size_t>(ctx.axis_size(Axis(ctx)));
    if (!counts.empty() && counts.size() != ranks * ctx.inputs.size()) {
      return UsageError(ctx.op, ": counts has ", counts.size(), " entries, but ", ctx.inputs.size(),
                        " tensors over the ", ranks, " ranks of ", Axis(ctx), " need ",
                        ranks * ctx.inputs.size());
    }
    for (size_t i = 0; i < ctx.inputs.size(); ++i) {
      if (!SameDType(ctx.inputs[i]->dtype(), ctx.inputs[0]->dtype())) {
        return UsageError(ctx.op, ": ", Name(*ctx.inputs[i]), " is ",
                          DTypeName(ctx.inputs[i]->dtype()), " and ", Name(*ctx.inputs[0]), " ",
                          DTypeName(ctx.inputs[0]->dtype()), "; one list has one dtype");
      }
      Attrs attrs = *ctx.attrs;
      if (!counts.empty()) {
        const auto mine = counts.begin() + static_cast<ptrdiff_t>(i * ranks);
        attrs.Set("counts", Dims(mine, mine + static_cast<ptrdiff_t>(ranks)));
      }
      InferContext one{ctx.op, {ctx.inputs[i]}, &attrs, {}, ctx.axis_size, {}};
      CAPSTAN_RETURN_IF_ERROR(rule(one));
      ctx.outputs.push_back(std::move(one.outputs[0]));
    }
    return absl::OkStatus();
  };
}

// Lists are made after differentiation.
absl::Status RefuseList(const Vjp& v) {
  if (!v.in_list()) return absl::OkStatus();
  return UnsupportedError(v.Text(), " is on the way to a loss; give each tensor its own op");
}

// ---- reductions

absl::Status InferCopyToGroup(InferContext& ctx) {
  if (On(ctx).kind != CAPSTAN_REPLICATE) {
    return Unexpected(ctx, "replicated (R)", "gather or reduce it first");
  }
  ctx.outputs.push_back(Changed(ctx, Replicated()));
  return absl::OkStatus();
}

absl::Status InferReduce(InferContext& ctx) {
  const bool max = ctx.attrs->String("reduce", "sum") == "max";
  const AxisPlacement on = On(ctx);
  if (on.kind != CAPSTAN_PARTIAL || (on.reduce == CAPSTAN_MAX) != max) {
    return Unexpected(ctx, max ? "partial (P(max))" : "partial (P)",
                      "a value that is not has nothing to reduce, remove the op");
  }
  ctx.outputs.push_back(Changed(ctx, Replicated()));
  return absl::OkStatus();
}

// The cotangent of a replicated output: each rank's own share when partial.
absl::Status ReduceVjp(VjpContext& ctx) {
  Vjp v(ctx);
  CAPSTAN_RETURN_IF_ERROR(RefuseList(v));
  if (v.dy() == kNone || !v.needs(0)) return absl::OkStatus();
  if (v.attrs().String("reduce", "sum") == "max") {
    return UsageError(v.Text(), ": a maximum over ranks has no gradient");
  }
  const std::string axis = v.attrs().String("axis", "");
  if (v.KindOn(v.dy(), axis) != CAPSTAN_PARTIAL) return v.Set(0, v.dy());
  return v.Into("all_reduce", {v.dy()}, {{"axis", axis}}, {0});
}

// ---- gathers and scatters

// How many elements of a dim each rank of the axis has: the attribute `counts`, or even.
struct Shares {
  Dims counts;
  int64_t total = 0;
};

absl::StatusOr<Shares> SharesOf(const InferContext& ctx, int64_t even_count) {
  const int64_t ranks = ctx.axis_size(Axis(ctx));
  Shares shares{ctx.attrs->Ints("counts"), 0};
  if (shares.counts.empty()) shares.counts.assign(ranks, even_count);
  if (static_cast<int64_t>(shares.counts.size()) != ranks) {
    return UsageError(ctx.op, ": counts has ", shares.counts.size(), " entries, but axis ",
                      Axis(ctx), " has ", ranks, " ranks");
  }
  shares.total = std::accumulate(shares.counts.begin(), shares.counts.end(), int64_t{0});
  return shares;
}

// The axis must be the innermost of those that cut the dim, or the parts would not be adjacent.
absl::Status CheckInnermost(const InferContext& ctx, int dim) {
  bool after = false;
  for (const AxisPlacement& item : ctx.inputs[0]->placement()) {
    if (after && item.kind == CAPSTAN_SHARD && item.dim == dim) {
      return UsageError(ctx.op, ": dim ", dim, " of ", Name(*ctx.inputs[0]), " is cut by ",
                        item.axis, " inside ", Axis(ctx), "; gather over ", item.axis, " first");
    }
    after = after || item.axis == Axis(ctx);
  }
  return absl::OkStatus();
}

absl::Status InferAllGather(InferContext& ctx) {
  CAPSTAN_ASSIGN_OR_RETURN(int dim, DimAttr(ctx, "dim"));
  const AxisPlacement on = On(ctx);
  const bool cut = on.kind == CAPSTAN_SHARD && on.dim == dim;
  if (!cut && on.kind != CAPSTAN_VARYING) {
    return Unexpected(ctx, "sharded (S(" + std::to_string(dim) + ")) or varying (V)",
                      "gather along the dim that is cut");
  }
  if (on.ranges.size() > 2) {
    return UsageError(ctx.op, ": ", Name(*ctx.inputs[0]), " holds several ranges of dim ", dim,
                      "; a gather of such parts has another order than the whole");
  }
  if (!on.ranges.empty() && ctx.attrs->Ints("counts").empty()) {
    return UsageError(ctx.op, ": ", Name(*ctx.inputs[0]), " is cut unevenly (", PlacementString(on),
                      "); give the attribute counts, one a rank");
  }
  CAPSTAN_RETURN_IF_ERROR(CheckInnermost(ctx, dim));
  const int64_t mine = ctx.inputs[0]->shape()[dim];
  CAPSTAN_ASSIGN_OR_RETURN(Shares shares, SharesOf(ctx, mine));
  if (std::find(shares.counts.begin(), shares.counts.end(), mine) == shares.counts.end()) {
    return UsageError(ctx.op, ": this rank holds ", mine, " elements of dim ", dim,
                      ", which is none of counts=", ShapeString(shares.counts));
  }
  TensorType type = Changed(ctx, Replicated());
  type.shape[dim] = shares.total;
  ctx.outputs.push_back(std::move(type));
  return absl::OkStatus();
}

// This rank's part of dim `dim`: an even block, or counts[index] with its global range.
absl::Status Scatter(InferContext& ctx) {
  CAPSTAN_ASSIGN_OR_RETURN(int dim, DimAttr(ctx, "dim"));
  const int64_t whole = ctx.inputs[0]->shape()[dim];
  const int64_t ranks = ctx.axis_size(Axis(ctx));
  const bool uneven = ctx.attrs->Has("counts");
  if (!uneven && whole % ranks != 0) {
    return UsageError(ctx.op, ": dim ", dim, " of ", Name(*ctx.inputs[0]), " has ", whole,
                      " elements, which ", ranks, " ranks of ", Axis(ctx),
                      " do not divide; pad it or give counts and index");
  }
  CAPSTAN_ASSIGN_OR_RETURN(Shares shares, SharesOf(ctx, whole / ranks));
  if (shares.total != whole) {
    return UsageError(ctx.op, ": counts=", ShapeString(shares.counts), " add to ", shares.total,
                      ", but dim ", dim, " of ", Name(*ctx.inputs[0]), " has ", whole);
  }
  const int64_t index = ctx.attrs->Int("index", uneven ? -1 : 0);
  if (index < 0 || index >= ranks) {
    return UsageError(ctx.op, ": with counts give index, this rank's place in ", Axis(ctx));
  }
  AxisPlacement to = Cut(dim);
  // Equal counts are an even cut, which has no ranges.
  const bool equal = std::all_of(shares.counts.begin(), shares.counts.end(),
                                 [&](int64_t n) { return n == shares.counts.front(); });
  if (!equal) {
    const int64_t begin =
        std::accumulate(shares.counts.begin(), shares.counts.begin() + index, int64_t{0});
    to.ranges = {begin, begin + shares.counts[index]};
  }
  TensorType type = Changed(ctx, std::move(to));
  type.shape[dim] = shares.counts[index];
  ctx.outputs.push_back(std::move(type));
  return absl::OkStatus();
}

absl::Status InferReduceScatter(InferContext& ctx) {
  const AxisPlacement on = On(ctx);
  if (on.kind != CAPSTAN_PARTIAL || on.reduce != CAPSTAN_SUM) {
    return Unexpected(ctx, "partial (P)", "use shard to cut a replicated value");
  }
  return Scatter(ctx);
}

absl::Status InferShard(InferContext& ctx) {
  if (On(ctx).kind != CAPSTAN_REPLICATE) {
    return Unexpected(ctx, "replicated (R)", "use reduce_scatter on a partial value");
  }
  return Scatter(ctx);
}

// Of all_gather. A cut input takes its part of the cotangent; a varying one too, as its own value.
absl::Status AllGatherVjp(VjpContext& ctx) {
  Vjp v(ctx);
  CAPSTAN_RETURN_IF_ERROR(RefuseList(v));
  if (v.dy() == kNone || !v.needs(0)) return absl::OkStatus();
  const std::string axis = v.attrs().String("axis", "");
  const bool partial = v.KindOn(v.dy(), axis) == CAPSTAN_PARTIAL;
  const std::string kind = partial ? "reduce_scatter" : "shard";
  Attrs attrs = v.Keep({"axis", "dim", "counts", "index"});
  if (v.KindOn(v.in(0), axis) != CAPSTAN_VARYING) {
    return v.Into(kind, {v.dy()}, std::move(attrs), {0});
  }
  CAPSTAN_ASSIGN_OR_RETURN(TensorId part, v.Make(kind, {v.dy()}, std::move(attrs)));
  Placement placement = v.tensor(part).placement();
  SetPlacement(placement, {axis, CAPSTAN_VARYING, 0, CAPSTAN_SUM, {}});
  return v.Into("reinterpret", {part},
                {{"placement", PlacementString(placement)},
                 {"reason", std::string("cotangent of a varying value")}},
                {0});
}

// Of reduce_scatter and shard.
absl::Status ScatterVjp(VjpContext& ctx) {
  CAPSTAN_RETURN_IF_ERROR(RefuseList(Vjp(ctx)));
  return OneOp("all_gather", {kCotangent}, {0}, {"axis", "dim", "counts", "index"})(ctx);
}

// ---- all-to-all

absl::Status InferAllToAll(InferContext& ctx) {
  CAPSTAN_ASSIGN_OR_RETURN(int from, DimAttr(ctx, "from"));
  CAPSTAN_ASSIGN_OR_RETURN(int to, DimAttr(ctx, "to"));
  const AxisPlacement on = On(ctx);
  const int64_t ranks = ctx.axis_size(Axis(ctx));
  if (on.kind != CAPSTAN_SHARD || on.dim != from || !on.ranges.empty()) {
    return Unexpected(ctx, "sharded evenly along dim from", "cut it so, or name that dim in from");
  }
  TensorType type = Changed(ctx, Cut(to));
  if (from == to || type.shape[to] % ranks != 0) {
    return UsageError(ctx.op, ": dim to=", to, " of ", Name(*ctx.inputs[0]), " ",
                      ShapeString(type.shape), " must be another than from and divide by the ",
                      ranks, " ranks of ", Axis(ctx));
  }
  CAPSTAN_RETURN_IF_ERROR(CheckInnermost(ctx, from));
  type.shape[from] *= ranks;
  type.shape[to] /= ranks;
  ctx.outputs.push_back(std::move(type));
  return absl::OkStatus();
}

absl::Status AllToAllVjp(VjpContext& ctx) {
  Vjp v(ctx);
  if (v.dy() == kNone) return absl::OkStatus();
  return v.Into("all_to_all", {v.dy()},
                {{"axis", v.attrs().String("axis", "")},
                 {"from", v.attrs().Int("to", 0)},
                 {"to", v.attrs().Int("from", 0)}},
                {0});
}

absl::Status InferBroadcastFrom(InferContext& ctx) {
  if (On(ctx).kind != CAPSTAN_VARYING) {
    return Unexpected(ctx, "varying (V)", "every rank has this value already, remove the op");
  }
  const int64_t root = ctx.attrs->Int("root", 0);
  if (root < 0 || root >= ctx.axis_size(Axis(ctx))) {
    return UsageError(ctx.op, ": root=", root, " is not a rank of ", Axis(ctx));
  }
  ctx.outputs.push_back(Changed(ctx, Replicated()));
  return absl::OkStatus();
}

// ---- point to point

absl::Status InferSend(InferContext& ctx) {
  return RefusePartial(ctx, *ctx.inputs[0], "and a send takes whole values");
}

absl::Status InferRecv(InferContext& ctx) {
  CAPSTAN_ASSIGN_OR_RETURN(DType dtype, ParseDType(ctx.attrs->String("dtype", "f32")));
  CAPSTAN_ASSIGN_OR_RETURN(Placement placement, ParsePlacement(ctx.attrs->String("placement", "")));
  ctx.outputs.push_back({dtype, ctx.attrs->Ints("shape"), std::move(placement)});
  return absl::OkStatus();
}

// The cotangent comes back from where the value went; cut values have cut cotangents.
absl::Status SendVjp(VjpContext& ctx) {
  Vjp v(ctx);
  if (!v.needs(0) || v.attrs().Int("requires_grad", 1) == 0) return absl::OkStatus();
  const Tensor x = v.input(0);
  Attrs attrs = v.Keep({"axis", "peer", "channel"});
  attrs.Set("shape", x.shape());
  attrs.Set("dtype", DTypeName(x.dtype()));
  if (!x.placement().empty()) attrs.Set("placement", PlacementString(x.placement()));
  return v.Into("recv_grad", {}, std::move(attrs), {0});
}

absl::Status RecvVjp(VjpContext& ctx) {
  Vjp v(ctx);
  if (v.dy() == kNone || v.attrs().Int("requires_grad", 1) == 0) return absl::OkStatus();
  return ctx.Emit("send_grad", {v.dy()}, v.Keep({"axis", "peer", "channel"}), {}).status();
}

// ---- reinterpret

absl::Status InferReinterpret(InferContext& ctx) {
  if (ctx.attrs->String("reason", "").empty()) {
    return UsageError(ctx.op, ": give a reason; plan and verify list it");
  }
  TensorType type = ctx.inputs[0]->type;
  CAPSTAN_ASSIGN_OR_RETURN(type.placement, ParsePlacement(ctx.attrs->String("placement", "")));
  ctx.outputs.push_back(std::move(type));
  return absl::OkStatus();
}

// The cotangent of P is R, of S and V the same, of R whichever came.
absl::Status ReinterpretVjp(VjpContext& ctx) {
  Vjp v(ctx);
  if (v.dy() == kNone || !v.needs(0)) return absl::OkStatus();
  Placement placement;
  const Placement primal = v.input(0).placement();
  for (const AxisPlacement& item : primal) {
    if (item.kind != CAPSTAN_PARTIAL) SetPlacement(placement, item);
  }
  return v.Into("reinterpret", {v.dy()},
                {{"placement", PlacementString(placement)},
                 {"reason", "cotangent: " + v.attrs().String("reason", "")}},
                {0});
}

// ---- costs: bytes through device memory; the wire is the comm backend's to model

CostFn ReduceCost() {
  return [](const InferContext& ctx) {
    double adds = 0;
    for (const Tensor* x : ctx.inputs) adds += Count(x);
    return Costs(ctx, adds);
  };
}

std::vector<OpBuilder> Collectives() {
  const char* same = "x t * -> y t *";
  const char* list = "x... t ? -> y... t ?";
  const char* scatter = "axis! string, dim! int, counts ints, index int";
  return {
      OpBuilder("copy_to_group", same).Attrs("axis! string").Infer(InferCopyToGroup).Vjp(ReduceVjp),
      OpBuilder("reduce_from_group", same)
          .Flags(kCollective)
          .Attrs("axis! string")
          .Infer(InferReduce)
          .Vjp(ReduceVjp)
          .Cost(ReduceCost()),
      OpBuilder("all_reduce", list)
          .Flags(kCollective)
          .Attrs("axis! string, reduce sum|max")
          .Infer(Each(InferReduce))
          .Vjp(ReduceVjp)
          .Cost(ReduceCost()),
      OpBuilder("all_gather", list)
          .Flags(kCollective)
          .Attrs(scatter)
          .Infer(Each(InferAllGather))
          .Vjp(AllGatherVjp),
      OpBuilder("reduce_scatter", list)
          .Flags(kCollective)
          .Attrs(scatter)
          .Infer(Each(InferReduceScatter))
          .Vjp(ScatterVjp)
          .Cost(ReduceCost()),
      OpBuilder("shard", same).Attrs(scatter).Infer(InferShard).Vjp(ScatterVjp),
      OpBuilder("all_to_all", same)
          .Flags(kCollective)
          .Attrs("axis! string, from! int, to! int")
          .Infer(InferAllToAll)
          .Vjp(AllToAllVjp),
      OpBuilder("broadcast_from", same)
          .Flags(kCollective)
          .Attrs("axis! string, root int")
          .Infer(InferBroadcastFrom),
      OpBuilder("reduce_gradient", list)
          .Flags(kCollective)
          .Attrs("axis! string")
          .Infer(Each(InferReduce))
          .Cost(ReduceCost()),
      OpBuilder("reinterpret", same)
          .Attrs("placement! placement, reason! string")
          .Infer(InferReinterpret)
          .Vjp(ReinterpretVjp),
  };
}

std::vector<OpBuilder> PointToPoint() {
  constexpr uint32_t kMessage = CAPSTAN_OP_SIDE_EFFECT;
  const char* to = "axis string, peer! int, channel int, requires_grad int";
  const char* from =
      "axis string, peer! int, channel int, requires_grad int, shape! ints, dtype dtype, "
      "placement placement";
  return {
      OpBuilder("send", "x t * ->").Flags(kMessage).Attrs(to).Infer(InferSend).Vjp(SendVjp),
      OpBuilder("recv", "-> y d ?").Flags(kMessage).Attrs(from).Infer(InferRecv).Vjp(RecvVjp),
      OpBuilder("send_grad", "dy t * ->").Flags(kMessage).Attrs(to).Infer(InferSend),
      OpBuilder("recv_grad", "-> dx d ?").Flags(kMessage).Attrs(from).Infer(InferRecv),
  };
}

}  // namespace

absl::Status RegisterCommOps(OpRegistry& registry) {
  CAPSTAN_RETURN_IF_ERROR(AddAll(registry, Collectives()));
  return AddAll(registry, PointToPoint());
}

}  // namespace capstan::ops
