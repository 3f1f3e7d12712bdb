#include "runtime/launch/launch_report.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#include <algorithm>
#include <map>

#include "absl/strings/str_format.h"
#include "plugin_api/base.h"
#include "runtime/launch/meeting.h"
#include "runtime/status.h"

namespace capstan {
namespace {

bool EndedWell(const RankRecord& r) {
  return WIFEXITED(r.wait_status) &&
         (WEXITSTATUS(r.wait_status) == kExitDone || WEXITSTATUS(r.wait_status) == kExitStopped);
}

// It ended because the launcher said so, not by a fault.
bool EndedAsTold(const RankRecord& r) {
  if (r.killed_by_launcher) return true;
  return r.told_to_end && WIFSIGNALED(r.wait_status) && WTERMSIG(r.wait_status) == SIGTERM;
}

bool IsReport(int32_t status_class) {
  return status_class == CAPSTAN_PEER_LOST || status_class == CAPSTAN_TIMEOUT;
}

// It only reports what another rank did, or did not do.
bool ReportsAnother(const RankRecord& r) {
  if (!WIFEXITED(r.wait_status)) return false;
  return r.last.failed ? IsReport(r.last.status_class) : WEXITSTATUS(r.wait_status) == kExitRetry;
}

// It wrote down a failure that is nobody else's. It may have been told to end right after.
bool WroteOwnFailure(const RankRecord& r) {
  return r.last.failed && !IsReport(r.last.status_class);
}

// A collective's message lists all its tensors. Who waited for whom stands at the ends.
std::string Brief(const std::string& message) {
  constexpr size_t kHead = 160, kTail = 200;
  if (message.size() <= kHead + kTail + 20) return message;
  const auto continues = [&message](size_t at) {  // the inside of a UTF-8 character
    return (static_cast<unsigned char>(message[at]) & 0xc0) == 0x80;
  };
  size_t head = kHead, tail = message.size() - kTail;
  while (continues(head)) --head;
  while (continues(tail)) ++tail;
  return StrCat(message.substr(0, head), " ... ", message.substr(tail));
}

class Judgement {
 public:
  explicit Judgement(const JobRecord& job) : job_(job), ranks_(job.ranks) {}

  Verdict Reach() {
    Verdict v;
    if (std::all_of(ranks_.begin(), ranks_.end(), EndedWell)) {
      for (const RankRecord& r : ranks_) {
        if (WEXITSTATUS(r.wait_status) == kExitStopped) v.exit_code = kExitStopped;
      }
      return v;
    }
    v.culprit = FirstOwnFailure();
    if (v.culprit < 0 && job_.cause != LauncherCause::kNone) v.culprit = job_.cause_rank;
    if (v.culprit < 0) v.culprit = Suspended();
    if (v.culprit < 0) v.culprit = Accused();
    if (v.culprit < 0) v.culprit = AwaitedByAll();
    if (v.culprit < 0) v.culprit = FirstToFail();
    v.exit_code = ExitCodeOf(v.culprit);
    v.retry = v.exit_code == kExitRetry && job_.stop_signal == 0;
    v.text = Text(v.culprit);
    return v;
  }

 private:
  int size() const { return static_cast<int>(ranks_.size()); }

  template <typename Good>
  int Earliest(Good good) const {
    int found = -1;
    for (int r = 0; r < size(); ++r) {
      if (good(ranks_[r]) && (found < 0 || ranks_[r].order < ranks_[found].order)) found = r;
    }
    return found;
  }

  // What a rank does after it was told to end may be a consequence. Death by a signal, and a failure
  // of its own that it wrote down, are not: peers can notice those before the launcher does.
  int FirstOwnFailure() const {
    return Earliest([this](const RankRecord& r) {
      if (EndedWell(r) || ReportsAnother(r)) return false;
      const bool by_itself = WroteOwnFailure(r) || (WIFSIGNALED(r.wait_status) && !EndedAsTold(r));
      return r.told_to_end ? job_.cause == LauncherCause::kNone && by_itself : true;
    });
  }
  int FirstToFail() const {
    const int found =
        Earliest([](const RankRecord& r) { return !EndedWell(r) && !EndedAsTold(r); });
    return found >= 0 ? found : Earliest([](const RankRecord& r) { return !EndedWell(r); });
  }

