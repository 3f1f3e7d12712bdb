// What lies in shared memory, byte for byte the same for every process of a job.
//
// Two kinds of segment. A *home* belongs to one rank: its bell, the memory it registered, and the
// descriptors of its operations. A *board* belongs to a group: slots in which the operations of the
// group meet, and rings of messages.
#ifndef CAPSTAN_PLUGINS_COMM_SHM_LAYOUT_H_
#define CAPSTAN_PLUGINS_COMM_SHM_LAYOUT_H_

#include <sched.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "plugin_api/comm.h"
#include "plugins/comm/shm/secret.h"

namespace capstan::shm {

constexpr uint32_t kProtocol = 2;  // raised when anything here changes
constexpr size_t kLine = 64;       // bytes of a cache line
constexpr size_t kMostMembers = 128;
constexpr size_t kMostRegions = 256;
constexpr size_t kSlots = 32;        // collectives of a group in flight before a start is held back
constexpr size_t kRing = 8;          // messages between two ranks before a send is held back
constexpr size_t kRingBytes = 4096;  // payload of a message that travels in the ring

static_assert(std::atomic<uint32_t>::is_always_lock_free);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// ---- home ------------------------------------------------------------------------------------

// Memory that a rank registered. `number` 0: none; else it identifies the registration.
struct RegionEntry {
  std::atomic<uint64_t> number;
  uint64_t base;  // address in the owner
  uint64_t bytes;
  uint64_t offset;  // in the file
  int32_t fd;       // of the owner
  int32_t unused;
};

struct Home {
  uint64_t nonce;
  Tag tag;  // signs the nonce and the rank
  cpu_set_t cores;
  // Counts calls for the attention of the owner's progress thread, which sleeps on it.
  alignas(kLine) std::atomic<uint32_t> bell;
  std::atomic<uint32_t> asleep;
  alignas(kLine) std::atomic<uint32_t> regions_version;
  RegionEntry regions[kMostRegions];
};
constexpr uint64_t kHomeHeap = uint64_t{64} << 10;    // where descriptors begin
constexpr uint64_t kHomeBytes = uint64_t{256} << 20;  // address space, not memory
static_assert(sizeof(Home) <= kHomeHeap);

// Where a buffer lies: in a region (then at `offset` of it), or only at an address of its owner.
struct Place {
  uint64_t address;
  uint64_t offset;
  uint64_t registration;  // the region's number, 0 none
  uint32_t region;
  uint32_t unused;
};

struct ItemRecord {
  Place send, recv;
};

// An operation as its peers see it; its owner's, in its home. Behind it `items` ItemRecords, then for
// ALL_TO_ALL the elements sent to and received from each member, 2 x members words an item.
struct OperationRecord {
  uint64_t identity;  // of this record among all of the rank
  uint64_t signature;
  int32_t operation;
  uint32_t items;
  uint32_t members;
  uint32_t unused;
  char text[232];  // describes it in messages
  // A large send: the number of the flight whose data the receiver has taken.
  alignas(kLine) std::atomic<uint32_t> taken;
  std::atomic<uint32_t> sleepers;

