// Element-wise functions of one or two tensors: GELU (Hendrycks and Gimpel 2016), SwiGLU (Shazeer
// 2020), the unary functions, dropout.

#include "runtime/ops/op_builder.h"
#include "runtime/ops/vjp_rule.h"
#include "runtime/status.h"

namespace capstan::ops {
namespace {

constexpr uint32_t kElementwise = CAPSTAN_OP_PURE | CAPSTAN_OP_ELEMENTWISE;

// relu, silu, ...: their gradients are one op with the function's name.
struct Unary {
  const char* kind;
  double flops;
};
constexpr Unary kUnary[] = {{"relu", 1},       {"silu", 4},   {"sigmoid", 3}, {"tanh", 1},
                            {"exp", 1},        {"log", 1},    {"sqrt", 1},    {"rsqrt", 2},
                            {"reciprocal", 1}, {"square", 1}, {"abs", 1}};
constexpr char kUnaryNames[] =
    "function! relu|silu|sigmoid|tanh|exp|log|sqrt|rsqrt|reciprocal|square|abs";

VjpFn UnaryVjp(std::string function) {
  return [function](VjpContext& ctx) -> absl::Status {
    Vjp v(ctx);
    if (v.dy() == kNone) return absl::OkStatus();
    return v.Into("unary_grad", {v.dy(), v.in(0)}, {{"function", function}}, {0});
  };
}

absl::Status CheckDropout(InferContext& ctx) {
  const double p = ctx.attrs->Float("p", 0);
  if (p >= 0 && p <= 1) return absl::OkStatus();
  return UsageError(ctx.op, ": attribute 'p' is ", p, "; a probability lies in [0, 1]");
}

std::vector<OpBuilder> UnaryOps() {
  std::vector<OpBuilder> ops;
  for (const Unary& u : kUnary) {
    ops.push_back(OpBuilder(u.kind, "x f * -> y f *")
                      .Flags(kElementwise)
                      .Vjp(UnaryVjp(u.kind))
                      .Cost(PerOutputElement(u.flops)));
  }
  ops.push_back(OpBuilder("neg", "x f * -> y f *")
                    .Flags(kElementwise)
                    .LinearIn({0})
                    .Vjp(OneOp("neg", {kCotangent}, {0}))
                    .Cost(PerOutputElement(1)));
  ops.push_back(OpBuilder("unary_grad", "dy f *, x f * -> dx f *")
                    .Flags(kElementwise)
                    .Attrs(kUnaryNames)
                    .LinearIn({0})
                    .Cost(PerOutputElement(5)));
  return ops;
}

std::vector<OpBuilder> GatedOps() {
  return {
      OpBuilder("gelu", "x f * -> y f *")
          .Flags(kElementwise)
          .Attrs("approximate tanh|none")
          .Vjp(OneOp("gelu_grad", {kCotangent, 0}, {0}, {"approximate"}))
          .Cost(PerOutputElement(8)),
      OpBuilder("gelu_grad", "dy f *, x f * -> dx f *")
          .Flags(kElementwise)
          .Attrs("approximate tanh|none")
          .LinearIn({0})
          .Cost(PerOutputElement(14)),
      OpBuilder("swiglu", "gate f *, up f * -> y f *")
          .Vjp(OneOp("swiglu_grad", {kCotangent, 0, 1}, {0, 1}))
          .Cost(PerOutputElement(5)),
      OpBuilder("swiglu_grad", "dy f *, gate f *, up f * -> dgate f *, dup f *")
          .LinearIn({0})
          .Cost(PerOutputElement(10)),
      OpBuilder("dropout", "x f btc, step i64 ., sample i64 b, position i32 bt -> y f btc")
          .Flags(CAPSTAN_OP_RANDOM | CAPSTAN_OP_ELEMENTWISE)
          .Attrs("p! float, key! int, channel_start int")
          .LinearIn({0})
          .Check(CheckDropout)
          .Vjp(OneOp("dropout", {kCotangent, 1, 2, 3}, {0}, {"p", "key", "channel_start"}))
          .Cost(PerOutputElement(2)),
  };
}

}  // namespace

absl::Status RegisterActivationOps(OpRegistry& registry) {
  CAPSTAN_RETURN_IF_ERROR(AddAll(registry, UnaryOps()));
  return AddAll(registry, GatedOps());
}

}  // namespace capstan::ops
