// A group's board as one member has it: typed access, and how a group ends.
#ifndef CAPSTAN_PLUGINS_COMM_SHM_BOARD_H_
#define CAPSTAN_PLUGINS_COMM_SHM_BOARD_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "plugins/comm/shm/layout.h"
#include "plugins/comm/shm/peers.h"

namespace capstan::shm {

class Board {
 public:
  // Made by its first member in the order of ranks, and joined by the others, who block until it is
  // there. Throws USAGE when members disagree about the group.
  Board(const sdk::Bootstrap& bootstrap, const Secret& secret, const std::string& key,
        std::span<const int32_t> ranks, size_t index, Peers& peers, uint32_t eager_bytes);
  // Of a group of one rank: no memory is shared.
  explicit Board(int rank);
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  size_t size() const { return map_.n; }
  size_t index() const { return index_; }
  int rank(size_t member) const { return ranks_[member]; }
  const std::vector<int32_t>& ranks() const { return ranks_; }
  Peer& peer(size_t member) const { return *peers_[member]; }
  const std::string& name() const { return name_; }  // "group 0,1,2"
  uint32_t eager_bytes() const { return header().eager_bytes; }

  BoardHeader& header() const { return *reinterpret_cast<BoardHeader*>(base_); }
  MemberState& member(size_t r) const { return table<MemberState>(map_.map.members)[r]; }
  SlotState& slot(uint64_t sequence) const {
    return table<SlotState>(map_.map.slots)[sequence % kSlots];
  }
  Entry& entry(uint64_t sequence, size_t r) const {
    return *reinterpret_cast<Entry*>(base_ + map_.map.entries +
                                     (sequence % kSlots * size() + r) * map_.map.entry_bytes);
  }
  char* payload(uint64_t sequence, size_t r) const {
    return reinterpret_cast<char*>(&entry(sequence, r) + 1);
  }
  Ring& ring(size_t from, size_t to) const {
    return table<Ring>(map_.map.rings)[from * size() + to];
  }
  CopyCounter& counter(size_t reader, size_t owner) const {
    return table<CopyCounter>(map_.map.counters)[reader * size() + owner];
  }

  // The member's process has ended, or it has destroyed the group: it does nothing here any more.
  bool away(size_t r) const { return member(r).left.load() != 0 || peer(r).gone().load(); }
  // The group has ended.
  bool ended() const { return header().ended.load(std::memory_order_relaxed) != 0; }
  // Ends it for every member and wakes them; the first reason stays. [any thread]
  void end(int32_t code, int32_t culprit_rank, const std::string& reason);
  // Everyone, but for other members' waits for messages among themselves: their progress threads,
  // which are rung, wake those.
  void wake_all() const;
  // Who waits for messages from or to this member.
  void wake_messages() const;
  // Throws why it ended, with what this rank was doing.
  [[noreturn]] void throw_end(const std::string& doing) const;

 private:
  struct Shape {
    size_t n;
    BoardMap map;
  };

  template <class T>
  T* table(size_t offset) const {
    return reinterpret_cast<T*>(base_ + offset);
  }
  void make(const sdk::Bootstrap& bootstrap, const Secret& secret, const std::string& key,
            uint32_t eager_bytes);
  void join(const sdk::Bootstrap& bootstrap, const Secret& secret, const std::string& key,
            const Peer& maker);

  std::vector<int32_t> ranks_;
  size_t index_;
  std::string name_;
  std::vector<Peer*> peers_;
  Shape map_;
  Segment segment_;
  char* base_ = nullptr;
};

}  // namespace capstan::shm

#endif  // CAPSTAN_PLUGINS_COMM_SHM_BOARD_H_
