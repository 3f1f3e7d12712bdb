// The component "shm".
#ifndef CAPSTAN_PLUGINS_COMM_SHM_COMM_H_
#define CAPSTAN_PLUGINS_COMM_SHM_COMM_H_

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "plugins/comm/shm/context.h"
#include "plugins/comm/shm/group.h"
#include "sdk/comm.h"

namespace capstan::shm {

class ShmComm {
 public:
  static int32_t probe(const sdk::Host& host);

  ShmComm(const sdk::Host& host, const sdk::Options& options);
  ~ShmComm();

  const capstan_comm_capabilities& capabilities() const noexcept;
  void link(int32_t from, int32_t to, double* bandwidth, double* latency);
  void memory_register(void* memory, uint64_t bytes, int32_t fd, uint64_t offset);
  void memory_unregister(void* memory) noexcept;
  void* group_create(std::span<const int32_t> ranks, int64_t epoch);
  void group_destroy(void* group) noexcept;
  void* prepare(void* group, const capstan_comm_request& request);
  void release(void* operation) noexcept;
  void start(void* operation, void* queue);
  void wait(void* operation, double timeout_s);
  void poll(void* group, capstan_comm_progress* out);
  void abort(void* group, const char* reason) noexcept;

 private:
  struct Handle {
    Group* group;
    OperationPtr op;
  };

  size_t check_members(std::span<const int32_t> ranks) const;
  std::vector<std::shared_ptr<Group>> groups();
  void rank_ended(int rank);
  void run();  // the progress thread

  sdk::Host host_;
  int rank_, world_;
  Settings settings_;
  std::optional<sdk::Bootstrap> bootstrap_;
  Secret secret_;
  OwnHome home_;
  Fetcher fetcher_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<Group>> groups_;
  std::map<std::string, int> made_;  // groups by list and epoch
  std::optional<Peers> peers_;
  std::optional<Context> context_;
  std::atomic<bool> stop_{false};
  std::thread progress_;
};

}  // namespace capstan::shm

#endif  // CAPSTAN_PLUGINS_COMM_SHM_COMM_H_
