#include "plugins/comm/mpi/meet.h"

#include <memory>

namespace capstan::mpi {
namespace {

using sdk::text;

// What travels up (what a subtree found) and down (what all found).
struct Hello {
  uint64_t fingerprint;
  int32_t different;  // world rank with another fingerprint, -1 none
  int32_t reserved;
};

class Meeting {
 public:
  Meeting(Library& library, std::span<const int32_t> ranks, int tag, Clock::time_point deadline,
          const std::string& what, MeetingState& state)
      : library_(library),
        ranks_(ranks),
        tag_(tag),
        deadline_(deadline),
        what_(what),
        state_(state) {}

  Hello receive(size_t from) {
    auto hello = std::make_unique<Hello>();
    MPI_Request request = MPI_REQUEST_NULL;
    {
      const std::lock_guard held(library_.lock());
      check(MPI_Irecv(hello.get(), sizeof(Hello), MPI_BYTE, ranks_[from], tag_, library_.world(),
                      &request),
            what_, ranks_[from]);
    }
    if (!finished(request, from)) {
      const std::lock_guard held(library_.lock());
      MPI_Cancel(&request);
      MPI_Wait(&request, MPI_STATUS_IGNORE);
      throw sdk::Error(
          CAPSTAN_TIMEOUT,
          text(what_, ": rank ", ranks_[from],
               " did not come within the deadline; "
               "either it hangs, or it does not form the same groups in the same order"),
          true, ranks_[from]);
    }
    return *hello;
  }

  void send(size_t to, const Hello& hello) {
    auto copy = std::make_unique<Hello>(hello);
    MPI_Request request = MPI_REQUEST_NULL;
    {
      const std::lock_guard held(library_.lock());
      check(MPI_Isend(copy.get(), sizeof(Hello), MPI_BYTE, ranks_[to], tag_, library_.world(),
                      &request),
            what_, ranks_[to]);
    }
    if (!finished(request, to)) {
      const std::lock_guard held(library_.lock());
      static_cast<void>(copy.release());  // MPI may still read it
      library_.leave_in_flight();
      throw sdk::Error(CAPSTAN_TIMEOUT,
                       text(what_, ": rank ", ranks_[to], " took no message within the deadline"),
                       true, ranks_[to]);
    }
  }

 private:
  bool finished(MPI_Request& request, size_t peer) {
    int code = MPI_SUCCESS;
    state_.waiting_for.store(ranks_[peer], std::memory_order_relaxed);
    const bool in_time = library_.wait(deadline_, [&] {
      int done = 0;
      code = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
      return done != 0 || code != MPI_SUCCESS || state_.given_up;
    });
    state_.waiting_for.store(-1, std::memory_order_relaxed);
    check(code, what_, ranks_[peer]);
    return in_time && request == MPI_REQUEST_NULL;
  }

  Library& library_;
  std::span<const int32_t> ranks_;
  int tag_;
  Clock::time_point deadline_;
  const std::string& what_;
  MeetingState& state_;
};

}  // namespace

void meet(Library& library, std::span<const int32_t> ranks, size_t index, int tag,
          uint64_t fingerprint, Clock::time_point deadline, const std::string& what,
          MeetingState& state) {
  Meeting meeting(library, ranks, tag, deadline, what, state);
  const size_t size = ranks.size();
  // Children of a node: the node with one of the bits below its lowest set bit.
  Hello found{fingerprint, -1, 0};
  size_t bit = 1;
  for (; bit < size && (index & bit) == 0; bit <<= 1) {
    if ((index | bit) >= size) continue;
    const Hello child = meeting.receive(index | bit);
    if (child.different >= 0) found.different = child.different;
    if (child.fingerprint != fingerprint) found.different = ranks[index | bit];
  }
  if (index != 0) {
    meeting.send(index ^ bit, found);
    found = meeting.receive(index ^ bit);
  }
  for (bit >>= 1; bit != 0; bit >>= 1) {
    if ((index | bit) < size) meeting.send(index | bit, found);
  }
  if (found.different >= 0 || found.fingerprint != fingerprint) {
    const int32_t culprit = found.different >= 0 ? found.different : ranks[0];
    throw sdk::Error(CAPSTAN_BUG,
                     text(what, ": rank ", culprit,
                          " gives other members, another epoch, other "
                          "options in [comm] or runs another version of this plugin"),
                     false, culprit);
  }
}

}  // namespace capstan::mpi
