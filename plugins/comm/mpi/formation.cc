#include "plugins/comm/mpi/formation.h"

#include <thread>
#include <utility>

#include "plugins/comm/mpi/tags.h"

namespace capstan::mpi {
namespace {

// Keeps groups that form at the same time apart.
int tag_of(const Library& library, const Formation::Plan& plan) {
  const auto tags = static_cast<uint64_t>(library.largest_tag() - kFirstGroupTag);
  return kFirstGroupTag + static_cast<int>(plan.id % tags);
}

}  // namespace

std::shared_ptr<Formation> Formation::begin(Library& library, Plan plan) {
  auto formation = std::make_shared<Formation>();
  const auto run = [formation, &library, plan = std::move(plan)] { formation->run(library, plan); };
  if (library.concurrent()) {
    // Detached: MPI's calls cannot be interrupted, and nothing may wait for them without a deadline.
    // It holds what it uses, and plugins are never unmapped.
    std::thread(run).detach();
  } else {
    run();
  }
  return formation;
}

void Formation::run(Library& library, const Plan& plan) noexcept {
  library.enter_blocking();
  try {
    meet(library, plan.ranks, plan.index, tag_of(library, plan), plan.fingerprint,
         deadline_after(plan.timeout_s), plan.what, state_);
    make_communicators(library, plan);
  } catch (const sdk::Error& error) {
    failure_ = error;
  } catch (const std::exception& error) {
    failure_ = sdk::resource_error(sdk::text(plan.what, ": ", error.what()));
  }
  library.leave_blocking();
  done_.store(true, std::memory_order_release);
}

// All members are on their way here, so these calls block no longer than the slowest takes to come.
void Formation::make_communicators(Library& library, const Plan& plan) {
  std::unique_lock held(library.lock(), std::defer_lock);
  if (!library.concurrent()) held.lock();
  MPI_Group everyone = MPI_GROUP_NULL, members = MPI_GROUP_NULL;
  check(MPI_Comm_group(library.world(), &everyone), plan.what);
  check(MPI_Group_incl(everyone, static_cast<int>(plan.ranks.size()), plan.ranks.data(), &members),
        plan.what);
  const int code = MPI_Comm_create_group(library.world(), members, tag_of(library, plan), &first);
  MPI_Group_free(&members);
  MPI_Group_free(&everyone);
  check(code, plan.what);
  check(MPI_Comm_set_errhandler(first, MPI_ERRORS_RETURN), plan.what);
  check(MPI_Comm_dup(first, &second), plan.what);
  check(MPI_Comm_dup(first, &messages), plan.what);
  for (MPI_Comm comm : {second, messages}) {
    check(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), plan.what);
  }
}

}  // namespace capstan::mpi
