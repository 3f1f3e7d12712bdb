// Ranks as forked processes of this machine, each with a host that offers the mesh and a bootstrap.
//
//   const RunResult result = RunRanks({.world = 2, .plugin = path}, [](Rank& rank) {
//     Comm comm(rank);                                   // the plugin's component, created
//     rank.expect(comm.vtable().poll(...) == nullptr, "poll of a fresh group fails");
//   });
//   EXPECT_EQ(result.text(), "");
//
// Call it while the process has one thread. A rank that throws, fails an expectation, dies or is
// still running at the deadline (it is killed then) is told in the result.
#ifndef CAPSTAN_TESTS_COMM_RANKS_H_
#define CAPSTAN_TESTS_COMM_RANKS_H_

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "plugin_api/comm.h"
#include "sdk/options.h"

namespace capstan::test {

// Options of the component, as TOML would give them.
struct OptionValue {
  std::string key;
  int32_t type = CAPSTAN_OPTION_INT;
  int64_t i = 0;
  std::string s;
};

struct RunOptions {
  int world = 2;
  std::string plugin = {};                // path of the shared library
  std::vector<OptionValue> options = {};  // of the comm component
  double deadline_s = 60;                 // for the whole run
  int stranger = -1;                      // this rank believes to be of another job
  double bootstrap_s = 30;                // for one `get`
};

struct SharedState;  // what the processes share: the bootstrap's keys, counters, failures

// One rank's view; lives in its process.
class Rank {
 public:
  Rank(const RunOptions& options, SharedState& shared, int rank);

  int rank() const { return rank_; }
  int world() const { return options_.world; }
  const RunOptions& options() const { return options_; }
  const capstan_host* host() const { return &host_; }

  // Notes a failure unless `ok`. [any thread]
  void expect(bool ok, const std::string& sentence);
  void fail(const std::string& sentence) { expect(false, sentence); }
  // The process ends without clean-up when its body returns, as a rank that failed would.
  void leave_hard() { leaves_hard_ = true; }
  bool leaves_hard() const { return leaves_hard_; }

  // Counters that the parent and the ranks see. [any thread]
  std::atomic<uint32_t>& counter(int index);
  void announce(int index);  // counter + 1, and wakes who waits for it
  // Until the counter is at least `value`; false past the deadline.
  bool await(int index, uint32_t value, double seconds);

 private:
  friend struct HostServices;
  struct TestHost : capstan_host {
    Rank* rank = nullptr;
  };

  const RunOptions& options_;
  SharedState& shared_;
  int rank_;
  TestHost host_{};
  bool leaves_hard_ = false;
};

// What happened to one rank.
struct RankEnd {
  bool exited = false;   // by itself, with status 0 or 1
  int signal = 0;        // that ended it
  bool overdue = false;  // killed at the deadline
  std::string failures;  // one a line
};

struct RunResult {
  std::vector<RankEnd> ranks;
  // One line for each thing that is wrong; "" if all went well. Ranks in `expected_dead` may have
  // been killed.
  std::string text(const std::vector<int>& expected_dead = {}) const;
};

// The parent's part while the ranks run.
class Parent {
 public:
  Parent(SharedState& shared, std::vector<pid_t> pids) : shared_(shared), pids_(std::move(pids)) {}
  pid_t pid(int rank) const { return pids_[static_cast<size_t>(rank)]; }
  void signal(int rank, int number) const;
  std::atomic<uint32_t>& counter(int index) const;
  void announce(int index) const;
  bool await(int index, uint32_t value, double seconds) const;

 private:
  SharedState& shared_;
  std::vector<pid_t> pids_;
};

RunResult RunRanks(const RunOptions& options, const std::function<void(Rank&)>& body,
                   const std::function<void(Parent&)>& parent = nullptr);

// The comm component of the plugin, made for a rank and destroyed with this.
class Comm {
 public:
  explicit Comm(Rank& rank);
  ~Comm();
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;

  const capstan_comm_v1& vtable() const { return *vtable_; }
  void* self() const { return self_; }

 private:
  const capstan_comm_v1* vtable_ = nullptr;
  void* self_ = nullptr;
};

// Memory that can be registered, as a device would export it: a memfd, resident, zero.
class SharedArena {
 public:
  explicit SharedArena(size_t bytes);
  ~SharedArena();
  SharedArena(const SharedArena&) = delete;
  SharedArena& operator=(const SharedArena&) = delete;

  char* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  int fd() const { return fd_; }

 private:
  size_t bytes_;
  int fd_ = -1;
  char* data_ = nullptr;
};

}  // namespace capstan::test

#endif  // CAPSTAN_TESTS_COMM_RANKS_H_
