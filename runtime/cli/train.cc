#include <unistd.h>

#include "runtime/cli/cli.h"
#include "runtime/launch/launcher.h"
#include "runtime/launch/rank_status.h"
#include "runtime/run/rank_run.h"
#include "runtime/status.h"

namespace capstan {
namespace {

// The command line of one rank: that of the launcher, without what only the launcher does.
std::vector<std::string> RankCommand(const TrainArguments& arguments, bool fresh) {
  std::vector<std::string> argv = {"capstan", "train", arguments.config};
  for (const std::string& item : arguments.set) {
    argv.push_back("--set");
    argv.push_back(item);
  }
  if (fresh) argv.push_back("--fresh");
  if (arguments.trace) argv.push_back("--trace");
  if (arguments.stop_after > 0) {
    argv.push_back("--stop-after");
    argv.push_back(StrCat(arguments.stop_after));
  }
  if (!arguments.snapshot.empty()) {
    argv.push_back("--snapshot");
    argv.push_back(arguments.snapshot);
  }
  return argv;
}

absl::StatusOr<int> TrainHere(const World& world, const TrainArguments& arguments) {
  CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<HostEnvironment> host, HostEnvironment::Create());
  TrainOptions options;
  options.fresh = arguments.fresh;
  options.trace = arguments.trace;
  // Other launchers collect the lines of their ranks, some through a terminal of their own.
  const bool plain = world.launcher != Launcher::kNone && !world.embedded();
  options.terminal = !plain && ::isatty(STDOUT_FILENO) != 0;
  options.print_every = 0;
  options.supervised = world.embedded();
  options.stop_after = arguments.stop_after;
  options.snapshot = arguments.snapshot;
  options.alone = arguments.alone;
  CAPSTAN_ASSIGN_OR_RETURN(TrainResult result,
                           TrainRank(world, arguments.config, arguments.set, options, host.get()));
  return result.stopped_on_request ? kExitStopped : kExitDone;
}

// The launcher says once what went wrong, and whose fault it was, also where every rank finds the same
// mistake; its ranks leave the words to it.
absl::StatusOr<int> LeaveToLauncher(const World& world, const absl::Status& failure) {
  absl::StatusOr<RankStatus> status = RankStatus::Open(world);
  if (!status.ok() || !status->watched()) return failure;
  status->Fail(failure);
  return ExitCode(failure);
}

}  // namespace

absl::StatusOr<int> TrainCommand(const TrainArguments& arguments) {
  CAPSTAN_ASSIGN_OR_RETURN(const World world, DetectWorld(ProcessEnvironment()));
  CAPSTAN_ASSIGN_OR_RETURN(const bool starts, StartsRanks(world, arguments.ranks));
  if (starts) {
    LaunchOptions launch;
    launch.argv = RankCommand(arguments, arguments.fresh);
    launch.restart_argv = RankCommand(arguments, false);
    launch.ranks = static_cast<int>(arguments.ranks);
    launch.max_restarts = static_cast<int>(arguments.max_restarts);
    return LaunchLocal(launch);
  }
  if (arguments.max_restarts != 0) {
    return UsageError(
        "--max-restarts needs --ranks, whose launcher does the restarting; other launchers have "
        "their own option for it");
  }
  const absl::StatusOr<int> code = TrainHere(world, arguments);
  return code.ok() ? code : LeaveToLauncher(world, code.status());
}

}  // namespace capstan