  // Of one item, behind the record.
  static uint64_t item_bytes(int32_t operation, uint64_t members) {
    const bool parts = operation == CAPSTAN_COMM_ALL_TO_ALL;
    return sizeof(ItemRecord) + (parts ? 2 * members * sizeof(uint64_t) : 0);
  }
  const ItemRecord* item_records() const { return reinterpret_cast<const ItemRecord*>(this + 1); }
  ItemRecord* item_records() { return reinterpret_cast<ItemRecord*>(this + 1); }
  uint64_t* part_counts(size_t item) {
    return reinterpret_cast<uint64_t*>(item_records() + items) + item * 2 * members;
  }
  const uint64_t* part_counts(size_t item) const {
    return const_cast<OperationRecord*>(this)->part_counts(item);
  }
};

// ---- board -----------------------------------------------------------------------------------

struct BoardHeader {
  uint64_t nonce;
  Tag tag;  // signs the nonce and the group's key
  uint32_t members;
  uint32_t eager_bytes;
  int32_t ranks[kMostMembers];
  // Why the group ended. 0: it has not; 1: being written; 2: written.
  alignas(kLine) std::atomic<uint32_t> ended;
  int32_t code;
  int32_t culprit;
  char reason[1024];
  // Changes when a member has consumed operations that others wait for.
  alignas(kLine) std::atomic<uint32_t> consumption;
  std::atomic<uint32_t> consumption_sleepers;
};

struct alignas(2 * kLine) MemberState {
  std::atomic<uint64_t> consumed;  // operations that need nothing of their slots any more
  std::atomic<uint32_t> left;      // 1: destroyed the group
};

// Where one collective meets. Counters are never reset: `arrived` grows by the group's size with each
// use, those of 64 bits carry the number of the use in their upper half.
struct alignas(2 * kLine) SlotState {
  std::atomic<uint32_t> arrived;
  std::atomic<uint32_t> sleepers;
  // Changes whenever enough is done for sleepers to go on. `done` is no word to sleep on: its lower
  // half may hold the same count before and after a use.
  std::atomic<uint32_t> wakes;
  std::atomic<uint64_t> workers;              // threads of all members at its tiles
  alignas(kLine) std::atomic<uint64_t> done;  // tiles, or phases of members, finished
};

constexpr uint32_t kEager = 1;   // everything this member gives lies in its entry
constexpr uint32_t kMapped = 2;  // all its buffers lie in registered memory

// One member's part in a slot; `eager_bytes` of payload follow it.
struct alignas(kLine) Entry {
  std::atomic<uint64_t> sequence;  // of the operation it belongs to, plus one; set last
  uint64_t signature;
  uint64_t identity;
  uint64_t record;  // offset of the OperationRecord in the member's home
  uint32_t flags;
  std::atomic<uint32_t> engaged;  // threads of the member at its tiles
  std::atomic<uint32_t> fetched;  // phases of fetching the member has behind it
  // The last operation here, plus one, that a thread of the member waits for: it needs no ringing.
  std::atomic<uint64_t> awaited;
  // Tiles of this member's share that have been claimed, by it or by others; counts like `done`.
  std::atomic<uint64_t> claimed;
};
static_assert(sizeof(Entry) == kLine);

struct alignas(kLine) Message {
  uint64_t record;  // offset in the sender's home
  uint64_t identity;
  uint64_t signature;
  uint32_t flight;  // number of the start of that operation
  int32_t channel;
  int32_t tag;
  uint32_t bytes;
  uint32_t eager;  // 1: the data is here
  char text[128];  // describes the send in messages
  char payload[kRingBytes];
};

// Messages from one member to another.
struct alignas(2 * kLine) Ring {
  std::atomic<uint32_t> written;
  std::atomic<uint32_t> read_sleepers;
  alignas(kLine) std::atomic<uint32_t> read;
  std::atomic<uint32_t> write_sleepers;
  Message messages[kRing];
};

// One member asks another to copy its memory to where both can see it.
constexpr size_t kCounterBytes = size_t{256} << 10;
struct alignas(2 * kLine) CopyCounter {
  std::atomic<uint32_t> asked;
  std::atomic<uint32_t> served;
  uint64_t address;
  uint64_t bytes;
  alignas(4096) char data[kCounterBytes];
};

// Offsets of the board's tables for a group of n and an eager limit.
struct BoardMap {
  BoardMap(size_t n, size_t eager_bytes)
      : entry_bytes((sizeof(Entry) + eager_bytes + kLine - 1) / kLine * kLine),
        members(round(sizeof(BoardHeader))),
        slots(round(members + n * sizeof(MemberState))),
        entries(round(slots + kSlots * sizeof(SlotState))),
        rings(round(entries + kSlots * n * entry_bytes)),
        counters(round(rings + n * n * sizeof(Ring))),
        bytes(round(counters + n * n * sizeof(CopyCounter))) {}

  size_t entry_bytes, members, slots, entries, rings, counters, bytes;

 private:
  static size_t round(size_t value) { return (value + 4095) / 4096 * 4096; }
};

}  // namespace capstan::shm

#endif  // CAPSTAN_PLUGINS_COMM_SHM_LAYOUT_H_
