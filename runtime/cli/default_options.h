// Components that no configuration file speaks of.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "plugin_api/plugin.h"
#include "runtime/config/options.h"
#include "runtime/run/host.h"
#include "runtime/run/owned.h"
#include "runtime/status.h"

namespace capstan {

// Every option at its declared default. Refuses a component that requires one.
absl::StatusOr<OptionSet> DefaultOptions(const capstan_component& component);

// The component of `kind` with this id, or from this plugin file, made with its defaults.
template <typename Vtable>
absl::StatusOr<Owned<Vtable>> MakeWithDefaults(HostEnvironment& host, const std::string& kind,
                                               const std::string& name) {
  const bool is_path = name.find('/') != std::string::npos;
  CAPSTAN_ASSIGN_OR_RETURN(const Component* component,
                           host.registry().Find(kind, is_path ? "" : name, is_path ? name : ""));
  CAPSTAN_ASSIGN_OR_RETURN(const OptionSet options, DefaultOptions(*component->definition));
  const auto* vtable = static_cast<const Vtable*>(component->definition->vtable);
  void* self = nullptr;
  CAPSTAN_RETURN_IF_ERROR(vtable->create(host.c_host(), &options.c(), &self));
  return Owned<Vtable>(vtable, self);
}

}  // namespace capstan
