// How ranks that no capstan started find rank 0: a file in the run directory with the rendezvous'
// address and the job's secret, readable by its owner only. It is there from rank 0's start until every
// rank has joined.
//
// A crashed run may leave one behind. Its name carries the launcher's id of the job, rank 0 replaces
// what it finds under that name, and on its machine a file whose writer is no longer the process it was
// is passed over; elsewhere the secret in it opens nothing, since its listener is gone.
#ifndef CAPSTAN_RUNTIME_LAUNCH_RENDEZVOUS_FILE_H_
#define CAPSTAN_RUNTIME_LAUNCH_RENDEZVOUS_FILE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace capstan {

struct Rendezvous {
  std::string address;  // "": loopback
  int port = 0;
  std::string secret;
};

// The same for all processes of a machine, until it boots again.
std::string MachineId();

// Path of the file of job `job` (World::job) in a run directory.
std::string RendezvousPath(const std::string& directory, const std::string& job);

// Replaces what is at `path`, atomically.
absl::Status WriteRendezvous(const std::string& path, const Rendezvous& rendezvous);

// Retryable while there is none, or only one of an ended process. Refuses one that somebody else wrote
// or could read.
absl::StatusOr<Rendezvous> ReadRendezvous(const std::string& path);

// Removes it unless another process has replaced it.
void RemoveRendezvous(const std::string& path, const Rendezvous& written);

}  // namespace capstan

#endif  // CAPSTAN_RUNTIME_LAUNCH_RENDEZVOUS_FILE_H_
