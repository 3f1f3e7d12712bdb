#include "plugins/comm/mpi/staging.h"

#include <sys/mman.h>

#include <new>

namespace capstan::mpi {

char* Staging::take() {
  if (free_.empty()) {
    if (slots_.size() == kSlots) return nullptr;
    constexpr size_t kPage = size_t{4} << 10, kHugePage = size_t{2} << 20;
    const size_t alignment = slot_bytes_ < kHugePage ? kPage : kHugePage;
    const size_t bytes = (slot_bytes_ + alignment - 1) / alignment * alignment;
    std::unique_ptr<char, Free> memory(static_cast<char*>(std::aligned_alloc(alignment, bytes)));
    if (memory == nullptr) throw std::bad_alloc();
    // Fewer page faults; where it is not to be had, small pages do.
    if (alignment == kHugePage) madvise(memory.get(), bytes, MADV_HUGEPAGE);
    free_.push_back(memory.get());
    slots_.push_back(std::move(memory));
  }
  char* const slot = free_.back();
  free_.pop_back();
  return slot;
}

void Staging::give(char* slot) { free_.push_back(slot); }

}  // namespace capstan::mpi
