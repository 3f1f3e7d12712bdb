// What an op means: types of its outputs, its differentiation rule, its cost and its effects. The
// standard catalogue (plugin_api/ops.h) is in runtime/ops; plugins add their own through the ABI.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/program/types.h"

namespace capstan {

class Program;
struct NewOp;

// What an op's type rule sees and answers.
struct InferContext {
  std::string op;                     // "linear(%7, @h.0.q.weight)", for messages
  std::vector<const Tensor*> inputs;  // nullptr: omitted optional input
  const Attrs* attrs = nullptr;
  // Existing outputs given by the emitter (parameters to update, gradients), nullptr when new.
  // Update ops read their types; others ignore them.
  std::vector<const Tensor*> given_outputs;
  std::function<int64_t(const std::string& axis)> axis_size;  // of the mesh

  std::vector<TensorType> outputs;  // filled by the rule, one per output

  bool has(size_t i) const { return i < inputs.size() && inputs[i] != nullptr; }
};

struct OpCost {
  double flops = 0, bytes_read = 0, bytes_written = 0;
};

// One evaluation of a differentiation rule. Emitted ops go to the backward segment.
class VjpContext {
 public:
  virtual ~VjpContext() = default;
  virtual Program& program() = 0;
  virtual const Op& op() const = 0;
  virtual const std::string& segment() const = 0;       // where emitted ops go, "backward/0"
  virtual TensorId cotangent(size_t output) const = 0;  // kNone: nothing flows into that output
  virtual bool needs(size_t input) const = 0;           // is the input's cotangent wanted?
  virtual TensorId gradient_of(size_t input) = 0;  // trainable parameter: its gradient, else kNone
  virtual absl::Status SetCotangent(size_t input, TensorId cotangent) = 0;
  virtual absl::StatusOr<OpId> EmitOp(NewOp op) = 0;  // at the cursor, as it stands

  // Emits an op. `targets[j] >= 0` says that output j is the cotangent of input targets[j]: if that
  // input is a trainable parameter and output j accumulates, it goes straight into its gradient,
  // else SetCotangent is called with the new tensor when the input needs it. -1: a plain output.
  absl::StatusOr<std::vector<TensorId>> Emit(const std::string& kind, std::vector<TensorId> inputs,
                                             Attrs attrs, std::vector<int> targets,
                                             int role = CAPSTAN_ROLE_DATA_GRADIENT);
};

struct OpDef {
  std::string kind;
  int semantics_version = 1;
  uint32_t flags = 0;  // CAPSTAN_OP_*
  size_t min_inputs = 0, max_inputs = 0;
  std::vector<int> output_effects;  // one per output: CAPSTAN_WRITE, _UPDATE, _ACCUMULATE
  bool output_per_input = false;    // as many outputs as inputs, all of output_effects[0]
  std::string doc;
  std::function<absl::Status(InferContext&)> infer;
  std::function<absl::Status(VjpContext&)> vjp;     // empty: not differentiable
  std::function<OpCost(const InferContext&)> cost;  // outputs filled; empty: bytes of the operands
  // The op that gives this op's outputs and, as further outputs, the cotangents of its inputs for a
  // cotangent of one (value_and_grad_targets as VjpContext::Emit). Used where the output is a loss
  // root.
  std::string value_and_grad;
  std::vector<int> value_and_grad_targets;
  const capstan_op_def* plugin = nullptr;  // for ops of plugins

  bool is(uint32_t flag) const { return (flags & flag) != 0; }
  size_t outputs(size_t inputs) const { return output_per_input ? inputs : output_effects.size(); }
  int effect(size_t output) const { return output_effects[output_per_input ? 0 : output]; }
};

class OpRegistry {
 public:
  OpRegistry() = default;
  OpRegistry(const OpRegistry&) = delete;
  OpRegistry& operator=(const OpRegistry&) = delete;

  absl::Status Add(OpDef def);  // refuses a second definition of a kind
  const OpDef* Find(std::string_view kind) const;
  // With the nearest known kinds when it is not there.
  absl::StatusOr<const OpDef*> Get(std::string_view kind) const;
  std::vector<const OpDef*> All() const;  // by name

 private:
  absl::flat_hash_map<std::string, std::unique_ptr<OpDef>> defs_;
};

// Adds the standard catalogue. Defined in runtime/ops/.
absl::Status RegisterStandardOps(OpRegistry& registry);

// Adds an op of a plugin; `def` must outlive the registry. Defined in program_service.cc.
absl::Status RegisterPluginOp(OpRegistry& registry, const capstan_op_def* def);

// Bytes of all operands, the default cost.
OpCost OperandBytes(const InferContext& ctx);

}  // namespace capstan
