// What has to be copied and reduced for one collective, with every address resolved.
#ifndef CAPSTAN_PLUGINS_COMM_SHM_PLAN_H_
#define CAPSTAN_PLUGINS_COMM_SHM_PLAN_H_

#include <cstdint>
#include <span>
#include <vector>

#include "plugins/comm/common/request.h"
#include "plugins/comm/shm/layout.h"
#include "plugins/comm/shm/peers.h"

namespace capstan::shm {

// Where data to be read lies.
struct Source {
  enum Kind : uint32_t {
    kHere,     // at `pointer`
    kPayload,  // in the member's entry of the slot, `address` bytes in
    kFar,      // at `address` of the member's process
  };
  Kind kind = kHere;
  uint32_t member = 0;
  const char* pointer = nullptr;
  uint64_t address = 0;
};

struct Plan {
  enum Mode {
    kEager,   // all data lies in the slot; each member reduces for itself
    kShared,  // all buffers are mapped; any member may do any tile, for everyone
    kPull,    // each member fetches what it is to receive
  };

  // targets[t..] = reduction of sources[s..], `elements` of them.
  struct Part {
    uint32_t first_source, source_count;
    uint32_t first_target, target_count;
    uint64_t elements;
  };
  // A stretch of a part.
  struct Piece {
    uint32_t part;
    uint32_t elements;
    uint64_t begin;
  };

  Mode mode = kEager;
  std::vector<uint64_t> identities;  // of the members' operations
  std::vector<Source> sources;
  std::vector<char*> targets;
  std::vector<Part> parts;
  // kShared: tile t is pieces[tiles[t]] to pieces[tiles[t + 1]].
  std::vector<Piece> pieces;
  std::vector<uint32_t> tiles;
  // kPull: parts from here on read what members received before.
  size_t second_phase = 0;
  uint64_t bytes_moved = 0;  // read and written, by all who take part

  uint32_t tile_count() const {
    return tiles.empty() ? 0 : static_cast<uint32_t>(tiles.size() - 1);
  }
  bool two_phases() const { return mode == kPull && second_phase < parts.size(); }
};

// One member's side of a collective.
struct MemberView {
  Peer* peer;
  const OperationRecord* record;
  uint64_t identity;
  uint32_t flags;
};

// `index`: this member; its request is `request`, and those of the others match it.
// Throws what mapping a peer's memory throws.
Plan make_plan(const comm::Request& request, size_t index, std::span<const MemberView> members);

}  // namespace capstan::shm

#endif  // CAPSTAN_PLUGINS_COMM_SHM_PLAN_H_
