// A rank that does what its arguments say, and a launcher of such ranks.
//
//   launch_rank WORD...          each word is RANKS:COMMAND, done in order by the ranks it names
//   launch_rank --launch RANKS MAX_RESTARTS GRACE DEADLINE PIDS_FD COUNT WORD... [RESTART_WORD...]
//
// RANKS is a rank or "*", and may end in "@E": only after E restarts. The commands are below.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "runtime/launch/bootstrap.h"
#include "runtime/launch/launcher.h"
#include "runtime/launch/rank_status.h"
#include "runtime/launch/world.h"
#include "runtime/status.h"

namespace capstan {
namespace {

volatile sig_atomic_t told = 0;

class Rank {
 public:
  Rank(World world, RankStatus status) : world_(std::move(world)), status_(std::move(status)) {}

  int Run(const std::vector<std::string>& words) {
    for (const std::string& word : words) {
      const size_t colon = word.find(':');
      if (!Names(word.substr(0, colon))) continue;
      const std::string rest = word.substr(colon + 1);
      const size_t equals = rest.find('=');
      const absl::Status done =
          Do(rest.substr(0, equals), equals == std::string::npos ? "" : rest.substr(equals + 1));
      if (!done.ok()) return Fail(done);
    }
    return 0;
  }

 private:
  bool Names(const std::string& ranks) const {
    const std::vector<std::string> parts = absl::StrSplit(ranks, '@');
    if (parts.size() > 1 && std::stoi(parts[1]) != world_.epoch) return false;
    return parts[0] == "*" || std::stoi(parts[0]) == world_.rank;
  }

  // As the command line does: a watched rank leaves the words to its launcher.
  int Fail(const absl::Status& status) {
    status_.Fail(status);
    if (bootstrap_ != nullptr) bootstrap_->Abort(status);
    if (!status_.watched()) {
      std::fprintf(stderr, "capstan: %s\n", std::string(status.message()).c_str());
    }
    return ExitCode(status);
  }

  absl::Status Do(const std::string& command, const std::string& value) {
    // ---- output
    if (command == "print") std::printf("%s\n", value.c_str());
    if (command == "part") std::printf("%s", value.c_str());
    if (command == "error") std::fprintf(stderr, "%s\n", value.c_str());
    if (command == "lines") {
      for (int i = 0; i < std::stoi(value); ++i) std::printf("line %d\n", i);
    }
    if (command == "long") std::printf("%s\n", std::string(std::stoul(value), 'x').c_str());
    if (command == "terminal") std::printf("terminal %d\n", ::isatty(STDOUT_FILENO));
    if (command == "env") std::printf("%s=%s\n", value.c_str(), std::getenv(value.c_str()));
    std::fflush(stdout);
    // ---- ends
    if (command == "exit") ::_exit(std::stoi(value));
    if (command == "raise") Raise(std::stoi(value));
    if (command == "usage") return UsageError(value);
    if (command == "data") return DataError(value);
    if (command == "late") {
      return MakeStatus(CAPSTAN_TIMEOUT, "a deadline passed", true, std::stoi(value));
    }
    if (command == "spin") {
      for (;;) ::pause();
    }
    if (command == "nap") ::usleep(std::stoul(value) * 1000);
    // ---- signals
    if (command == "ignore") ::signal(std::stoi(value), SIG_IGN);
    if (command == "listen") Listen();
    if (command == "until_told") {
      UntilTold();
      std::printf("told %d\n", static_cast<int>(told));
      std::fflush(stdout);
    }
    if (command == "leave_child") LeaveChild();
    // ---- what it says about itself
    if (command == "deadline") status_.SetDeadline(timeout_s_ = std::stod(value));
    if (command == "step") status_.SetStep(std::stoll(value));
    if (command == "op") status_.SetOp(OpLabel(value), 0);
    if (command == "waits_for") {
      status_.SetState(RankState::kWaiting);
      status_.SetAwaited(status_.writes(), std::stoi(value));
    }
    if (command == "finishing") status_.SetState(RankState::kFinishing);
    // ---- the rendezvous
    if (command == "join") return Join(value);
    if (command == "put") return bootstrap_->Put(value, "v");
    if (command == "get") {
      status_.SetOp(OpLabel(StrCat("get(", value, ")")), 0, RankState::kWaiting);
      return bootstrap_->Get(value).status();
    }
    if (command == "barrier") return Wait(value);
    if (command == "steps") return Steps(value);
    if (command == "finish") return bootstrap_->Finish();
    return absl::OkStatus();
  }

  // As if the kernel did it: no handler (a sanitizer has some) and no core file.
  static void Raise(int signal) {
    const rlimit none{0, 0};
    ::setrlimit(RLIMIT_CORE, &none);
    ::signal(signal, SIG_DFL);
    ::raise(signal);
  }

  static void Listen() {
    for (const int s : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) {
      ::signal(s, [](int signal) { told = signal; });
    }
  }

