// Options of a component that no configuration file speaks of.
#pragma once

#include "absl/status/statusor.h"
#include "plugin_api/plugin.h"
#include "runtime/config/options.h"

namespace capstan {

// Every option at its declared default. Refuses a component that requires one.
absl::StatusOr<OptionSet> DefaultOptions(const capstan_component& component);

}  // namespace capstan
