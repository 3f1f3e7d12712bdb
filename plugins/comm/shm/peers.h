// The other ranks of this machine: how they are found, checked, reached and watched.
#ifndef CAPSTAN_PLUGINS_COMM_SHM_PEERS_H_
#define CAPSTAN_PLUGINS_COMM_SHM_PEERS_H_

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <thread>
#include <vector>

#include "plugins/comm/shm/home.h"
#include "plugins/comm/shm/layout.h"
#include "plugins/comm/shm/segment.h"
#include "sdk/comm.h"

namespace capstan::shm {

// Held (shared) while memory of peers is touched, (exclusively) while it is unmapped.
using MemoryLock = std::shared_mutex;

// One rank, this one included.
class Peer {
 public:
  // This rank.
  Peer(int rank, OwnHome& own);
  // Another: `home` has been checked.
  Peer(int rank, pid_t pid, Descriptor process, Segment home, uint64_t home_address, bool may_read);
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  int rank() const { return rank_; }
  pid_t pid() const { return pid_; }
  int process() const { return process_.get(); }  // a pidfd; -1: this rank
  bool own() const { return process_.get() < 0; }
  Home& home() const { return *home_page_; }
  std::atomic<bool>& gone() { return gone_; }

  // Its record at `offset`; throws BUG when it cannot be one.
  OperationRecord& record(uint64_t offset, uint64_t identity) const;

  // Where `bytes` at `place` of the peer are in this process; nullptr: nowhere.
  char* locate(const Place& place, uint64_t bytes);
  // Maps the regions that it has registered and that are not mapped yet.
  void map_regions();
  // Unmaps those it has unregistered; nobody may be touching them.
  void drop_regions();
  bool regions_changed() const;

  // Whether its memory can be read with process_vm_readv.
  bool readable() const { return readable_; }
  // Copies its memory; throws PEER_LOST when it is gone.
  void read(uint64_t address, void* to, uint64_t bytes) const;

  // Wakes its progress thread.
  void ring() const;

 private:
  struct Region {
    uint64_t number = 0;
    Mapping mapping;
  };

  bool can_read(uint64_t home_address) const;
  Region* mapped(uint32_t index, uint64_t number);

  int rank_;
  pid_t pid_;
  Descriptor process_;
  Segment segment_;
  Home* home_page_;
  bool readable_;
  std::atomic<bool> gone_{false};
  std::mutex mutex_;
  std::vector<Region> regions_;
  uint32_t seen_version_ = 0;    // of its regions, when some were last dropped
  uint32_t mapped_version_ = 0;  // when all were last mapped
};

// Tells when processes end. [any thread]
class Watcher {
 public:
  explicit Watcher(std::function<void(int rank)> ended);
  ~Watcher();
  void watch(int pidfd, int rank);

 private:
  void run();

  std::function<void(int)> ended_;
  Descriptor wake_;
  std::mutex mutex_;
  std::vector<std::pair<int, int>> watched_;  // pidfd, rank
  bool stop_ = false;
  std::thread thread_;
};

// All ranks this one has met. [any thread]
class Peers {
 public:
  Peers(const sdk::Bootstrap& bootstrap, const Secret& secret, int rank, OwnHome& home,
        bool may_read, std::function<void(int rank)> ended);

  // Meets a rank; blocks until it has made its own component. Throws UNSUPPORTED when it is on
  // another machine, PEER_LOST when it is gone, DATA when it does not know this job's secret.
  Peer& meet(int rank);
  std::vector<Peer*> all();
  // What any of them has registered, ahead of need.
  void map_regions();
  MemoryLock& memory_lock() { return memory_lock_; }
  // Unmaps what peers have unregistered, if nobody is touching their memory. False: try again later.
  bool drop_regions();

 private:
  struct Hello;
  Hello greeting() const;
  std::unique_ptr<Peer> connect(int rank) const;

  sdk::Bootstrap bootstrap_;
  Secret secret_;
  int rank_;
  OwnHome& home_;
  bool may_read_;
  std::mutex mutex_;
  std::map<int, std::unique_ptr<Peer>> peers_;
  MemoryLock memory_lock_;
  Watcher watcher_;
};

}  // namespace capstan::shm

#endif  // CAPSTAN_PLUGINS_COMM_SHM_PEERS_H_
