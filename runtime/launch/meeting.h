// What the rendezvous knows and owes: keys, exchanges, who has joined, who waits until when. No
// sockets and no threads; the server feeds it requests and sends what it answers.
#ifndef CAPSTAN_RUNTIME_LAUNCH_MEETING_H_
#define CAPSTAN_RUNTIME_LAUNCH_MEETING_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "runtime/launch/wire.h"

namespace capstan {

// "rank 2", "ranks 0, 1 and 3"
std::string RanksText(const std::vector<int>& ranks);

class Meeting {
 public:
  using Value = std::shared_ptr<const std::string>;  // nullptr: ""
  // A frame for a rank. Its end may be one that many ranks are told.
  struct Answer {
    int rank;
    std::string head;
    Value end;
  };

  explicit Meeting(int size) : presence_(size, Presence::kAwaited) {}

  int size() const { return static_cast<int>(presence_.size()); }
  bool AllJoined() const { return Count(Presence::kAwaited) == 0; }
  bool AllLeft() const { return Count(Presence::kHere) == 0 && AllJoined(); }
  std::vector<int> Here() const;  // joined and not gone
  const absl::Status& aborted() const { return aborted_; }

  // Not OK: there is no place for this rank; tell it why.
  absl::Status Join(int rank);
  // A request of a rank that has joined. Not OK: it does not speak the protocol.
  absl::Status Handle(int rank, std::string_view body);
  // The rank's connection is gone. Without a goodbye before, that ends the job.
  void Lost(int rank);
  void Abort(const absl::Status& reason);

  // When the next waiter's time is up; SteadyTime::max(): nobody waits.
  SteadyTime NextDeadline() const;
  void Expire(SteadyTime now);

  std::vector<Answer> TakeAnswers() { return std::exchange(answers_, {}); }

 private:
  enum class Presence { kAwaited, kHere, kLeft, kLost };
  struct Waiter {
    int rank;
    uint64_t id;
    double timeout_s;
    SteadyTime deadline;
  };
  struct Exchange {
    std::map<int, std::string> values;  // by rank
    size_t bytes = 0;                   // of them all
    std::vector<Waiter> waiters;
  };

  int Count(Presence presence) const;
  std::vector<int> RanksThat(Presence presence) const;
  void Reply(const Waiter& to, const absl::Status& status, const Value& value = nullptr);
  void Put(int rank, Fields& fields, uint64_t id);
  void Get(int rank, Fields& fields, uint64_t id);
  void Meet(int rank, Fields& fields, uint64_t id);
  void Complete(const std::string& name, Exchange& exchange);
  void FailExchange(const std::string& name, const absl::Status& status);
  // Missing ranks that will never come: the exchange fails now.
  void FailHopeless();
  absl::Status LateExchange(const std::string& name, const Exchange& exchange,
                            double seconds) const;
  absl::Status LateKey(const std::string& key, const Waiter& waiter) const;
  std::vector<int> Missing(const Exchange& exchange) const;
  // What each rank that waits here waits for.
  std::map<int, std::string> Waiting() const;

  std::vector<Presence> presence_;
  std::map<std::string, Value, std::less<>> values_;
  std::map<std::string, std::vector<Waiter>, std::less<>> gets_;
  std::map<std::string, Exchange, std::less<>> exchanges_;
  std::map<std::string, absl::Status, std::less<>> failed_;  // exchanges, for those who come late
  absl::Status aborted_;
  std::vector<Answer> answers_;
};

}  // namespace capstan

#endif  // CAPSTAN_RUNTIME_LAUNCH_MEETING_H_
