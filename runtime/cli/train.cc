#include <unistd.h>

#include "runtime/cli/cli.h"
#include "runtime/run/rank_run.h"
#include "runtime/status.h"

namespace capstan {

absl::StatusOr<int> TrainCommand(const TrainArguments& arguments) {
  if (arguments.ranks != 1) {
    return UsageError("--ranks ", arguments.ranks,
                      ": no communication backend is installed, so a run has one rank");
  }
  if (arguments.max_restarts != 0) {
    return UsageError(
        "--max-restarts needs more than one rank; a run of one rank is restarted by running the "
        "command again");
  }
  CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<HostEnvironment> host, HostEnvironment::Create());
  TrainOptions options;
  options.fresh = arguments.fresh;
  options.trace = arguments.trace;
  options.terminal = ::isatty(STDOUT_FILENO) != 0;
  options.print_every = 0;
  CAPSTAN_ASSIGN_OR_RETURN(const World world, DetectWorld(ProcessEnvironment()));
  CAPSTAN_ASSIGN_OR_RETURN(TrainResult result,
                           TrainRank(world, arguments.config, arguments.set, options, host.get()));
  return result.stopped_on_request ? kExitStopped : kExitDone;
}

}  // namespace capstan
