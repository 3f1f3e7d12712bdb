#include "runtime/run/rank_run.h"

#include "runtime/run/files.h"
#include "runtime/status.h"

namespace capstan {
namespace {

RankInfo InfoOf(const World& world, bool alone = false) {
  RankInfo info;
  info.alone = alone;
  info.rank = world.rank;
  info.world_size = world.size;
  info.local_rank = world.local_rank;
  info.local_ranks = world.local_size;
  return info;
}

// What must be equal on all ranks for their Programs to be.
std::vector<Fact> Facts(const Session& session, HostEnvironment& host) {
  std::vector<Fact> facts = FactsOfToml(session.config().resolved_toml);
  facts.push_back({"capstan", CAPSTAN_HOST_VERSION});
  for (const Component* c : host.registry().ListLoaded()) {
    facts.push_back(
        {StrCat("plugin ", c->definition->kind, "/", c->definition->id), c->definition->version});
  }
  return facts;
}

absl::StatusOr<TrainResult> Run(Session& session, const TrainOptions& options, World& world,
                                Bootstrap& bootstrap, RankStatus& status, HostEnvironment& host) {
  CAPSTAN_RETURN_IF_ERROR(RequireSameFacts(bootstrap, "configuration", Facts(session, host)));
  if (world.local_size == 0) {
    CAPSTAN_RETURN_IF_ERROR(LearnMachines(bootstrap, &world));
    host.SetRanks(InfoOf(world));
  }
  return Train(session, options, Ranks(&bootstrap, &status));
}

}  // namespace

absl::StatusOr<TrainResult> TrainRank(const World& world, const std::string& config,
                                      const std::vector<std::string>& overrides,
                                      const TrainOptions& options, HostEnvironment* host) {
  host->SetRanks(InfoOf(world, options.alone));
  CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<Session> session,
                           Session::Open(config, overrides, host));
  if (world.size == 1) return Train(*session, options);
  const RunConfig& run = session->config().run;
  CAPSTAN_ASSIGN_OR_RETURN(RankStatus status, RankStatus::Open(world));
  status.SetDeadline(run.comm_timeout_s);
  World here = world;
  // Ranks whose launcher gave them no address meet through a file there.
  if (world.rank == 0) CAPSTAN_RETURN_IF_ERROR(MakeDirectories(run.dir));
  CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<Bootstrap> bootstrap,
                           Bootstrap::Join(world, {run.comm_timeout_s, run.dir}));
  host->SetBootstrap(bootstrap.get());
  // Another rank's end must wake this one wherever it waits.
  bootstrap->OnAbort([&](const absl::Status& reason) {
    session->AbortCommunication(std::string(reason.message()));
  });
  absl::StatusOr<TrainResult> result = Run(*session, options, here, *bootstrap, status, *host);
  if (!result.ok()) {
    // What a backend reports of a group that was told to give up is less than why it was told to.
    const absl::Status ended = bootstrap->state();
    const absl::Status why =
        !ended.ok() && StatusClass(result.status()) == CAPSTAN_PEER_LOST ? ended : result.status();
    status.Fail(why);
    bootstrap->Abort(why);
    result = why;
  }
  bootstrap->OnAbort(nullptr);
  session.reset();  // while the others can still be reached
  host->SetBootstrap(nullptr);
  if (result.ok()) CAPSTAN_RETURN_IF_ERROR(bootstrap->Finish());
  return result;
}

}  // namespace capstan
