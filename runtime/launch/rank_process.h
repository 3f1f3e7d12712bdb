// Starting one rank as a process, and looking at it.
#ifndef CAPSTAN_RUNTIME_LAUNCH_RANK_PROCESS_H_
#define CAPSTAN_RUNTIME_LAUNCH_RANK_PROCESS_H_

#include <signal.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace capstan {

struct RankStart {
  std::string program;                   // path
  std::vector<std::string> argv;         // argv[0] too
  std::vector<std::string> environment;  // all of it, "NAME=value"
  int out = 1, err = 2;                  // become its standard output and error
  int inherit = -1;                      // the one further descriptor it gets; -1: none
  sigset_t signal_mask;                  // it starts with
};

// The rank leads a process group of its own, so that a terminal's signals reach the launcher only; reads
// nothing (/dev/null); and is killed by the kernel when the thread that called this ends.
absl::StatusOr<pid_t> StartRank(const RankStart& start);

// This process's environment without the variables `capstan train --ranks` sets for ranks.
std::vector<std::string> EnvironmentForRanks();

// A path that starts this binary again, also when its file was replaced meanwhile.
std::string ThisProgram();

// Suspended, as by SIGSTOP.
bool IsStopped(pid_t pid);

}  // namespace capstan

#endif  // CAPSTAN_RUNTIME_LAUNCH_RANK_PROCESS_H_
