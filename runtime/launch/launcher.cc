#include "runtime/launch/launcher.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>

#include "runtime/launch/bootstrap_server.h"
#include "runtime/launch/launch_report.h"
#include "runtime/launch/launch_signals.h"
#include "runtime/launch/rank_output.h"
#include "runtime/launch/rank_process.h"
#include "runtime/launch/rank_status.h"
#include "runtime/launch/wire.h"
#include "runtime/status.h"

namespace capstan {
namespace {

constexpr double kFlushSeconds = 5;  // for a terminal or pipe that takes no output

// One start of all ranks, to the end of the last.
class Job {
 public:
  Job(const LaunchOptions& options, int epoch, LaunchSignals* signals, RankOutput* output)
      : options_(options), epoch_(epoch), signals_(*signals), output_(*output) {}

  // Whatever happens, nothing is left running.
  ~Job() {
    for (Rank& rank : ranks_) {
      if (!rank.alive) continue;
      ::kill(-rank.record.pid, SIGKILL);
      ::kill(rank.record.pid, SIGKILL);
      ::waitpid(rank.record.pid, nullptr, 0);
    }
  }

  absl::Status Start() {
    CAPSTAN_ASSIGN_OR_RETURN(const Digest secret, RandomBytes());
    secret_ = ToHex(AsText(secret));
    BootstrapServer::Options server;
    server.size = options_.ranks;
    server.epoch = epoch_;
    server.secret = secret_;
    CAPSTAN_ASSIGN_OR_RETURN(server_, BootstrapServer::Start(server));
    CAPSTAN_ASSIGN_OR_RETURN(StatusPages pages, StatusPages::Create(options_.ranks));
    pages_.emplace(std::move(pages));
    const std::vector<std::string> environment = EnvironmentForRanks();
    const std::string program = ThisProgram();
    std::vector<pid_t> pids;
    for (int r = 0; r < options_.ranks; ++r) {
      CAPSTAN_RETURN_IF_ERROR(Annotate(StartOne(r, program, environment), StrCat("rank ", r)));
      pids.push_back(ranks_[r].record.pid);
    }
    if (options_.started) options_.started(pids);
    return absl::OkStatus();
  }

  Verdict Run() {
    Reap();
    while (alive_ > 0) {
      std::vector<pollfd> fds = {{signals_.fd(), POLLIN, 0}};
      output_.Watch(&fds);
      ::poll(fds.data(), fds.size(), MillisecondsUntil(NextTimer()));
      output_.Handle();
      for (const int signal : signals_.Next()) Pass(signal);
      Reap();
      CheckTimers();
    }
    JobRecord record;
    for (const Rank& rank : ranks_) record.ranks.push_back(rank.record);
    record.cause = cause_;
    record.cause_rank = cause_rank_;
    record.deadline_s = Deadline();
    record.stop_signal = stop_signal_;
    return Judge(record);
  }

 private:
  struct Rank {
    RankRecord record;
    bool alive = true;
    uint64_t writes = 0;     // of its page, when it last changed
    SteadyTime moved;        // when that was
    SteadyTime not_stopped;  // when it was last seen running
  };

  absl::Status StartOne(int rank, const std::string& program,
                        const std::vector<std::string>& environment) {
    const bool restarted = epoch_ > 0 && !options_.restart_argv.empty();
    RankStart start;
    start.program = program;
    start.argv = restarted ? options_.restart_argv : options_.argv;
    start.environment = environment;
    const auto set = [&start](const char* name, const auto& value) {
      start.environment.push_back(StrCat(name, "=", value));
    };
    set("CAPSTAN_RANK", rank);
    set("CAPSTAN_WORLD_SIZE", options_.ranks);
    set("CAPSTAN_LOCAL_RANK", rank);
    set("CAPSTAN_LOCAL_SIZE", options_.ranks);
    set("CAPSTAN_RENDEZVOUS", StrCat("127.0.0.1:", server_->port()));
    set("CAPSTAN_JOB_SECRET", secret_);
    set("CAPSTAN_EPOCH", epoch_);
    set("CAPSTAN_STATUS_FD", pages_->fd());
    start.inherit = pages_->fd();
    start.signal_mask = signals_.mask_before();
    start.out = options_.out;
    start.err = options_.err;
    Fd ends[4];  // reading and writing, of out and err
    if (rank > 0) {
      for (int i = 0; i < 4; i += 2) {
        int pipe[2];
        if (::pipe2(pipe, O_CLOEXEC) != 0) {
          return ResourceError("cannot make a pipe for its output: ", std::string(strerror(errno)),
                               "; ask for fewer ranks, or raise the limit (ulimit -n)");
        }
        ends[i] = Fd(pipe[0]);
        ends[i + 1] = Fd(pipe[1]);
      }
      start.out = ends[1].get();
      start.err = ends[3].get();
    }
    CAPSTAN_ASSIGN_OR_RETURN(const pid_t pid, StartRank(start));
    Rank started;
    started.record.pid = pid;
    started.moved = started.not_stopped = std::chrono::steady_clock::now();
    ranks_.push_back(std::move(started));
    ++alive_;
    if (rank > 0) output_.Add(rank, std::move(ends[0]), std::move(ends[2]));
    return absl::OkStatus();
  }

