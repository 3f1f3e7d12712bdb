#include "runtime/launch/rank_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "runtime/launch/wire.h"
#include "runtime/status.h"

extern char** environ;

namespace capstan {
namespace {

std::vector<char*> Pointers(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (const std::string& s : strings) pointers.push_back(const_cast<char*>(s.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// In the child of a process that may have threads: only what is safe in a signal handler. Gives the
// reason for which it is still here.
int Become(const RankStart& start, char* const* argv, char* const* environment, pid_t launcher) {
  ::setpgid(0, 0);
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return errno;
  if (::getppid() != launcher) ::_exit(kExitRetry);  // it ended before that took effect
  const int nothing = ::open("/dev/null", O_RDONLY);
  if (nothing < 0 || ::dup2(nothing, STDIN_FILENO) < 0 || ::dup2(start.out, STDOUT_FILENO) < 0 ||
      ::dup2(start.err, STDERR_FILENO) < 0) {
    return errno;
  }
  if (nothing > STDERR_FILENO) ::close(nothing);
  if (start.inherit >= 0 && ::fcntl(start.inherit, F_SETFD, 0) != 0) return errno;
  // Its group is not the terminal's: with `stty tostop` writing would stop it.
  ::signal(SIGTTOU, SIG_IGN);
  ::pthread_sigmask(SIG_SETMASK, &start.signal_mask, nullptr);
  ::execve(start.program.c_str(), argv, environment);
  return errno;
}

}  // namespace

absl::StatusOr<pid_t> StartRank(const RankStart& start) {
  const std::vector<char*> argv = Pointers(start.argv), environment = Pointers(start.environment);
  int news[2];
  if (::pipe2(news, O_CLOEXEC) != 0) {
    return ResourceError("cannot make a pipe: ", std::string(strerror(errno)),
                         "; ask for fewer ranks, or raise the limit (ulimit -n)");
  }
  Fd read_end(news[0]), write_end(news[1]);
  const pid_t launcher = ::getpid();
  const pid_t pid = ::fork();
  if (pid == 0) {
    const int reason = Become(start, argv.data(), environment.data(), launcher);
    const ssize_t ignored = ::write(write_end.get(), &reason, sizeof(reason));
    static_cast<void>(ignored);
    ::_exit(kExitFailed);
  }
  if (pid < 0) {
    return ResourceError("cannot start another process: ", std::string(strerror(errno)),
                         "; ask for fewer ranks, or raise the limit (ulimit -u)");
  }
  ::setpgid(pid, pid);  // whoever of the two comes first
  write_end.Close();
  int reason = 0;
  ssize_t n;
  do {  // ends with the exec
    n = ::read(read_end.get(), &reason, sizeof(reason));
  } while (n < 0 && errno == EINTR);
  if (n <= 0) return pid;
  ::waitpid(pid, nullptr, 0);
  const bool files = reason == EMFILE || reason == ENFILE;
  const bool memory = reason == ENOMEM || reason == EAGAIN;
  return ResourceError("cannot start ", start.program, ": ", std::string(strerror(reason)),
                       files    ? "; ask for fewer ranks, or raise the limit (ulimit -n)"
                       : memory ? "; ask for fewer ranks"
                                : "");
}

std::vector<std::string> EnvironmentForRanks() {
  constexpr const char* kOurs[] = {"CAPSTAN_RANK",       "CAPSTAN_WORLD_SIZE", "CAPSTAN_LOCAL_RANK",
                                   "CAPSTAN_LOCAL_SIZE", "CAPSTAN_RENDEZVOUS", "CAPSTAN_JOB_SECRET",
                                   "CAPSTAN_EPOCH",      "CAPSTAN_STATUS_FD"};
  std::vector<std::string> kept;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    bool ours = false;
    for (const char* name : kOurs) {
      const size_t length = std::strlen(name);
      ours |= std::strncmp(*variable, name, length) == 0 && (*variable)[length] == '=';
    }
    if (!ours) kept.emplace_back(*variable);
  }
  return kept;
}

std::string ThisProgram() {
  // The link's target where it still is this binary: a process so started has its name in `ps`.
  constexpr char kLink[] = "/proc/self/exe";
  char path[4096];
  const ssize_t n = ::readlink(kLink, path, sizeof(path));
  struct stat here {
  }, there{};
  if (n <= 0 || n == sizeof(path)) return kLink;
  const std::string target(path, static_cast<size_t>(n));
  const bool same = ::stat(kLink, &here) == 0 && ::stat(target.c_str(), &there) == 0 &&
                    here.st_dev == there.st_dev && here.st_ino == there.st_ino;
  return same ? target : kLink;
}

bool IsStopped(pid_t pid) {
  const Fd fd(::open(StrCat("/proc/", pid, "/stat").c_str(), O_RDONLY | O_CLOEXEC));
  char text[512] = {};
  if (!fd.open() || ::read(fd.get(), text, sizeof(text) - 1) <= 0) return false;
  const char* name_end = std::strrchr(text, ')');
  return name_end != nullptr && name_end[1] == ' ' && name_end[2] == 'T';
}

}  // namespace capstan
