#include "runtime/launch/meeting.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "runtime/status.h"

namespace capstan {
namespace {

// The one rank to blame, -1 when there are several.
int Only(const std::vector<int>& ranks) { return ranks.size() == 1 ? ranks[0] : -1; }

absl::Status Late(const std::string& message, int culprit) {
  return MakeStatus(CAPSTAN_TIMEOUT, message, /*retryable=*/true, culprit);
}

std::string SecondsText(double seconds) { return absl::StrFormat("%g s", seconds); }

// A peer's number, made one that time arithmetic survives.
double Sane(double seconds) {
  constexpr double kYear = 365.0 * 86400;
  return std::isfinite(seconds) ? std::clamp(seconds, 0.0, kYear) : kYear;
}

}  // namespace

std::string RanksText(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += StrCat(ranks[i]);
  }
  return text;
}

std::vector<int> Meeting::Here() const { return RanksThat(Presence::kHere); }

int Meeting::Count(Presence presence) const {
  return static_cast<int>(std::count(presence_.begin(), presence_.end(), presence));
}

std::vector<int> Meeting::RanksThat(Presence presence) const {
  std::vector<int> ranks;
  for (int r = 0; r < size(); ++r) {
    if (presence_[r] == presence) ranks.push_back(r);
  }
  return ranks;
}

absl::Status Meeting::Join(int rank) {
  if (!aborted_.ok()) return aborted_;
  if (presence_[rank] != Presence::kAwaited) {
    return UsageError("this job already has a rank ", rank,
                      "; two processes were started as the same rank, or two runs share a job id: "
                      "check the launcher's variables");
  }
  presence_[rank] = Presence::kHere;
  return absl::OkStatus();
}

absl::Status Meeting::Handle(int rank, std::string_view body) {
  Fields fields(body);
  const auto type = static_cast<MessageType>(fields.U8());
  if (type == MessageType::kBye) {
    presence_[rank] = Presence::kLeft;
    FailHopeless();
    return absl::OkStatus();
  }
  if (type == MessageType::kAbort) {
    const absl::Status reason = fields.Status();
    if (!fields.ok() || reason.ok()) return DataError("rank ", rank, " sent a broken abort");
    Abort(reason);
    return absl::OkStatus();
  }
  const uint64_t id = fields.U64();
  switch (type) {
    case MessageType::kPut:
      Put(rank, fields, id);
      break;
    case MessageType::kGet:
      Get(rank, fields, id);
      break;
    case MessageType::kExchange:
      Meet(rank, fields, id);
      break;
    default:
      return DataError("rank ", rank, " sent a message of unknown type ", static_cast<int>(type));
  }
  if (!fields.ok()) return DataError("rank ", rank, " sent a message that is cut short");
  return absl::OkStatus();
}

void Meeting::Reply(const Waiter& to, const absl::Status& status, const Value& value) {
  const size_t size = value == nullptr ? 0 : value->size();
  Frame frame(MessageType::kReply);
  frame.U64(to.id).Status(status).U32(static_cast<uint32_t>(size));
  answers_.push_back({to.rank, frame.Done(size), value});
}

void Meeting::Put(int rank, Fields& fields, uint64_t id) {
  const std::string key(fields.Text());
  const auto value = std::make_shared<const std::string>(fields.Text());
  if (!fields.ok()) return;
  const Waiter writer{rank, id, 0, {}};
  if (!aborted_.ok()) return Reply(writer, aborted_);
  if (const auto waiting = gets_.find(key); waiting != gets_.end()) {
    for (const Waiter& w : waiting->second) Reply(w, absl::OkStatus(), value);
    gets_.erase(waiting);
  }
  values_[key] = value;
  Reply(writer, absl::OkStatus());
}

void Meeting::Get(int rank, Fields& fields, uint64_t id) {
  const std::string key(fields.Text());
  const double timeout = Sane(fields.F64());
  if (!fields.ok()) return;
  const Waiter waiter{rank, id, timeout, InSeconds(timeout)};
  if (!aborted_.ok()) return Reply(waiter, aborted_);
  const auto found = values_.find(key);
  if (found != values_.end()) return Reply(waiter, absl::OkStatus(), found->second);
  gets_[key].push_back(waiter);
}

