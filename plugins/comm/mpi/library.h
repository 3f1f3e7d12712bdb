// The MPI library of this process: entered once, left once, its calls serialised.
#ifndef CAPSTAN_PLUGINS_COMM_MPI_LIBRARY_H_
#define CAPSTAN_PLUGINS_COMM_MPI_LIBRARY_H_

#include <mpi.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "plugins/comm/mpi/notices.h"
#include "sdk/error.h"
#include "sdk/plugin.h"

namespace capstan::mpi {

using Clock = std::chrono::steady_clock;

// Seconds from now as a point in time; negative: for ever, as far as anyone will see.
Clock::time_point deadline_after(double seconds);

// An MPI return code as a failure: nothing if it is MPI_SUCCESS. `what` is the noun of the sentence,
// culprit the world rank to blame, -1 unknown.
void check(int code, const std::string& what, int32_t culprit = -1);
sdk::Error failure_of(int code, const std::string& what, int32_t culprit = -1);

// How a thread waits between two tests: a few immediate tries, then giving up its time slice, then
// sleeps that grow to 50 us, so that ranks that share a core do not starve the one that computes.
class Backoff {
 public:
  // crowded: more ranks than cores; never spins.
  explicit Backoff(bool crowded) : tries_(crowded ? kSpins : 0) {}
  void pause();

 private:
  static constexpr int kSpins = 2000;
  static constexpr int kYields = 200;
  int tries_;
  int64_t sleep_ns_ = 1000;
};

// What advances while some thread waits: the groups. [the library's lock]
class Progressing {
 public:
  virtual ~Progressing() = default;
  virtual uint64_t id() const = 0;  // equal on all members
  virtual void progress() noexcept = 0;
  virtual void hear(const Notice& notice) noexcept = 0;
};

// MPI is one per process by its nature (MPI_Init may be called once), so this is the one place of the
// plugin with state of the process. Every MPI call of the plugin but those of group formation is made
// under `lock`; the library therefore needs MPI_THREAD_SERIALIZED and no more, and progress made for
// one waiting thread is progress for all.
class Library {
 public:
  static Library& of_process();

  // Throws a sentence where joining cannot succeed because nothing started the ranks as MPI's.
  static void check_launcher(const sdk::Host& host);
  // Initialises MPI unless it is; checks ranks against the host's mesh. Throws sentences.
  void join(const sdk::Host& host);

  MPI_Comm world() const { return world_; }  // a duplicate of MPI_COMM_WORLD that returns errors
  int rank() const { return rank_; }
  int size() const { return size_; }
  int largest_tag() const { return largest_tag_; }
  bool crowded() const { return crowded_; }
  // MPI_THREAD_MULTIPLE: a blocking call of one thread does not shut out the others.
  bool concurrent() const { return concurrent_; }

  std::mutex& lock() { return lock_; }
  // With the lock held: advances everything that is in flight.
  void progress() noexcept;
  // With the lock held. add: `who` then hears what was said to it before.
  void add(Progressing* who);
  void remove(Progressing* who);
  Notices& notices() { return notices_; }
  // With the lock held: some call or request may never complete, so MPI_Finalize might not either.
  void leave_in_flight() { in_flight_forever_ = true; }

  // The id of the next group of these ranks and epoch: equal on all of them, and no other group's.
  uint64_t next_group_id(const std::vector<int32_t>& ranks, int64_t epoch);

  // Around MPI calls that block without a deadline.
  void enter_blocking() { ++blocking_; }
  void leave_blocking() { --blocking_; }
  // With the lock held: memory that MPI may use until the process ends.
  void keep_for_ever(std::shared_ptr<void> memory) { kept_.push_back(std::move(memory)); }

  // Tests and progresses until done() (called with the lock held) says so; false past the deadline.
  bool wait(Clock::time_point deadline, const std::function<bool()>& done);

 private:
  Library() = default;
  void initialise(const sdk::Host& host);
  void check_world(const sdk::Host& host) const;
  static void finalise_at_exit(int exit_status);
  bool meet_to_finish(Clock::time_point deadline);
  void listen() noexcept;

  std::mutex lock_;
  std::mutex join_lock_;

  std::vector<Progressing*> groups_;
  Notices notices_;
  uint64_t calls_ = 0;
  std::map<std::pair<std::vector<int32_t>, int64_t>, uint64_t> made_;
  std::atomic<int> blocking_{0};
  std::vector<std::shared_ptr<void>> kept_;
  MPI_Comm world_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1, largest_tag_ = 32767;
  bool crowded_ = false, concurrent_ = false, in_flight_forever_ = false;
};

}  // namespace capstan::mpi

#endif  // CAPSTAN_PLUGINS_COMM_MPI_LIBRARY_H_
