// Who is to blame when a job ends badly, and the sentence that says so. No processes here: records in,
// verdict out.
#ifndef CAPSTAN_RUNTIME_LAUNCH_LAUNCH_REPORT_H_
#define CAPSTAN_RUNTIME_LAUNCH_LAUNCH_REPORT_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "runtime/launch/rank_status.h"

namespace capstan {

// One rank of a job that has ended.
struct RankRecord {
  pid_t pid = 0;
  int wait_status = 0;              // as waitpid gives it
  int order = 0;                    // the how-manieth to end, from 0
  bool told_to_end = false;         // the launcher had begun to end the job before this rank ended
  bool killed_by_launcher = false;  // it did not end when told
  // What it was doing when the launcher found that something was wrong (before anybody was told), and
  // when it ended.
  RankSnapshot then, last;
  bool stopped = false;       // then: suspended, as by SIGSTOP
  bool ended_before = false;  // then: it was one of those that had ended
};

// Why the launcher ended a job whose ranks had not failed by themselves.
enum class LauncherCause {
  kNone,
  kStopped,   // a rank stayed suspended past the deadline
  kSilent,    // a rank waited far past its own deadline
  kOverdue,   // ranks did not end although others had
  kToldTwice  // a second stop request
};

struct JobRecord {
  std::vector<RankRecord> ranks;
  LauncherCause cause = LauncherCause::kNone;
  int cause_rank = -1;
  double deadline_s = 0;
  int stop_signal = 0;  // passed on to the ranks; 0: none
};

struct Verdict {
  int exit_code = 0;
  int culprit = -1;    // -1: nobody
  bool retry = false;  // another start may fare better
  std::string text;    // "": nothing to say
};

Verdict Judge(const JobRecord& job);

// "SIGKILL"
std::string SignalName(int signal);

}  // namespace capstan

#endif  // CAPSTAN_RUNTIME_LAUNCH_LAUNCH_REPORT_H_
