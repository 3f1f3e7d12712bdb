#include "runtime/ops/vjp_rule.h"

#include <algorithm>

#include "runtime/status.h"

namespace capstan::ops {

absl::Status Vjp::OnlyFirstOutput() const {
  for (size_t j = 1; j < out_.size(); ++j) {
    if (ctx_.cotangent(j) == kNone) continue;
    return UsageError(Text(), ": output ", j, " has no gradient, but ",
                      ctx_.program().TensorName(out_[j]),
                      " is on the way to a loss; use output 0 alone");
  }
  return absl::OkStatus();
}

Attrs Vjp::Keep(const std::vector<std::string>& names) const {
  Attrs kept;
  for (const auto& [name, value] : attrs_.items()) {
    if (std::find(names.begin(), names.end(), name) != names.end()) kept.Set(name, value);
  }
  return kept;
}

bool Vjp::IsTrainable(size_t i) const {
  const Tensor& t = ctx_.program().tensor(in(i));
  return t.kind == CAPSTAN_PARAMETER && t.trainable;
}

absl::Status Vjp::Into(const std::string& kind, std::vector<TensorId> inputs, Attrs attrs,
                       std::vector<int> targets) {
  CAPSTAN_ASSIGN_OR_RETURN(const OpDef* def, ctx_.program().registry().Get(kind));
  bool needed = false;
  bool weights = true;
  for (size_t j = 0; j < targets.size(); ++j) {
    if (targets[j] < 0 || !needs(static_cast<size_t>(targets[j]))) continue;
    needed = true;
    weights = weights && def->effect(j) == CAPSTAN_ACCUMULATE &&
              IsTrainable(static_cast<size_t>(targets[j]));
  }
  if (!needed) return absl::OkStatus();
  const int role = weights ? CAPSTAN_ROLE_WEIGHT_GRADIENT : CAPSTAN_ROLE_DATA_GRADIENT;
  return ctx_.Emit(kind, std::move(inputs), std::move(attrs), std::move(targets), role).status();
}

absl::StatusOr<TensorId> Vjp::Make(const std::string& kind, std::vector<TensorId> inputs,
                                   Attrs attrs) {
  absl::StatusOr<std::vector<TensorId>> made =
      ctx_.Emit(kind, std::move(inputs), std::move(attrs), {-1}, CAPSTAN_ROLE_DATA_GRADIENT);
  if (!made.ok()) return made.status();
  return made->front();
}

absl::Status Vjp::SetReduced(size_t i, TensorId full) {
  if (!needs(i)) return absl::OkStatus();
  const Dims wide = tensor(full).shape();
  const Dims narrow = input(i).shape();
  if (wide == narrow) return Set(i, full);
  if (narrow.size() == 1 && wide.size() > 1 && wide.back() == narrow[0]) {
    return Into("bias_grad", {full}, {}, {static_cast<int>(i)});
  }
  const bool one_element = ElementCount(narrow) == 1;
  const size_t sums = one_element ? wide.size() : wide.size() - narrow.size();
  for (size_t s = 0; s < sums; ++s) {
    CAPSTAN_ASSIGN_OR_RETURN(full, Make("reduce_sum", {full}, {{"dim", int64_t{0}}}));
  }
  if (tensor(full).shape() != narrow) {
    CAPSTAN_ASSIGN_OR_RETURN(full, Make("reshape", {full}, {{"shape", narrow}}));
  }
  return Set(i, full);
}

std::function<absl::Status(VjpContext&)> OneOp(std::string kind, std::vector<int> inputs,
                                               std::vector<int> targets,
                                               std::vector<std::string> keep) {
  return [=](VjpContext& ctx) -> absl::Status {
    Vjp v(ctx);
    CAPSTAN_RETURN_IF_ERROR(v.OnlyFirstOutput());
    if (v.dy() == kNone) return absl::OkStatus();
    std::vector<TensorId> operands;
    for (int i : inputs) {
      operands.push_back(i == kCotangent  ? v.dy()
                         : i >= Output(0) ? v.out(i - Output(0))
                                          : v.in(i));
    }
    // Omitted optional inputs at the end stay omitted.
    while (!operands.empty() && operands.back() == kNone) operands.pop_back();
    return v.Into(kind, operands, v.Keep(keep), targets);
  };
}

std::function<absl::Status(VjpContext&)> Identity() {
  return [](VjpContext& ctx) -> absl::Status {
    Vjp v(ctx);
    if (v.dy() == kNone || !v.needs(0)) return absl::OkStatus();
    return v.Set(0, v.dy());
  };
}

}  // namespace capstan::ops
