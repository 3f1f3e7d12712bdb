#include "runtime/run/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "runtime/status.h"

namespace capstan {

absl::StatusOr<RunLock> RunLock::Take(const std::string& directory) {
  const std::string path = directory + "/lock";
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) {
    return ResourceError("cannot create ", path, ": ", std::string(strerror(errno)),
                         "; check run.dir and its permissions");
  }
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    char pid[32] = {};
    const ssize_t n = ::pread(fd, pid, sizeof(pid) - 1, 0);
    ::close(fd);
    return UsageError(
        "another process", n > 0 ? StrCat(" (pid ", std::string(pid), ")") : std::string(),
        " is running in ", directory, "; wait for it, or give this run another run.dir");
  }
  const std::string pid = StrCat(::getpid());
  if (::ftruncate(fd, 0) != 0 || ::pwrite(fd, pid.data(), pid.size(), 0) < 0) {
    const std::string reason = strerror(errno);
    ::close(fd);
    return ResourceError("cannot write ", path, ": ", reason, "; is the disk full?");
  }
  return RunLock(fd);
}

RunLock::~RunLock() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace capstan
