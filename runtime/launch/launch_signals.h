// The signals a launcher takes, one at a time from a descriptor, for as long as this lives.
#ifndef CAPSTAN_RUNTIME_LAUNCH_LAUNCH_SIGNALS_H_
#define CAPSTAN_RUNTIME_LAUNCH_LAUNCH_SIGNALS_H_

#include <signal.h>

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/launch/wire.h"

namespace capstan {

class LaunchSignals {
 public:
  // Blocks SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGTSTP, SIGCHLD and SIGPIPE on this thread, and on the
  // threads it starts from now on.
  static absl::StatusOr<std::unique_ptr<LaunchSignals>> Take();
  ~LaunchSignals();  // puts back what was before
  LaunchSignals(const LaunchSignals&) = delete;
  LaunchSignals& operator=(const LaunchSignals&) = delete;

  int fd() const { return fd_.get(); }  // readable: Next() has some
  std::vector<int> Next();              // what has come since; SIGCHLD and SIGPIPE left out
  const sigset_t& mask_before() const { return before_; }

 private:
  LaunchSignals() = default;
  Fd fd_;
  sigset_t before_;
  struct sigaction child_before_;
};

}  // namespace capstan

#endif  // CAPSTAN_RUNTIME_LAUNCH_LAUNCH_SIGNALS_H_
