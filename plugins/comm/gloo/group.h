// A group of ranks: a thread that connects it and runs its collectives in order; messages beside them.
#ifndef CAPSTAN_PLUGINS_COMM_GLOO_GROUP_H_
#define CAPSTAN_PLUGINS_COMM_GLOO_GROUP_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "plugins/comm/common/request.h"
#include "plugins/comm/gloo/alarm.h"
#include "plugins/comm/gloo/collectives.h"
#include "plugins/comm/gloo/settings.h"
#include "plugins/comm/gloo/wires.h"

namespace capstan::gloo_comm {

class Group;

struct Operation {
  Group* group = nullptr;
  comm::Request request;
  bool in_flight = false;
  bool released = false;  // in flight; the group destroys it
  uint64_t position = 0;  // of a collective
  // Messages.
  Announcement said{}, heard{};
  std::unique_ptr<Transfers> head, data;
};

// What a component shares with its groups.
struct Shared {
  Shared(const sdk::Host& host, const Settings& given) : bootstrap(host), settings(given) {}
  sdk::Bootstrap bootstrap;
  Settings settings;
  std::shared_ptr<::gloo::transport::Device> device;
  Alarm alarm;
};

class Group {
 public:
  // Returns at once. `prefix`: of this group's keys in the bootstrap.
  Group(Shared& shared, std::vector<int32_t> ranks, size_t index, std::string prefix);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  // [any thread]
  std::unique_ptr<Operation> prepare(const capstan_comm_request& request) const;
  void release(std::unique_ptr<Operation> operation);
  void start(Operation& operation);
  void wait(Operation& operation, double timeout_s);
  void poll(capstan_comm_progress& out);
  void abort(const std::string& reason);
  // No operation follows: leaves the others, in the background. The destructor waits for it.
  void leave();
  bool has_left() const { return ended_.load(std::memory_order_acquire); }

 private:
  void run();
  void connect();
  void run_queue();
  void listen();
  void fail(const sdk::Error& error);
  void need_members(uint64_t position) const;
  sdk::Error cause_of(const sdk::Error& seen);
  void begin_message(Operation& operation);
  bool wait_message(Operation& operation, Clock::time_point deadline);
  void wait_collective(Operation& operation, Clock::time_point deadline, double timeout_s);
  void finish(Operation& operation);
  sdk::Error overdue(const Operation& operation, double timeout_s, int32_t culprit) const;
  [[noreturn]] void throw_failure(const Operation& operation) const;
  std::string name() const;

  Shared& shared_;
  const std::vector<int32_t> ranks_;
  const size_t index_;
  const std::string prefix_;
  Wires wires_;
  Staging staging_;

  std::mutex lock_;
  std::condition_variable changed_;
  bool connected_ = false, leaving_ = false;
  std::optional<sdk::Error> failure_;
  std::deque<Operation*> queue_;            // collectives not begun
  std::vector<Operation*> early_messages_;  // started before the group was connected
  std::map<std::pair<int32_t, int32_t>, uint64_t> sent_, received_;  // by peer and channel
  std::vector<std::unique_ptr<Operation>> abandoned_;                // released in flight
  uint64_t collectives_ = 0, started_ = 0, finished_ = 0;
  comm::Volume volume_;
  const Operation* running_ = nullptr;            // the collective under way
  std::vector<std::optional<uint64_t>> left_at_;  // by member: collectives it had started
  std::atomic<bool> ended_{false};
  std::thread thread_, listener_;
};

}  // namespace capstan::gloo_comm

#endif  // CAPSTAN_PLUGINS_COMM_GLOO_GROUP_H_
