#include "runtime/launch/world.h"

#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "runtime/status.h"

namespace capstan {
namespace {

constexpr int64_t kMostRanks = 1 << 20;
// A secret shorter than this could be guessed from one recorded handshake.
constexpr size_t kShortestSecret = 32;

// The variables of one launcher. local_*: nullptr where it has none.
struct Names {
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};

class Reader {
 public:
  explicit Reader(const EnvironmentLookup& env) : env_(env) {}

  bool Has(const char* name) const { return Text(name).has_value(); }
  // Set but empty counts as not set: job scripts clear variables that way.
  std::optional<std::string> Text(const char* name) const {
    std::optional<std::string> value = env_(name);
    return value.has_value() && value->empty() ? std::nullopt : value;
  }
  std::string TextOr(const char* name, const char* otherwise) const {
    return Text(name).value_or(otherwise);
  }

  absl::StatusOr<int> Number(const char* name, int64_t lowest, int64_t highest) const {
    const std::optional<std::string> text = Text(name);
    int64_t value = 0;
    if (!absl::SimpleAtoi(text.value_or(""), &value) || value < lowest || value > highest) {
      return UsageError("environment variable ", name, " is '", text.value_or(""),
                        "', not a whole number from ", lowest, " to ", highest,
                        "; it is set by the launcher: fix the job script, or unset it");
    }
    return static_cast<int>(value);
  }

