#include "plugins/comm/shm/fetch.h"

#include <algorithm>
#include <cstring>

#include "sdk/error.h"

namespace capstan::shm {
namespace {

[[noreturn]] void throw_overdue(Board& board, int rank, const std::string& doing) {
  board.end(CAPSTAN_TIMEOUT, rank,
            sdk::text(doing, ": rank ", rank, " did not hand over its data in time"));
  board.throw_end(doing);
}

// The member, or else this rank.
[[noreturn]] void throw_departed(const Board& board, size_t member, const std::string& doing) {
  const int rank = board.rank(board.away(member) ? member : board.index());
  throw sdk::Error(CAPSTAN_PEER_LOST,
                   sdk::text(doing, " on ", board.name(), ": rank ", rank, " is gone"), false,
                   rank);
}

bool serve_board(const Board& board) {
  bool any = false;
  for (size_t reader = 0; reader < board.size(); ++reader) {
    if (reader == board.index()) continue;
    CopyCounter& counter = board.counter(reader, board.index());
    const uint32_t asked = counter.asked.load();
    if (asked == counter.served.load()) continue;
    std::memcpy(counter.data, reinterpret_cast<const char*>(counter.address),
                std::min<uint64_t>(counter.bytes, kCounterBytes));
    counter.served.store(asked);
    board.peer(reader).ring();
    any = true;
  }
  return any;
}

}  // namespace

void Fetcher::add(Board* board) {
  const std::lock_guard lock(mutex_);
  boards_.push_back(board);
}

void Fetcher::remove(Board* board) {
  const std::lock_guard lock(mutex_);
  std::erase(boards_, board);
}

bool Fetcher::serve() {
  bool any = false;
  const std::lock_guard lock(mutex_);
  for (const Board* board : boards_) any = serve_board(*board) || any;
  return any;
}

void Fetcher::fetch(Board& board, size_t member, uint64_t address, char* to, uint64_t bytes,
                    Clock::time_point deadline, const std::string& doing) {
  const Peer& peer = board.peer(member);
  if (peer.readable()) return peer.read(address, to, bytes);
  const std::unique_lock lock(asking_, deadline);
  if (!lock.owns_lock()) throw_never_asked(board, member, doing);
  while (bytes > 0) {
    const uint64_t now = std::min<uint64_t>(bytes, kCounterBytes);
    ask(board, member, address, to, now, deadline, doing);
    to += now;
    address += now;
    bytes -= now;
  }
}

void Fetcher::ask(Board& board, size_t member, uint64_t address, char* to, uint64_t bytes,
                  Clock::time_point deadline, const std::string& doing) {
  CopyCounter& counter = board.counter(board.index(), member);
  counter.address = address;
  counter.bytes = bytes;
  const uint32_t request = counter.asked.fetch_add(1) + 1;
  board.peer(member).ring();
  struct Asked {
    Asked(std::atomic<const CopyCounter*>& a, const CopyCounter* value) : asked(a) {
      asked = value;
    }
    ~Asked() { asked = nullptr; }
    std::atomic<const CopyCounter*>& asked;
  };
  {
    const Asked asked(asked_, &counter);
    await_served(board, member, request, deadline, doing);
  }
  std::memcpy(to, counter.data, bytes);
}

// Another thread was asking all the time: of this group, then who was asked is to blame; or of another.
void Fetcher::throw_never_asked(Board& board, size_t member, const std::string& doing) const {
  int culprit = -1;
  for (size_t r = 0; r < board.size(); ++r) {
    if (asks(board, r)) culprit = board.rank(r);
  }
  if (culprit >= 0) throw_overdue(board, culprit, doing);
  board.end(CAPSTAN_TIMEOUT, -1,
            sdk::text(doing, ": rank ", board.rank(board.index()), " could not ask rank ",
                      board.rank(member), " for its data in time, as it waited for other data"));
  board.throw_end(doing);
}

// Serves others meanwhile: two members that fetch from each other must not wait in a circle.
void Fetcher::await_served(Board& board, size_t member, uint32_t request,
                           Clock::time_point deadline, const std::string& doing) {
  const CopyCounter& counter = board.counter(board.index(), member);
  Home& home = board.peer(board.index()).home();
  while (counter.served.load() != request) {
    const uint32_t bell = home.bell.load();
    if (board.ended()) board.throw_end(doing);
    if (given_up_.load() || board.away(member)) throw_departed(board, member, doing);
    if (Clock::now() >= deadline) throw_overdue(board, board.rank(member), doing);
    if (serve() || counter.served.load() == request) continue;
    home.asleep.fetch_add(1);
    futex_wait(home.bell, bell, std::min<Clock::duration>(kLongestSleep, deadline - Clock::now()));
    home.asleep.fetch_sub(1);
  }
}

}  // namespace capstan::shm
