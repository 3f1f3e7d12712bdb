// The ranks of a group find each other, with a deadline, before MPI's blocking calls form it.
#ifndef CAPSTAN_PLUGINS_COMM_MPI_MEET_H_
#define CAPSTAN_PLUGINS_COMM_MPI_MEET_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "plugins/comm/mpi/library.h"

namespace capstan::mpi {

// What another thread sees and decides of a meeting.
struct MeetingState {
  std::atomic<int32_t> waiting_for{-1};  // world rank that has not come yet; -1 none
  std::atomic<bool> given_up{false};     // set: the meeting ends at once, with a failure
};

// Returns once every rank of `ranks` (world ranks; `index` is this one's place) has called it with
// the same tag and fingerprint. Up and down a binomial tree over the members, so no rank handles more
// than log2(n) others. Throws TIMEOUT naming a rank that did not come, BUG naming one that came with
// another fingerprint. Any thread, without the library's lock.
void meet(Library& library, std::span<const int32_t> ranks, size_t index, int tag,
          uint64_t fingerprint, Clock::time_point deadline, const std::string& what,
          MeetingState& state);

}  // namespace capstan::mpi

#endif  // CAPSTAN_PLUGINS_COMM_MPI_MEET_H_
