// Files that must survive a crash: what stores, dataset writers and trackers share. POSIX.
//
// Every failure throws sdk::Error with a sentence that names the file: class RESOURCE when the
// disk, a quota or descriptors ran out, USAGE when the path is wrong, DATA when a file is shorter
// than it should be.
#ifndef CAPSTAN_SDK_FILE_H_
#define CAPSTAN_SDK_FILE_H_

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <utility>

#include "sdk/error.h"

namespace capstan::sdk {

// A name or path as it appears in messages: quoted, control characters escaped, long ones
// shortened.
inline std::string quote(std::string_view name) {
  constexpr std::size_t kLongest = 300;
  constexpr char kHex[] = "0123456789abcdef";
  std::string out = "'";
  for (std::size_t i = 0; i < name.size(); ++i) {
    if (i == kLongest) {
      out += "...";
      break;
    }
    const auto c = static_cast<unsigned char>(name[i]);
    if (c < 0x20 || c == 0x7f) {
      out += "\\x";
      out += kHex[c >> 4];
      out += kHex[c & 15];
    } else {
      out += name[i];
    }
  }
  return out + "'";
}

// The error of a failed system call: "cannot write 'x': No space left on device".
inline Error system_error(const std::string& doing, const std::string& path, int error_number) {
  const std::string cause = text("cannot ", doing, " ", quote(path), ": ");
  switch (error_number) {
    case ENOSPC:
      return resource_error(cause + "disk full; free some space or choose another disk");
    case EDQUOT:
      return resource_error(cause + "disk quota used up; free some space");
    case EFBIG:
      return resource_error(cause + "the file size limit is reached; raise it (ulimit -f)");
    case EMFILE:
    case ENFILE:
      return resource_error(cause + "too many open files; raise the limit (ulimit -n)");
    case ENOMEM:
      return resource_error(cause + "out of memory");
    case EIO:
      return resource_error(cause + "the disk reports an input/output error");
    case ENOENT:
      return usage_error(cause + "there is no such file or directory; check the path");
    case EACCES:
    case EPERM:
      return usage_error(cause + "permission denied; check the owner and the mode");
    case EROFS:
      return usage_error(cause + "the file system is read-only; choose another place");
    case ENOTDIR:
      return usage_error(cause + "a part of the path is not a directory");
    case ENAMETOOLONG:
      return usage_error(cause + "the name is too long");
    default:
      return Error(CAPSTAN_RESOURCE, cause + std::strerror(error_number));
  }
}

// An open file, closed by its destructor. Reads and writes are by offset, whole or an error.
// [one thread for writes; any thread for reads]
class File {
 public:
  File() = default;
  File(File&& other) noexcept : fd_(std::exchange(other.fd_, -1)), path_(std::move(other.path_)) {}
  File& operator=(File&& other) noexcept {
    if (this != &other) {
      close();
      fd_ = std::exchange(other.fd_, -1);
      path_ = std::move(other.path_);
    }
    return *this;
  }
  ~File() { close(); }

  static File open_to_read(const std::string& path) {
    File file = open(path, O_RDONLY | O_NONBLOCK, "open");  // a FIFO would wait for its writer
    struct stat status;
    if (::fstat(file.fd_, &status) != 0) throw system_error("look at", path, errno);
    if (!S_ISREG(status.st_mode)) {
      throw usage_error(text(quote(path), " is not a regular file; check the path"));
    }
    return file;
  }
  // Fails when the file exists.
  static File create(const std::string& path) {
    return open(path, O_RDWR | O_CREAT | O_EXCL, "create");
  }
  // Fails when there is none.
  static File open_to_change(const std::string& path) { return open(path, O_RDWR, "open"); }
  // Creates the file when there is none.
  static File open_to_write(const std::string& path) {
    return open(path, O_RDWR | O_CREAT, "open");
  }

  // Opens a file that is there for writes past the page cache; false where it cannot be had.
  bool open_direct(const std::string& path) {
#ifdef O_DIRECT
    close();
    path_ = path;
    do {
      fd_ = ::open(path.c_str(), O_RDWR | O_DIRECT | O_CLOEXEC);
    } while (fd_ < 0 && errno == EINTR);
#else
    (void)path;
#endif
    return fd_ >= 0;
  }

  int fd() const { return fd_; }
  const std::string& path() const { return path_; }

  std::uint64_t size() const {
    struct stat status;
    if (::fstat(fd_, &status) != 0) throw system_error("look at", path_, errno);
    return static_cast<std::uint64_t>(status.st_size);
  }

