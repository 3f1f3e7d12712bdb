// The collectives over the wires of a group, as a thread of the group runs them.
#ifndef CAPSTAN_PLUGINS_COMM_GLOO_COLLECTIVES_H_
#define CAPSTAN_PLUGINS_COMM_GLOO_COLLECTIVES_H_

#include <cstdint>
#include <vector>

#include "plugins/comm/common/request.h"
#include "plugins/comm/gloo/settings.h"
#include "plugins/comm/gloo/wires.h"

namespace capstan::gloo_comm {

// What each rank tells the others of an operation, in a slot that depends on its place in the order
// alone. The data travels in slots that also depend on the request, so requests that differ never
// meet: Gloo would end the process if a message were longer than its receiver's memory.
struct Announcement {
  uint64_t fingerprint;
  uint64_t sends;  // counts for the receiver, all-to-all
  int32_t tag;     // messages
  int32_t reserved;
  std::array<char, 168> text;
};

Announcement announce(const comm::Request& request, size_t peer);

// Throws BUG with both labels if `theirs`, of group member `peer`, does not match.
void compare(const comm::Request& request, const Announcement& theirs, size_t peer,
             int32_t peer_rank);

// Staging memory, kept from one collective to the next.
struct Staging {
  std::vector<char> rooms[2];
  char* room(size_t which, size_t bytes);
};

// Runs one collective; `position`: its place in the order of the group. Blocks without a deadline:
// cutting the wires ends it. Throws sdk::Error.
void run_collective(const comm::Request& request, const Settings& settings, uint64_t position,
                    Wires& wires, Staging& staging);

}  // namespace capstan::gloo_comm

#endif  // CAPSTAN_PLUGINS_COMM_GLOO_COLLECTIVES_H_
