#include "runtime/cli/run_directory.h"

#include <filesystem>

#include "runtime/cli/default_options.h"
#include "runtime/config/document.h"
#include "runtime/status.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPublishedStore = "safetensors";

}  // namespace

absl::StatusOr<Store> OpenStore(HostEnvironment& host, const std::string& plugin) {
  return MakeWithDefaults<capstan_store_v1>(host, "store", plugin);
}

absl::StatusOr<std::string> StoreOfRun(const std::string& run) {
  const std::string path = run + "/config.toml";
  std::error_code error;
  if (!fs::exists(path, error)) return std::string(kPublishedStore);
  CAPSTAN_ASSIGN_OR_RETURN(const Value document, LoadDocument(path, ReadConfigFile));
  const Value* plugin = document.FindPath("checkpoint.plugin_path");
  if (plugin == nullptr) plugin = document.FindPath("checkpoint.plugin");
  return plugin != nullptr && plugin->is_string() ? plugin->text : std::string(kPublishedStore);
}

absl::StatusOr<std::string> FindCheckpoint(const Store& store, const std::string& run) {
  std::error_code error;
  if (!fs::exists(run, error)) {
    return UsageError(run, " does not exist; give a run directory or a checkpoint in one");
  }
  const std::string directory = run + "/checkpoints";
  if (!fs::is_directory(directory, error)) return run;
  CAPSTAN_ASSIGN_OR_RETURN(std::string newest, NewestCheckpoint(store, directory));
  if (newest.empty()) {
    return UsageError(directory,
                      " holds no complete checkpoint yet; let the run reach one "
                      "(checkpoint.every), or stop it with SIGTERM so that it writes one");
  }
  return newest;
}

absl::StatusOr<std::string> FindCheckpoint(HostEnvironment& host, const std::string& run) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::string plugin, StoreOfRun(run));
  CAPSTAN_ASSIGN_OR_RETURN(const Store store, OpenStore(host, plugin));
  return FindCheckpoint(store, run);
}

}  // namespace capstan
