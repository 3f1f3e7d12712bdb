// How the ranks of a job meet: a key-value store and exchanges among all of them, with deadlines whose
// errors name the ranks waited for. The host offers it to plugins as service "capstan.bootstrap/1".
//
// The store is a thread of the launcher (`capstan train --ranks`) or of rank 0 (torchrun, mpirun,
// srun), reached over TCP: loopback on one machine, MASTER_ADDR on several. Both ends prove to each
// other that they know the job's secret, without sending it; a process of another job is turned away.
// Connections are authenticated, not encrypted.
//
// A rank that dies, or calls Abort, ends the job for all: what the others wait for here fails at once
// with the rank's name, and OnAbort lets them leave what they wait for elsewhere.
#ifndef CAPSTAN_RUNTIME_LAUNCH_BOOTSTRAP_H_
#define CAPSTAN_RUNTIME_LAUNCH_BOOTSTRAP_H_

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plugin_api/comm.h"
#include "runtime/launch/world.h"

namespace capstan {

struct BootstrapOptions {
  double timeout_s = 300;  // of every wait, joining included ([comm] timeout_s)
  std::string directory;   // the run directory, for ranks that meet through a file
};

// [any thread]
class Bootstrap {
 public:
  // Joins the job, waiting for its store to come up. A world of one needs no store and no socket.
  static absl::StatusOr<std::unique_ptr<Bootstrap>> Join(const World& world,
                                                         const BootstrapOptions& options);
  // Without Finish before, the others are told that this rank is gone.
  ~Bootstrap();
  Bootstrap(const Bootstrap&) = delete;
  Bootstrap& operator=(const Bootstrap&) = delete;

  int rank() const;
  int size() const;
  const std::string& job() const;  // unguessable; the same on every rank, another after a restart

  // Replaces the value if the key has one. Values of up to 32 MiB.
  absl::Status Put(std::string_view key, std::string_view value);
  // Waits until some rank has put it. timeout_s 0: the job's.
  absl::StatusOr<std::string> Get(std::string_view key, double timeout_s = 0);

  // Every rank gives a value under `name` and gets all of them, in the order of ranks. Together they may
  // have 32 MiB. A name may be used again once it has returned. Failures name the ranks that did not
  // come.
  absl::StatusOr<std::vector<std::string>> ExchangeStrings(std::string_view name,
                                                           std::string_view value);
  absl::Status Barrier(std::string_view name);

  // Ends the job: the other ranks' waits fail with "rank R failed: ...", this rank the culprit unless
  // `reason` names another. The first one counts.
  void Abort(const absl::Status& reason);
  // OK until the job has ended badly; then why.
  absl::Status state() const;
  // `told` is called once, on a thread of this object, when the job ends badly by another rank's doing
  // or the launcher's; at once if it has already. It must return soon and not call this object. nullptr:
  // nobody wants to know any more; returns only when no call is in progress.
  void OnAbort(std::function<void(const absl::Status&)> told);

  // This rank is done and may end. The rank that holds the store waits for the others to be done too.
  absl::Status Finish();

 private:
  class Impl;
  explicit Bootstrap(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// ---- what ranks must agree on ------------------------------------------------------------------

// One thing that must be equal on all ranks: {"optimizer.lr", "1e-3"}, {"plugin comm/shm", "1.0.0"}.
struct Fact {
  std::string name, value;
};

// "section.key" and its value for each line of a configuration as Config::resolved_toml has it.
std::vector<Fact> FactsOfToml(std::string_view resolved);

// Compares the facts of all ranks. USAGE, the same sentence on every rank: which rank differs from the
// others, in what, and how.
absl::Status RequireSameFacts(Bootstrap& bootstrap, std::string_view name,
                              const std::vector<Fact>& facts);

// ---- machines ----------------------------------------------------------------------------------

// Fills local_rank and local_size from which ranks share a machine, where the launcher did not tell.
absl::Status LearnMachines(Bootstrap& bootstrap, World* world);

// ---- the plugins' view -------------------------------------------------------------------------

// Bodies for a host's capstan_bootstrap_service. bootstrap nullptr: UNSUPPORTED.
capstan_status* BootstrapPut(Bootstrap* bootstrap, const char* key, const void* value, size_t size);
// *value is valid until this thread's next call.
capstan_status* BootstrapGet(Bootstrap* bootstrap, const char* key, const void** value,
                             size_t* size);

}  // namespace capstan

#endif  // CAPSTAN_RUNTIME_LAUNCH_BOOTSTRAP_H_
