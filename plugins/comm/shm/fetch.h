// Reading memory of members that is not mapped here.
#ifndef CAPSTAN_PLUGINS_COMM_SHM_FETCH_H_
#define CAPSTAN_PLUGINS_COMM_SHM_FETCH_H_

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "plugins/comm/shm/board.h"
#include "plugins/comm/shm/futex.h"

namespace capstan::shm {

// Bytes of far memory that are fetched at a time before they are reduced.
constexpr uint64_t kFetchBytes = uint64_t{64} << 10;
// Bytes copied at a time, between two looks whether the group has ended.
constexpr uint64_t kCopyBytes = uint64_t{1} << 20;

// One for all groups of a component. [any thread]
class Fetcher {
 public:
  void add(Board* board);
  void remove(Board* board);

  // Copies `bytes` at `address` of a member: with process_vm_readv, or, where the system does not
  // permit that, by asking the member to copy them to the board. Throws when the group ends or the
  // deadline passes while it waits for the member; `doing` is for the message.
  void fetch(Board& board, size_t member, uint64_t address, char* to, uint64_t bytes,
             Clock::time_point deadline, const std::string& doing);

  // The member is being asked for data for this group, and has not given it.
  bool asks(const Board& board, size_t member) const {
    return asked_.load() == &board.counter(board.index(), member);
  }

  // This rank ends: whoever waits for data waits no more.
  void give_up() { given_up_ = true; }

  // Copies what members of any group have asked this rank for. True if there was something.
  bool serve();

 private:
  void ask(Board& board, size_t member, uint64_t address, char* to, uint64_t bytes,
           Clock::time_point deadline, const std::string& doing);
  void await_served(Board& board, size_t member, uint32_t request, Clock::time_point deadline,
                    const std::string& doing);
  [[noreturn]] void throw_never_asked(Board& board, size_t member, const std::string& doing) const;

  std::timed_mutex asking_;  // one request at a time
  std::atomic<const CopyCounter*> asked_{nullptr};
  std::atomic<bool> given_up_{false};
  std::mutex mutex_;  // of what follows, and of serving
  std::vector<Board*> boards_;
};

}  // namespace capstan::shm

#endif  // CAPSTAN_PLUGINS_COMM_SHM_FETCH_H_
