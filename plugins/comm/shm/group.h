// The collectives of one group, as one of its members takes part in them.
//
// Collectives meet in slots of the board, in start order. A member publishes its entry and counts
// itself in; whoever finds all arrived checks that they agree, resolves addresses (Plan), and works:
//
//   eager   all data lies in the entries: every member reduces for itself, in its own start or wait
//   shared  all buffers are mapped by everyone: tiles are claimed one by one by whoever has time, a
//           waiter or a progress thread, and written to every member's memory at once
//   pull    every member fetches what it is to receive, in one or two phases
//
// A member has *consumed* an operation when it needs nothing of its slot any more; a slot is used
// again when all have.
#ifndef CAPSTAN_PLUGINS_COMM_SHM_GROUP_H_
#define CAPSTAN_PLUGINS_COMM_SHM_GROUP_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "plugins/comm/shm/board.h"
#include "plugins/comm/shm/context.h"
#include "plugins/comm/shm/operation.h"

namespace capstan::shm {

class Messages;

class Group {
 public:
  Group(Context& context, std::unique_ptr<Board> board);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  const Board& board() const { return *board_; }
  size_t size() const { return board_->size(); }

  OperationPtr prepare(const capstan_comm_request& request);
  void release(const OperationPtr& op);
  void start(const OperationPtr& op);
  void wait(const OperationPtr& op, double timeout_s);
  void poll(capstan_comm_progress* out);
  void abort(const std::string& reason);

  // A rank of the world has ended.
  void lost(const Peer& peer);
  // Work for whoever is called, without waiting. True if something moved. [progress thread]
  bool progress();
  // Nothing is in flight that a progress thread may have to move on.
  bool idle();

 private:
  // What keeps an operation from being done.
  enum class Lack {
    kNothing,   // it is done
    kRoom,      // its slot is still in use
    kArrivals,  // members that have not started it
    kOthers,    // work that other members have in hand
    kThread,    // another thread of this rank is at it
  };

  // A start of an operation, for code that works while the operation may be started again.
  struct Flight {
    uint64_t sequence;
    capstan_dtype dtype;
    int32_t reduce;
  };

  // Starting.
  void run_alone(Operation& op);
  void start_message(const OperationPtr& op);
  void publish_queued();             // under mutex_
  void publish(Operation& op);       // under mutex_
  bool room_for(uint64_t sequence);  // under mutex_
  void everyone_arrived(Operation& op, SlotState& slot);
  bool awaits(uint64_t sequence, size_t member) const;
  void ring_absent(uint64_t sequence) const;

  // Working: one step of an operation. Throws what ends the group.
  Lack step(const OperationPtr& op, bool waits, Clock::time_point deadline);
  bool step_all(bool waits, Clock::time_point deadline);
  bool arrived(uint64_t sequence) const;
  uint32_t arrival_target(uint64_t sequence) const;
  std::shared_ptr<const Plan> plan_for(Operation& op);  // under op.work, as what follows
  void check_agreement(const Operation& op) const;
  void check_all_to_all(const Operation& op, const std::vector<MemberView>& members) const;
  [[noreturn]] void disagree(const Operation& op, size_t a, size_t b) const;
  void reduce_payloads(const Operation& op, const Plan& plan) const;
  Lack pull(Operation& op, const Plan& plan, Clock::time_point deadline);
  void pull_parts(const Operation& op, const Plan& plan, size_t begin, size_t end,
                  Clock::time_point deadline);
  void pull_reduction(const Operation& op, const Plan& plan, const Plan::Part& part,
                      std::vector<char>& buffer, Clock::time_point deadline);
  Lack share_tiles(const Flight& flight, const Plan& plan);  // not under op.work
  void do_tile(const Flight& flight, const Plan& plan, uint32_t tile) const;
  std::pair<uint32_t, uint32_t> share_of(size_t member, uint32_t tiles) const;
  bool tiles_left(uint64_t sequence, uint32_t tiles) const;
  void wake_sleepers(SlotState& slot) const;
  void finish(Operation& op, uint64_t sequence);

  // Waiting.
  void wait_for_collective(const OperationPtr& op, Clock::time_point deadline, double timeout_s);
  bool spin(const Operation& op, Lack lack) const;
  void sleep(const Operation& op, Lack lack, Clock::time_point deadline);
  void wait_for_message(const OperationPtr& op, Clock::time_point deadline, double timeout_s);
  void sleep_for_room(uint64_t sequence, Clock::time_point deadline);
  std::vector<size_t> lagging(const Operation& op, uint64_t sequence) const;
  [[noreturn]] void overdue(const Operation& op, double timeout_s);
  bool check_departures(const OperationPtr& op, Clock::time_point deadline);
  std::optional<size_t> departed(const Operation& op) const;
  void ring_lagging(const Operation& op) const;

  Context& context_;
  std::unique_ptr<Board> board_;
  std::unique_ptr<Messages> messages_;
  bool may_spin_ = false;
  int most_workers_ = 1;

  std::mutex mutex_;
  struct Outstanding {
    OperationPtr op;
    uint64_t sequence;
    bool done;
  };
  std::deque<Outstanding> outstanding_;  // in start order; all before the first are done
  uint64_t next_sequence_ = 0;
  uint64_t published_ = 0;
  uint64_t room_until_ = kSlots;  // sequences below it have a free slot
  std::atomic<uint64_t> started_{0}, finished_{0};
  comm::Volume volume_;
  ReleasedRecords released_;
  bool told_of_end_ = false;  // its waiters for messages have been woken. Of the progress thread
};

}  // namespace capstan::shm

#endif  // CAPSTAN_PLUGINS_COMM_SHM_GROUP_H_
