// Messages between two members of a group: the rings of the board, seen from one member.
//
// A sender writes a message into the ring to its receiver: small ones with their data, large ones as
// a note of where the data lies. The receiver empties the ring as soon as it looks, into its own
// lists, so a message on one channel never stands in the way of another's. A sender that finds no room
// rings it to look. Large data is then copied by the receiver, which tells the sender in the sender's
// own record.
#ifndef CAPSTAN_PLUGINS_COMM_SHM_MESSAGES_H_
#define CAPSTAN_PLUGINS_COMM_SHM_MESSAGES_H_

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "plugins/comm/shm/board.h"
#include "plugins/comm/shm/context.h"
#include "plugins/comm/shm/operation.h"

namespace capstan::shm {

class Messages {
 public:
  // volume: of the group, finished messages count in it.
  Messages(Context& context, Board& board, comm::Volume& volume)
      : context_(context), board_(board), volume_(volume) {}

  void start(const std::shared_ptr<Operation>& op);
  // Moves everything on; true when `op` is done. Throws what ends the group. [any thread]
  bool step(const std::shared_ptr<Operation>& op, bool waits, Clock::time_point deadline);
  // The same for all operations, for a progress thread. True if something moved.
  bool progress();
  // The word that changes when there is something new for `op`; take it before `step`, and sleep on
  // it after.
  struct News {
    std::atomic<uint32_t>* word;
    std::atomic<uint32_t>* sleepers;
    uint32_t seen;
  };
  News news(const Operation& op) const;
  // Nothing here waits for a progress thread: no send without room, no data to be copied.
  bool idle();
  uint64_t finished() const { return finished_.load(); }

 private:
  using Channel = std::pair<size_t, int32_t>;  // source, channel
  struct Matched {
    std::shared_ptr<Operation> op;
    std::unique_ptr<Message> message;
  };

  void flush(size_t to);    // under mutex_
  bool drain(size_t from);  // under mutex_
  void write(Operation& op, Ring& ring);
  void match(const std::shared_ptr<Operation>& op, const Message& message, size_t from);
  void take(const Message& message, size_t from);
  void check(const Operation& op, const Message& message, size_t from) const;
  void deliver(Operation& op, const Message& message);
  bool copy_matched(bool waits, Clock::time_point deadline);
  void copy(Operation& op, const Message& message, Clock::time_point deadline);
  void finish(Operation& op);

  Context& context_;
  Board& board_;
  comm::Volume& volume_;
  std::mutex mutex_;
  std::map<size_t, std::deque<std::shared_ptr<Operation>>> queued_;    // sends without room
  std::map<Channel, std::deque<std::shared_ptr<Operation>>> waiting_;  // receives
  std::map<Channel, std::deque<std::unique_ptr<Message>>> unexpected_;
  std::deque<Matched> matched_;  // large ones, to be copied
  std::timed_mutex copying_;
  std::atomic<uint64_t> finished_{0};
};

}  // namespace capstan::shm

#endif  // CAPSTAN_PLUGINS_COMM_SHM_MESSAGES_H_
