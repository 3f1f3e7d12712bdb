// One process a run directory.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace capstan {

// Holds <directory>/lock until destroyed; the kernel lets go when the process dies, however it
// dies.
class RunLock {
 public:
  static absl::StatusOr<RunLock> Take(const std::string& directory);
  ~RunLock();
  RunLock(RunLock&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  RunLock& operator=(RunLock&&) = delete;

 private:
  explicit RunLock(int fd) : fd_(fd) {}
  int fd_ = -1;
};

}  // namespace capstan
