#include "plugins/comm/shm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "sdk/error.h"

namespace capstan::shm {

Descriptor::~Descriptor() {
  if (fd_ >= 0) close(fd_);
}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) close(fd_);
    fd_ = other.release();
  }
  return *this;
}

int Descriptor::release() { return std::exchange(fd_, -1); }

Descriptor open_of_process(pid_t pid, int fd, int rank) {
  const std::string path = sdk::text("/proc/", pid, "/fd/", fd);
  Descriptor file(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (file.get() >= 0) return file;
  const int error = errno;
  if (error == ENOENT || error == ESRCH) {
    throw sdk::Error(CAPSTAN_PEER_LOST,
                     sdk::text("comm shm: rank ", rank, " (process ", pid,
                               ") ended or closed its shared memory before this rank joined it"),
                     false, rank);
  }
  if (error == EMFILE || error == ENFILE) {
    throw sdk::resource_error("comm shm: no file descriptors are left; raise `ulimit -n`");
  }
  throw sdk::unsupported_error(sdk::text("comm shm: cannot open ", path, " of rank ", rank, " (",
                                         std::strerror(error),
                                         "); ranks must run as one user, with /proc mounted, in "
                                         "one process namespace; else use [comm] "
                                         "plugin = \"mpi\""));
}

Mapping::Mapping(int fd, uint64_t offset, uint64_t bytes, bool resident, const std::string& what) {
  struct stat info {};
  if (fstat(fd, &info) != 0 || static_cast<uint64_t>(info.st_size) < offset ||
      static_cast<uint64_t>(info.st_size) - offset < bytes) {
    throw sdk::data_error(sdk::text("comm shm: ", what, " should have ", bytes, " bytes from ",
                                    offset, " but its file ends at ", info.st_size));
  }
  void* raw = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_SHARED | (resident ? MAP_POPULATE : 0), fd, static_cast<off_t>(offset));
  if (raw == MAP_FAILED) {
    throw sdk::resource_error(
        sdk::text("comm shm: cannot map ", what, ", ", bytes, " bytes: ", std::strerror(errno)));
  }
  data_ = static_cast<char*>(raw);
  bytes_ = bytes;
}

Mapping::~Mapping() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

namespace {

Descriptor make_file(uint64_t bytes) {
  Descriptor file(static_cast<int>(memfd_create("capstan-comm", MFD_CLOEXEC | MFD_ALLOW_SEALING)));
  if (file.get() < 0 || ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) {
    throw sdk::resource_error(sdk::text("comm shm: cannot make ", bytes,
                                        " bytes of shared memory: ", std::strerror(errno)));
  }
  // A shorter file would kill every process that touches its lost end.
  (void)fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  return file;
}

}  // namespace

Segment::Segment(uint64_t bytes)
    : file_(make_file(bytes)), mapping_(file_.get(), 0, bytes, false, "this rank's memory") {}

Segment::Segment(pid_t pid, int fd, int rank, uint64_t bytes)
    : file_(open_of_process(pid, fd, rank)),
      mapping_(file_.get(), 0, bytes, false, sdk::text("memory of rank ", rank)) {
  file_ = Descriptor();  // the mapping is enough
}

}  // namespace capstan::shm
