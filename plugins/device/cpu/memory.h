// Memory of this machine: how much is left, and regions of it.
#ifndef CAPSTAN_PLUGINS_DEVICE_CPU_MEMORY_H_
#define CAPSTAN_PLUGINS_DEVICE_CPU_MEMORY_H_

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace capstan::cpu_device {

constexpr uint64_t kRegionAlignment = uint64_t{2} << 20;  // a huge page

struct SystemMemory {
  uint64_t total = 0;  // bytes: of the machine, or the limit of the tightest control group
  uint64_t free = 0;   // bytes that can be had without swapping or being killed
};

SystemMemory system_memory();

// Bytes of `memory` that an allocation must leave alone: for the program itself, its libraries, the
// page cache of the data it reads.
uint64_t memory_margin(const SystemMemory& memory);

// Whether a region can be given to other processes. Private ones get huge pages more often.
enum class Sharing { kPrivate, kShared };

// Regions of anonymous memory, 2 MiB aligned, resident and zero from the start. Linux grants more
// address space than it has pages and kills the process at the touch of one too many, so a request
// that does not fit is refused before it is made. [any thread]
class Regions {
 public:
  Regions(int threads, bool huge_pages) : threads_(threads), huge_pages_(huge_pages) {}
  ~Regions();
  Regions(const Regions&) = delete;
  Regions& operator=(const Regions&) = delete;

  // Throws a RESOURCE error naming the region, what it asked for and what is free.
  void* allocate(const std::string& name, uint64_t bytes, Sharing sharing = Sharing::kPrivate);
  // False when `memory` is not the start of a live region.
  bool free(void* memory);
  uint64_t allocated_bytes() const;  // exact sum of the sizes asked for
  // A duplicate, the caller's, of the descriptor of a shared region's file, which begins where the
  // region does. Throws USAGE for anything else.
  int share(void* memory) const;

 private:
  struct Region {
    uint64_t asked;
    uint64_t mapped;
    int file;  // of a shared one, else -1
  };

  static void release(void* memory, const Region& region);

  int threads_;
  bool huge_pages_;
  mutable std::mutex mutex_;
  std::map<void*, Region> regions_;
  uint64_t allocated_ = 0;
};

}  // namespace capstan::cpu_device

#endif  // CAPSTAN_PLUGINS_DEVICE_CPU_MEMORY_H_
