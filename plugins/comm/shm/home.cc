#include "plugins/comm/shm/home.h"

#include <fcntl.h>
#include <sched.h>

#include <bit>
#include <cstring>

#include "sdk/error.h"

namespace capstan::shm {
namespace {

// Blocks come in powers of two, so that a freed one fits the next request of its kind.
uint64_t block(uint64_t bytes) { return std::bit_ceil(bytes < 256 ? 256 : bytes); }

}  // namespace

OwnHome::OwnHome(const Secret& secret, int rank) : segment_(kHomeBytes) {
  Home& home = page();
  home.nonce = random_number();
  const uint64_t words[2] = {home.nonce, static_cast<uint64_t>(rank)};
  home.tag = secret.sign(words, sizeof words);
  sched_getaffinity(0, sizeof home.cores, &home.cores);
}

uint64_t OwnHome::allocate(uint64_t bytes) {
  const uint64_t size = block(bytes);
  const std::lock_guard lock(mutex_);
  std::vector<uint64_t>& freed = unused_[size];
  uint64_t offset = heap_end_;
  if (!freed.empty()) {
    offset = freed.back();
    freed.pop_back();
  } else if (size > kHomeBytes - heap_end_) {
    throw sdk::resource_error(
        sdk::text("comm shm: the prepared operations of this rank need more than ",
                  kHomeBytes >> 20, " MiB of descriptions; release operations or split them less"));
  } else {
    heap_end_ += size;
  }
  std::memset(at(offset), 0, bytes);
  return offset;
}

void OwnHome::free(uint64_t offset, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  unused_[block(bytes)].push_back(offset);
}

void OwnHome::add_region(void* memory, uint64_t bytes, int fd, uint64_t offset) {
  const auto base = reinterpret_cast<uint64_t>(memory);
  const std::lock_guard lock(mutex_);
  const auto after = regions_.lower_bound(base);
  const bool next_overlaps = after != regions_.end() && after->first < base + bytes;
  const bool last_overlaps =
      after != regions_.begin() && std::prev(after)->first + std::prev(after)->second.bytes > base;
  if (next_overlaps || last_overlaps) {
    throw sdk::usage_error("comm shm: this memory overlaps memory that is registered already");
  }
  uint32_t index = 0;
  while (index < kMostRegions && page().regions[index].number.load() != 0) ++index;
  if (index == kMostRegions) {
    throw sdk::resource_error(sdk::text("comm shm: more than ", kMostRegions,
                                        " regions of registered memory; register larger ones"));
  }
  Descriptor file(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (file.get() < 0) {
    throw sdk::usage_error(sdk::text("comm shm: cannot keep descriptor ", fd,
                                     " of memory to register (", std::strerror(errno), ")"));
  }
  // Whoever maps it later finds a file that is long enough, or this is refused now.
  const Mapping probe(file.get(), offset, bytes, false, "memory to register");
  RegionEntry& entry = page().regions[index];
  entry.base = base;
  entry.bytes = bytes;
  entry.offset = offset;
  entry.fd = file.get();
  const uint64_t number = ++registrations_;
  entry.number.store(number);
  page().regions_version.fetch_add(1);
  regions_[base] = {bytes, index, number, std::move(file)};
}

bool OwnHome::remove_region(void* memory) {
  const std::lock_guard lock(mutex_);
  const auto it = regions_.find(reinterpret_cast<uint64_t>(memory));
  if (it == regions_.end()) return false;
  page().regions[it->second.index].number.store(0);
  page().regions_version.fetch_add(1);
  regions_.erase(it);
  return true;
}

Place OwnHome::place(const void* memory, uint64_t bytes) const {
  Place out{};
  out.address = reinterpret_cast<uint64_t>(memory);
  const std::lock_guard lock(mutex_);
  auto it = regions_.upper_bound(out.address);
  if (it == regions_.begin()) return out;
  --it;
  const uint64_t offset = out.address - it->first;
  if (offset > it->second.bytes || bytes > it->second.bytes - offset) return out;
  out.offset = offset;
  out.region = it->second.index;
  out.registration = it->second.number;
  return out;
}

}  // namespace capstan::shm
