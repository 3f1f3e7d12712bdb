// Normalisation over the last dim: layer norm (Ba, Kiros and Hinton 2016), RMS norm (Zhang and
// Sennrich 2019) and softmax.

#include "runtime/ops/op_builder.h"
#include "runtime/ops/vjp_rule.h"

namespace capstan::ops {
namespace {

// Operations an element: mean and variance, normalise, scale and shift; the backward passes add the
// two row sums and the sums for weight and bias.
constexpr double kLayerNorm = 8, kLayerNormGrad = 14, kRmsNorm = 5, kRmsNormGrad = 10;
constexpr double kSoftmax = 4, kSoftmaxGrad = 4;

}  // namespace

absl::Status RegisterNormOps(OpRegistry& registry) {
  return AddAll(
      registry,
      {
          OpBuilder("layer_norm", "x f *c, weight f c, bias? f c -> y f *c, mean w *, rstd w *")
              .Attrs("eps float")
              .Whole("c")
              .Vjp(OneOp("layer_norm_grad", {kCotangent, 0, 1, Output(1), Output(2)}, {0, 1, 2}))
              .Cost(PerOutputElement(kLayerNorm)),
          OpBuilder("layer_norm_grad",
                    "dy f *c, x f *c, weight f c, mean w *, rstd w * "
                    "-> dx f *c, +dweight f c, +dbias f c")
              .Flags(0)
              .Sum("*")
              .Whole("c")
              .LinearIn({0})
              .Cost(PerOutputElement(kLayerNormGrad)),
          OpBuilder("rms_norm", "x f *c, weight f c -> y f *c, rstd w *")
              .Attrs("eps float")
              .Whole("c")
              .Vjp(OneOp("rms_norm_grad", {kCotangent, 0, 1, Output(1)}, {0, 1}))
              .Cost(PerOutputElement(kRmsNorm)),
          OpBuilder("rms_norm_grad",
                    "dy f *c, x f *c, weight f c, rstd w * -> dx f *c, +dweight f c")
              .Flags(0)
              .Sum("*")
              .Whole("c")
              .LinearIn({0})
              .Cost(PerOutputElement(kRmsNormGrad)),
          OpBuilder("softmax", "x f *c -> y f *c")
              .Whole("c")
              .Vjp(OneOp("softmax_grad", {kCotangent, Output(0)}, {0}))
              .Cost(PerOutputElement(kSoftmax)),
          OpBuilder("softmax_grad", "dy f *c, y f *c -> dx f *c")
              .Whole("c")
              .LinearIn({0})
              .Cost(PerOutputElement(kSoftmaxGrad)),
      });
}

}  // namespace capstan::ops
