// Loads plugins: shared libraries that export `capstan_plugin_entry` (design rules in
// plugin_api/plugin.h). Every check is made here, so the rest of the host may trust a Component.
#ifndef CAPSTAN_RUNTIME_LOADER_H_
#define CAPSTAN_RUNTIME_LOADER_H_

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plugin_api/plugin.h"

namespace capstan {

// Services offered to plugins, by id. Tables must outlive the registry of plugins. Add what a
// component needs before creating it; adding is not thread-safe, finding is.
class ServiceRegistry {
 public:
  void Add(std::string_view id, const void* table) { tables_[std::string(id)] = table; }
  const void* Find(std::string_view id) const {
    const auto found = tables_.find(id);
    return found == tables_.end() ? nullptr : found->second;
  }

 private:
  std::map<std::string, const void*, std::less<>> tables_;
};

// A loaded plugin, its `init` done.
struct Plugin {
  std::string path;  // absolute, as it was found
  const capstan_plugin* descriptor = nullptr;
};

struct Component {
  const capstan_component* definition = nullptr;
  const Plugin* plugin = nullptr;

  // The interface's table; T is capstan_strategy_v1 or the like, as definition->kind says.
  template <typename T>
  const T* vtable() const {
    return static_cast<const T*>(definition->vtable);
  }
};

struct LoadFailure {
  std::string path;
  std::string reason;  // one sentence, with the path
};

// All plugins of a process. Not thread-safe: the main thread loads. Destroy it after every
// component made from it; libraries stay mapped until the process ends.
class PluginRegistry {
 public:
  struct Options {
    // Folders, first wins; see DefaultSearchPath.
    std::vector<std::string> search_path;
    // Borrowed; may be NULL. A log service is offered where it has none.
    const ServiceRegistry* services = nullptr;
  };

  // $CAPSTAN_PLUGIN_PATH (separated by colons), then plugins/ beside the executable (a build tree),
  // then ../lib/capstan/plugins (an installation).
  static std::vector<std::string> DefaultSearchPath();

  static absl::StatusOr<std::unique_ptr<PluginRegistry>> Create(Options options);
  ~PluginRegistry();
  PluginRegistry(const PluginRegistry&) = delete;
  PluginRegistry& operator=(const PluginRegistry&) = delete;

  // The host every plugin is given; lives as long as the registry.
  const capstan_host* host() const;

  // A component of `kind`. With a path: from that file, and `id` may be "" when the file has only
  // one of the kind. Without: from libcapstan_<kind>_<id>.so on the search path, else from any
  // library there. A file that is meant but cannot load is an error, never skipped. Borrowed.
  absl::StatusOr<const Component*> Find(std::string_view kind, std::string_view id,
                                        const std::string& path = "");

  // Everything on the search path and everything loaded, by kind and id; files that cannot load go
  // to `failures`.
  std::vector<const Component*> ListAll(std::vector<LoadFailure>* failures);

  // What has been loaded so far, in the order of loading.
  std::vector<const Component*> ListLoaded() const;

  // Loads one file (or finds it loaded).
  absl::StatusOr<const Plugin*> Load(const std::string& path);
  // Components of a loaded plugin, in its order.
  std::vector<const Component*> ComponentsOf(const Plugin& plugin) const;

 private:
  class Impl;
  explicit PluginRegistry(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

// "capstan 0.1.0 (plugin ABI 1.0)".
std::string HostVersionText();

}  // namespace capstan

#endif  // CAPSTAN_RUNTIME_LOADER_H_