  static int MostNamed(const std::map<int, int>& votes) {
    int found = -1;
    for (const auto& [rank, count] : votes) {
      if (found < 0 || count > votes.at(found)) found = rank;
    }
    return found;
  }

  int Suspended() const {
    const int accused = Accused();
    if (accused >= 0 && ranks_[accused].stopped) return accused;
    for (int r = 0; r < size(); ++r) {
      if (ranks_[r].stopped) return r;
    }
    return -1;
  }

  // Whom those that failed name, and at whose end a chain of waiting ranks stops.
  int Accused() const {
    std::map<int, int> votes;
    for (int r = 0; r < size(); ++r) {
      const int c = ranks_[r].last.culprit;
      if (ranks_[r].last.failed && c >= 0 && c < size() && c != r) ++votes[c];
    }
    return FollowWaiting(MostNamed(votes));
  }

  int AwaitedByAll() const {
    std::map<int, int> votes;
    std::vector<int> getting_on;
    const bool somebody_waited = std::any_of(ranks_.begin(), ranks_.end(), [](const RankRecord& r) {
      return r.last.failed && ReportsAnother(r);
    });
    for (int r = 0; r < size(); ++r) {
      const RankSnapshot& s = ranks_[r].then;
      if (s.waiting_for >= 0 && s.waiting_for < size() && s.waiting_for != r)
        ++votes[s.waiting_for];
      if (s.attached && s.state != RankState::kWaiting && s.state != RankState::kCommunicating &&
          !ranks_[r].ended_before) {
        getting_on.push_back(r);
      }
    }
    if (!votes.empty()) return FollowWaiting(MostNamed(votes));
    return somebody_waited && getting_on.size() == 1 ? getting_on[0] : -1;
  }

  int FollowWaiting(int rank) const {
    for (int hops = 0; rank >= 0 && hops < size(); ++hops) {
      const int next = ranks_[rank].then.waiting_for;
      if (ranks_[rank].stopped || ranks_[rank].then.state != RankState::kWaiting || next < 0 ||
          next >= size()) {
        break;
      }
      rank = next;
    }
    return rank;
  }

  // It had not yet got so far as to stop in order.
  bool DiedOfStopRequest(const RankRecord& r) const {
    return !r.killed_by_launcher && job_.stop_signal != 0 && WIFSIGNALED(r.wait_status) &&
           WTERMSIG(r.wait_status) == job_.stop_signal;
  }

  int ExitCodeOf(int culprit) const {
    const RankRecord& r = ranks_[culprit];
    if (job_.cause == LauncherCause::kToldTwice) return kExitFailed;
    if (DiedOfStopRequest(r)) return kExitFailed;
    if (WroteOwnFailure(r)) {
      return ExitCode(MakeStatus(r.last.status_class, r.last.message, r.last.retryable));
    }
    if (EndedAsTold(r) || EndedWell(r)) return kExitRetry;
    if (WIFSIGNALED(r.wait_status)) return kExitRetry;
    const int code = WEXITSTATUS(r.wait_status);
    return code >= kExitFailed && code <= kExitRetry ? code : kExitFailed;
  }

  // ---- words -----------------------------------------------------------------------------------

  static std::string Doing(const RankSnapshot& s) {
    if (!s.attached) return "";
    std::string text;
    if (s.step >= 0) {
      text = StrCat(" in step ", s.step + 1);
      if (!s.op.empty()) StrAppend(&text, ", op ", s.op);
      if (s.microbatch >= 0) StrAppend(&text, ", microbatch ", s.microbatch);
    } else if (s.state == RankState::kStarting) {
      text = s.op.empty() ? " while starting" : StrCat(" while starting (", s.op, ")");
    }
    if (s.state == RankState::kFinishing) text = StrCat(" while finishing", text);
    if (s.state == RankState::kWaiting) {
      StrAppend(&text, s.waiting_for >= 0 ? StrCat(", waiting for rank ", s.waiting_for)
                                          : std::string(", waiting for other ranks"));
    }
    return text;
  }

  std::string Name(int rank) const {
    return StrCat("rank ", rank, " (pid ", ranks_[rank].pid, ")");
  }

