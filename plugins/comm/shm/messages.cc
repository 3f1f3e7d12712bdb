#include "plugins/comm/shm/messages.h"

#include <algorithm>
#include <cstring>

#include "plugins/comm/shm/fetch.h"
#include "plugins/comm/shm/futex.h"
#include "sdk/error.h"

namespace capstan::shm {
namespace {

bool sends(const Operation& op) { return op.request.operation == CAPSTAN_COMM_SEND; }
size_t peer_of(const Operation& op) { return static_cast<size_t>(op.request.peer); }

}  // namespace

void Messages::start(const std::shared_ptr<Operation>& op) {
  const std::lock_guard lock(mutex_);
  const size_t peer = peer_of(*op);
  if (sends(*op)) {
    ++op->flight;
    op->state = Operation::kQueued;
    queued_[peer].push_back(op);
    board_.ring(board_.index(), peer).write_sleepers.fetch_add(1);
    flush(peer);
    // The receiver may wait for something else: its progress thread makes room.
    if (!queued_[peer].empty()) board_.peer(peer).ring();
    return;
  }
  op->state = Operation::kFlying;
  const Channel channel = {peer, op->request.channel};
  auto& early = unexpected_[channel];
  if (early.empty()) {
    waiting_[channel].push_back(op);
    return;
  }
  const std::unique_ptr<Message> message = std::move(early.front());
  early.pop_front();
  match(op, *message, peer);
  if (!matched_.empty()) board_.peer(board_.index()).ring();
}

// ---- sending ---------------------------------------------------------------------------------

// Queued sends count as sleepers on the ring, so that a receiver calls when it has made room.
void Messages::flush(size_t to) {
  auto& queue = queued_[to];
  Ring& ring = board_.ring(board_.index(), to);
  bool wrote = false;
  while (!queue.empty() && ring.written.load() - ring.read.load() < kRing) {
    const std::shared_ptr<Operation> op = std::move(queue.front());
    queue.pop_front();
    ring.write_sleepers.fetch_sub(1);
    write(*op, ring);
    wrote = true;
  }
  if (wrote && !queue.empty()) board_.peer(to).ring();
}

void Messages::write(Operation& op, Ring& ring) {
  Message& message = ring.messages[ring.written.load() % kRing];
  message.record = op.offset;
  message.identity = op.identity;
  message.signature = op.signature;
  message.flight = op.flight;
  message.channel = op.request.channel;
  message.tag = op.request.tag;
  message.bytes = static_cast<uint32_t>(std::min<uint64_t>(op.payload, UINT32_MAX));
  message.eager = op.flags & kEager;
  const size_t length = op.text().copy(message.text, sizeof message.text - 1);
  message.text[length] = '\0';
  if (message.eager != 0) {
    char* to = message.payload;
    for (size_t i = 0; i < op.request.items.size(); ++i) {
      const Given part = given(op.request, i, op.index);
      if (part.bytes > 0) std::memcpy(to, part.data, part.bytes);
      to += padded(part.bytes);
    }
    finish(op);
  } else {
    op.state = Operation::kFlying;
  }
  ring.written.fetch_add(1);
  if (ring.read_sleepers.load() > 0) {
    futex_wake(ring.written);
  } else if (message.eager == 0) {
    // The receiver may wait for something else, or compute: its progress thread takes the data.
    board_.peer(peer_of(op)).ring();
  }
}

// ---- receiving -------------------------------------------------------------------------------

bool Messages::drain(size_t from) {
  Ring& ring = board_.ring(from, board_.index());
  bool any = false;
  while (ring.read.load() != ring.written.load()) {
    const Message& message = ring.messages[ring.read.load() % kRing];
    take(message, from);
    ring.read.fetch_add(1);
    any = true;
  }
  if (any && ring.write_sleepers.load() > 0) {
    futex_wake(ring.read);
    board_.peer(from).ring();
  }
  return any;
}

void Messages::take(const Message& message, size_t from) {
  const Channel channel = {from, message.channel};
  auto& waiting = waiting_[channel];
  if (waiting.empty()) {
    auto kept = std::make_unique<Message>();
    const size_t used = message.eager != 0 ? message.bytes : 0;
    std::memcpy(kept.get(), &message, offsetof(Message, payload) + used);
    unexpected_[channel].push_back(std::move(kept));
    return;
  }
  const std::shared_ptr<Operation> op = std::move(waiting.front());
  waiting.pop_front();
  match(op, message, from);
}

void Messages::match(const std::shared_ptr<Operation>& op, const Message& message, size_t from) {
  check(*op, message, from);
  if (message.eager != 0) return deliver(*op, message);
  auto kept = std::make_unique<Message>();
  std::memcpy(kept.get(), &message, offsetof(Message, payload));
  matched_.push_back({op, std::move(kept)});
}

void Messages::check(const Operation& op, const Message& message, size_t from) const {
  const bool tags = message.tag == op.request.tag;
  if (tags && message.signature == op.signature) return;
  const std::string what = tags ? std::string("other elements")
                                : sdk::text("tag ", message.tag, ", not ", op.request.tag);
  throw sdk::Error(CAPSTAN_BUG,
                   sdk::text("ranks ", board_.rank(from), " and ", board_.rank(op.index),
                             " disagree about their next message on channel ", message.channel,
                             " (", what, "): rank ", board_.rank(from), " started ", message.text,
                             ", rank ", board_.rank(op.index), " started ", op.text()),
                   false, board_.rank(from));
}

void Messages::deliver(Operation& op, const Message& message) {
  const char* from = message.payload;
  for (const comm::Item& item : op.request.items) {
    const uint64_t bytes = item.count * op.request.element;
    if (bytes > 0) std::memcpy(item.recv, from, bytes);
    from += padded(bytes);
  }
  finish(op);
}

bool Messages::copy_matched(bool waits, Clock::time_point deadline) {
  const auto patience = waits ? std::min(deadline, Clock::now() + kLongestSleep) : Clock::now();
  const std::unique_lock copying(copying_, patience);
  if (!copying.owns_lock()) return false;
  bool any = false;
  while (true) {
    Matched next;
    {
      const std::lock_guard lock(mutex_);
      if (matched_.empty()) return any;
      next = std::move(matched_.front());
      matched_.pop_front();
    }
    copy(*next.op, *next.message, deadline);
    any = true;
  }
}

void Messages::copy(Operation& op, const Message& message, Clock::time_point deadline) {
  const size_t from = peer_of(op);
  Peer& peer = board_.peer(from);
  OperationRecord& record = peer.record(message.record, message.identity);
  {
    const std::shared_lock memory(context_.peers->memory_lock());
    for (size_t i = 0; i < op.request.items.size(); ++i) {
      const uint64_t bytes = op.request.items[i].count * op.request.element;
      const Place& place = record.item_records()[i].send;
      char* to = op.request.items[i].recv;
      const char* near = bytes == 0 ? nullptr : peer.locate(place, bytes);
      for (uint64_t at = 0; at < bytes; at += kCopyBytes) {
        if (board_.ended()) board_.throw_end(op.text());
        const uint64_t now = std::min(kCopyBytes, bytes - at);
        if (near != nullptr) {
          std::memcpy(to + at, near + at, now);
        } else {
          context_.fetcher.fetch(board_, from, place.address + at, to + at, now, deadline,
                                 op.text());
        }
      }
    }
  }
  finish(op);
  record.taken.store(message.flight);
  if (record.sleepers.load() > 0) futex_wake(record.taken);
}

void Messages::finish(Operation& op) {
  finished_.fetch_add(1);
  volume_.add(op.request);
  op.state = Operation::kDone;
}

// ---- moving on -------------------------------------------------------------------------------

bool Messages::step(const std::shared_ptr<Operation>& op, bool waits, Clock::time_point deadline) {
  bool matched = false;
  {
    const std::lock_guard lock(mutex_);
    for (size_t r = 0; r < board_.size(); ++r) {
      if (r == board_.index()) continue;
      drain(r);
      if (auto it = queued_.find(r); it != queued_.end() && !it->second.empty()) flush(r);
    }
    if (sends(*op) && op->state.load() == Operation::kFlying &&
        op->record().taken.load() == op->flight) {
      finish(*op);
    }
    matched = !matched_.empty() || (!sends(*op) && op->in_flight());
  }
  if (matched) copy_matched(waits, deadline);
  return op->state.load() == Operation::kDone;
}

bool Messages::progress() {
  bool any = false;
  {
    const std::lock_guard lock(mutex_);
    for (size_t r = 0; r < board_.size(); ++r) {
      if (r == board_.index()) continue;
      any = drain(r) || any;
      if (auto it = queued_.find(r); it != queued_.end() && !it->second.empty()) flush(r);
    }
  }
  return copy_matched(false, Clock::now() + std::chrono::hours(24)) || any;
}

bool Messages::idle() {
  const std::lock_guard lock(mutex_);
  return matched_.empty() && std::all_of(queued_.begin(), queued_.end(),
                                         [](const auto& to) { return to.second.empty(); });
}

Messages::News Messages::news(const Operation& op) const {
  News news{};
  if (!sends(op)) {
    Ring& ring = board_.ring(peer_of(op), board_.index());
    news = {&ring.written, &ring.read_sleepers, 0};
  } else if (op.state.load() == Operation::kQueued) {
    Ring& ring = board_.ring(board_.index(), peer_of(op));
    news = {&ring.read, &ring.write_sleepers, 0};
  } else {
    news = {&op.record().taken, &op.record().sleepers, 0};
  }
  news.seen = news.word->load();
  return news;
}

}  // namespace capstan::shm