  // ---- ends ------------------------------------------------------------------------------------

  void Reap() {
    std::vector<int> ended;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      Rank& rank = ranks_[r];
      siginfo_t info{};
      if (!rank.alive ||
          ::waitid(P_PID, rank.record.pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
          info.si_pid == 0) {
        continue;
      }
      // Processes it left behind go with it; until it is waited for, the group's number stays taken.
      ::kill(-rank.record.pid, SIGKILL);
      ::waitpid(rank.record.pid, &rank.record.wait_status, 0);
      rank.alive = false;
      const int status = rank.record.wait_status;
      rank.record.killed_by_launcher &= WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
      rank.record.order = static_cast<int>(ranks_.size()) - alive_--;
      rank.record.last = pages_->Read(static_cast<int>(r));
      rank.record.told_to_end = ending_;
      output_.Finish(static_cast<int>(r));
      ended.push_back(static_cast<int>(r));
    }
    for (const int r : ended) Consider(r);
  }

  void Consider(int r) {
    const int status = ranks_[r].record.wait_status;
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    if (!first_end_.has_value()) first_end_ = std::chrono::steady_clock::now();
    if (code == kExitDone) return;
    if (code == kExitStopped) {
      // Whoever asked it to stop meant the job.
      if (!ending_) PassStop(SIGTERM);
      return;
    }
    const RankSnapshot& said = ranks_[r].record.last;
    if (code >= 0 && said.failed) {  // perhaps it blames another
      const bool own =
          said.status_class != CAPSTAN_PEER_LOST && said.status_class != CAPSTAN_TIMEOUT;
      return End(StrCat("rank ", r, " failed: ", said.message), own ? r : said.culprit);
    }
    const std::string how = code >= 0 ? StrCat("ended with exit code ", code)
                                      : StrCat("was killed by signal ", WTERMSIG(status), " (",
                                               SignalName(WTERMSIG(status)), ")");
    End(StrCat("rank ", r, " (pid ", ranks_[r].record.pid, ") ", how), r);
  }

  // Remembers what everybody was doing, then tells them.
  void End(const std::string& why, int culprit) {
    if (ending_) return;
    ending_ = true;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      RankRecord& record = ranks_[r].record;
      record.then = pages_->Read(static_cast<int>(r));
      record.ended_before = !ranks_[r].alive;
      record.stopped = ranks_[r].alive && IsStopped(record.pid);
    }
    server_->Abort(MakeStatus(CAPSTAN_PEER_LOST, why, /*retryable=*/true, culprit));
    // A suspended process cannot end by itself.
    for (Rank& rank : ranks_) {
      if (rank.alive && rank.record.stopped) Kill(rank);
    }
    SendAll(SIGTERM);
    kill_at_ = InSeconds(options_.grace_s);
  }

  void Kill(Rank& rank) {
    rank.record.killed_by_launcher = true;
    ::kill(-rank.record.pid, SIGKILL);
  }

  void KillAll() {
    for (Rank& rank : ranks_) {
      if (rank.alive) Kill(rank);
    }
    kill_at_ = SteadyTime::max();
  }

  void SendAll(int signal) {
    for (const Rank& rank : ranks_) {
      if (rank.alive) ::kill(-rank.record.pid, signal);
    }
  }

  // ---- signals ---------------------------------------------------------------------------------

  void Pass(int signal) {
    if (signal == SIGTSTP) return Suspend();
    const bool urgent = signal == SIGINT || signal == SIGTERM;
    if (ending_) {
      if (urgent) KillAll();
      return;
    }
    if (!told_to_stop_) {
      told_to_stop_ = true;
      return PassStop(signal);
    }
    if (!urgent) return;
    cause_ = LauncherCause::kToldTwice;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      if (ranks_[r].alive) cause_rank_ = static_cast<int>(r);
    }
    End(StrCat("the launcher was told to stop a second time (", SignalName(signal), ")"), -1);
  }

  // Once: a second one would end a rank that is writing its last checkpoint.
  void PassStop(int signal) {
    if (stop_signal_ != 0) return;
    stop_signal_ = signal;
    SendAll(signal);
  }

  void Suspend() {
    SendAll(SIGSTOP);
    ::raise(SIGSTOP);
    SendAll(SIGCONT);
    const SteadyTime now = std::chrono::steady_clock::now();
    for (Rank& rank : ranks_) rank.moved = rank.not_stopped = now;
  }

