// Attention, rotary positions, and the key/value cache.

#include "runtime/ops/op_builder.h"
#include "runtime/ops/vjp_rule.h"
#include "runtime/status.h"

namespace capstan::ops {
namespace {

constexpr char kAttentionAttrs[] =
    "head_dim! int, causal int, scale float, dropout float, key int, head_start int";

// Input positions of q, k and v, which differ between attention and its gradient.
struct Qkv {
  size_t q, k, v;
};
constexpr Qkv kForward{0, 1, 2}, kBackward{1, 2, 3};

// Labels: h query channels, g key/value channels, e query heads.
PrepareFn PrepareHeads(Qkv at) {
  return [at](InferContext& ctx, Labels& labels) -> absl::Status {
    const int64_t d = ctx.attrs->Int("head_dim", 0);
    const Tensor& q = *ctx.inputs[at.q];
    const Tensor& k = *ctx.inputs[at.k];
    const int64_t h = q.shape()[2], g = k.shape()[2];
    if (d <= 0 || h % d != 0 || g % d != 0) {
      return UsageError(ctx.op, ": head_dim=", d, " must divide the ", h, " channels of ", Name(q),
                        " and the ", g, " of ", Name(k));
    }
    if (g == 0 || h % g != 0) {
      return UsageError(ctx.op, ": ", h / d, " query heads of ", Name(q),
                        " must be a multiple of the ", g / d, " key/value heads of ", Name(k));
    }
    labels.Bind('e', h / d, "the query heads");
    return absl::OkStatus();
  };
}

absl::Status CheckDropoutInputs(const InferContext& ctx, size_t step) {
  const double p = ctx.attrs->Float("dropout", 0);
  if (p < 0 || p >= 1) return UsageError(ctx.op, ": dropout=", p, " must lie in [0, 1)");
  if (p == 0 || (ctx.has(step) && ctx.has(step + 1) && ctx.attrs->Has("key"))) {
    return absl::OkStatus();
  }
  return UsageError(ctx.op, ": dropout needs the inputs step and sample and the attribute key");
}

absl::Status CheckAttention(InferContext& ctx) {
  CAPSTAN_RETURN_IF_ERROR(CheckDropoutInputs(ctx, 3));
  // Ranges of o count channels, those of lse heads.
  for (const AxisPlacement& o : ctx.outputs[0].placement) {
    AxisPlacement lse = PlacementOn(ctx.outputs[1].placement, o.axis);
    if (o.kind != CAPSTAN_SHARD || o.dim != 2) continue;
    lse.ranges = o.ranges;
    for (int64_t& r : lse.ranges) r /= ctx.attrs->Int("head_dim", 1);
    SetPlacement(ctx.outputs[1].placement, lse);
  }
  return absl::OkStatus();
}

absl::Status CheckAttentionGrad(InferContext& ctx) { return CheckDropoutInputs(ctx, 6); }

// Two products of 2 B H T S D each; a causal mask leaves half.
double AttentionFlops(const InferContext& ctx, Qkv at) {
  const Dims& q = ctx.inputs[at.q]->shape();
  const double s = static_cast<double>(ctx.inputs[at.k]->shape()[1]);
  const double full = 4 * static_cast<double>(ElementCount(q)) * s;
  return ctx.attrs->Int("causal", 1) != 0 ? full / 2 : full;
}

OpCost AttentionCost(const InferContext& ctx) { return Costs(ctx, AttentionFlops(ctx, kForward)); }

// Five products where forward has two: scores are computed again, then dv, dp, dq, dk.
OpCost AttentionGradCost(const InferContext& ctx) {
  return Costs(ctx, 2.5 * AttentionFlops(ctx, kBackward));
}

// An upper bound: every row of the cache.
OpCost AttentionCachedCost(const InferContext& ctx) {
  const double s = static_cast<double>(ctx.inputs[1]->shape()[1]);
  return Costs(ctx, 4 * Count(ctx.inputs[0]) * s);
}

// ---- rotary

absl::Status CheckRotary(InferContext& ctx) {
  const int64_t d = ctx.attrs->Int("head_dim", 0);
  const Tensor& x = *ctx.inputs[0];
  if (d > 0 && d % 2 == 0 && x.shape()[2] % d == 0) return absl::OkStatus();
  return UsageError(ctx.op, ": head_dim=", d, " must be even and divide the ", x.shape()[2],
                    " channels of ", Name(x));
}

// A rotation's transpose is its inverse.
absl::Status RotaryVjp(VjpContext& ctx) {
  Vjp v(ctx);
  if (v.dy() == kNone) return absl::OkStatus();
  Attrs attrs = v.attrs();
  attrs.Set("inverse", int64_t{v.attrs().Int("inverse", 0) == 0});
  return v.Into("rotary", {v.dy(), v.in(1)}, std::move(attrs), {0});
}

// ---- cache

OpCost CacheWriteCost(const InferContext& ctx) {
  return {0, Bytes(ctx.inputs[0]) + Bytes(ctx.inputs[1]), Bytes(ctx.inputs[0])};
}

OpCost SelectCost(const InferContext& ctx) {
  const double out = Bytes(ctx.outputs[0]);
  return {0, Bytes(ctx.inputs[1]) + out, out};
}

std::vector<OpBuilder> AttentionOps() {
  return {
      OpBuilder("rotary", "x f bth, position i32 bt -> y f bth")
          .Flags(CAPSTAN_OP_PURE | CAPSTAN_OP_ELEMENTWISE)
          .Attrs("head_dim! int, theta float, inverse int, interleaved int, scaling_factor float, "
                 "low_freq_factor float, high_freq_factor float, original_max_position int")
          .LinearIn({0})
          .Check(CheckRotary)
          .Vjp(RotaryVjp)
          .Cost(PerOutputElement(3)),
      OpBuilder("attention",
                "q f bth, k f bsg, v f bsg, step? i64 ., sample? i64 b -> o f bth, lse w bet")
          .Attrs(kAttentionAttrs)
          .Tied("hge")
          .Whole("ts", "cut the sequence with a context-parallel strategy")
          .Prepare(PrepareHeads(kForward))
          .Check(CheckAttention)
          .Vjp(OneOp("attention_grad", {kCotangent, 0, 1, 2, Output(0), Output(1), 3, 4}, {0, 1, 2},
                     {"head_dim", "causal", "scale", "dropout", "key", "head_start"}))
          .Cost(AttentionCost),
      OpBuilder("attention_grad",
                "do f bth, q f bth, k f bsg, v f bsg, o f bth, lse w bet, step? i64 ., "
                "sample? i64 b -> dq f bth, dk f bsg, dv f bsg")
          .Attrs(kAttentionAttrs)
          .Tied("hge")
          .Whole("ts", "cut the sequence with a context-parallel strategy")
          .LinearIn({0})
          .Prepare(PrepareHeads(kBackward))
          .Check(CheckAttentionGrad)
          .Cost(AttentionGradCost),
      OpBuilder("attention_cached",
                "q f bth, k_cache f bsg, v_cache f bsg, position i32 b -> o f bth")
          .Attrs("head_dim! int, scale float")
          .Tied("hge")
          .Whole("ts")
          .Prepare(PrepareHeads(kForward))
          .Cost(AttentionCachedCost),
      OpBuilder("cache_write", "src f btc, position i32 b -> !cache f bsc")
          .Flags(CAPSTAN_OP_SIDE_EFFECT)
          .Whole("t")
          .Cost(CacheWriteCost),
      OpBuilder("select_position", "x f btc, index i32 b -> y f b.c")
          .Whole("t")
          .LinearIn({0})
          .Cost(SelectCost),
  };
}

}  // namespace

absl::Status RegisterAttentionOps(OpRegistry& registry) { return AddAll(registry, AttentionOps()); }

}  // namespace capstan::ops
