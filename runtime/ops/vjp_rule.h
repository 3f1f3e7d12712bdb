// What differentiation rules of the standard ops are written with.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/program/program.h"

namespace capstan::ops {

// One evaluation of a rule. Copies what it needs of the op, for emitting ops moves the originals.
class Vjp {
 public:
  explicit Vjp(VjpContext& ctx)
      : ctx_(ctx), in_(ctx.op().inputs), out_(ctx.op().outputs), attrs_(ctx.op().attrs) {}

  bool in_list() const { return in_.size() > 1; }
  TensorId in(size_t i) const { return i < in_.size() ? in_[i] : kNone; }
  TensorId out(size_t j) const { return out_[j]; }
  const Attrs& attrs() const { return attrs_; }
  Attrs Keep(const std::vector<std::string>& names) const;  // those of the attributes that are set
  TensorId dy(size_t j = 0) const { return ctx_.cotangent(j); }
  bool needs(size_t i) const { return i < in_.size() && in_[i] != kNone && ctx_.needs(i); }
  Tensor tensor(TensorId t) const { return ctx_.program().tensor(t); }
  Tensor input(size_t i) const { return tensor(in(i)); }
  char KindOn(TensorId t, const std::string& axis) const {
    return PlacementOn(ctx_.program().tensor(t).placement(), axis).kind;
  }
  Program& program() { return ctx_.program(); }
  std::string Text() const { return ctx_.program().OpText(ctx_.op().id); }

  // Only output 0 may have a cotangent; the others (means, log-sum-exps) are for the backward ops.
  absl::Status OnlyFirstOutput() const;

  // Emits an op whose output j is the cotangent of input targets[j] (-1: of none). Weight gradient
  // when all it gives is accumulated into trainable parameters' gradients. Nothing is emitted when
  // no target is needed.
  absl::Status Into(const std::string& kind, std::vector<TensorId> inputs, Attrs attrs,
                    std::vector<int> targets);
  // Emits an op and gives its output 0.
  absl::StatusOr<TensorId> Make(const std::string& kind, std::vector<TensorId> inputs,
                                Attrs attrs = {});
  absl::Status Set(size_t input, TensorId cotangent) { return ctx_.SetCotangent(input, cotangent); }

  // Sums `full` (of the shape of input 0) to the shape that input `i` had before it was broadcast
  // to it, and makes that the cotangent of input i.
  absl::Status SetReduced(size_t i, TensorId full);

 private:
  bool IsTrainable(size_t i) const;

  VjpContext& ctx_;
  std::vector<TensorId> in_, out_;
  Attrs attrs_;
};

// A rule that emits one op. `inputs`: n >= 0 is input n, kCotangent the cotangent of output 0,
// Output(j) output j. `keep`: the attributes passed on.
inline constexpr int kCotangent = -1;
inline constexpr int Output(int j) { return 100 + j; }
std::function<absl::Status(VjpContext&)> OneOp(std::string kind, std::vector<int> inputs,
                                               std::vector<int> targets,
                                               std::vector<std::string> keep = {});
// The cotangent of input 0 is that of output 0.
std::function<absl::Status(VjpContext&)> Identity();

}  // namespace capstan::ops