void Meeting::Meet(int rank, Fields& fields, uint64_t id) {
  const std::string name(fields.Text());
  const double timeout = Sane(fields.F64());
  std::string value(fields.Text());
  if (!fields.ok()) return;
  const Waiter waiter{rank, id, timeout, InSeconds(timeout)};
  if (!aborted_.ok()) return Reply(waiter, aborted_);
  if (const auto failed = failed_.find(name); failed != failed_.end()) {
    return Reply(waiter, failed->second);
  }
  Exchange& exchange = exchanges_[name];
  if (!exchange.values.emplace(rank, std::move(value)).second) {
    return Reply(waiter, UsageError("two threads of rank ", rank, " are in '", name,
                                    "' at once; each needs a name of its own"));
  }
  exchange.bytes += exchange.values[rank].size();
  exchange.waiters.push_back(waiter);
  if (exchange.bytes > kLongestValue) {
    FailExchange(name, UsageError("'", name, "' exchanges ", exchange.bytes, " bytes among ",
                                  size(), " ranks, and more; together they may have ",
                                  kLongestValue, ": large data belongs into a collective"));
  } else if (static_cast<int>(exchange.values.size()) == size()) {
    Complete(name, exchange);
  } else {
    FailHopeless();
  }
}

void Meeting::Complete(const std::string& name, Exchange& exchange) {
  const auto all = std::make_shared<std::string>();
  for (const auto& [rank, value] : exchange.values) AppendText(all.get(), value);
  for (const Waiter& w : exchange.waiters) Reply(w, absl::OkStatus(), all);
  exchanges_.erase(name);
}

void Meeting::FailExchange(const std::string& name, const absl::Status& status) {
  for (const Waiter& w : exchanges_[name].waiters) Reply(w, status);
  exchanges_.erase(name);
  failed_[name] = status;
}

std::vector<int> Meeting::Missing(const Exchange& exchange) const {
  std::vector<int> missing;
  for (int r = 0; r < size(); ++r) {
    if (exchange.values.count(r) == 0) missing.push_back(r);
  }
  return missing;
}

void Meeting::FailHopeless() {
  const std::vector<int> left = RanksThat(Presence::kLeft);
  if (left.empty()) return;
  std::vector<std::string> hopeless;
  for (const auto& [name, exchange] : exchanges_) {
    for (const int r : left) {
      if (exchange.values.count(r) == 0) {
        hopeless.push_back(name);
        break;
      }
    }
  }
  for (const std::string& name : hopeless) {
    std::vector<int> gone;
    for (const int r : Missing(exchanges_[name])) {
      if (presence_[r] == Presence::kLeft) gone.push_back(r);
    }
    FailExchange(name, MakeStatus(CAPSTAN_PEER_LOST,
                                  StrCat(RanksText(gone), " ended without coming to '", name, "'"),
                                  /*retryable=*/true, gone[0]));
  }
}

void Meeting::Lost(int rank) {
  if (presence_[rank] != Presence::kHere) return;
  presence_[rank] = Presence::kLost;
  Abort(MakeStatus(CAPSTAN_PEER_LOST,
                   StrCat("rank ", rank,
                          " is gone: its connection to the rendezvous closed before "
                          "it finished; see what it printed last"),
                   /*retryable=*/true, rank));
}

void Meeting::Abort(const absl::Status& reason) {
  if (!aborted_.ok()) return;
  aborted_ = reason;
  // First the news, then the answers: a rank whose wait fails knows by then that the job has ended.
  for (const int r : RanksThat(Presence::kHere)) {
    answers_.push_back({r, Frame(MessageType::kAborted).Status(aborted_).Done(), nullptr});
  }
  for (const auto& [key, waiters] : gets_) {
    for (const Waiter& w : waiters) Reply(w, aborted_);
  }
  for (const auto& [name, exchange] : exchanges_) {
    for (const Waiter& w : exchange.waiters) Reply(w, aborted_);
  }
  gets_.clear();
  exchanges_.clear();
}

