#include "runtime/launch/launch_signals.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "runtime/status.h"

namespace capstan {

absl::StatusOr<std::unique_ptr<LaunchSignals>> LaunchSignals::Take() {
  std::unique_ptr<LaunchSignals> signals(new LaunchSignals());
  // Ignored, as some parents leave it, children would be gone before anybody could ask how they ended.
  struct sigaction keep {};
  keep.sa_handler = SIG_DFL;
  sigemptyset(&keep.sa_mask);
  ::sigaction(SIGCHLD, &keep, &signals->child_before_);
  sigset_t ours;
  sigemptyset(&ours);
  for (const int s : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGTSTP, SIGCHLD, SIGPIPE}) {
    sigaddset(&ours, s);
  }
  ::pthread_sigmask(SIG_BLOCK, &ours, &signals->before_);
  signals->fd_ = Fd(::signalfd(-1, &ours, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals->fd_.open()) {
    return ResourceError("cannot make a signalfd: ", std::string(strerror(errno)));
  }
  return signals;
}

LaunchSignals::~LaunchSignals() {
  if (fd_.open()) Next();  // nothing that came for the launcher may strike what comes after it
  ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  ::sigaction(SIGCHLD, &child_before_, nullptr);
}

std::vector<int> LaunchSignals::Next() {
  std::vector<int> signals;
  signalfd_siginfo info{};
  while (::read(fd_.get(), &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info))) {
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal != SIGCHLD && signal != SIGPIPE) signals.push_back(signal);
  }
  return signals;
}

}  // namespace capstan
