#include "runtime/cli/default_options.h"

#include "runtime/status.h"

namespace capstan {

absl::StatusOr<OptionSet> DefaultOptions(const capstan_component& component) {
  TableContext context;
  context.path = component.kind;
  context.owner = StrCat(component.kind, " \"", component.id, "\"");
  Problems problems;
  OptionSet options = ReadOptions(OptionTable(component), nullptr, context, &problems);
  CAPSTAN_RETURN_IF_ERROR(problems.ToStatus());
  return options;
}

}  // namespace capstan
