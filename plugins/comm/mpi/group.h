// A group of ranks: forms itself in the background, works through its operations in order, and fails
// as a whole.
#ifndef CAPSTAN_PLUGINS_COMM_MPI_GROUP_H_
#define CAPSTAN_PLUGINS_COMM_MPI_GROUP_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "plugins/comm/common/request.h"
#include "plugins/comm/mpi/formation.h"
#include "plugins/comm/mpi/library.h"
#include "plugins/comm/mpi/links.h"
#include "plugins/comm/mpi/message.h"
#include "plugins/comm/mpi/piece.h"
#include "plugins/comm/mpi/settings.h"
#include "plugins/comm/mpi/staging.h"

namespace capstan::mpi {

class Group;

struct Operation {
  Group* group = nullptr;
  comm::Request request;
  std::unique_ptr<Piece> check;      // collectives, with the option `check`
  Pieces pieces;                     // collectives
  std::unique_ptr<Message> message;  // send, recv
  size_t unfinished = 0;             // pieces, or 1 for a message; 0: not in flight
  uint64_t position = 0;             // of a collective, in its group
  bool checked = false;
};

class Group : public Progressing {
 public:
  // Returns at once; `id` is equal on all members and no other group's.
  Group(Library& library, const Settings& settings, std::vector<int32_t> ranks, int64_t epoch,
        uint64_t id);
  ~Group() override;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  // [any thread, without the library's lock]
  std::unique_ptr<Operation> prepare(const capstan_comm_request& request) const;
  void release(std::unique_ptr<Operation> operation);
  void start(Operation& operation);
  void wait(Operation& operation, double timeout_s);
  void poll(capstan_comm_progress& out);
  void abort(const std::string& reason);

  // Progressing. [the library's lock]
  uint64_t id() const override { return id_; }
  void progress() noexcept override;
  void hear(const Notice& notice) noexcept override;

 private:
  enum class State { kFirst, kWaitsForSecond, kSecond };
  struct Running {
    Piece* piece;
    char* slot;
    State state;
  };

  void advance();
  bool advance_running();
  bool begin_seconds();
  bool begin_pieces();
  void advance_messages();
  void finish(Running& running);
  void count_finished(const Operation& operation);
  void retire(Operation& operation);
  bool settled() noexcept;
  void fail(const sdk::Error& error, bool tell);
  [[noreturn]] void throw_failure(const Operation& operation) const;
  void check_left(uint64_t position) const;
  void check_sent(const Operation& operation) const;
  sdk::Error overdue(const Operation& operation, double timeout_s);
  std::string roll_call(const Operation& operation, int32_t* culprit);
  std::string name() const;

  Library& library_;
  const Settings& settings_;
  const int64_t epoch_;
  const uint64_t id_;
  Links links_;
  std::shared_ptr<Formation> formation_;
  bool formed_ = false;
  std::optional<sdk::Error> failure_;

  std::deque<Piece*> queue_;                           // not begun, in order of start
  std::deque<Running> running_;                        // in order of begin
  std::deque<Message*> waiting_messages_;              // started before the group was formed
  std::vector<Operation*> messages_;                   // in flight
  std::vector<std::unique_ptr<Operation>> abandoned_;  // released in flight
  Staging staging_;
  bool fenced_ = false;

  uint64_t collectives_ = 0, started_ = 0, finished_ = 0;
  comm::Volume volume_;
  std::string latest_label_;
  std::vector<uint64_t> left_at_;  // by index: collectives a member that left had started
  struct Traffic {
    uint64_t sent = 0, heard = 0;      // messages to and from a member
    uint64_t sent_before_leaving = 0;  // to this rank, by one that left
  };
  std::vector<Traffic> traffic_;  // by index
  struct Answer {
    bool heard = false;
    uint64_t position = 0;
    std::string label;
  };
  std::vector<Answer> answers_;
};

}  // namespace capstan::mpi

#endif  // CAPSTAN_PLUGINS_COMM_MPI_GROUP_H_