 private:
  const EnvironmentLookup& env_;
};

absl::Status Missing(const char* given, const std::string& value, const char* missing) {
  return UsageError("environment variable ", given, " is set (", value, ") but ", missing,
                    " is not; set both, as the launcher does, or unset ", given,
                    " for a run of one rank");
}

absl::Status FillLocal(const Reader& env, const Names& names, World* world) {
  const bool has_rank = names.local_rank != nullptr && env.Has(names.local_rank);
  const bool has_size = names.local_size != nullptr && env.Has(names.local_size);
  world->local_rank = 0;
  world->local_size = world->size == 1 ? 1 : 0;
  if (has_size) {
    CAPSTAN_ASSIGN_OR_RETURN(world->local_size, env.Number(names.local_size, 1, kMostRanks));
  }
  if (has_rank) {
    CAPSTAN_ASSIGN_OR_RETURN(world->local_rank, env.Number(names.local_rank, 0, kMostRanks - 1));
  } else if (has_size && world->local_size > 1) {
    return Missing(names.local_size, *env.Text(names.local_size), names.local_rank);
  }
  if (world->local_size > world->size) {
    return UsageError(names.local_size, " is ", world->local_size, " but ", names.size, " is ",
                      world->size,
                      ": a machine cannot hold more ranks than the job has; fix the job script");
  }
  if (world->local_size > 0 && world->local_rank >= world->local_size) {
    return UsageError(names.local_rank, " is ", world->local_rank, ", but only ", world->local_size,
                      " ranks are on this machine",
                      has_size ? StrCat(" (", names.local_size, ")") : std::string(),
                      "; local ranks count from 0: fix the job script");
  }
  return absl::OkStatus();
}

// nullopt: none of the launcher's variables is set.
absl::StatusOr<std::optional<World>> Read(const Reader& env, const Names& names) {
  if (!env.Has(names.rank) && !env.Has(names.size)) return std::optional<World>();
  if (!env.Has(names.size)) return Missing(names.rank, *env.Text(names.rank), names.size);
  if (!env.Has(names.rank)) return Missing(names.size, *env.Text(names.size), names.rank);
  World world;
  CAPSTAN_ASSIGN_OR_RETURN(world.size, env.Number(names.size, 1, kMostRanks));
  CAPSTAN_ASSIGN_OR_RETURN(world.rank, env.Number(names.rank, 0, kMostRanks - 1));
  if (world.rank >= world.size) {
    return UsageError(names.rank, " is ", world.rank, ", but ", names.size, " is ", world.size,
                      "; ranks count from 0 to ", world.size - 1, ": fix the job script");
  }
  CAPSTAN_RETURN_IF_ERROR(FillLocal(env, names, &world));
  world.source = StrCat(names.rank, ", ", names.size);
  return std::optional<World>(std::move(world));
}

absl::Status SplitAddress(const std::string& text, World* world) {
  const size_t colon = text.rfind(':');
  int64_t port = 0;
  if (colon == std::string::npos || colon == 0 ||
      !absl::SimpleAtoi(text.substr(colon + 1), &port) || port < 1 || port > 65535) {
    return UsageError("CAPSTAN_RENDEZVOUS is '", text,
                      "', not ADDRESS:PORT; it is set by `capstan "
                      "train --ranks`: unset the CAPSTAN_ variables");
  }
  world->address = text.substr(0, colon);
  world->port = static_cast<int>(port);
  return absl::OkStatus();
}

absl::StatusOr<std::string> Secret(const Reader& env) {
  std::string secret = env.TextOr("CAPSTAN_JOB_SECRET", "");
  if (!secret.empty() && secret.size() < kShortestSecret) {
    return UsageError("CAPSTAN_JOB_SECRET has ", secret.size(), " characters, fewer than ",
                      kShortestSecret,
                      "; make one for each job and give it to every rank, for example with "
                      "export CAPSTAN_JOB_SECRET=$(openssl rand -hex 32)");
  }
  return secret;
}

absl::StatusOr<World> ReadEmbedded(const Reader& env) {
  constexpr const char* kNeeded[] = {"CAPSTAN_RANK",       "CAPSTAN_WORLD_SIZE",
                                     "CAPSTAN_LOCAL_RANK", "CAPSTAN_LOCAL_SIZE",
                                     "CAPSTAN_RENDEZVOUS", "CAPSTAN_JOB_SECRET"};
  for (const char* name : kNeeded) {
    if (env.Has(name)) continue;
    return UsageError("environment variable ",
                      env.Has("CAPSTAN_RANK") ? "CAPSTAN_RANK" : "CAPSTAN_WORLD_SIZE",
                      " is set but ", name,
                      " is not; `capstan train --ranks` sets them for the ranks it starts: unset "
                      "CAPSTAN_RANK and CAPSTAN_WORLD_SIZE");
  }
  CAPSTAN_ASSIGN_OR_RETURN(std::optional<World> read,
                           Read(env, {"CAPSTAN_RANK", "CAPSTAN_WORLD_SIZE", "CAPSTAN_LOCAL_RANK",
                                      "CAPSTAN_LOCAL_SIZE"}));
  World world = std::move(read).value_or(World());  // both are set, as checked above
  world.launcher = Launcher::kEmbedded;
  world.source = "capstan --ranks";
  CAPSTAN_RETURN_IF_ERROR(SplitAddress(*env.Text("CAPSTAN_RENDEZVOUS"), &world));
  CAPSTAN_ASSIGN_OR_RETURN(world.secret, Secret(env));
  if (env.Has("CAPSTAN_EPOCH")) {
    CAPSTAN_ASSIGN_OR_RETURN(world.epoch, env.Number("CAPSTAN_EPOCH", 0, INT32_MAX));
  }
  if (env.Has("CAPSTAN_STATUS_FD")) {
    CAPSTAN_ASSIGN_OR_RETURN(world.status_fd, env.Number("CAPSTAN_STATUS_FD", 0, INT32_MAX));
  }
  return world;
}

// "2(x3),1": tasks of node `node`; 0 where the text does not say.
int TasksOfNode(const std::string& text, int node) {
  int passed = 0;
  for (const absl::string_view piece : absl::StrSplit(text, ',')) {
    const std::vector<std::string> parts = absl::StrSplit(piece, absl::ByAnyChar("(x)"));
    int tasks = 0, nodes = 1;
    if (!absl::SimpleAtoi(parts[0], &tasks)) return 0;
    if (parts.size() > 2 && !absl::SimpleAtoi(parts[2], &nodes)) return 0;
    passed += nodes;
    if (node < passed) return tasks;
  }
  return 0;
}

// Slurm leaves its variables in the shells of sbatch and salloc too, where nothing was started yet.
// A step of srun has a plain number; the shells have none, or one of Slurm's reserved numbers.
bool InSlurmStep(const Reader& env) {
  constexpr int64_t kFirstReserved = 0xfffffff0;
  int64_t step = -1;
  return absl::SimpleAtoi(env.TextOr("SLURM_STEP_ID", ""), &step) && step >= 0 &&
         step < kFirstReserved;
}

absl::StatusOr<std::optional<World>> ReadSlurm(const Reader& env) {
  if (!InSlurmStep(env) || !env.Has("SLURM_PROCID")) return std::optional<World>();
  const char* size = env.Has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  CAPSTAN_ASSIGN_OR_RETURN(std::optional<World> world,
                           Read(env, {"SLURM_PROCID", size, "SLURM_LOCALID", nullptr}));
  const char* layout =
      env.Has("SLURM_STEP_TASKS_PER_NODE") ? "SLURM_STEP_TASKS_PER_NODE" : "SLURM_TASKS_PER_NODE";
  int node = 0;
  if (env.Has("SLURM_NODEID")) {
    CAPSTAN_ASSIGN_OR_RETURN(node, env.Number("SLURM_NODEID", 0, kMostRanks));
  }
  const int tasks = TasksOfNode(env.TextOr(layout, ""), node);
  if (tasks > world->local_rank && tasks <= world->size) world->local_size = tasks;
  world->launcher = Launcher::kSlurm;
  world->source = StrCat("srun (", world->source, ")");
  world->job =
      StrCat("slurm-", env.TextOr("SLURM_JOB_ID", "0"), "-", env.TextOr("SLURM_STEP_ID", "0"));
  return world;
}

absl::StatusOr<std::optional<World>> ReadMpi(const Reader& env) {
  CAPSTAN_ASSIGN_OR_RETURN(std::optional<World> world,
                           Read(env, {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                                      "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"}));
  if (world.has_value()) {
    world->launcher = Launcher::kOpenMpi;
    world->source = StrCat("mpirun of Open MPI (", world->source, ")");
    world->job = StrCat("openmpi-", env.TextOr("PMIX_NAMESPACE",
                                               env.TextOr("OMPI_MCA_ess_base_jobid", "0").c_str()));
    return world;
  }
  // srun speaks Hydra's protocol too (--mpi=pmi2), without the local variables; Slurm's say more.
  if (InSlurmStep(env) && !env.Has("MPI_LOCALNRANKS")) return std::optional<World>();
  CAPSTAN_ASSIGN_OR_RETURN(
      world, Read(env, {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"}));
  if (world.has_value()) {
    world->launcher = Launcher::kMpich;
    world->source = StrCat("mpirun of MPICH (", world->source, ")");
    world->job = StrCat("mpich-", env.TextOr("PMI_KVSNAME", env.TextOr("PMI_PORT", "0").c_str()));
  }
  return world;
}

// Job scripts export WORLD_SIZE or RANK next to mpirun and srun, for frameworks that read them.
absl::Status CheckAgainst(const Reader& env, const World& other) {
  for (const auto& [name, value] :
       {std::pair{"RANK", other.rank}, std::pair{"WORLD_SIZE", other.size}}) {
    if (!env.Has(name)) continue;
    CAPSTAN_ASSIGN_OR_RETURN(const int given, env.Number(name, 0, kMostRanks));
    if (given == value) continue;
    return UsageError("environment variable ", name, " is ", given,
                      ", but this process was "
                      "started as rank ",
                      other.rank, " of ", other.size, " by ", other.source,
                      "; unset RANK and WORLD_SIZE, or start the ranks with torchrun alone");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<World>> ReadTorchrun(const Reader& env) {
  CAPSTAN_ASSIGN_OR_RETURN(std::optional<World> world,
                           Read(env, {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}));
  if (!world.has_value()) return world;
  world->launcher = Launcher::kTorchrun;
  world->source = StrCat("torchrun (", world->source, ")");
  world->job =
      StrCat("torchrun-", env.TextOr("TORCHELASTIC_RUN_ID", "none"), "-",
             env.TextOr("TORCHELASTIC_RESTART_COUNT", "0"), "-", env.TextOr("MASTER_PORT", "0"));
  if (env.Has("TORCHELASTIC_RESTART_COUNT")) {
    CAPSTAN_ASSIGN_OR_RETURN(world->epoch, env.Number("TORCHELASTIC_RESTART_COUNT", 0, INT32_MAX));
  }
  return world;
}

// The real torchrun says so; plain variables may be left over from another script.
absl::StatusOr<std::optional<World>> ReadOutside(const Reader& env) {
  const bool torchrun = env.Has("TORCHELASTIC_RUN_ID");
  if (torchrun) return ReadTorchrun(env);
  CAPSTAN_ASSIGN_OR_RETURN(std::optional<World> world, ReadMpi(env));
  if (!world.has_value()) {
    CAPSTAN_ASSIGN_OR_RETURN(world, ReadSlurm(env));
  }
  if (world.has_value() && world->size > 1) {
    CAPSTAN_RETURN_IF_ERROR(CheckAgainst(env, *world));
    return world;
  }
  // An mpirun or srun of one process is a shell to start ranks from, by hand too.
  CAPSTAN_ASSIGN_OR_RETURN(std::optional<World> by_hand, ReadTorchrun(env));
  return by_hand.has_value() ? by_hand : world;
}

// Where ranks that no capstan started meet.
absl::Status FillRendezvous(const Reader& env, World* world) {
  world->address = env.TextOr("MASTER_ADDR", "");
  CAPSTAN_ASSIGN_OR_RETURN(world->secret, Secret(env));
  // CAPSTAN_PORT where MASTER_PORT is taken: torchrun's own store listens there.
  const char* port = env.Has("CAPSTAN_PORT") ? "CAPSTAN_PORT" : "MASTER_PORT";
  if (world->secret.empty()) return absl::OkStatus();
  if (world->address.empty() || !env.Has(port)) {
    return UsageError(
        "CAPSTAN_JOB_SECRET is set, so the ranks meet at MASTER_ADDR and MASTER_PORT, "
        "but ",
        world->address.empty() ? "MASTER_ADDR" : "MASTER_PORT",
        " is not set; set it, or unset CAPSTAN_JOB_SECRET to meet through a file in "
        "the run directory");
  }
  CAPSTAN_ASSIGN_OR_RETURN(world->port, env.Number(port, 1, 65535));
  if (std::string_view(port) == "MASTER_PORT" &&
      env.TextOr("TORCHELASTIC_USE_AGENT_STORE", "") == "True") {
    return UsageError("MASTER_PORT ", world->port,
                      " is where torchrun's own store listens; give Capstan's rendezvous another "
                      "port in CAPSTAN_PORT, the same on every rank");
  }
  return absl::OkStatus();
}

}  // namespace

EnvironmentLookup ProcessEnvironment() {
  return [](const char* name) -> std::optional<std::string> {
    const char* value = std::getenv(name);
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
}

absl::StatusOr<World> DetectWorld(const EnvironmentLookup& environment) {
  const Reader env(environment);
  if (env.Has("CAPSTAN_RANK") || env.Has("CAPSTAN_WORLD_SIZE")) return ReadEmbedded(env);
  CAPSTAN_ASSIGN_OR_RETURN(std::optional<World> found, ReadOutside(env));
  if (!found.has_value() || found->size == 1) {
    World alone;
    alone.source = found.has_value() ? found->source : "no launcher";
    return alone;
  }
  CAPSTAN_RETURN_IF_ERROR(FillRendezvous(env, &*found));
  return *std::move(found);
}

absl::StatusOr<bool> StartsRanks(const World& world, int64_t ranks) {
  if (world.embedded()) return false;  // `--ranks` is still on the command line of its ranks
  if (world.size > 1 && ranks > 0) {
    return UsageError("--ranks ", ranks, " starts ranks, but this process already is rank ",
                      world.rank, " of ", world.size, ", started by ", world.source,
                      "; leave --ranks out, or start capstan by itself");
  }
  return ranks > 1;
}

}  // namespace capstan
