#include "plugins/device/cpu/memory.h"

#include <fcntl.h>
#include <omp.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <optional>

#include "sdk/error.h"

namespace capstan::cpu_device {
namespace {

// The number after `key` in a file of "key value" or "key: value kB" lines.
std::optional<uint64_t> read_field(const std::string& path, const std::string& key) {
  std::ifstream in(path);
  std::string word;
  while (in >> word) {
    uint64_t value = 0;
    if (word == key && in >> value) return value;
    in.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return std::nullopt;
}

// The number a file holds; "max" and anything else is none.
std::optional<uint64_t> read_number(const std::string& path) {
  std::ifstream in(path);
  uint64_t value = 0;
  if (in >> value) return value;
  return std::nullopt;
}

void tighten(SystemMemory& memory, std::optional<uint64_t> limit, std::optional<uint64_t> used,
             std::optional<uint64_t> reclaimable) {
  // Version 1 writes "no limit" as a huge number.
  if (!limit || !used || *limit >= memory.total) return;
  memory.total = *limit;
  const uint64_t firm = *used - std::min(*used, reclaimable.value_or(0));
  memory.free = std::min(memory.free, *limit - std::min(*limit, firm));
}

// The names by which one version of control groups says what this process may have.
struct GroupFiles {
  const char* limit;
  const char* used;
  const char* reclaimable;
};
constexpr GroupFiles kVersion1 = {"/memory.limit_in_bytes", "/memory.usage_in_bytes",
                                  "total_inactive_file"};
constexpr GroupFiles kVersion2 = {"/memory.max", "/memory.current", "inactive_file"};

// The group and all above it, each of which limits the process.
void tighten_by_group(SystemMemory& memory, const std::string& root, std::string group,
                      const GroupFiles& files) {
  while (true) {
    const std::string folder = root + group;
    tighten(memory, read_number(folder + files.limit), read_number(folder + files.used),
            read_field(folder + "/memory.stat", files.reclaimable));
    if (group.empty()) return;
    group.erase(group.rfind('/'));
  }
}

// Lines of /proc/self/cgroup are "id:controllers:/path"; version 2 has the id 0.
void tighten_by_groups(SystemMemory& memory) {
  std::ifstream in("/proc/self/cgroup");
  std::string line;
  while (std::getline(in, line)) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos || line.compare(second + 1, 1, "/") != 0) continue;
    const std::string controllers = sdk::text(',', line.substr(first + 1, second - first - 1), ',');
    const std::string group = line.substr(second + 1);
    if (line.rfind("0:", 0) == 0) {
      tighten_by_group(memory, "/sys/fs/cgroup", group, kVersion2);
    } else if (controllers.find(",memory,") != std::string::npos) {
      tighten_by_group(memory, "/sys/fs/cgroup/memory", group, kVersion1);
    }
  }
}

std::string mebibytes(uint64_t bytes) { return sdk::text(bytes >> 20, " MiB"); }

uint64_t round_up(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

// Every page made resident by the threads that will work on it, each its own consecutive part.
void touch(char* memory, uint64_t bytes, int threads) {
  const int64_t pieces = static_cast<int64_t>(bytes / kRegionAlignment);
  const int64_t page = sysconf(_SC_PAGESIZE);
#pragma omp parallel for schedule(static) num_threads(threads) if (pieces > 1)
  for (int64_t i = 0; i < pieces; ++i) {
    volatile char* piece = memory + static_cast<uint64_t>(i) * kRegionAlignment;
    for (int64_t at = 0; at < static_cast<int64_t>(kRegionAlignment); at += page) piece[at] = 0;
  }
}

// An anonymous file mapped at `start`, over what is there; its descriptor, or -1 with errno.
int shared_file(void* start, uint64_t bytes) {
  const int file = static_cast<int>(memfd_create("capstan-device", MFD_CLOEXEC));
  if (file < 0) return -1;
  if (ftruncate(file, static_cast<off_t>(bytes)) == 0 &&
      mmap(start, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) != MAP_FAILED) {
    return file;
  }
  const int error = errno;
  close(file);
  errno = error;
  return -1;
}

}  // namespace

SystemMemory system_memory() {
  SystemMemory memory;
  memory.total =
      static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  memory.free = memory.total;
  if (const auto kib = read_field("/proc/meminfo", "MemAvailable:")) memory.free = *kib * 1024;
  tighten_by_groups(memory);
  return memory;
}

uint64_t memory_margin(const SystemMemory& memory) {
  return std::clamp(memory.total / 64, uint64_t{64} << 20, uint64_t{512} << 20);
}

Regions::~Regions() {
  for (const auto& [memory, region] : regions_) release(memory, region);
}

// Other processes may still map a shared region: its pages go all the same.
void Regions::release(void* memory, const Region& region) {
  munmap(memory, region.mapped);
  if (region.file < 0) return;
  (void)fallocate(region.file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                  static_cast<off_t>(region.mapped));
  close(region.file);
}

void* Regions::allocate(const std::string& name, uint64_t bytes, Sharing sharing) {
  const SystemMemory memory = system_memory();
  const uint64_t usable = memory.free - std::min(memory.free, memory_margin(memory));
  const auto refusal = [&](const std::string& why) {
    return sdk::resource_error(sdk::text(
        "device cpu: region '", name, "' needs ", bytes, " bytes (", mebibytes(bytes), "), ", why,
        "; use a smaller micro batch, sequence or model, or spread it over more machines"));
  };
  if (bytes > usable) {
    throw refusal(sdk::text("but only ", mebibytes(usable), " of this machine's ",
                            mebibytes(memory.total), " can be had"));
  }
  const uint64_t mapped = std::max(round_up(bytes, kRegionAlignment), kRegionAlignment);
  void* raw = mmap(nullptr, mapped + kRegionAlignment, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) {
    throw refusal(sdk::text("and the system gave no address space (", std::strerror(errno), "; ",
                            mebibytes(memory.free), " free)"));
  }
  char* start = static_cast<char*>(raw);
  const uint64_t head =
      (kRegionAlignment - reinterpret_cast<uintptr_t>(start) % kRegionAlignment) % kRegionAlignment;
  if (head > 0) munmap(start, head);
  if (head < kRegionAlignment) munmap(start + head + mapped, kRegionAlignment - head);
  start += head;
  int file = -1;
  if (sharing == Sharing::kShared) {
    file = shared_file(start, mapped);
    if (file < 0) {
      const int error = errno;
      munmap(start, mapped);
      throw refusal(sdk::text("and the system gave no memory that processes can share (",
                              std::strerror(error), ")"));
    }
  }
  // Advice: where huge pages are off, small ones serve.
  if (huge_pages_) (void)madvise(start, mapped, MADV_HUGEPAGE);
  if (bytes > 0) touch(start, mapped, threads_);

  const std::lock_guard<std::mutex> lock(mutex_);
  regions_[start] = {bytes, mapped, file};
  allocated_ += bytes;
  return start;
}

bool Regions::free(void* memory) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto it = regions_.find(memory);
  if (it == regions_.end()) return false;
  release(memory, it->second);
  allocated_ -= it->second.asked;
  regions_.erase(it);
  return true;
}

int Regions::share(void* memory) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto it = regions_.find(memory);
  if (it == regions_.end() || it->second.file < 0) {
    throw sdk::usage_error(
        "device cpu: only memory of allocate_shared can be exported, by its first address");
  }
  const int file = fcntl(it->second.file, F_DUPFD_CLOEXEC, 0);
  if (file < 0) {
    throw sdk::resource_error(
        sdk::text("device cpu: cannot export memory (", std::strerror(errno), ")"));
  }
  return file;
}

uint64_t Regions::allocated_bytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return allocated_;
}

}  // namespace capstan::cpu_device
