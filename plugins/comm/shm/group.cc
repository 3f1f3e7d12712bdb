#include "plugins/comm/shm/group.h"

#include <algorithm>
#include <climits>
#include <cstring>

#include "plugins/comm/shm/combine.h"
#include "plugins/comm/shm/fetch.h"
#include "plugins/comm/shm/messages.h"
#include "plugins/comm/shm/use_counter.h"

namespace capstan::shm {
namespace {

// Work that whoever waits can do: from these sizes on, ranks that do not wait are called to share it;
// and this rank's own progress thread, whose rank most often waits right away.
constexpr uint64_t kHelpBytes = uint64_t{256} << 10;
constexpr uint64_t kOwnHelpBytes = uint64_t{1} << 20;

uint32_t use_of(uint64_t sequence) { return static_cast<uint32_t>(sequence / kSlots); }

// Cores that any member may run on.
int common_cores(const Board& board) {
  cpu_set_t all;
  CPU_ZERO(&all);
  for (size_t r = 0; r < board.size(); ++r) CPU_OR(&all, &all, &board.peer(r).home().cores);
  return std::max(1, CPU_COUNT(&all));
}

}  // namespace

Group::Group(Context& context, std::unique_ptr<Board> board)
    : context_(context), board_(std::move(board)) {
  if (size() == 1) return;
  const int cores = common_cores(*board_);
  most_workers_ = cores;
  // Ranks that are bound to cores of their own spin on those; else all ranks share all cores.
  const bool bound = cores < static_cast<int>(std::thread::hardware_concurrency());
  const auto sharing = bound ? static_cast<int64_t>(size()) : context_.settings.local_ranks;
  may_spin_ = sharing <= cores && context_.settings.spin.count() > 0;
  messages_ = std::make_unique<Messages>(context_, *board_, volume_);
  context_.fetcher.add(board_.get());
}

Group::~Group() {
  if (size() == 1) {
    released_.collect(*board_, context_.home);
    return;
  }
  context_.fetcher.remove(board_.get());
  board_->member(board_->index()).left.store(1);
  if (!board_->ended()) board_->wake_all();
  context_.leftovers.add(std::move(board_), std::move(released_), context_.home);
}

// ---- preparing -------------------------------------------------------------------------------

OperationPtr Group::prepare(const capstan_comm_request& request) {
  comm::Request checked = comm::check_request(request, board_->index(), size());
  if (size() == 1) {
    return std::make_shared<Operation>(context_.home, std::move(checked), 0, 1, 0);
  }
  {
    const std::lock_guard lock(mutex_);
    released_.collect(*board_, context_.home);
  }
  context_.leftovers.collect(context_.home);
  const uint32_t eager = checked.is_message() ? kRingBytes : board_->eager_bytes();
  context_.peers->map_regions();  // now, rather than in the first step
  return std::make_shared<Operation>(context_.home, std::move(checked), board_->index(), size(),
                                     eager);
}

void Group::release(const OperationPtr& op) {
  const std::lock_guard lock(mutex_);
  released_.add(op, size() > 1);
  released_.collect(*board_, context_.home);
}

// ---- starting --------------------------------------------------------------------------------

void Group::start(const OperationPtr& op) {
  if (op->in_flight()) {
    throw sdk::bug_error(
        sdk::text("comm shm: ", op->text(), " is started again before its wait returned"));
  }
  op->ever_started = true;
  started_.fetch_add(1);
  if (size() == 1) return run_alone(*op);
  if (board_->ended()) {
    op->state = Operation::kFailed;
    board_->throw_end(op->text());
  }
  if (op->request.is_message()) return start_message(op);
  const std::lock_guard work(op->work);
  const std::lock_guard lock(mutex_);
  op->sequence = next_sequence_++;
  op->stage = 0;
  op->state = Operation::kQueued;
  outstanding_.push_back({op, op->sequence, false});
  publish_queued();
  // This rank may wait for something else: its progress thread publishes it when there is room.
  if (published_ == op->sequence) board_->peer(board_->index()).ring();
}

void Group::start_message(const OperationPtr& op) {
  try {
    messages_->start(op);
  } catch (const sdk::Error& error) {
    op->state = Operation::kFailed;
    board_->end(error.code(), error.culprit_rank(), error.message());
    board_->throw_end(op->text());
  }
}

void Group::run_alone(Operation& op) {
  const comm::Request& q = op.request;
  for (const comm::Item& item : q.items) {
    uint64_t count = item.count;
    if (q.operation == CAPSTAN_COMM_ALL_TO_ALL && item.recv_slices[0].count != count) {
      throw sdk::bug_error(sdk::text("comm shm: ", op.text(), " receives ",
                                     item.recv_slices[0].count, " elements of the ", count,
                                     " that it sends to itself"));
    }
    if (item.recv != item.send && count > 0) std::memcpy(item.recv, item.send, count * q.element);
  }
  op.state = Operation::kDone;
  finished_.fetch_add(1);
  volume_.add(q);
}

bool Group::room_for(uint64_t sequence) {
  if (sequence < room_until_) return true;
  uint64_t consumed = UINT64_MAX;
  for (size_t r = 0; r < size(); ++r) {
    consumed = std::min(consumed, board_->member(r).consumed.load());
  }
  room_until_ = consumed + kSlots;
  return sequence < room_until_;
}

void Group::publish_queued() {
  while (published_ < next_sequence_ && room_for(published_)) {
    const uint64_t first = outstanding_.front().sequence;
    publish(*outstanding_[published_ - first].op);
    ++published_;
  }
}

void Group::publish(Operation& op) {
  SlotState& slot = board_->slot(op.sequence);
  Entry& entry = board_->entry(op.sequence, board_->index());
  entry.signature = op.signature;
  entry.identity = op.identity;
  entry.record = op.offset;
  entry.flags = op.flags;
  entry.fetched.store(0, std::memory_order_relaxed);
  if ((op.flags & kEager) != 0) {
    char* to = board_->payload(op.sequence, board_->index());
    for (size_t i = 0; i < op.request.items.size(); ++i) {
      const Given part = given(op.request, i, op.index);
      if (part.bytes > 0) std::memcpy(to, part.data, part.bytes);
      to += padded(part.bytes);
    }
  }
  op.state.store(Operation::kFlying);
  const uint32_t before = slot.arrived.fetch_add(1);
  entry.sequence.store(op.sequence + 1);
  if (before + 1 == arrival_target(op.sequence)) everyone_arrived(op, slot);
}

uint32_t Group::arrival_target(uint64_t sequence) const {
  return (use_of(sequence) + 1) * static_cast<uint32_t>(size());
}

// Wakes who can go on now, and calls for help with large operations.
void Group::everyone_arrived(Operation& op, SlotState& slot) {
  uint32_t common = kEager | kMapped;
  for (size_t r = 0; r < size(); ++r) common &= board_->entry(op.sequence, r).flags;
  const bool eager = (common & kEager) != 0, mapped = (common & kMapped) != 0;
  // Sleepers that are not needed sleep on until the operation is complete.
  if (slot.sleepers.load() > 0) {
    futex_wake(slot.arrived, !eager && mapped ? most_workers_ : INT_MAX);
  }
  if (eager) return;
  if (!mapped) return ring_absent(op.sequence);
  for (size_t r = 0; r < size(); ++r) {
    const bool own = r == board_->index();
    if (op.largest >= (own ? kOwnHelpBytes : kHelpBytes) && !awaits(op.sequence, r)) {
      board_->peer(r).ring();
    }
  }
}

bool Group::awaits(uint64_t sequence, size_t member) const {
  return board_->entry(sequence, member).awaited.load() == sequence + 1;
}

// Every member has work to do: those that do not wait for it have their progress threads do it.
void Group::ring_absent(uint64_t sequence) const {
  for (size_t r = 0; r < size(); ++r) {
    if (!awaits(sequence, r)) board_->peer(r).ring();
  }
}

bool Group::arrived(uint64_t sequence) const {
  const uint32_t now = board_->slot(sequence).arrived.load(std::memory_order_acquire);
  return static_cast<int32_t>(now - arrival_target(sequence)) >= 0;
}

// ---- agreement -------------------------------------------------------------------------------

std::shared_ptr<const Plan> Group::plan_for(Operation& op) {
  if (op.planned == op.sequence + 1) return op.plan;
  bool same = op.plan != nullptr;
  for (size_t r = 0; same && r < size(); ++r) {
    same = op.plan->identities[r] == board_->entry(op.sequence, r).identity;
  }
  if (!same) {
    check_agreement(op);
    std::vector<MemberView> members;
    for (size_t r = 0; r < size(); ++r) {
      const Entry& entry = board_->entry(op.sequence, r);
      Peer& peer = board_->peer(r);
      members.push_back(
          {&peer, &peer.record(entry.record, entry.identity), entry.identity, entry.flags});
    }
    if (op.request.operation == CAPSTAN_COMM_ALL_TO_ALL) check_all_to_all(op, members);
    op.plan = std::make_shared<const Plan>(make_plan(op.request, op.index, members));
  }
  op.planned = op.sequence + 1;
  return op.plan;
}

void Group::check_agreement(const Operation& op) const {
  // All compare with the first member, so all say the same.
  const uint64_t first = board_->entry(op.sequence, 0).signature;
  for (size_t r = 1; r < size(); ++r) {
    if (board_->entry(op.sequence, r).signature != first) disagree(op, 0, r);
  }
}

void Group::check_all_to_all(const Operation& op, const std::vector<MemberView>& members) const {
  for (size_t i = 0; i < op.request.items.size(); ++i) {
    for (size_t from = 0; from < size(); ++from) {
      for (size_t to = 0; to < size(); ++to) {
        const uint64_t sent = members[from].record->part_counts(i)[to];
        const uint64_t expected = members[to].record->part_counts(i)[size() + from];
        if (sent != expected) disagree(op, from, to);
      }
    }
  }
}

void Group::disagree(const Operation& op, size_t a, size_t b) const {
  const auto said = [&](size_t r) {
    const Entry& entry = board_->entry(op.sequence, r);
    return std::string(board_->peer(r).record(entry.record, entry.identity).text);
  };
  throw sdk::Error(
      CAPSTAN_BUG,
      sdk::text("the ranks of ", board_->name(), " disagree about their operation number ",
                op.sequence + 1, ": rank ", board_->rank(a), " started ", said(a), ", rank ",
                board_->rank(b), " started ", said(b), " (",
                op.request.operation == CAPSTAN_COMM_ALL_TO_ALL
                    ? "what one sends the other must expect"
                    : "every rank must start the same operations in the same order",
                ")"),
      false, board_->rank(b));
}

// ---- working ---------------------------------------------------------------------------------

Group::Lack Group::step(const OperationPtr& op, bool waits, Clock::time_point deadline) {
  if (op->state.load() == Operation::kDone) return Lack::kNothing;
  // A waiter looks up now and then, for its deadline; a progress thread has other things to do.
  const auto patience = waits ? std::min(deadline, Clock::now() + kLongestSleep) : Clock::now();
  std::unique_lock work(op->work, std::try_to_lock);
  if (!work.owns_lock() && !work.try_lock_until(patience)) return Lack::kThread;
  if (op->state.load() == Operation::kQueued) {
    const std::lock_guard lock(mutex_);
    publish_queued();
  }
  const int state = op->state.load();
  if (state == Operation::kQueued) return Lack::kRoom;
  if (state != Operation::kFlying) return Lack::kNothing;
  if (!arrived(op->sequence)) return Lack::kArrivals;
  const std::shared_ptr<const Plan> plan = plan_for(*op);
  const Flight flight = {op->sequence, op->request.dtype, op->request.reduce};
  op->pulls = plan->mode == Plan::kPull;
  Lack lack = Lack::kNothing;
  if (plan->mode == Plan::kEager) {
    reduce_payloads(*op, *plan);
  } else if (plan->mode == Plan::kPull) {
    lack = pull(*op, *plan, deadline);
  } else {
    op->wanted = plan->tile_count();
    work.unlock();
    lack = share_tiles(flight, *plan);
  }
  if (lack == Lack::kNothing) finish(*op, flight.sequence);
  return lack;
}

void Group::reduce_payloads(const Operation& op, const Plan& plan) const {
  const char* sources[kMostMembers];
  for (const Plan::Part& part : plan.parts) {
    for (uint32_t s = 0; s < part.source_count; ++s) {
      const Source& source = plan.sources[part.first_source + s];
      sources[s] = board_->payload(op.sequence, source.member) + source.address;
    }
    combine(op.request.dtype, op.request.reduce, std::span(sources, part.source_count),
            std::span(plan.targets).subspan(part.first_target, part.target_count), part.elements,
            false);
  }
}

Group::Lack Group::share_tiles(const Flight& flight, const Plan& plan) {
  SlotState& slot = board_->slot(flight.sequence);
  const uint32_t use = use_of(flight.sequence), tiles = plan.tile_count();
  const auto most_workers = static_cast<uint32_t>(most_workers_);
  if (use_count(slot.done, use) >= tiles) return Lack::kNothing;
  if (!tiles_left(flight.sequence, tiles)) return Lack::kOthers;
  // More would only take the cores from each other, each with a tile in hand.
  if (use_advance(slot.workers, use, most_workers) >= most_workers) return Lack::kOthers;
  struct Worker {
    Worker(SlotState& s, Entry& e, uint32_t u) : slot(s), entry(e), use(u) {
      entry.engaged.fetch_add(1);
    }
    ~Worker() {
      use_retreat(slot.workers, use);
      entry.engaged.fetch_sub(1);
    }
    SlotState& slot;
    Entry& entry;
    uint32_t use;
  } worker(slot, board_->entry(flight.sequence, board_->index()), use);
  const std::shared_lock memory(context_.peers->memory_lock());
  // Its own share first: the same each time, so that what is in this core's cache is used here.
  for (size_t k = 0; k < size(); ++k) {
    const size_t owner = (board_->index() + k) % size();
    const auto [begin, end] = share_of(owner, tiles);
    std::atomic<uint64_t>& claimed = board_->entry(flight.sequence, owner).claimed;
    while (!board_->ended()) {
      const uint32_t nth = use_advance(claimed, use, end - begin);
      if (nth >= end - begin) break;
      do_tile(flight, plan, begin + nth);
      if (use_advance(slot.done, use, tiles) + 1 == tiles) wake_sleepers(slot);
    }
  }
  return use_count(slot.done, use) >= tiles ? Lack::kNothing : Lack::kOthers;
}

// The tiles that a member does if all are there: from, to.
std::pair<uint32_t, uint32_t> Group::share_of(size_t member, uint32_t tiles) const {
  const auto edge = [&](size_t r) { return static_cast<uint32_t>(uint64_t{tiles} * r / size()); };
  return {edge(member), edge(member + 1)};
}

bool Group::tiles_left(uint64_t sequence, uint32_t tiles) const {
  for (size_t r = 0; r < size(); ++r) {
    const auto [begin, end] = share_of(r, tiles);
    if (use_count(board_->entry(sequence, r).claimed, use_of(sequence)) < end - begin) return true;
  }
  return false;
}

void Group::wake_sleepers(SlotState& slot) const {
  slot.wakes.fetch_add(1);
  if (slot.sleepers.load() == 0) return;
  futex_wake(slot.arrived);
  futex_wake(slot.wakes);
}

void Group::do_tile(const Flight& flight, const Plan& plan, uint32_t tile) const {
  const char* sources[kMostMembers];
  char* targets[kMostMembers];
  const size_t element = flight.dtype.bits / 8u;
  const bool stream = plan.bytes_moved >= context_.settings.stream_bytes;
  for (uint32_t p = plan.tiles[tile]; p < plan.tiles[tile + 1]; ++p) {
    const Plan::Piece& piece = plan.pieces[p];
    const Plan::Part& part = plan.parts[piece.part];
    const uint64_t at = piece.begin * element;
    for (uint32_t s = 0; s < part.source_count; ++s) {
      sources[s] = plan.sources[part.first_source + s].pointer + at;
    }
    for (uint32_t t = 0; t < part.target_count; ++t) {
      targets[t] = plan.targets[part.first_target + t] + at;
    }
    combine(flight.dtype, flight.reduce, std::span(sources, part.source_count),
            std::span(targets, part.target_count), piece.elements, stream);
  }
}

// ---- pulling ---------------------------------------------------------------------------------

Group::Lack Group::pull(Operation& op, const Plan& plan, Clock::time_point deadline) {
  SlotState& slot = board_->slot(op.sequence);
  const uint32_t use = use_of(op.sequence);
  const auto n = static_cast<uint32_t>(size());
  const int phases = op.request.operation == CAPSTAN_COMM_ALL_REDUCE ? 2 : 1;
  const auto finish_phase = [&] {
    const uint32_t count = use_advance(slot.done, use, UINT32_MAX - 1) + 1;
    board_->entry(op.sequence, board_->index()).fetched.store(static_cast<uint32_t>(++op.stage));
    if (count % n == 0) wake_sleepers(slot);
    if (count == n && phases == 2) ring_absent(op.sequence);
  };
  if (op.stage == 0) {
    pull_parts(op, plan, 0, plan.second_phase, deadline);
    finish_phase();
  }
  if (op.stage == 1 && phases == 2) {
    op.wanted = n;
    if (use_count(slot.done, use) < n) return Lack::kOthers;
    pull_parts(op, plan, plan.second_phase, plan.parts.size(), deadline);
    finish_phase();
  }
  const uint32_t all = n * static_cast<uint32_t>(phases);
  op.wanted = all;
  return use_count(slot.done, use) >= all ? Lack::kNothing : Lack::kOthers;
}

void Group::pull_parts(const Operation& op, const Plan& plan, size_t begin, size_t end,
                       Clock::time_point deadline) {
  const std::shared_lock memory(context_.peers->memory_lock());
  std::vector<char> buffer;
  for (size_t p = begin; p < end; ++p) {
    const Plan::Part& part = plan.parts[p];
    const Source& first = plan.sources[part.first_source];
    const uint64_t bytes = part.elements * op.request.element;
    char* target = plan.targets[part.first_target];
    if (part.source_count > 1) {
      if (buffer.empty()) buffer = context_.buffers.take(size() * kFetchBytes);
      pull_reduction(op, plan, part, buffer, deadline);
    } else if (first.kind == Source::kFar) {
      for (uint64_t at = 0; at < bytes; at += kCopyBytes) {
        if (board_->ended()) board_->throw_end(op.text());
        context_.fetcher.fetch(*board_, first.member, first.address + at, target + at,
                               std::min(kCopyBytes, bytes - at), deadline, op.text());
      }
    } else {
      const char* from = first.kind == Source::kHere
                             ? first.pointer
                             : board_->payload(op.sequence, first.member) + first.address;
      std::memcpy(target, from, bytes);
    }
  }
  if (!buffer.empty()) context_.buffers.keep(std::move(buffer));
}

// Pieces small enough that what is fetched is still in the cache when it is added.
void Group::pull_reduction(const Operation& op, const Plan& plan, const Plan::Part& part,
                           std::vector<char>& buffer, Clock::time_point deadline) {
  const size_t element = op.request.element;
  const uint64_t step = kFetchBytes / element;
  const char* sources[kMostMembers];
  for (uint64_t begin = 0; begin < part.elements; begin += step) {
    if (board_->ended()) board_->throw_end(op.text());
    const uint64_t count = std::min(step, part.elements - begin), at = begin * element;
    for (uint32_t s = 0; s < part.source_count; ++s) {
      const Source& source = plan.sources[part.first_source + s];
      if (source.kind == Source::kHere) {
        sources[s] = source.pointer + at;
      } else if (source.kind == Source::kPayload) {
        sources[s] = board_->payload(op.sequence, source.member) + source.address + at;
      } else {
        char* to = buffer.data() + s * kFetchBytes;
        context_.fetcher.fetch(*board_, source.member, source.address + at, to, count * element,
                               deadline, op.text());
        sources[s] = to;
      }
    }
    char* target = plan.targets[part.first_target] + at;
    combine(op.request.dtype, op.request.reduce, std::span(sources, part.source_count),
            std::span(&target, 1), count, false);
  }
}

// ---- finishing -------------------------------------------------------------------------------

void Group::finish(Operation& op, uint64_t sequence) {
  const std::lock_guard lock(mutex_);
  // Another thread may have finished this flight, and its owner begun the next.
  if (op.sequence != sequence || op.state.load() != Operation::kFlying) return;
  outstanding_[sequence - outstanding_.front().sequence].done = true;
  // Counted first: once it is done, its owner may ask.
  finished_.fetch_add(1);
  volume_.add(op.request);
  op.state.store(Operation::kDone);
  while (!outstanding_.empty() && outstanding_.front().done) outstanding_.pop_front();
  const uint64_t consumed = outstanding_.empty() ? next_sequence_ : outstanding_.front().sequence;
  MemberState& me = board_->member(board_->index());
  if (consumed == me.consumed.load(std::memory_order_relaxed)) return;
  me.consumed.store(consumed);
  BoardHeader& header = board_->header();
  if (header.consumption_sleepers.load() > 0) {
    header.consumption.fetch_add(1);
    futex_wake(header.consumption);
  }
  if (published_ < next_sequence_) publish_queued();
}

}  // namespace capstan::shm
