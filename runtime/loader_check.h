// Whether a plugin's descriptor and components keep the promises of plugin_api/.
#ifndef CAPSTAN_RUNTIME_LOADER_CHECK_H_
#define CAPSTAN_RUNTIME_LOADER_CHECK_H_

#include <string>

#include "absl/status/status.h"
#include "plugin_api/plugin.h"

namespace capstan {

// Magic, ABI version, size and required fields. Reads nothing past what the size promises.
absl::Status CheckDescriptor(const capstan_plugin& plugin, const std::string& path);

// Required fields, options, and the vtable of interfaces this host knows. `plugin` names it in
// messages.
absl::Status CheckComponent(const capstan_component& component, const std::string& plugin);

// Whether this host can use the component: a known kind must have the interface revision the host
// has. Kinds the host does not know are left to whoever asks for them.
absl::Status CheckInterface(const capstan_component& component, const std::string& plugin);

}  // namespace capstan

#endif  // CAPSTAN_RUNTIME_LOADER_CHECK_H_
