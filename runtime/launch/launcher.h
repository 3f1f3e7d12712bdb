// `--ranks N`: the ranks of one run as processes of this machine, which start, find each other and end
// together.
//
// The launcher holds the rendezvous (bootstrap_server.h) and the status pages (rank_status.h). It reads
// no configuration and loads no plugin, so that nothing a rank does can take it down. When a rank fails,
// dies or stays suspended past the deadline, the others are told (their rendezvous ends, SIGTERM), and
// after a grace killed; then one summary names the culprit. Should the launcher itself be killed, the
// kernel kills the ranks.
#ifndef CAPSTAN_RUNTIME_LAUNCH_LAUNCHER_H_
#define CAPSTAN_RUNTIME_LAUNCH_LAUNCHER_H_

#include <sys/types.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace capstan {

struct LaunchOptions {
  std::vector<std::string> argv;          // of each rank, argv[0] too; the program is this one
  std::vector<std::string> restart_argv;  // after a restart; empty: argv
  int ranks = 1;
  int max_restarts = 0;
  // Between telling the ranks to end and killing those that have not.
  double grace_s = 10;
  // How long a rank may stay suspended, or go on after another has ended; the ranks' own deadline
  // (RankStatus::SetDeadline) once they have told it.
  double deadline_s = 300;
  int out = STDOUT_FILENO, err = STDERR_FILENO;
  // Called after each start with the pids by rank, on the calling thread.
  std::function<void(const std::vector<pid_t>&)> started;
};

// Runs the job to its end and gives its exit code: 0 all ranks done, 3 stopped on request, else that of
// the culprit, 4 when it was killed by a signal or did not get on. Has then printed why. A job that
// ends with 4 is started again, with a new secret, up to max_restarts times, unless it was told to stop.
//
// The first of SIGINT, SIGTERM, SIGHUP and SIGUSR1 is passed on to all ranks; a second SIGINT or SIGTERM
// ends the job within the grace, a third at once. SIGTSTP suspends the ranks with the launcher.
//
// Not OK: the job could not be started; nothing is left running. [main thread; it handles signals and
// child processes until it returns, no other thread may unblock or wait for them]
absl::StatusOr<int> LaunchLocal(const LaunchOptions& options);

}  // namespace capstan

#endif  // CAPSTAN_RUNTIME_LAUNCH_LAUNCHER_H_
