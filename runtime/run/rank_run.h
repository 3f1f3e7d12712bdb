// One rank of a training run, from its place in the world to the end of the run.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/launch/world.h"
#include "runtime/run/host.h"
#include "runtime/run/trainer.h"

namespace capstan {

// Opens the config, meets the other ranks, makes sure that all have the same configuration and
// plugins, and trains. A rank that fails tells the others, which then fail with its name. `host` is
// this run's alone.
absl::StatusOr<TrainResult> TrainRank(const World& world, const std::string& config,
                                      const std::vector<std::string>& overrides,
                                      const TrainOptions& options, HostEnvironment* host);

}  // namespace capstan