  std::string Fate(int rank) const {
    const RankRecord& r = ranks_[rank];
    if (r.stopped) {
      return StrCat(Name(rank), " was stopped (suspended, as by SIGSTOP)", Doing(r.then));
    }
    if (EndedWell(r) && (r.ended_before || WEXITSTATUS(r.wait_status) == kExitDone)) {
      return StrCat(Name(rank), " had ended (exit code ", WEXITSTATUS(r.wait_status),
                    ") before the others");
    }
    if (WroteOwnFailure(r)) {
      return StrCat(Name(rank), " failed", Doing(r.last), ": ", r.last.message);
    }
    if (!DiedOfStopRequest(r) && (EndedAsTold(r) || EndedWell(r))) {
      return StrCat(Name(rank), " did not get on", Doing(r.then));
    }
    if (WIFSIGNALED(r.wait_status)) {
      const int signal = WTERMSIG(r.wait_status);
      return StrCat(Name(rank), " was killed by signal ", signal, " (", SignalName(signal), ")",
                    Doing(r.last),
                    signal == SIGKILL ? " (the kernel does that when memory runs out)" : "");
    }
    if (r.last.failed) return StrCat(Name(rank), " failed", Doing(r.last), ": ", r.last.message);
    return StrCat(Name(rank), " ended with exit code ", WEXITSTATUS(r.wait_status), Doing(r.last),
                  "; see what it printed");
  }

  // Every rank that said anything said the same, and the rest was not even running yet.
  bool AllSayTheSame(int culprit) const {
    const RankSnapshot& of_culprit = ranks_[culprit].last;
    if (!WroteOwnFailure(ranks_[culprit]) || of_culprit.step >= 0) return false;
    return std::all_of(ranks_.begin(), ranks_.end(), [&](const RankRecord& r) {
      return r.last.failed ? r.last.message == of_culprit.message || ReportsAnother(r)
                           : EndedAsTold(r) && r.last.step < 0;
    });
  }

  std::string Cause() const {
    const std::string seconds = absl::StrFormat("%g s", job_.deadline_s);
    switch (job_.cause) {
      case LauncherCause::kStopped:
        return StrCat("it stayed so for more than ", seconds);
      case LauncherCause::kSilent:
        return StrCat("it reported nothing far past its deadline of ", seconds);
      case LauncherCause::kOverdue:
        return StrCat("it went on for more than ", seconds, " after another rank had ended");
      case LauncherCause::kToldTwice:
        return "the job was told to stop a second time, and ended without a checkpoint";
      case LauncherCause::kNone:
        break;
    }
    return "";
  }

  std::string Others(int culprit) const {
    std::vector<int> waited, killed;
    for (int r = 0; r < size(); ++r) {
      if (r == culprit) continue;
      const RankRecord& o = ranks_[r];
      if (o.then.waiting_for == culprit || (o.last.failed && o.last.culprit == culprit)) {
        waited.push_back(r);
      }
      if (o.killed_by_launcher && !o.stopped) killed.push_back(r);
    }
    std::string text;
    if (!waited.empty()) {
      StrAppend(&text, "; ", RanksText(waited), waited.size() == 1 ? " was" : " were",
                " waiting for it");
    }
    if (!killed.empty()) {
      StrAppend(&text, "; ", RanksText(killed), " had to be killed, not ending when told");
    }
    // What one of those that ran out of patience says itself; they all say it of the same rank.
    const int first =
        Earliest([](const RankRecord& r) { return r.last.failed && ReportsAnother(r); });
    const RankRecord& c = ranks_[culprit];
    if (first >= 0 && first != culprit && job_.cause == LauncherCause::kNone &&
        !WroteOwnFailure(c) && (EndedAsTold(c) || EndedWell(c))) {
      StrAppend(&text, "; rank ", first, " says: ", Brief(ranks_[first].last.message));
    }
    return text;
  }

  std::string Text(int culprit) const {
    if (job_.cause == LauncherCause::kNone && AllSayTheSame(culprit)) {
      return ranks_[culprit].last.message;
    }
    std::string text = Fate(culprit);
    if (const std::string cause = Cause(); !cause.empty()) StrAppend(&text, "; ", cause);
    if (DiedOfStopRequest(ranks_[culprit])) text += ", which was passed on to it";
    return text + Others(culprit);
  }

  const JobRecord& job_;
  const std::vector<RankRecord>& ranks_;
};

}  // namespace

std::string SignalName(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name == nullptr ? StrCat("signal ", signal) : StrCat("SIG", name);
}

Verdict Judge(const JobRecord& job) { return Judgement(job).Reach(); }

}  // namespace capstan
