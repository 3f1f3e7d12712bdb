#include "runtime/run/fuse.h"

#include <algorithm>

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

}  // namespace capstan
