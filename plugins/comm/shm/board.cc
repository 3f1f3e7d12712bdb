#include "plugins/comm/shm/board.h"

#include <algorithm>
#include <cstring>

#include "plugins/comm/shm/futex.h"
#include "sdk/error.h"

namespace capstan::shm {
namespace {

// What the maker of a board puts into the bootstrap.
struct Invitation {
  int32_t fd = 0;
  uint32_t eager_bytes = 0;
  uint64_t nonce = 0;
};

Tag sign_board(const Secret& secret, uint64_t nonce, const std::string& key) {
  const std::string all = sdk::text(nonce, ' ', key);
  return secret.sign(all.data(), all.size());
}

std::string name_group(std::span<const int32_t> ranks) {
  std::string name = "group ";
  for (size_t i = 0; i < ranks.size(); ++i) name += sdk::text(i == 0 ? "" : ",", ranks[i]);
  return name;
}

}  // namespace

Board::Board(const sdk::Bootstrap& bootstrap, const Secret& secret, const std::string& key,
             std::span<const int32_t> ranks, size_t index, Peers& peers, uint32_t eager_bytes)
    : ranks_(ranks.begin(), ranks.end()),
      index_(index),
      name_(name_group(ranks)),
      map_{ranks.size(), BoardMap(ranks.size(), eager_bytes)} {
  // Each waits for lower ranks only, so members that make groups in different orders cannot wait for
  // each other in a circle.
  const int maker = *std::min_element(ranks.begin(), ranks.end());
  if (ranks[index] == maker) {
    make(bootstrap, secret, key, eager_bytes);
  } else {
    join(bootstrap, secret, key, peers.meet(maker));
  }
  for (const int32_t rank : ranks) {
    peers_.push_back(&peers.meet(rank));
  }
}

Board::Board(int rank)
    : ranks_{rank}, index_(0), name_(name_group(ranks_)), map_{1, BoardMap(1, 0)} {}

void Board::make(const sdk::Bootstrap& bootstrap, const Secret& secret, const std::string& key,
                 uint32_t eager_bytes) {
  segment_ = Segment(map_.map.bytes);
  base_ = segment_.data();
  BoardHeader& h = header();
  h.nonce = random_number();
  h.tag = sign_board(secret, h.nonce, key);
  h.members = static_cast<uint32_t>(ranks_.size());
  h.eager_bytes = eager_bytes;
  std::copy(ranks_.begin(), ranks_.end(), h.ranks);
  const Invitation invitation = {segment_.fd(), eager_bytes, h.nonce};
  bootstrap.put(key,
                std::string_view(reinterpret_cast<const char*>(&invitation), sizeof invitation));
}

void Board::join(const sdk::Bootstrap& bootstrap, const Secret& secret, const std::string& key,
                 const Peer& peer) {
  const int maker = peer.rank();
  // The maker's process is known from its greeting; a board of another process is not taken.
  const std::string raw = bootstrap.get(key);
  Invitation invitation;
  if (raw.size() != sizeof invitation) {
    throw sdk::usage_error(
        sdk::text("comm shm: rank ", maker, " runs another version of this plugin"));
  }
  std::memcpy(&invitation, raw.data(), sizeof invitation);
  if (invitation.eager_bytes > (uint32_t{1} << 24)) {
    throw sdk::data_error(sdk::text("comm shm: rank ", maker, " offers an impossible board"));
  }
  map_.map = BoardMap(ranks_.size(), invitation.eager_bytes);
  segment_ = Segment(peer.pid(), invitation.fd, maker, map_.map.bytes);
  base_ = segment_.data();
  const BoardHeader& h = header();
  if (h.nonce != invitation.nonce || h.tag != sign_board(secret, h.nonce, key)) {
    throw sdk::data_error(sdk::text("comm shm: the board that rank ", maker, " offers for ", name_,
                                    " is not of this job"));
  }
  if (h.members != ranks_.size() || !std::equal(ranks_.begin(), ranks_.end(), h.ranks)) {
    throw sdk::usage_error(sdk::text("comm shm: rank ", maker, " lists the members of ", name_,
                                     " differently; pass the same list on every rank"));
  }
}

void Board::end(int32_t code, int32_t culprit_rank, const std::string& reason) {
  BoardHeader& h = header();
  uint32_t alive = 0;
  if (!h.ended.compare_exchange_strong(alive, 1)) return;
  h.code = code;
  h.culprit = culprit_rank;
  const size_t length = std::min(reason.size(), sizeof h.reason - 1);
  std::memcpy(h.reason, reason.data(), length);
  h.reason[length] = '\0';
  h.ended.store(2);
  wake_all();
}

void Board::wake_all() const {
  for (uint64_t s = 0; s < kSlots; ++s) {
    SlotState& state = slot(s);
    futex_wake(state.arrived);
    futex_wake(state.wakes);
  }
  futex_wake(header().consumption);
  wake_messages();
  for (size_t r = 0; r < size(); ++r) {
    if (!peer(r).gone().load()) peer(r).ring();
  }
}

void Board::wake_messages() const {
  for (size_t r = 0; r < size(); ++r) {
    if (r == index()) continue;
    for (Ring* each : {&ring(index(), r), &ring(r, index())}) {
      futex_wake(each->written);
      futex_wake(each->read);
    }
  }
}

void Board::throw_end(const std::string& doing) const {
  const BoardHeader& h = header();
  // Whoever ended it writes a line of text; should it have died doing so, the class is all there is.
  const auto limit = Clock::now() + std::chrono::milliseconds(100);
  while (h.ended.load() == 1 && Clock::now() < limit) relax();
  if (h.ended.load() != 2) {
    throw sdk::Error(CAPSTAN_PEER_LOST,
                     sdk::text(doing, ": ", name_, " was ended by a rank that died"));
  }
  const std::string reason = h.reason;
  const bool told = reason.find(doing) != std::string::npos;
  throw sdk::Error(h.code, told ? reason : sdk::text(doing, ": ", name_, " has ended: ", reason),
                   false, h.culprit);
}

}  // namespace capstan::shm
