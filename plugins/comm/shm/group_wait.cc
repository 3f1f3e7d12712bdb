// Waiting, and what ends a wait without success.
#include <sched.h>

#include <algorithm>
#include <cmath>

#include "plugins/comm/shm/group.h"
#include "plugins/comm/shm/messages.h"
#include "plugins/comm/shm/use_counter.h"

namespace capstan::shm {
namespace {

// Times a waiter gives its core away before it sleeps.
constexpr int kYields = 3;

// Longer than any run.
constexpr auto kForever = std::chrono::hours(24 * 365);

Clock::time_point deadline_after(double seconds) {
  if (seconds < 0 || seconds > 1e8 || std::isnan(seconds)) return Clock::now() + kForever;
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

// A sleeper on a word of a peer. True: nobody woke it, and nothing has changed.
bool sleep_on(std::atomic<uint32_t>& word, std::atomic<uint32_t>& sleepers, uint32_t seen,
              Clock::time_point deadline) {
  sleepers.fetch_add(1);
  bool alone = false;
  if (word.load() == seen) {
    alone =
        futex_wait(word, seen, std::min<Clock::duration>(kLongestSleep, deadline - Clock::now()));
  }
  sleepers.fetch_sub(1);
  return alone;
}

}  // namespace

void Group::wait(const OperationPtr& op, double timeout_s) {
  const int state = op->state.load();
  if (state == Operation::kDone) return;
  if (state == Operation::kIdle) {
    throw sdk::bug_error(sdk::text("comm shm: ", op->text(), " is waited for but not started"));
  }
  if (state == Operation::kFailed) board_->throw_end(op->text());
  const Clock::time_point deadline = deadline_after(timeout_s);
  try {
    if (op->request.is_message()) {
      wait_for_message(op, deadline, timeout_s);
    } else {
      wait_for_collective(op, deadline, timeout_s);
    }
  } catch (const sdk::Error& error) {
    op->state = Operation::kFailed;
    board_->end(error.code(), error.culprit_rank(), error.message());
    board_->throw_end(op->text());
  }
}

void Group::wait_for_collective(const OperationPtr& op, Clock::time_point deadline,
                                double timeout_s) {
  while (true) {
    // Said before looking: a peer that does not see it rings, one that does has its work seen.
    if (op->state.load() == Operation::kFlying) {
      board_->entry(op->sequence, board_->index()).awaited.store(op->sequence + 1);
    }
    const Lack lack = step(op, true, deadline);
    if (lack == Lack::kNothing) return;
    if (lack != Lack::kThread && spin(*op, lack)) continue;
    if (board_->ended()) board_->throw_end(op->text());
    (void)check_departures(op, deadline);
    if (Clock::now() >= deadline) overdue(*op, timeout_s);
    if (step_all(true, deadline)) continue;
    if (lack == Lack::kRoom) {
      sleep_for_room(op->sequence, deadline);
    } else if (lack != Lack::kThread) {
      sleep(*op, lack, deadline);
    }
  }
}

void Group::wait_for_message(const OperationPtr& op, Clock::time_point deadline, double timeout_s) {
  Clock::time_point spin_end = may_spin_ ? Clock::now() + context_.settings.spin : Clock::now();
  while (true) {
    const Messages::News news = messages_->news(*op);
    if (messages_->step(op, true, deadline)) return;
    if (board_->ended()) board_->throw_end(op->text());
    if (check_departures(op, deadline)) return;
    const Clock::time_point now = Clock::now();
    if (now >= deadline) overdue(*op, timeout_s);
    if (now < spin_end) {
      for (int i = 0; i < 64 && news.word->load() == news.seen; ++i) relax();
      continue;
    }
    if (step_all(true, deadline)) continue;
    if (sleep_on(*news.word, *news.sleepers, news.seen, deadline)) ring_lagging(*op);
  }
}

// True when what was lacking has come. Where ranks share cores, looking keeps them from those who are
// waited for: the core is given away a few times, which is cheaper than to sleep and be woken.
bool Group::spin(const Operation& op, Lack lack) const {
  const uint64_t sequence = op.sequence;
  const SlotState& slot = board_->slot(sequence);
  const auto use = static_cast<uint32_t>(sequence / kSlots);
  const auto come = [&] {
    if (lack == Lack::kArrivals) return arrived(sequence);
    return lack == Lack::kOthers && use_count(slot.done, use) >= op.wanted.load();
  };
  if (lack == Lack::kRoom) return false;
  if (!may_spin_) {
    for (int i = 0; i < kYields; ++i) {
      sched_yield();
      if (come()) return true;
    }
    return false;
  }
  const Clock::time_point end = Clock::now() + context_.settings.spin;
  for (uint32_t i = 1;; ++i) {
    if (come()) return true;
    if (i % 32 == 0 && Clock::now() >= end) return false;
    relax();
  }
}

// Wake-ups go to sleepers of the slot; one who comes too late for them sees the changed word.
void Group::sleep(const Operation& op, Lack lack, Clock::time_point deadline) {
  const uint64_t sequence = op.sequence;
  SlotState& slot = board_->slot(sequence);
  if (lack == Lack::kArrivals) {
    const uint32_t seen = slot.arrived.load();
    if (!arrived(sequence) && sleep_on(slot.arrived, slot.sleepers, seen, deadline)) {
      ring_lagging(op);
    }
    return;
  }
  const uint32_t seen = slot.wakes.load();
  if (use_count(slot.done, static_cast<uint32_t>(sequence / kSlots)) < op.wanted.load() &&
      sleep_on(slot.wakes, slot.sleepers, seen, deadline)) {
    ring_lagging(op);
  }
}

// The slot belongs to an older operation that some members still need.
void Group::sleep_for_room(uint64_t sequence, Clock::time_point deadline) {
  BoardHeader& header = board_->header();
  const uint32_t seen = header.consumption.load();
  header.consumption_sleepers.fetch_add(1);
  bool room = true;
  for (size_t r = 0; r < size(); ++r) {
    if (board_->member(r).consumed.load() + kSlots > sequence) continue;
    room = false;
    // It may be computing; its progress thread can consume for it.
    if (r != board_->index()) board_->peer(r).ring();
  }
  if (!room) {
    futex_wait(header.consumption, seen,
               std::min<Clock::duration>(kLongestSleep, deadline - Clock::now()));
  }
  header.consumption_sleepers.fetch_sub(1);
}

// The members that an operation of this rank lacks.
std::vector<size_t> Group::lagging(const Operation& op, uint64_t sequence) const {
  if (op.request.is_message()) return {static_cast<size_t>(op.request.peer)};
  std::vector<size_t> absent, busy;
  for (size_t r = 0; r < size(); ++r) {
    if (r == board_->index()) continue;
    const Entry& entry = board_->entry(sequence, r);
    const bool here = entry.sequence.load() == sequence + 1;
    if (op.state.load() == Operation::kQueued) {
      if (board_->member(r).consumed.load() + kSlots <= sequence) absent.push_back(r);
    } else if (!here && board_->member(r).consumed.load() <= sequence) {
      absent.push_back(r);
    } else if (here &&
               (op.pulls.load() ? entry.fetched.load() < static_cast<uint32_t>(op.stage.load())
                                : entry.engaged.load() > 0)) {
      busy.push_back(r);
    }
  }
  if (!absent.empty()) return absent;
  // This rank's own progress thread may be the one that waits, for data of a member.
  for (size_t r = 0; busy.empty() && r < size(); ++r) {
    if (context_.fetcher.asks(*board_, r)) busy.push_back(r);
  }
  return busy;
}

void Group::overdue(const Operation& op, double timeout_s) {
  const std::vector<size_t> late = lagging(op, op.sequence);
  std::string ranks;
  for (const size_t r : late) ranks += sdk::text(ranks.empty() ? " " : ", ", board_->rank(r));
  const std::string who = late.empty()       ? std::string("its members")
                          : late.size() == 1 ? "rank" + ranks
                                             : "ranks" + ranks;
  throw sdk::Error(CAPSTAN_TIMEOUT,
                   sdk::text(op.text(), " on ", board_->name(), ": rank ", context_.rank,
                             " waited ", timeout_s, " s for ", who),
                   false, late.empty() ? -1 : board_->rank(late.front()));
}

// The first member that an operation lacks and that is gone or has destroyed the group.
std::optional<size_t> Group::departed(const Operation& op) const {
  for (const size_t r : lagging(op, op.sequence)) {
    if (board_->away(r)) return r;
  }
  return std::nullopt;
}

// Members that departed before they did what this rank waits for. True: the message is done. A member
// may have done its part and left since this rank last looked, so that is looked at once more.
bool Group::check_departures(const OperationPtr& op, Clock::time_point deadline) {
  if (!departed(*op)) return false;
  if (op->request.is_message() && messages_->step(op, true, deadline)) return true;
  const std::optional<size_t> r = departed(*op);
  if (!r) return false;
  const int rank = board_->rank(*r);
  const bool left = board_->member(*r).left.load() != 0;
  throw sdk::Error(CAPSTAN_PEER_LOST,
                   sdk::text(op->text(), " on ", board_->name(), ": rank ", rank,
                             left ? " has left the group" : " is gone"),
                   false, rank);
}

// After a sleep that nobody ended: a ring may have been lost, or come before there was work.
void Group::ring_lagging(const Operation& op) const {
  for (const size_t r : lagging(op, op.sequence)) board_->peer(r).ring();
}

// ---- for others ------------------------------------------------------------------------------

bool Group::step_all(bool waits, Clock::time_point deadline) {
  std::vector<OperationPtr> ops;
  {
    const std::lock_guard lock(mutex_);
    if (waits && outstanding_.size() < 2) return false;  // the one it waits for
    for (const Outstanding& o : outstanding_) {
      if (!o.done) ops.push_back(o.op);
    }
  }
  const uint64_t before = finished_.load();
  for (const OperationPtr& op : ops) (void)step(op, false, deadline);
  return finished_.load() != before;
}

bool Group::idle() {
  if (size() == 1 || board_->ended()) return true;
  const std::lock_guard lock(mutex_);
  return outstanding_.empty() && messages_->idle();
}

bool Group::progress() {
  if (size() == 1) return false;
  if (board_->ended()) {
    if (!told_of_end_) board_->wake_messages();
    told_of_end_ = true;
    return false;
  }
  try {
    const bool moved = messages_->progress();
    return step_all(false, Clock::now() + kForever) || moved;
  } catch (const sdk::Error& error) {
    board_->end(error.code(), error.culprit_rank(), error.message());
    return false;
  }
}

void Group::poll(capstan_comm_progress* out) {
  if (size() > 1 && board_->ended()) board_->throw_end("poll");
  // In this order: never more finished than started.
  out->finished = finished_.load() + (messages_ != nullptr ? messages_->finished() : 0);
  out->started = started_.load();
  volume_.tell(*out);
  out->waiting_for = -1;
  const std::lock_guard lock(mutex_);
  for (const Outstanding& o : outstanding_) {
    if (o.done) continue;
    const std::vector<size_t> late = lagging(*o.op, o.sequence);
    if (!late.empty()) out->waiting_for = board_->rank(late.front());
    break;
  }
}

void Group::abort(const std::string& reason) {
  if (size() == 1) return;
  board_->end(CAPSTAN_PEER_LOST, -1, sdk::text("rank ", context_.rank, " ended it: ", reason));
}

void Group::lost(const Peer& peer) {
  if (size() == 1) return;
  for (size_t r = 0; r < size(); ++r) {
    // One that left in order is only missed when something needs it.
    if (board_->rank(r) != peer.rank() || board_->member(r).left.load() != 0) continue;
    board_->end(CAPSTAN_PEER_LOST, peer.rank(),
                sdk::text("rank ", peer.rank(), " (process ", peer.pid(), ") has ended"));
  }
}

}  // namespace capstan::shm
