// Keeps SIGPIPE from a thread while it may write to a connection whose peer is gone.
#ifndef CAPSTAN_PLUGINS_COMM_GLOO_QUIET_PIPE_H_
#define CAPSTAN_PLUGINS_COMM_GLOO_QUIET_PIPE_H_

#include <signal.h>
#include <time.h>

namespace capstan::gloo_comm {

// Gloo writes without MSG_NOSIGNAL. The disposition of a signal is the process's, not a plugin's, so
// the signal is blocked in the threads that write, and taken back if it was raised there. Threads made
// while one lives keep it blocked.
class QuietPipe {
 public:
  QuietPipe() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~QuietPipe() {
    const timespec now{0, 0};
    if (!was_pending_) sigtimedwait(&pipe_, nullptr, &now);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  QuietPipe(const QuietPipe&) = delete;
  QuietPipe& operator=(const QuietPipe&) = delete;

 private:
  sigset_t pipe_, before_;
  bool was_pending_ = false;
};

}  // namespace capstan::gloo_comm

#endif  // CAPSTAN_PLUGINS_COMM_GLOO_QUIET_PIPE_H_
