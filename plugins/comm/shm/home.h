// This rank's home: what its peers may see of it.
#ifndef CAPSTAN_PLUGINS_COMM_SHM_HOME_H_
#define CAPSTAN_PLUGINS_COMM_SHM_HOME_H_

#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "plugins/comm/shm/layout.h"
#include "plugins/comm/shm/segment.h"

namespace capstan::shm {

class OwnHome {
 public:
  OwnHome(const Secret& secret, int rank);
  OwnHome(const OwnHome&) = delete;
  OwnHome& operator=(const OwnHome&) = delete;

  Home& page() { return *reinterpret_cast<Home*>(segment_.data()); }
  int fd() const { return segment_.fd(); }
  char* at(uint64_t offset) { return segment_.data() + offset; }

  // Zeroed bytes of the home, 64-byte aligned; the offset. Throws RESOURCE. [any thread]
  uint64_t allocate(uint64_t bytes);
  void free(uint64_t offset, uint64_t bytes);

  // Memory mapped from `fd` at `offset`. Throws USAGE when it overlaps registered memory, RESOURCE
  // when there are too many regions. [any thread]
  void add_region(void* memory, uint64_t bytes, int fd, uint64_t offset);
  bool remove_region(void* memory);
  // Where `bytes` at `memory` lie. [any thread]
  Place place(const void* memory, uint64_t bytes) const;

 private:
  struct Region {
    uint64_t bytes;
    uint32_t index;
    uint64_t number;
    Descriptor file;
  };

  Segment segment_;
  mutable std::mutex mutex_;
  uint64_t heap_end_ = kHomeHeap;
  std::map<uint64_t, std::vector<uint64_t>> unused_;  // freed offsets by size
  std::map<uint64_t, Region> regions_;                // by address
  uint64_t registrations_ = 0;
};

}  // namespace capstan::shm

#endif  // CAPSTAN_PLUGINS_COMM_SHM_HOME_H_
