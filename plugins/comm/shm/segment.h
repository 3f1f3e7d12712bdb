// Memory shared between processes: anonymous files (memfd) mapped by their maker and by peers, who
// reach them through /proc/<pid>/fd. Nothing has a name in a file system, so nothing outlives the job.
#ifndef CAPSTAN_PLUGINS_COMM_SHM_SEGMENT_H_
#define CAPSTAN_PLUGINS_COMM_SHM_SEGMENT_H_

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace capstan::shm {

// A file descriptor, closed with its owner.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept : fd_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  int get() const { return fd_; }
  int release();

 private:
  int fd_ = -1;
};

// Opens descriptor `fd` of process `pid`. Throws PEER_LOST naming `rank` when the process is gone or
// has closed it, UNSUPPORTED when the system does not let us.
Descriptor open_of_process(pid_t pid, int fd, int rank);

// A mapping, unmapped with its owner.
class Mapping {
 public:
  Mapping() = default;
  // Of `bytes` of `fd` from `offset`, readable and writable. With `resident`, its page tables are
  // filled now, so that no later access faults. Throws RESOURCE or, when the file is shorter than
  // that (an access past its end would kill the process), DATA; `what` names it.
  Mapping(int fd, uint64_t offset, uint64_t bytes, bool resident, const std::string& what);
  ~Mapping();
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;

  char* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }

 private:
  char* data_ = nullptr;
  uint64_t bytes_ = 0;
};

// An anonymous file that never shrinks or grows, mapped. Pages come into being when touched.
class Segment {
 public:
  Segment() = default;
  explicit Segment(uint64_t bytes);
  // Another rank's.
  Segment(pid_t pid, int fd, int rank, uint64_t bytes);

  char* data() const { return mapping_.data(); }
  int fd() const { return file_.get(); }

 private:
  Descriptor file_;
  Mapping mapping_;
};

}  // namespace capstan::shm

#endif  // CAPSTAN_PLUGINS_COMM_SHM_SEGMENT_H_