  // ---- time ------------------------------------------------------------------------------------

  double Deadline() const {
    double told = 0;
    for (int r = 0; r < options_.ranks; ++r) told = std::max(told, pages_->Read(r).deadline_s);
    return told > 0 ? told : options_.deadline_s;
  }

  SteadyTime NextTimer() const { return std::min(kill_at_, look_at_); }

  void CheckTimers() {
    const SteadyTime now = std::chrono::steady_clock::now();
    if (kill_at_ <= now) KillAll();
    if (now < look_at_) return;
    const double deadline = Deadline();
    look_at_ = InSeconds(std::clamp(deadline / 10, 0.05, 1.0));
    if (!ending_) LookAfter(now, deadline);
  }

  // Whether a rank keeps the job from ending that its own deadline cannot help.
  void LookAfter(SteadyTime now, double deadline) {
    const auto passed = [now](SteadyTime since) {
      return std::chrono::duration<double>(now - since).count();
    };
    // The ranks' own deadlines come first: they know what they wait for.
    const double patience = deadline + std::clamp(deadline / 4, 0.5, 5.0);
    int overdue = -1;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      Rank& rank = ranks_[r];
      if (!rank.alive) continue;
      overdue = static_cast<int>(r);
      if (!IsStopped(rank.record.pid)) rank.not_stopped = now;
      if (passed(rank.not_stopped) > patience) return Blame(LauncherCause::kStopped, r);
      const RankSnapshot page = pages_->Read(static_cast<int>(r));
      const bool waits =
          page.state == RankState::kWaiting || page.state == RankState::kCommunicating;
      if (!waits || page.writes != rank.writes) rank.moved = now;
      rank.writes = page.writes;
      if (passed(rank.moved) > 2 * deadline + options_.grace_s) {
        return Blame(LauncherCause::kSilent, r);
      }
    }
    if (overdue >= 0 && first_end_.has_value() && passed(*first_end_) > patience) {
      Blame(LauncherCause::kOverdue, overdue);
    }
  }

  void Blame(LauncherCause cause, size_t rank) {
    cause_ = cause;
    cause_rank_ = static_cast<int>(rank);
    End(StrCat("rank ", rank, " (pid ", ranks_[rank].record.pid, ") does not get on"),
        static_cast<int>(rank));
  }

  const LaunchOptions& options_;
  const int epoch_;
  LaunchSignals& signals_;
  RankOutput& output_;

  std::string secret_;
  std::unique_ptr<BootstrapServer> server_;
  std::optional<StatusPages> pages_;
  std::vector<Rank> ranks_;
  int alive_ = 0;
  std::optional<SteadyTime> first_end_;
  bool ending_ = false;
  bool told_to_stop_ = false;
  int stop_signal_ = 0;
  SteadyTime kill_at_ = SteadyTime::max();
  SteadyTime look_at_ = std::chrono::steady_clock::now();
  LauncherCause cause_ = LauncherCause::kNone;
  int cause_rank_ = -1;
};

// More is a typing error that would take the machine down.
int MostRanks() {
  return std::max(256, 16 * static_cast<int>(std::thread::hardware_concurrency()));
}

// Two pipes a rank.
void RaiseDescriptorLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

// A pipe must not land on a standard descriptor that is closed.
void OpenStandardDescriptors() {
  for (int fd = ::open("/dev/null", O_RDWR); fd >= 0; fd = ::open("/dev/null", O_RDWR)) {
    if (fd > STDERR_FILENO) {
      ::close(fd);
      return;
    }
  }
}

}  // namespace

absl::StatusOr<int> LaunchLocal(const LaunchOptions& options) {
  if (options.ranks < 1 || options.ranks > MostRanks()) {
    return UsageError("--ranks: ", options.ranks, " ranks on this machine of ",
                      std::thread::hardware_concurrency(), " cores; start 1 to ", MostRanks());
  }
  OpenStandardDescriptors();
  RaiseDescriptorLimit();
  CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<LaunchSignals> signals, LaunchSignals::Take());
  RankOutput output(options.out, options.err);
  for (int restarts = 0;; ++restarts) {
    Job job(options, restarts, signals.get(), &output);
    CAPSTAN_RETURN_IF_ERROR(job.Start());
    const Verdict verdict = job.Run();
    const bool again = verdict.retry && restarts < options.max_restarts;
    if (!verdict.text.empty()) {
      const std::string after =
          restarts == 0 ? ""
                        : StrCat(" (after ", restarts, restarts == 1 ? " restart)" : " restarts)");
      output.Say(again ? StrCat("capstan: ", verdict.text, "; restart ", restarts + 1, " of ",
                                options.max_restarts)
                       : StrCat("capstan: ", verdict.text, after));
    }
    output.Flush(kFlushSeconds);
    if (!again) return verdict.exit_code;
  }
}

}  // namespace capstan
