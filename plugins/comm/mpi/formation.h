// How a group gets its communicators: MPI's calls for it block, so a thread makes them.
#ifndef CAPSTAN_PLUGINS_COMM_MPI_FORMATION_H_
#define CAPSTAN_PLUGINS_COMM_MPI_FORMATION_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "plugins/comm/mpi/library.h"
#include "plugins/comm/mpi/links.h"
#include "plugins/comm/mpi/meet.h"

namespace capstan::mpi {

// One attempt to form a group. Ranks may form several groups in any order, which is why each has a
// thread; the thread ends with the attempt. Where MPI does not let threads block independently
// (Library::concurrent) the attempt is made by the caller, and the order must be the same everywhere.
class Formation {
 public:
  struct Plan {
    std::vector<int32_t> ranks;
    size_t index = 0;
    uint64_t id = 0;           // chooses the tag
    uint64_t fingerprint = 0;  // what the members must agree on
    double timeout_s = 0;
    std::string what;  // for messages
  };

  static std::shared_ptr<Formation> begin(Library& library, Plan plan);

  bool done() const { return done_.load(std::memory_order_acquire); }
  // After done(): the communicators, or why there are none.
  const std::optional<sdk::Error>& failure() const { return failure_; }
  MPI_Comm first = MPI_COMM_NULL, second = MPI_COMM_NULL, messages = MPI_COMM_NULL;

  // The world rank that has not come yet; -1: all have, or it is not known.
  int32_t waiting_for() const { return state_.waiting_for.load(std::memory_order_relaxed); }
  // Ends soon, unless all members have met already.
  void give_up() { state_.given_up = true; }

 private:
  void run(Library& library, const Plan& plan) noexcept;
  void make_communicators(Library& library, const Plan& plan);

  MeetingState state_;
  std::optional<sdk::Error> failure_;
  std::atomic<bool> done_{false};
};

}  // namespace capstan::mpi

#endif  // CAPSTAN_PLUGINS_COMM_MPI_FORMATION_H_
