#include "plugins/comm/gloo/group.h"

#include <algorithm>

#include "plugins/comm/gloo/quiet_pipe.h"
#include "sdk/program.h"

namespace capstan::gloo_comm {
namespace {

using sdk::text;

// How long a rank that leaves keeps its connections for data still on its way.
constexpr double kLeaveSeconds = 2.0;
constexpr uint64_t kMessage = uint64_t{1} << 63;

std::string list_of(const std::vector<int32_t>& ranks) {
  constexpr size_t kMost = 8;
  std::string out;
  for (size_t i = 0; i < std::min(kMost, ranks.size()); ++i) {
    out += text(i == 0 ? "" : ", ", ranks[i]);
  }
  if (ranks.size() > kMost) out += text(" and ", ranks.size() - kMost, " more");
  return out;
}

uint64_t message_bytes(const comm::Request& request) {
  return request.elements() * request.element;
}

Announcement announce_message(const comm::Request& request) {
  Announcement out = announce(request, 0);
  out.fingerprint = message_bytes(request);
  out.sends = request.items.size();
  out.reserved = request.dtype.code << 8 | request.dtype.bits;
  return out;
}

void compare_message(const comm::Request& request, Announcement theirs, int32_t peer) {
  const Announcement mine = announce_message(request);
  if (theirs.fingerprint == mine.fingerprint && theirs.sends == mine.sends &&
      theirs.tag == mine.tag && theirs.reserved == mine.reserved) {
    return;
  }
  theirs.text.back() = '\0';
  throw sdk::Error(
      CAPSTAN_BUG,
      text("the ranks disagree: this rank started ", request.describe(), " with tag ", mine.tag,
           ", but rank ", peer, " started ", theirs.text.data(), " with tag ", theirs.tag),
      false, peer);
}

}  // namespace

Group::Group(Shared& shared, std::vector<int32_t> ranks, size_t index, std::string prefix)
    : shared_(shared),
      ranks_(std::move(ranks)),
      index_(index),
      prefix_(std::move(prefix)),
      wires_(ranks_, index_),
      left_at_(ranks_.size()) {
  // Last: the thread uses every member, also those that are declared after it.
  thread_ = std::thread([this] { run(); });
}

Group::~Group() {
  leave();
  thread_.join();
}

std::string Group::name() const {
  return text("group of rank", ranks_.size() == 1 ? " " : "s ", list_of(ranks_));
}

// ---- operations, as the host sees them ------------------------------------------------------------

std::unique_ptr<Operation> Group::prepare(const capstan_comm_request& request) const {
  auto operation = std::make_unique<Operation>();
  operation->request = comm::check_request(request, index_, ranks_.size());
  return operation;
}

void Group::release(std::unique_ptr<Operation> operation) {
  const std::lock_guard held(lock_);
  if (!operation->in_flight) return;
  // Also when the group has failed: its thread may be about to find that out.
  operation->released = true;
  abandoned_.push_back(std::move(operation));
}

void Group::start(Operation& operation) {
  const std::lock_guard held(lock_);
  if (failure_) throw_failure(operation);
  if (operation.in_flight) {
    throw sdk::bug_error(
        text(operation.request.describe(), " is started before its wait returned"));
  }
  operation.in_flight = true;
  ++started_;
  if (operation.request.is_message()) {
    if (connected_) {
      begin_message(operation);
    } else {
      early_messages_.push_back(&operation);
    }
    return;
  }
  operation.position = collectives_++;
  queue_.push_back(&operation);
  changed_.notify_all();
}

void Group::wait(Operation& operation, double timeout_s) {
  const auto deadline = deadline_after(timeout_s);
  if (!operation.request.is_message()) return wait_collective(operation, deadline, timeout_s);
  try {
    if (wait_message(operation, deadline)) return;
  } catch (const sdk::Error& error) {
    fail(error);
  }
  const int32_t peer = ranks_[static_cast<size_t>(operation.request.peer)];
  fail(overdue(operation, timeout_s, peer));  // keeps an earlier failure
  const std::lock_guard held(lock_);
  throw_failure(operation);
}

void Group::wait_collective(Operation& operation, Clock::time_point deadline, double timeout_s) {
  const auto ended = [&] { return failure_.has_value() || !operation.in_flight; };
  std::unique_lock held(lock_);
  if (!changed_.wait_until(held, deadline, ended)) {
    held.unlock();
    fail(overdue(operation, timeout_s, wires_.waiting_for()));
    held.lock();
  }
  if (failure_) throw_failure(operation);
}

void Group::poll(capstan_comm_progress& out) {
  const std::lock_guard held(lock_);
  if (failure_) throw *failure_;
  out.started = started_;
  out.finished = finished_;
  volume_.tell(out);
  out.waiting_for = started_ == finished_ ? -1 : wires_.waiting_for();
}

void Group::abort(const std::string& reason) {
  fail(sdk::Error(CAPSTAN_PEER_LOST,
                  text("the ", name(), " was aborted by rank ", ranks_[index_], ": ", reason), true,
                  ranks_[index_]));
}

sdk::Error Group::overdue(const Operation& operation, double timeout_s, int32_t culprit) const {
  return sdk::Error(CAPSTAN_TIMEOUT,
                    text(operation.request.describe(), " of the ", name(),
                         " did not finish within ", timeout_s, " s",
                         culprit < 0 ? ": the group is not connected, or earlier operations of it "
                                       "still run"
                                     : text("; not heard from: rank ", culprit)),
                    true, culprit);
}

void Group::throw_failure(const Operation& operation) const {
  const std::string& label = operation.request.label;
  if (label.empty() || failure_->message().find(label) != std::string::npos) throw *failure_;
  throw sdk::Error(failure_->code(),
                   text(operation.request.describe(), " cannot be done: ", failure_->message()),
                   failure_->retryable(), failure_->culprit_rank());
}

// With the lock held.
void Group::finish(Operation& operation) {
  operation.in_flight = false;
  ++finished_;
  volume_.add(operation.request);
  if (operation.released) {
    std::erase_if(abandoned_, [&](const auto& one) { return one.get() == &operation; });
  }
}

// ---- messages -------------------------------------------------------------------------------------

// With the lock held. The head travels in a slot of the message's place in its channel, the data in one
// that depends on its size too: a longer message does not come to a shorter memory.
void Group::begin_message(Operation& operation) {
  const QuietPipe quiet;
  const comm::Request& request = operation.request;
  const auto peer = static_cast<size_t>(request.peer);
  const bool sends = request.operation == CAPSTAN_COMM_SEND;
  uint64_t& count = (sends ? sent_ : received_)[{request.peer, request.channel}];
  const uint64_t place = kMessage | count++;
  const auto channel = static_cast<uint64_t>(request.channel);
  operation.head = std::make_unique<Transfers>(wires_);
  operation.data = std::make_unique<Transfers>(wires_);
  const uint64_t slot = mix(place, channel);
  if (sends) {
    operation.said = announce_message(request);
    operation.head->send(peer, slot, &operation.said, sizeof(Announcement));
  } else {
    operation.head->receive(peer, slot, &operation.heard, sizeof(Announcement));
  }
  uint64_t item_slot = mix(place, channel, message_bytes(request) + 1);
  for (const comm::Item& item : request.items) {
    const size_t bytes = item.count * request.element;
    item_slot = mix(item_slot, bytes);
    if (sends) {
      operation.data->send(peer, item_slot, item.send, bytes);
    } else {
      operation.data->receive(peer, item_slot, item.recv, bytes);
    }
  }
}

bool Group::wait_message(Operation& operation, Clock::time_point deadline) {
  {
    std::unique_lock held(lock_);
    if (failure_) throw *failure_;
    if (!operation.in_flight) return true;
    const auto begun = [&] { return failure_.has_value() || connected_; };
    if (!changed_.wait_until(held, deadline, begun)) return false;
    if (failure_) throw *failure_;
  }
  if (!operation.head->wait(deadline, shared_.alarm)) return false;
  if (operation.request.operation == CAPSTAN_COMM_RECV) {
    compare_message(operation.request, operation.heard,
                    ranks_[static_cast<size_t>(operation.request.peer)]);
  }
  if (!operation.data->wait(deadline, shared_.alarm)) return false;
  const std::lock_guard held(lock_);
  finish(operation);
  return true;
}

// ---- the group's thread ---------------------------------------------------------------------------

void Group::run() {
  const QuietPipe quiet;
  try {
    connect();
    run_queue();
  } catch (const sdk::Error& error) {
    fail(error);
  } catch (const std::exception& error) {
    fail(sdk::resource_error(text("the ", name(), ": ", error.what())));
  }
  if (listener_.joinable()) listener_.join();
  ended_.store(true, std::memory_order_release);
}

void Group::listen() {
  const QuietPipe quiet;
  wires_.listen([this](size_t from, const Farewell& farewell) {
    try {
      if (farewell.code != 0) {
        throw sdk::Error(CAPSTAN_PEER_LOST, "it gave up", true, ranks_[from]);
      }
      const std::lock_guard held(lock_);
      left_at_[from] = farewell.position;
      if (running_ != nullptr) need_members(running_->position);
    } catch (const sdk::Error& error) {
      fail(error);
    }
  });
}

// With the lock held: throws if the collective needs a member that has left.
void Group::need_members(uint64_t position) const {
  for (size_t r = 0; r < left_at_.size(); ++r) {
    if (!left_at_[r] || position < *left_at_[r]) continue;
    throw sdk::Error(CAPSTAN_PEER_LOST, "it has left", true, ranks_[r]);
  }
}

void Group::connect() {
  if (ranks_.size() > 1) {
    try {
      wires_.connect(shared_.bootstrap, prefix_, shared_.device, shared_.settings.timeout_s);
    } catch (const sdk::Error& error) {
      throw sdk::Error(error.code(), text("the ", name(), ": ", error.message()), error.retryable(),
                       error.culprit_rank());
    }
  }
  const std::lock_guard held(lock_);
  connected_ = true;
  if (ranks_.size() > 1) listener_ = std::thread([this] { listen(); });
  if (!failure_) {
    for (Operation* operation : early_messages_) begin_message(*operation);
  }
  early_messages_.clear();
  changed_.notify_all();
}

void Group::run_queue() {
  for (;;) {
    Operation* next = nullptr;
    {
      std::unique_lock held(lock_);
      changed_.wait(held, [&] { return failure_.has_value() || leaving_ || !queue_.empty(); });
      if (failure_) break;
      if (queue_.empty()) break;
      next = queue_.front();
      queue_.pop_front();
      need_members(next->position);
      running_ = next;
    }
    run_collective(next->request, shared_.settings, next->position, wires_, staging_);
    const std::lock_guard held(lock_);
    running_ = nullptr;
    finish(*next);
    changed_.notify_all();
  }
  Farewell farewell;
  {
    const std::lock_guard held(lock_);
    if (failure_) return;
    farewell.position = collectives_;
  }
  wires_.leave(farewell, kLeaveSeconds);
}

void Group::leave() {
  bool in_flight = false;
  {
    const std::lock_guard held(lock_);
    leaving_ = true;
    in_flight = started_ != finished_ && !failure_;
    changed_.notify_all();
  }
  if (in_flight) {
    fail(sdk::Error(
        CAPSTAN_PEER_LOST,
        text("rank ", ranks_[index_], " left the ", name(), " with operations in flight"), true,
        ranks_[index_]));
  }
}

// ---- failure --------------------------------------------------------------------------------------

// The connection of a rank ends when it fails itself, and it says before why: the rank that others
// should blame is the one it names.
sdk::Error Group::cause_of(const sdk::Error& seen) {
  if (seen.code() != CAPSTAN_PEER_LOST || seen.culprit_rank() < 0) return seen;
  const auto found = std::find(ranks_.begin(), ranks_.end(), seen.culprit_rank());
  const auto index = static_cast<size_t>(found - ranks_.begin());
  if (index >= ranks_.size() || index == index_) return seen;
  const std::optional<Farewell> farewell = wires_.farewell_of(index);
  if (!farewell) {
    return sdk::Error(
        CAPSTAN_PEER_LOST,
        text("rank ", seen.culprit_rank(), " of the ", name(), " is gone: ", seen.message()), true,
        seen.culprit_rank());
  }
  if (farewell->code == 0) {
    return sdk::Error(CAPSTAN_PEER_LOST,
                      text("rank ", seen.culprit_rank(), " has left the ", name()), true,
                      seen.culprit_rank());
  }
  const bool bug = farewell->code == CAPSTAN_BUG;
  return sdk::Error(
      bug ? CAPSTAN_BUG : CAPSTAN_PEER_LOST,
      text("rank ", seen.culprit_rank(), " ended the ", name(), ": ", farewell->text.data()), !bug,
      farewell->culprit);
}

// The first failure stands. Cutting the wires wakes the group's thread and waiters of messages.
void Group::fail(const sdk::Error& error) {
  const QuietPipe quiet;
  bool connected = false;
  {
    const std::lock_guard held(lock_);
    if (failure_) return;
    connected = connected_;
  }
  const sdk::Error cause = connected ? cause_of(error) : error;
  {
    const std::lock_guard held(lock_);
    if (failure_) return;
    failure_ = cause;
  }
  if (connected) {
    Farewell farewell{};
    farewell.code = failure_->code();
    farewell.culprit = failure_->culprit_rank();
    const std::string& words = failure_->message();
    words.copy(farewell.text.data(), std::min(words.size(), farewell.text.size() - 1));
    wires_.cut(farewell);
  }
  const std::lock_guard held(lock_);
  changed_.notify_all();
}

}  // namespace capstan::gloo_comm
