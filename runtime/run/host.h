// What the host is to the plugins of a run: the registry they come from, and the services "mesh",
// "run", "program" and "log".
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "plugin_api/plugin.h"
#include "runtime/config.h"
#include "runtime/launch/bootstrap.h"
#include "runtime/loader.h"
#include "runtime/mesh.h"

namespace capstan {

// Where this process stands among the ranks. world_size 0: no ranks run, the mesh says how many
// there would be (plan, dump).
struct RankInfo {
  int64_t rank = 0, world_size = 1;
  int64_t local_rank = 0, local_ranks = 1;
  // The config's model on this one rank, whatever its mesh says (generate).
  bool alone = false;
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
  void SetRanks(const RankInfo& ranks) { lent_.ranks = ranks; }
  void SetRun(uint64_t seed, Mesh mesh) {
    lent_.seed = seed;
    lent_.mesh = std::move(mesh);
  }
  // How the ranks of the job meet; nullptr: there are none to meet. Must outlive its use by plugins.
  void SetBootstrap(Bootstrap* bootstrap) { lent_.bootstrap = bootstrap; }
  const RankInfo& ranks() const { return lent_.ranks; }
  const Mesh& mesh() const { return lent_.mesh; }

 private:
  // capstan_host first, so that services find their state from the pointer plugins pass back.
  struct Lent {
    capstan_host base{};
    const capstan_host* outer = nullptr;  // the registry's, for the log
    uint64_t seed = 0;
    RankInfo ranks;
    Mesh mesh;
    Bootstrap* bootstrap = nullptr;
  };
  friend struct HostServices;
  HostEnvironment() = default;

  ServiceRegistry services_;
  Lent lent_;  // plugins may use it until their deinit, so it outlives the registry
  std::unique_ptr<PluginRegistry> registry_;
};

}  // namespace capstan