  // Exactly `size` bytes, or an error.
  void read(void* data, std::uint64_t size, std::uint64_t offset) const {
    auto* to = static_cast<char*>(data);
    while (size > 0) {
      const ssize_t n = ::pread(fd_, to, std::min(size, kMostAtOnce), static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) throw system_error("read", path_, errno);
      if (n == 0) {
        throw data_error(text("file ", quote(path_), " ends ", size, " bytes too early, at byte ",
                              offset, ": it was cut short; fetch or save it again"));
      }
      to += n;
      offset += static_cast<std::uint64_t>(n);
      size -= static_cast<std::uint64_t>(n);
    }
  }

  void write(const void* data, std::uint64_t size, std::uint64_t offset) const {
    const auto* from = static_cast<const char*>(data);
    while (size > 0) {
      const ssize_t n =
          ::pwrite(fd_, from, std::min(size, kMostAtOnce), static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) throw system_error("write", path_, errno);
      from += n;
      offset += static_cast<std::uint64_t>(n);
      size -= static_cast<std::uint64_t>(n);
    }
  }

  // Fixes the size and, where the file system can, takes the space now, so that a full disk shows
  // here and not in the middle of the data.
  void reserve(std::uint64_t size) const {
    if (size == 0) return;
    const auto length = static_cast<off_t>(size);
    int result = 0;
    do {
      result = ::fallocate(fd_, 0, 0, length) == 0 ? 0 : errno;
    } while (result == EINTR);
    if (result == EOPNOTSUPP || result == ENOSYS) {
      result = ::ftruncate(fd_, length) == 0 ? 0 : errno;
    }
    if (result != 0) throw system_error("reserve space for", path_, result);
  }

  void truncate(std::uint64_t size) const {
    if (::ftruncate(fd_, static_cast<off_t>(size)) != 0) {
      throw system_error("truncate", path_, errno);
    }
  }

  void sync() const {
    if (::fsync(fd_) != 0) throw system_error("flush to disk", path_, errno);
  }

  // A close that reports: network file systems keep some write errors until then.
  void finish() {
    const int fd = std::exchange(fd_, -1);
    if (fd >= 0 && ::close(fd) != 0 && errno != EINTR) throw system_error("close", path_, errno);
  }

 private:
  static constexpr std::uint64_t kMostAtOnce = std::uint64_t{1} << 30;  // Linux stops at 2 GiB

  static File open(const std::string& path, int flags, const char* doing) {
    File file;
    file.path_ = path;
    do {
      file.fd_ = ::open(path.c_str(), flags | O_CLOEXEC, 0666);
    } while (file.fd_ < 0 && errno == EINTR);
    if (file.fd_ < 0) throw system_error(doing, path, errno);
    return file;
  }

  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

  int fd_ = -1;
  std::string path_;
};

// The directory that holds `path`: "a" for "a/b", "." for "b". A trailing slash does not count.
inline std::string parent_directory(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// "b" for "a/b" and "a/b/".
inline std::string base_name(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? path : path.substr(slash + 1);
}

// Makes names created, renamed or removed in a directory last through a power failure.
inline void sync_directory(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) throw system_error("open directory", path, errno);
  const int result = ::fsync(fd) == 0 ? 0 : errno;
  ::close(fd);
  // Some network file systems have no directory fsync; a rename is durable there by itself.
  if (result != 0 && result != EINVAL && result != EROFS) {
    throw system_error("flush directory", path, result);
  }
}

inline void rename_path(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) {
    const int error_number = errno;
    throw system_error(text("rename ", quote(from), " to"), to, error_number);
  }
}

// Creates `path` and what is missing above it, each durable.
inline void make_directories(const std::string& path) {
  struct stat status;
  if (::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) return;
  const std::string parent = parent_directory(path);
  if (parent != path) make_directories(parent);
  if (::mkdir(path.c_str(), 0777) != 0 && errno != EEXIST) {
    throw system_error("create directory", path, errno);
  }
  if (::stat(path.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) {
    throw usage_error(text(quote(path), " exists and is not a directory; choose another place"));
  }
  sync_directory(parent);
}

// A name for a temporary beside its final place: ".tmp-<name>-<pid>-<random>", so that a crash
// leaves something recognisable and two writers never meet.
inline constexpr char kTemporaryPrefix[] = ".tmp-";
inline std::string temporary_name(const std::string& name) {
  std::random_device device;
  std::string random;
  for (int i = 0; i < 8; ++i) random += "0123456789abcdef"[device() & 15];
  return text(kTemporaryPrefix, name, "-", ::getpid(), "-", random);
}

}  // namespace capstan::sdk

#endif  // CAPSTAN_SDK_FILE_H_
