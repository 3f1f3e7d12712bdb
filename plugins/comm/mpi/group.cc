#include "plugins/comm/mpi/group.h"

#include <algorithm>
#include <utility>

namespace capstan::mpi {
namespace {

using sdk::text;

// How long a rank whose deadline has passed asks the others how far they are.
constexpr double kRollCallSeconds = 0.25;
// How long destroying a group waits until it is formed, so that its communicators can be freed, and
// until MPI has let go of what a failed one had in flight.
constexpr double kFormationSeconds = 10.0;
constexpr double kSettleSeconds = 0.25;
constexpr uint64_t kStays = ~uint64_t{0};

size_t index_of(const std::vector<int32_t>& ranks, int32_t rank) {
  return static_cast<size_t>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

uint64_t agreement(const Settings& settings, uint64_t id) {
  uint64_t mixed = id;
  for (const uint64_t word :
       {uint64_t{settings.ordered}, static_cast<uint64_t>(settings.checks), settings.piece_bytes,
        settings.gathered_bytes, settings.largest_count}) {
    mixed = (mixed ^ word) * 0x9e3779b97f4a7c15u;
    mixed ^= mixed >> 29;
  }
  return mixed;
}

std::string list_of(const std::vector<int32_t>& ranks) {
  constexpr size_t kMost = 8;
  std::string out;
  for (size_t i = 0; i < std::min(kMost, ranks.size()); ++i)
    out += text(i == 0 ? "" : ", ", ranks[i]);
  if (ranks.size() > kMost) out += text(" and ", ranks.size() - kMost, " more");
  return out;
}

}  // namespace

Group::Group(Library& library, const Settings& settings, std::vector<int32_t> ranks, int64_t epoch,
             uint64_t id)
    : library_(library),
      settings_(settings),
      epoch_(epoch),
      id_(id),
      links_{.index = index_of(ranks, library.rank()),
             .size = ranks.size(),
             .ranks = std::move(ranks),
             .largest_tag = library.largest_tag()},
      staging_(slot_bytes(links_, settings)),
      left_at_(links_.size, kStays),
      traffic_(links_.size),
      answers_(links_.size) {
  formation_ = Formation::begin(library_, {.ranks = links_.ranks,
                                           .index = links_.index,
                                           .id = id_,
                                           .fingerprint = agreement(settings_, id_),
                                           .timeout_s = settings_.timeout_s,
                                           .what = text("forming the ", name())});
  const std::lock_guard held(library_.lock());
  library_.add(this);
}

Group::~Group() {
  if (failure_) formation_->give_up();
  library_.wait(deadline_after(failure_ ? kSettleSeconds : kFormationSeconds),
                [&] { return formation_->done() && (!failure_ || settled()); });
  const std::lock_guard held(library_.lock());
  progress();
  library_.remove(this);
  const bool idle = settled();
  if (!failure_) {
    Notice left;
    left.group = id_;
    left.kind = NoticeKind::kLeft;
    left.position = collectives_;
    for (size_t r = 0; r < links_.size; ++r) {
      left.messages = traffic_[r].sent;
      if (r != links_.index) library_.notices().send(links_.ranks[r], left);
    }
  }
  if (formed_ && idle && !failure_) {
    for (MPI_Comm* comm : {&links_.first, &links_.second, &links_.messages}) MPI_Comm_free(comm);
    return;
  }
  if (idle && formation_->done())
    return;  // communicators of a failed group stay: freeing may block
  library_.leave_in_flight();
  for (auto& operation : abandoned_) {
    library_.keep_for_ever(std::shared_ptr<Operation>(std::move(operation)));
  }
  library_.keep_for_ever(std::make_shared<Staging>(std::move(staging_)));
}

std::string Group::name() const {
  std::string out = text("group of rank", links_.size == 1 ? " " : "s ", list_of(links_.ranks));
  return epoch_ == 0 ? out : text(out, " in epoch ", epoch_);
}

// ---- operations, as the host sees them ------------------------------------------------------------

std::unique_ptr<Operation> Group::prepare(const capstan_comm_request& request) const {
  auto operation = std::make_unique<Operation>();
  operation->request = comm::check_request(request, links_.index, links_.size);
  if (operation->request.is_message()) {
    operation->message = std::make_unique<Message>(operation->request, links_, settings_);
    return operation;
  }
  operation->pieces = plan(operation->request, links_, settings_);
  for (const auto& piece : operation->pieces) piece->owner = operation.get();
  if (settings_.checks != Checks::kNever && links_.size > 1) {
    operation->check = check_piece(operation->request, links_);
    operation->check->owner = operation.get();
  }
  return operation;
}

void Group::release(std::unique_ptr<Operation> operation) {
  const std::lock_guard held(library_.lock());
  if (operation->unfinished != 0) abandoned_.push_back(std::move(operation));
}

void Group::start(Operation& operation) {
  const std::lock_guard held(library_.lock());
  if (failure_) throw_failure(operation);
  if (operation.unfinished != 0) {
    throw sdk::bug_error(
        text(operation.request.describe(), " is started before its wait returned"));
  }
  ++started_;
  latest_label_ = operation.request.label;
  if (operation.message != nullptr) {
    operation.unfinished = 1;
    messages_.push_back(&operation);
    waiting_messages_.push_back(operation.message.get());
    if (!operation.message->is_recv())
      ++traffic_[index_of(links_.ranks, operation.message->peer())].sent;
  } else {
    operation.position = collectives_++;
    const bool check =
        operation.check != nullptr && (settings_.checks == Checks::kAlways || !operation.checked);
    operation.checked = true;
    operation.unfinished = operation.pieces.size() + (check ? 1 : 0);
    if (check) queue_.push_back(operation.check.get());
    for (const auto& piece : operation.pieces) queue_.push_back(piece.get());
    if (operation.unfinished == 0) count_finished(operation);
  }
  library_.progress();
  if (failure_) throw_failure(operation);
}

void Group::wait(Operation& operation, double timeout_s) {
  const auto deadline = deadline_after(timeout_s);
  const auto ended = [&] { return failure_.has_value() || operation.unfinished == 0; };
  if (!library_.wait(deadline, ended)) {
    const sdk::Error error = overdue(operation, timeout_s);
    const std::lock_guard held(library_.lock());
    // It may have ended while the others were asked; the deadline has passed all the same.
    if (!failure_) fail(error, /*tell=*/true);
  }
  const std::lock_guard held(library_.lock());
  if (failure_) throw_failure(operation);
}

void Group::poll(capstan_comm_progress& out) {
  const std::lock_guard held(library_.lock());
  library_.progress();
  if (failure_) throw *failure_;
  out.started = started_;
  out.finished = finished_;
  volume_.tell(out);
  out.waiting_for = -1;
  if (!formed_ && started_ != finished_) out.waiting_for = formation_->waiting_for();
  for (const Operation* operation : messages_) {
    if (operation->message->is_recv()) out.waiting_for = operation->message->peer();
  }
}

void Group::abort(const std::string& reason) {
  const std::lock_guard held(library_.lock());
  if (failure_) return;
  fail(sdk::Error(CAPSTAN_PEER_LOST,
                  text("the ", name(), " was aborted by rank ", library_.rank(), ": ", reason),
                  true, library_.rank()),
       /*tell=*/true);
}

void Group::throw_failure(const Operation& operation) const {
  const std::string& label = operation.request.label;
  if (label.empty() || failure_->message().find(label) != std::string::npos) throw *failure_;
  throw sdk::Error(failure_->code(),
                   text(operation.request.describe(), " cannot be done: ", failure_->message()),
                   failure_->retryable(), failure_->culprit_rank());
}

// ---- progress -------------------------------------------------------------------------------------

void Group::progress() noexcept {
  if (failure_) return;
  try {
    advance();
  } catch (const sdk::Error& error) {
    fail(error, /*tell=*/true);
  } catch (const std::bad_alloc&) {
    fail(sdk::resource_error(text("no memory for the staging buffers of the ", name())),
         /*tell=*/true);
  }
}

void Group::advance() {
  if (!formed_) {
    if (!formation_->done()) return;
    if (formation_->failure()) throw *formation_->failure();
    links_.first = formation_->first;
    links_.second = formation_->second;
    links_.messages = formation_->messages;
    formed_ = true;
  }
  for (; !waiting_messages_.empty(); waiting_messages_.pop_front()) {
    waiting_messages_.front()->begin();
  }
  bool moved = true;
  while (moved) {
    moved = advance_running();
    moved = begin_seconds() || moved;
    moved = begin_pieces() || moved;
  }
  advance_messages();
}

bool Group::advance_running() {
  bool moved = false;
  for (size_t i = 0; i < running_.size();) {
    Running& running = running_[i];
    if (running.state == State::kWaitsForSecond || !running.piece->requests.done("MPI_Testall")) {
      ++i;
      continue;
    }
    moved = true;
    if (running.state == State::kFirst && running.piece->has_second()) {
      running.piece->between();
      running.state = State::kWaitsForSecond;
      ++i;
    } else {
      finish(running);
      running_.erase(running_.begin() + static_cast<ptrdiff_t>(i));
    }
  }
  return moved;
}

// Second exchanges begin in the order of the first ones, which is the same on all ranks.
bool Group::begin_seconds() {
  bool moved = false;
  for (Running& running : running_) {
    if (running.state == State::kSecond || !running.piece->has_second()) continue;
    if (running.state == State::kFirst) break;
    running.piece->second(links_);
    running.state = State::kSecond;
    moved = true;
  }
  return moved;
}

bool Group::begin_pieces() {
  bool moved = false;
  while (!queue_.empty() && !fenced_) {
    Piece* const piece = queue_.front();
    char* slot = nullptr;
    if (piece->slot_bytes() != 0) {
      slot = staging_.take();
      if (slot == nullptr) break;
    }
    queue_.pop_front();
    running_.push_back({piece, slot, State::kFirst});
    check_left(piece->owner->position);
    fenced_ = piece->is_fence();
    piece->begin(links_, slot);
    moved = true;
  }
  return moved;
}

void Group::finish(Running& running) {
  running.piece->finish();
  if (running.slot != nullptr) staging_.give(running.slot);
  if (running.piece->is_fence()) fenced_ = false;
  Operation& owner = *running.piece->owner;
  if (--owner.unfinished == 0) retire(owner);
}

void Group::advance_messages() {
  for (size_t i = 0; i < messages_.size();) {
    Operation& operation = *messages_[i];
    Message& message = *operation.message;
    const bool heard = message.heard();
    const bool done = message.done();
    if (message.heard() && !heard) ++traffic_[index_of(links_.ranks, message.peer())].heard;
    if (!done) {
      ++i;
      continue;
    }
    messages_.erase(messages_.begin() + static_cast<ptrdiff_t>(i));
    operation.unfinished = 0;
    retire(operation);
  }
  for (const Operation* operation : messages_) check_sent(*operation);
}

// A message that a member which has left did not send. What it did send may still be on its way: the news
// that it left goes by another channel.
void Group::check_sent(const Operation& operation) const {
  const Message& message = *operation.message;
  if (!message.is_recv() || message.heard()) return;
  const size_t from = index_of(links_.ranks, message.peer());
  if (left_at_[from] == kStays || traffic_[from].heard < traffic_[from].sent_before_leaving) return;
  throw sdk::Error(CAPSTAN_PEER_LOST,
                   text("rank ", message.peer(), " has left the ", name(), " without sending ",
                        operation.request.describe()),
                   true, message.peer());
}

bool Group::settled() noexcept {
  bool all = true;
  for (Running& running : running_) all = running.piece->requests.settled() && all;
  for (Operation* operation : messages_) all = operation->message->settled() && all;
  return all;
}

void Group::count_finished(const Operation& operation) {
  ++finished_;
  volume_.add(operation.request);
}

void Group::retire(Operation& operation) {
  count_finished(operation);
  std::erase_if(abandoned_, [&](const auto& abandoned) { return abandoned.get() == &operation; });
}

// ---- failure --------------------------------------------------------------------------------------

void Group::fail(const sdk::Error& error, bool tell) {
  failure_ = error;
  if (!tell) return;
  Notice notice;
  notice.group = id_;
  notice.kind = NoticeKind::kFailed;
  notice.code = error.code();
  notice.culprit = error.culprit_rank();
  notice.set_text(error.message());
  for (const int32_t rank : links_.ranks) {
    if (rank != library_.rank()) library_.notices().send(rank, notice);
  }
}

// A collective that needs a member which has left.
void Group::check_left(uint64_t position) const {
  for (size_t r = 0; r < left_at_.size(); ++r) {
    if (position < left_at_[r]) continue;
    throw sdk::Error(CAPSTAN_PEER_LOST,
                     text("rank ", links_.ranks[r], " has left the ", name(), ", after ",
                          left_at_[r], " collectives"),
                     true, links_.ranks[r]);
  }
}

void Group::hear(const Notice& notice) noexcept {
  const size_t from = index_of(links_.ranks, notice.from);
  if (failure_ || from >= links_.size) return;
  const std::string words(notice.text.data());
  try {
    switch (notice.kind) {
      case NoticeKind::kFailed:
        fail(sdk::Error(notice.code == CAPSTAN_BUG ? CAPSTAN_BUG : CAPSTAN_PEER_LOST,
                        text("rank ", notice.from, " ended the ", name(), ": ", words),
                        notice.code != CAPSTAN_BUG, notice.culprit),
             /*tell=*/false);
        break;
      case NoticeKind::kLeft:
        left_at_[from] = notice.position;
        traffic_[from].sent_before_leaving = notice.messages;
        for (const Running& running : running_) check_left(running.piece->owner->position);
        break;
      case NoticeKind::kAsk: {
        Notice answer;
        answer.group = id_;
        answer.kind = NoticeKind::kAnswer;
        answer.position = collectives_;
        answer.set_text(latest_label_);
        library_.notices().send(notice.from, answer);
        break;
      }
      case NoticeKind::kAnswer:
        answers_[from] = {true, notice.position, words};
        break;
    }
  } catch (const sdk::Error& error) {
    fail(error, /*tell=*/true);
  }
}

sdk::Error Group::overdue(const Operation& operation, double timeout_s) {
  int32_t culprit = -1;
  const std::string found = roll_call(operation, &culprit);
  return sdk::Error(CAPSTAN_TIMEOUT,
                    text(operation.request.describe(), " of the ", name(),
                         " did not finish within ", timeout_s, " s: ", found),
                    true, culprit);
}

// MPI does not say whose part of a collective is missing, so the members are asked. One that is
// stopped, dead or busy computing does not answer.
std::string Group::roll_call(const Operation& operation, int32_t* culprit) {
  Notice ask;
  ask.group = id_;
  ask.kind = NoticeKind::kAsk;
  const auto asked = [&](size_t r) {
    return r != links_.index &&
           (operation.message == nullptr || links_.ranks[r] == operation.message->peer());
  };
  {
    const std::lock_guard held(library_.lock());
    for (size_t r = 0; r < links_.size; ++r) {
      answers_[r] = {};
      if (asked(r)) library_.notices().send(links_.ranks[r], ask);
    }
  }
  library_.wait(deadline_after(kRollCallSeconds), [&] {
    for (size_t r = 0; r < links_.size; ++r) {
      if (asked(r) && !answers_[r].heard) return false;
    }
    return true;
  });
  const std::lock_guard held(library_.lock());
  std::vector<int32_t> silent;
  std::string behind;
  for (size_t r = 0; r < links_.size; ++r) {
    if (!asked(r)) continue;
    const Answer& answer = answers_[r];
    const int32_t rank = links_.ranks[r];
    if (!answer.heard) {
      silent.push_back(rank);
    } else if (answer.position == Notice::kNoGroup) {
      behind += text("; rank ", rank, " has not made this group");
    } else if (operation.message == nullptr && answer.position <= operation.position) {
      behind += text("; rank ", rank, " has not started it",
                     answer.label.empty() ? "" : text(", its latest here is '", answer.label, "'"));
    } else {
      continue;
    }
    if (*culprit < 0) *culprit = rank;
  }
  if (!silent.empty()) {
    *culprit = silent.front();
    return text("not heard from: rank", silent.size() == 1 ? " " : "s ", list_of(silent), behind);
  }
  if (!behind.empty()) return behind.substr(2);
  if (operation.message != nullptr) {
    *culprit = operation.message->peer();
    return text("rank ", *culprit, " answers, but has not done its part");
  }
  return "all ranks answer and have started it; the network or the ranks are slow";
}

}  // namespace capstan::mpi
