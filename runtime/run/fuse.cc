#include "runtime/run/fuse.h"

#include <algorithm>

#include "runtime/program/program_service.h"
#include "runtime/status.h"

namespace capstan {

absl::Status FuseLinearGelu(Program& program, const std::vector<std::string>& fusions) {
  if (std::find(fusions.begin(), fusions.end(), "linear_gelu") == fusions.end())
    return absl::OkStatus();
  for (size_t s = 0; s < program.segments().size(); ++s) {
    const std::vector<OpId> ops = program.segments()[s].ops;
    for (OpId id : ops) {
      const Op& gelu = program.op(id);
      if (gelu.kind() != "gelu") continue;
      const TensorId pre = gelu.inputs[0];
      const OpId producer = program.Producer(pre);
      if (producer == kNone) continue;
      const Op& linear = program.op(producer);
      if (linear.kind() != "linear" || linear.segment != gelu.segment ||
          !(linear.when == gelu.when))
        continue;
      NewOp fused{.kind = "linear_gelu", .inputs = linear.inputs};
      if (gelu.attrs.Has("approximate"))
        fused.attrs.Set("approximate", gelu.attrs.String("approximate", "tanh"));
      fused.layer = linear.layer;
      fused.when = linear.when;
      const TensorId old_y = gelu.outputs[0];
      CAPSTAN_ASSIGN_OR_RETURN(
          OpId made, program.AddOp({program.segments()[s].name, producer}, std::move(fused)));
      const std::vector<TensorId> outputs = program.op(made).outputs;
      CAPSTAN_RETURN_IF_ERROR(program.ReplaceUses(old_y, outputs[0]));
      CAPSTAN_RETURN_IF_ERROR(program.RemoveOp(id));
      CAPSTAN_RETURN_IF_ERROR(program.ReplaceUses(pre, outputs[1]));
      CAPSTAN_RETURN_IF_ERROR(program.RemoveOp(producer));
    }
  }
  return absl::OkStatus();
}

absl::Status DecomposePluginOps(Program& program, const std::string& device) {
  for (size_t s = 0; s < program.segments().size(); ++s) {
    const std::vector<OpId> ops = program.segments()[s].ops;
    for (OpId id : ops) {
      const capstan_op_def* def = program.op(id).def->plugin;
      if (def == nullptr || !CAPSTAN_HAS(def, kernels) || def->decompose == nullptr) continue;
      bool has_kernel = false;
      for (const capstan_kernel_def* const* k = def->kernels; k != nullptr && *k != nullptr; ++k) {
        has_kernel = has_kernel || device == (*k)->device;
      }
      if (has_kernel) continue;
      const std::string text = program.OpText(id);
      ProgramHandle handle(program);
      CAPSTAN_RETURN_IF_ERROR(
          Annotate(FromC(def->decompose(handle.get(), id)), StrCat("decomposing ", text)));
      if (program.OpAlive(id)) {
        return BugError("the decomposition of ", text,
                        " left the op in the program; it must replace its uses and remove it");
      }
    }
  }
  return program.Infer();
}

}  // namespace capstan
