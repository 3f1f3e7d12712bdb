// How a rank gets its connection to the rendezvous: finds it, starts it where it is this rank's to
// hold, and shakes hands.
#ifndef CAPSTAN_RUNTIME_LAUNCH_JOIN_H_
#define CAPSTAN_RUNTIME_LAUNCH_JOIN_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/launch/bootstrap_server.h"
#include "runtime/launch/wire.h"
#include "runtime/launch/world.h"

namespace capstan {

struct Joined {
  std::unique_ptr<BootstrapServer> server;  // rank 0's, where no launcher holds it
  Fd connection;                            // not open in a world of one
  std::string received;                     // from it, beyond the handshake
  std::string job;
};

// Tries until `timeout_s` have passed. directory: where ranks that share no secret yet find the
// rendezvous' file. attempt_s: how long a listener may take that has not yet proved to be the job's.
absl::StatusOr<Joined> JoinJob(const World& world, const std::string& directory, double timeout_s,
                               double attempt_s = 10);

}  // namespace capstan

#endif  // CAPSTAN_RUNTIME_LAUNCH_JOIN_H_
