#include "runtime/run/files.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "runtime/status.h"

namespace capstan {

absl::Status MakeDirectories(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (!error) return absl::OkStatus();
  return ResourceError("cannot create directory ", path, ": ", error.message(),
                       "; check the path and its permissions");
}

absl::Status WriteFileAtomically(const std::string& path, const std::string& text) {
  const std::string temporary = StrCat(path, ".tmp-", ::getpid());
  auto fail = [&](const char* what) {
    const std::string reason = strerror(errno);
    ::unlink(temporary.c_str());
    return ResourceError("cannot ", what, " ", path, ": ", reason);
  };
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return fail("write");
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = ::write(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      ::close(fd);
      return fail("write");
    }
    done += static_cast<size_t>(n);
  }
  const bool synced = ::fsync(fd) == 0;
  if (::close(fd) != 0 || !synced) return fail("write");
  if (std::rename(temporary.c_str(), path.c_str()) != 0) return fail("rename to");
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return DataError("cannot read ", path, ": ", std::string(strerror(errno)));
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace capstan