  static void UntilTold() {
    sigset_t block, before;
    sigfillset(&block);
    ::sigprocmask(SIG_SETMASK, &block, &before);
    std::printf("listening\n");
    std::fflush(stdout);
    while (told == 0) ::sigsuspend(&before);
    ::sigprocmask(SIG_SETMASK, &before, nullptr);
  }

  static void LeaveChild() {
    const pid_t child = ::fork();
    if (child == 0) {
      for (;;) ::pause();
    }
    std::printf("child %d\n", static_cast<int>(child));
    std::fflush(stdout);
  }

  absl::Status Join(const std::string& directory) {
    BootstrapOptions options;
    options.timeout_s = timeout_s_;
    options.directory = directory;
    CAPSTAN_ASSIGN_OR_RETURN(bootstrap_, Bootstrap::Join(world_, options));
    return absl::OkStatus();
  }

  absl::Status Wait(const std::string& name) {
    status_.SetOp(OpLabel(StrCat("barrier(", name, ")")), 0, RankState::kWaiting);
    CAPSTAN_RETURN_IF_ERROR(bootstrap_->Barrier(name));
    status_.SetOp(OpLabel(StrCat("after(", name, ")")), 0);
    return absl::OkStatus();
  }

  // "N" or "N,STEP,PLACE,FAULT": N steps of a put, a get from the next rank and a barrier. At a step
  // and place (0 to 3) FAULT is done: a signal's number, or milliseconds of sleep when negative.
  absl::Status Steps(const std::string& value) {
    const std::vector<std::string> parts = absl::StrSplit(value, ',');
    const int steps = std::stoi(parts[0]);
    for (int step = 0; step < steps; ++step) {
      const auto place = [&](int here) {
        if (parts.size() < 4 || std::stoi(parts[1]) != step || std::stoi(parts[2]) != here) return;
        const int fault = std::stoi(parts[3]);
        if (fault > 0) Raise(fault);
        if (fault < 0) ::usleep(static_cast<useconds_t>(-fault) * 1000);
      };
      status_.SetStep(step);
      status_.SetOp(OpLabel("compute"), 0);
      place(0);
      CAPSTAN_RETURN_IF_ERROR(bootstrap_->Put(StrCat("s", step, "/", world_.rank), "v"));
      place(1);
      status_.SetOp(OpLabel("get"), 0, RankState::kWaiting);
      const int next = (world_.rank + 1) % world_.size;
      CAPSTAN_RETURN_IF_ERROR(bootstrap_->Get(StrCat("s", step, "/", next)).status());
      place(2);
      CAPSTAN_RETURN_IF_ERROR(Wait("step"));
      place(3);
    }
    return absl::OkStatus();
  }

  World world_;
  RankStatus status_;
  double timeout_s_ = 30;
  std::unique_ptr<Bootstrap> bootstrap_;
};

int BeRank(const std::vector<std::string>& words) {
  absl::StatusOr<World> world = DetectWorld(ProcessEnvironment());
  absl::StatusOr<RankStatus> status = world.ok() ? RankStatus::Open(*world) : world.status();
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", std::string(status.status().message()).c_str());
    return kExitUsage;
  }
  return Rank(*world, *std::move(status)).Run(words);
}

void LimitDescriptors() {
  const char* text = std::getenv("TEST_DESCRIPTORS");
  const rlim_t most = text == nullptr ? 0 : static_cast<rlim_t>(std::atoi(text));
  const rlimit limit{most, most};
  if (most > 0 && ::setrlimit(RLIMIT_NOFILE, &limit) != 0) std::perror("limit");
}

int BeLauncher(const std::string& program, const std::vector<std::string>& arguments) {
  LimitDescriptors();
  LaunchOptions options;
  options.ranks = std::stoi(arguments[0]);
  options.max_restarts = std::stoi(arguments[1]);
  options.grace_s = std::stod(arguments[2]);
  options.deadline_s = std::stod(arguments[3]);
  const int pids_fd = std::stoi(arguments[4]);
  const auto words = arguments.begin() + 6;
  options.argv = {program};
  options.argv.insert(options.argv.end(), words, words + std::stoi(arguments[5]));
  if (words + std::stoi(arguments[5]) != arguments.end()) {
    options.restart_argv = {program};
    options.restart_argv.insert(options.restart_argv.end(), words + std::stoi(arguments[5]),
                                arguments.end());
  }
  ::fcntl(pids_fd, F_SETFD, FD_CLOEXEC);
  options.started = [pids_fd](const std::vector<pid_t>& pids) {
    std::string line;
    for (const pid_t pid : pids) line += std::to_string(pid) + " ";
    line += "\n";
    if (::write(pids_fd, line.data(), line.size()) < 0) std::perror("pids");
  };
  const absl::StatusOr<int> code = LaunchLocal(options);
  if (code.ok()) return *code;
  std::fprintf(stderr, "launcher: %s\n", std::string(code.status().message()).c_str());
  return ExitCode(code.status());
}

}  // namespace
}  // namespace capstan

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (!arguments.empty() && arguments[0] == "--launch") {
    return capstan::BeLauncher(argv[0], {arguments.begin() + 1, arguments.end()});
  }
  return capstan::BeRank(arguments);
}