SteadyTime Meeting::NextDeadline() const {
  SteadyTime next = SteadyTime::max();
  for (const auto& [key, waiters] : gets_) {
    for (const Waiter& w : waiters) next = std::min(next, w.deadline);
  }
  for (const auto& [name, exchange] : exchanges_) {
    for (const Waiter& w : exchange.waiters) next = std::min(next, w.deadline);
  }
  return next;
}

void Meeting::Expire(SteadyTime now) {
  // One that came too late for one waiter has failed for all of them.
  std::vector<std::pair<std::string, absl::Status>> late;
  for (const auto& [name, exchange] : exchanges_) {
    for (const Waiter& w : exchange.waiters) {
      if (w.deadline > now) continue;
      late.emplace_back(name, LateExchange(name, exchange, w.timeout_s));
      break;
    }
  }
  for (const auto& [name, status] : late) FailExchange(name, status);
  for (auto entry = gets_.begin(); entry != gets_.end();) {
    std::vector<Waiter>& waiters = entry->second;
    std::vector<Waiter> on_time;
    for (const Waiter& w : waiters) {
      if (w.deadline > now) {
        on_time.push_back(w);
      } else {
        Reply(w, LateKey(entry->first, w));
      }
    }
    waiters = std::move(on_time);
    entry = waiters.empty() ? gets_.erase(entry) : std::next(entry);
  }
}

std::map<int, std::string> Meeting::Waiting() const {
  std::map<int, std::string> waiting;
  for (const auto& [key, waiters] : gets_) {
    for (const Waiter& w : waiters) waiting[w.rank] = StrCat("the key '", key, "'");
  }
  for (const auto& [name, exchange] : exchanges_) {
    for (const Waiter& w : exchange.waiters) waiting[w.rank] = StrCat("'", name, "'");
  }
  return waiting;
}

absl::Status Meeting::LateExchange(const std::string& name, const Exchange& exchange,
                                   double seconds) const {
  const std::vector<int> missing = Missing(exchange);
  const std::map<int, std::string> waiting = Waiting();
  std::string text =
      StrCat(RanksText(missing), " did not come to '", name, "' within ", SecondsText(seconds));
  std::vector<int> absent, busy;
  for (const int r : missing) {
    if (presence_[r] == Presence::kAwaited) {
      absent.push_back(r);
    } else if (const auto found = waiting.find(r); found == waiting.end()) {
      busy.push_back(r);
    } else {
      StrAppend(&text, "; rank ", r, " waits for ", found->second, " instead");
    }
  }
  if (!absent.empty()) {
    StrAppend(&text, "; ", RanksText(absent), " never joined: was ",
              absent.size() == 1 ? "it" : "each of them",
              " started, and can it reach the rendezvous?");
  }
  return Late(text, Only(!absent.empty() ? absent : (!busy.empty() ? busy : missing)));
}

absl::Status Meeting::LateKey(const std::string& key, const Waiter& waiter) const {
  const std::map<int, std::string> waiting = Waiting();
  std::vector<int> idle;
  for (const int r : RanksThat(Presence::kHere)) {
    if (waiting.count(r) == 0) idle.push_back(r);
  }
  const std::vector<int> absent = RanksThat(Presence::kAwaited);
  const std::vector<int> left = RanksThat(Presence::kLeft);
  std::string text = StrCat("rank ", waiter.rank, " waited ", SecondsText(waiter.timeout_s),
                            " for the key '", key, "', which no rank has put");
  if (!absent.empty()) StrAppend(&text, "; never joined: ", RanksText(absent));
  if (!left.empty()) StrAppend(&text, "; ended: ", RanksText(left));
  if (!idle.empty()) StrAppend(&text, "; busy elsewhere: ", RanksText(idle));
  if (absent.empty() && left.empty() && idle.empty()) {
    text += "; every rank waits here, each for another";
  }
  return Late(text, Only(!absent.empty() ? absent : (!left.empty() ? left : idle)));
}

}  // namespace capstan
