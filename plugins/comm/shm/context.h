// What the groups of one component share.
#ifndef CAPSTAN_PLUGINS_COMM_SHM_CONTEXT_H_
#define CAPSTAN_PLUGINS_COMM_SHM_CONTEXT_H_

#include <sched.h>

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "plugins/comm/shm/fetch.h"
#include "plugins/comm/shm/futex.h"
#include "plugins/comm/shm/home.h"
#include "plugins/comm/shm/peers.h"
#include "plugins/comm/shm/records.h"

namespace capstan::shm {

struct Settings {
  uint32_t eager_bytes = 0;
  Clock::duration spin{};     // before a waiter sleeps, where each rank has a core
  uint64_t stream_bytes = 0;  // collectives that move more store past the caches
  bool may_read = true;       // other processes' memory, with process_vm_readv
  int64_t local_ranks = 1;
};

// Buffers into which far memory is fetched, kept for the next time. [any thread]
class Buffers {
 public:
  // At least `bytes`; give it back with `keep`.
  std::vector<char> take(size_t bytes) {
    const std::lock_guard lock(mutex_);
    std::vector<char> out;
    if (!kept_.empty()) {
      out = std::move(kept_.back());
      kept_.pop_back();
    }
    if (out.size() < bytes) out.resize(bytes);
    return out;
  }
  void keep(std::vector<char> buffer) {
    const std::lock_guard lock(mutex_);
    kept_.push_back(std::move(buffer));
  }

 private:
  std::mutex mutex_;
  std::vector<std::vector<char>> kept_;
};

struct Context {
  Context(int rank_of_world, const Settings& chosen, OwnHome& own, Peers* others, Fetcher& fetching)
      : rank(rank_of_world), settings(chosen), home(own), peers(others), fetcher(fetching) {}

  int rank;
  Settings settings;
  OwnHome& home;
  Peers* peers;  // nullptr: a world of one rank
  Fetcher& fetcher;
  Buffers buffers;
  Leftovers leftovers;
};

}  // namespace capstan::shm

#endif  // CAPSTAN_PLUGINS_COMM_SHM_CONTEXT_H_
