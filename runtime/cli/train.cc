#include <unistd.h>

#include "runtime/cli/cli.h"
#include "runtime/run/trainer.h"
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
  CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<Session> session,
                           Session::Open(arguments.config, arguments.set, host.get()));
  TrainOptions options;
  options.fresh = arguments.fresh;
  options.trace = arguments.trace;
  options.terminal = ::isatty(STDOUT_FILENO) != 0;
  options.print_every = 0;
  CAPSTAN_ASSIGN_OR_RETURN(TrainResult result, Train(*session, options));
  return result.stopped_on_request ? kExitStopped : kExitDone;
}

}  // namespace capstan
