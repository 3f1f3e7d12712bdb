// Finding what a run left behind.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "runtime/run/host.h"
#include "runtime/run/weights.h"

namespace capstan {

// The store with this id, or from this plugin file, at its default options.
absl::StatusOr<Store> OpenStore(HostEnvironment& host, const std::string& plugin);

// The store that wrote a run's checkpoints, from the configuration the run left in its directory.
absl::StatusOr<std::string> StoreOfRun(const std::string& run);

// A run directory gives its newest complete checkpoint; anything else is taken for a checkpoint.
absl::StatusOr<std::string> FindCheckpoint(const Store& store, const std::string& run);
absl::StatusOr<std::string> FindCheckpoint(HostEnvironment& host, const std::string& run);

}  // namespace capstan
