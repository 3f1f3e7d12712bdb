// Which rank this process is, read from what its launcher left in the environment.
//
// Known launchers, the innermost first; the first one that describes a world decides:
//
//   capstan --ranks   CAPSTAN_RANK, CAPSTAN_WORLD_SIZE, CAPSTAN_LOCAL_RANK, CAPSTAN_LOCAL_SIZE,
//                     CAPSTAN_RENDEZVOUS, CAPSTAN_JOB_SECRET, CAPSTAN_EPOCH, CAPSTAN_STATUS_FD
//   torchrun          RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE
//   Open MPI          OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE
//   MPICH (Hydra)     PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS
//   Slurm             SLURM_PROCID, SLURM_LOCALID, SLURM_STEP_NUM_TASKS, inside a step of srun only
//
// Torchrun may itself have been started by mpirun or srun, and mpirun by srun, once a machine: an
// outer launcher's variables then count machines, so a disagreement of two launchers is no error.
#ifndef CAPSTAN_RUNTIME_LAUNCH_WORLD_H_
#define CAPSTAN_RUNTIME_LAUNCH_WORLD_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace capstan {

// Value of an environment variable; nullopt: not set.
using EnvironmentLookup = std::function<std::optional<std::string>(const char* name)>;
EnvironmentLookup ProcessEnvironment();

enum class Launcher { kNone, kEmbedded, kTorchrun, kOpenMpi, kMpich, kSlurm };

struct World {
  int rank = 0, size = 1;
  // Among the ranks of this machine. local_size 0: the launcher does not tell, and LearnMachines()
  // (bootstrap.h) asks the other ranks.
  int local_rank = 0, local_size = 1;
  Launcher launcher = Launcher::kNone;
  std::string source;  // for messages: "torchrun (RANK, WORLD_SIZE)"
  // Where the rendezvous listens. address "": loopback. port 0: any, told through a file.
  std::string address;
  int port = 0;
  std::string secret;  // shared by the ranks of the job; "": told through a file
  // Names the job among those of this user, as far as the launcher numbers its jobs. May be that of
  // an earlier job.
  std::string job;
  int epoch = 0;       // restarts of the job before this start
  int status_fd = -1;  // the launcher's status pages (rank_status.h); -1: none

  bool embedded() const { return launcher == Launcher::kEmbedded; }
};

// A process without a launcher is a world of one. Refuses variables that are missing, malformed or
// contradict each other, with the remedy.
absl::StatusOr<World> DetectWorld(const EnvironmentLookup& env);

// What `--ranks` means in `world`; ranks 0: not given. True: this process becomes the launcher of
// that many ranks. Refuses --ranks in a process that already is one of several ranks.
absl::StatusOr<bool> StartsRanks(const World& world, int64_t ranks);

}  // namespace capstan

#endif  // CAPSTAN_RUNTIME_LAUNCH_WORLD_H_
