// What the host is to the plugins of a run: the registry they come from, and the services "mesh",
// "run", "program" and "log".
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "plugin_api/plugin.h"
#include "runtime/config.h"
#include "runtime/loader.h"

namespace capstan {

// Where this process stands among the ranks.
struct RankInfo {
  int64_t rank = 0, world_size = 1;
  int64_t local_rank = 0, local_ranks = 1;
};

class HostEnvironment {
 public:
  static absl::StatusOr<std::unique_ptr<HostEnvironment>> Create();
  HostEnvironment(const HostEnvironment&) = delete;
  HostEnvironment& operator=(const HostEnvironment&) = delete;

  PluginRegistry& registry() { return *registry_; }
  ComponentFinder finder();
  const capstan_host* c_host() const { return &lent_.base; }

  // Facts the services answer with; set before components are created.
  void SetRun(uint64_t seed, const RankInfo& ranks) {
    lent_.seed = seed;
    lent_.ranks = ranks;
  }
  const RankInfo& ranks() const { return lent_.ranks; }

 private:
  // capstan_host first, so that services find their state from the pointer plugins pass back.
  struct Lent {
    capstan_host base{};
    const capstan_host* outer = nullptr;  // the registry's, for the log
    uint64_t seed = 0;
    RankInfo ranks;
  };
  friend struct HostServices;
  HostEnvironment() = default;

  ServiceRegistry services_;
  Lent lent_;  // plugins may use it until their deinit, so it outlives the registry
  std::unique_ptr<PluginRegistry> registry_;
};

}  // namespace capstan
