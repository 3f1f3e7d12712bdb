#include "runtime/program/op_def.h"

#include <algorithm>

#include "absl/strings/str_join.h"
#include "runtime/program/program.h"
#include "runtime/strings.h"

namespace capstan {

absl::Status OpRegistry::Add(OpDef def) {
  if (def.kind.empty()) return absl::InvalidArgumentError("an op definition has no kind");
  if (!def.infer) {
    return absl::InvalidArgumentError(StrCat("op '", def.kind, "' has no type rule (infer)"));
  }
  auto [it, fresh] = defs_.try_emplace(def.kind);
  if (!fresh) {
    return absl::AlreadyExistsError(StrCat(
        "op '", def.kind, "' is defined twice; rename one (plugins use a reverse-URI prefix)"));
  }
  it->second = std::make_unique<OpDef>(std::move(def));
  return absl::OkStatus();
}

const OpDef* OpRegistry::Find(std::string_view kind) const {
  auto it = defs_.find(ToAbsl(kind));
  return it == defs_.end() ? nullptr : it->second.get();
}

absl::StatusOr<const OpDef*> OpRegistry::Get(std::string_view kind) const {
  if (const OpDef* def = Find(kind)) return def;
  std::vector<std::string> near;
  for (const OpDef* def : All()) {
    const bool related =
        def->kind.find(kind) != std::string::npos || kind.find(def->kind) != std::string_view::npos;
    if (related && near.size() < 5) near.push_back(def->kind);
  }
  return absl::NotFoundError(StrCat("no op '", kind, "' is defined",
                                    near.empty()
                                        ? "; load the plugin that defines it"
                                        : StrCat("; near it: ", absl::StrJoin(near, ", "))));
}

std::vector<const OpDef*> OpRegistry::All() const {
  std::vector<const OpDef*> all;
  for (const auto& [kind, def] : defs_) all.push_back(def.get());
  std::sort(all.begin(), all.end(),
            [](const OpDef* a, const OpDef* b) { return a->kind < b->kind; });
  return all;
}

OpCost OperandBytes(const InferContext& ctx) {
  OpCost cost;
  for (const Tensor* t : ctx.inputs) {
    if (t != nullptr) cost.bytes_read += static_cast<double>(t->bytes());
  }
  for (const TensorType& t : ctx.outputs) {
    cost.bytes_written += static_cast<double>(ElementCount(t.shape) * DTypeBytes(t.dtype));
  }
  return cost;
}

absl::StatusOr<std::vector<TensorId>> VjpContext::Emit(const std::string& kind,
                                                       std::vector<TensorId> inputs, Attrs attrs,
                                                       std::vector<int> targets, int role) {
  absl::StatusOr<const OpDef*> def = program().registry().Get(kind);
  if (!def.ok()) return def.status();
  NewOp emitted{.kind = kind, .inputs = std::move(inputs), .attrs = std::move(attrs)};
  emitted.layer = op().layer;
  emitted.role = role;
  emitted.outputs.assign((*def)->outputs(emitted.inputs.size()), kNone);
  std::vector<bool> direct(targets.size(), false);
  for (size_t j = 0; j < targets.size(); ++j) {
    if (targets[j] < 0 || (*def)->effect(j) != CAPSTAN_ACCUMULATE) continue;
    const size_t input = static_cast<size_t>(targets[j]);
    if (!needs(input)) continue;
    const TensorId gradient = gradient_of(input);
    if (gradient == kNone) continue;
    emitted.outputs[j] = gradient;
    direct[j] = true;
  }
  absl::StatusOr<OpId> added = EmitOp(std::move(emitted));
  if (!added.ok()) return added.status();
  std::vector<TensorId> outputs = program().op(*added).outputs;
  for (size_t j = 0; j < targets.size(); ++j) {
    if (targets[j] < 0 || direct[j]) continue;
    const size_t input = static_cast<size_t>(targets[j]);
    if (!needs(input)) continue;
    if (absl::Status s = SetCotangent(input, outputs[j]); !s.ok()) return s;
  }
  return outputs;
}

}  // namespace capstan
