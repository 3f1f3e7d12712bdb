// The default driver: steps, validation, checkpoints, metrics, and stopping when asked.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/run/ranks.h"
#include "runtime/run/session.h"

namespace capstan {

struct TrainOptions {
  bool fresh = false;       // refuse to start where a run already is
  bool trace = false;       // write trace/step-<n>.json of the last step
  bool terminal = false;    // redraw one progress line instead of printing lines
  int64_t print_every = 1;  // steps between plain lines; 0: choose
  bool supervised = false;  // by the launcher of this machine's ranks
  // For verify: end after this many steps (0: the run's) and leave a snapshot (verify.h) here instead
  // of a checkpoint.
  int64_t stop_after = 0;
  std::string snapshot;
  bool alone = false;  // on this one rank, whatever the mesh says
};

// How a run ended.
struct TrainResult {
  int64_t step = 0;
  bool stopped_on_request = false;
  double last_loss = 0;
};

// Trains the session's config to its end, resuming from the newest complete checkpoint of its run
// directory. SIGTERM, SIGINT and SIGUSR1 end the run after the current step with a checkpoint.
// Every rank calls it; the lead alone prints, tracks and keeps the directory.
absl::StatusOr<TrainResult> Train(Session& session, const TrainOptions& options,
                                  const Ranks& ranks = Ranks());

}  // namespace capstan
