#include "plugins/comm/gloo/collectives.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <utility>

#include "plugins/comm/common/reduce.h"
#include "plugins/comm/common/vector.h"

namespace capstan::gloo_comm {
namespace {

using comm::Item;
using comm::Slice;
using comm::Vector;
using sdk::text;

// Up to this, the root of a broadcast sends everything to everyone.
constexpr uint64_t kPlainBroadcastBytes = 64 << 10;

class Collective {
 public:
  Collective(const comm::Request& request, const Settings& settings, uint64_t position,
             Wires& wires, Staging& staging)
      : request_(request),
        settings_(settings),
        position_(position),
        fingerprint_(request.fingerprint()),
        wires_(wires),
        staging_(staging),
        me_(wires.index()),
        n_(wires.size()),
        element_(request.element),
        greetings_(wires),
        greeted_(n_) {}

  void run() {
    greet();
    switch (request_.operation) {
      case CAPSTAN_COMM_ALL_REDUCE:
        all_reduce();
        break;
      case CAPSTAN_COMM_REDUCE_SCATTER:
        reduce_scatter();
        break;
      case CAPSTAN_COMM_ALL_GATHER:
        for (const Item& item : request_.items) {
          all_gather(item.send, item.recv, item.recv_slices);
        }
        break;
      case CAPSTAN_COMM_BROADCAST:
        for (const Item& item : request_.items) broadcast(item);
        break;
      case CAPSTAN_COMM_ALL_TO_ALL:
        for (const Item& item : request_.items) all_to_all(item);
        break;
      default:
        break;  // a barrier is the greeting
    }
    wait_all();
  }

 private:
  // One way of a piece of a reduction: what is under way, and what follows when it has arrived.
  struct Stage {
    explicit Stage(Wires& wires) : transfers(wires) {}
    Transfers transfers;
    char* arrived = nullptr;    // staging: every rank's contribution to this rank's share
    const char* own = nullptr;  // this rank's
    char* out = nullptr;
    uint64_t count = 0;
  };

  void greet() {
    for (size_t r = 0; r < n_; ++r) told_.push_back(announce(request_, r));
    const uint64_t slot = mix(position_, 0);
    for_others([&](size_t r) {
      greetings_.receive(r, slot, &greeted_[r], sizeof(Announcement));
      greetings_.send(r, slot, &told_[r], sizeof(Announcement));
    });
  }
  // Before anything is done with what others sent.
  void compare_all() {
    if (compared_) return;
    greetings_.wait(deadline_after(-1));
    for_others([&](size_t r) { compare(request_, greeted_[r], r, wires_.rank(r)); });
    compared_ = true;
  }
  void wait_all() {
    compare_all();
    for (Transfers& transfers : open_) transfers.wait(deadline_after(-1));
    open_.clear();
  }

  // Peers from the next on, so that not all send to the same one.
  template <class Body>
  void for_others(Body&& body) const {
    for (size_t step = 1; step < n_; ++step) body((me_ + step) % n_);
  }
  // A slot for the next exchange, the same on all ranks.
  uint64_t next_slot() { return mix(position_, ++step_, fingerprint_); }
  Transfers& opened() { return open_.emplace_back(wires_); }

  uint64_t at(const Slice& slice) const { return slice.begin * element_; }
  uint64_t bytes(const Slice& slice) const { return slice.count * element_; }

  // Posts that everyone gets everyone's slice.
  void post_gather(Transfers& transfers, const char* own, char* recv,
                   const std::vector<Slice>& slices) {
    const uint64_t slot = next_slot();
    for_others(
        [&](size_t r) { transfers.receive(r, slot, recv + at(slices[r]), bytes(slices[r])); });
    for_others([&](size_t r) { transfers.send(r, slot, own, bytes(slices[me_])); });
  }
  // Posts that each rank gets its slice of this rank's `send`, and this one theirs into staging.
  void post_shares(Stage& stage, const char* send, const std::vector<Slice>& slices) {
    const uint64_t slot = next_slot();
    stage.own = send + at(slices[me_]);
    stage.count = slices[me_].count;
    for_others([&](size_t r) {
      stage.transfers.receive(r, slot, stage.arrived + r * stride(stage.count), bytes(slices[me_]));
    });
    for_others(
        [&](size_t r) { stage.transfers.send(r, slot, send + at(slices[r]), bytes(slices[r])); });
  }
  size_t stride(uint64_t count) const { return (count * element_ + 63) / 64 * 64; }

  // The share, reduced in the order of ranks.
  void reduce(const Stage& stage) const {
    if (stage.count == 0) return;
    std::vector<const void*> sources(n_);
    for (size_t r = 0; r < n_; ++r) {
      sources[r] = r == me_ ? stage.own : stage.arrived + r * stride(stage.count);
    }
    comm::reduce_in_order(request_.dtype, request_.reduce, sources, stage.out, stage.count);
  }
  void arrive(Stage& stage) {
    compare_all();
    stage.transfers.wait(deadline_after(-1));
  }

  void all_gather(const char* send, char* recv, const std::vector<Slice>& slices) {
    post_gather(opened(), send, recv, slices);
    char* const own = recv + at(slices[me_]);
    if (own != send && bytes(slices[me_]) != 0) std::memcpy(own, send, bytes(slices[me_]));
  }

  void all_to_all(const Item& item) {
    Transfers& transfers = opened();
    const uint64_t slot = next_slot();
    for_others([&](size_t r) {
      transfers.receive(r, slot, item.recv + at(item.recv_slices[r]), bytes(item.recv_slices[r]));
    });
    for_others([&](size_t r) {
      transfers.send(r, slot, item.send + at(item.send_slices[r]), bytes(item.send_slices[r]));
    });
    const Slice from = item.send_slices[me_], to = item.recv_slices[me_];
    if (from.count != 0) std::memcpy(item.recv + at(to), item.send + at(from), bytes(from));
  }

  // Large data in two steps: each rank gets a slice from the root, then gives it to the others.
  void broadcast(const Item& item) {
    const auto root = static_cast<size_t>(request_.root);
    const bool is_root = root == me_;
    char* const data = is_root ? const_cast<char*>(item.send) : item.recv;
    const uint64_t total = item.count * element_;
    Transfers& first = opened();
    const uint64_t slot = next_slot();
    if (total <= kPlainBroadcastBytes || n_ == 2) {
      if (is_root) {
        for_others([&](size_t r) { first.send(r, slot, data, total); });
      } else {
        first.receive(root, slot, data, total);
      }
    } else {
      spread(first, slot, data, item.count, root);
    }
    if (is_root && item.recv != item.send && total != 0) std::memcpy(item.recv, item.send, total);
  }
  void spread(Transfers& first, uint64_t slot, char* data, uint64_t count, size_t root) {
    std::vector<Slice> slices = comm::even_slices(count, n_ - 1);
    slices.insert(slices.begin() + static_cast<ptrdiff_t>(root), Slice{0, 0});
    const uint64_t second_slot = next_slot();
    if (root == me_) {
      for_others([&](size_t r) { first.send(r, slot, data + at(slices[r]), bytes(slices[r])); });
      return;
    }
    Transfers& second = opened();
    for_others(
        [&](size_t r) { second.receive(r, second_slot, data + at(slices[r]), bytes(slices[r])); });
    Transfers from_root(wires_);
    from_root.receive(root, slot, data + at(slices[me_]), bytes(slices[me_]));
    compare_all();
    from_root.wait(deadline_after(-1));
    for_others([&](size_t r) {
      if (r != root) second.send(r, second_slot, data + at(slices[me_]), bytes(slices[me_]));
    });
  }

  void all_reduce() {
    if (request_.elements() * element_ <= settings_.gathered_bytes) {
      for (const Vector& vector : comm::vectors_of(request_, settings_.gathered_bytes)) {
        gathered_reduce(vector);
      }
      return;
    }
    const std::vector<Vector> vectors =
        comm::vectors_of(request_, std::max<uint64_t>(settings_.piece_bytes, n_ * element_));
    // The next piece's contributions travel while this one is reduced and given back.
    std::unique_ptr<Stage> current;
    for (size_t i = 0; i <= vectors.size(); ++i) {
      std::unique_ptr<Stage> next;
      if (i < vectors.size()) next = begin_reduce(vectors[i], i % 2);
      if (current != nullptr) finish_reduce(vectors[i - 1], *current, (i - 1) % 2);
      current = std::move(next);
    }
  }
  // Room of a piece: the contributions, then the packed vector.
  char* packing_room(const Vector& vector, const std::vector<Slice>& shares, size_t which) {
    const size_t arriving = stride(shares[me_].count) * n_;
    return staging_.room(which, arriving + (vector.packed() ? vector.bytes() : 0)) + arriving;
  }
  std::unique_ptr<Stage> begin_reduce(const Vector& vector, size_t which) {
    const std::vector<Slice> shares = comm::even_slices(vector.elements(), n_);
    auto stage = std::make_unique<Stage>(wires_);
    char* const room = packing_room(vector, shares, which);
    stage->arrived = room - stride(shares[me_].count) * n_;
    post_shares(*stage, vector.gather(room), shares);
    return stage;
  }
  void finish_reduce(const Vector& vector, Stage& stage, size_t which) {
    const std::vector<Slice> shares = comm::even_slices(vector.elements(), n_);
    char* const room = packing_room(vector, shares, which);
    char* const result = vector.result(room);
    arrive(stage);
    stage.out = result + at(shares[me_]);
    reduce(stage);
    Transfers back(wires_);
    post_gather(back, stage.out, result, shares);
    back.wait(deadline_after(-1));
    if (vector.packed()) vector.unpack(room);
  }
  // Small: everything to everyone, and each adds up all of it.
  void gathered_reduce(const Vector& vector) {
    Stage stage(wires_);
    stage.count = vector.elements();
    stage.arrived = staging_.room(0, stride(stage.count) * n_);
    char* const own = stage.arrived + me_ * stride(stage.count);
    vector.pack(own);
    stage.own = stage.out = own;
    const uint64_t slot = next_slot();
    for_others([&](size_t r) {
      stage.transfers.receive(r, slot, stage.arrived + r * stride(stage.count), vector.bytes());
    });
    for_others([&](size_t r) { stage.transfers.send(r, slot, own, vector.bytes()); });
    arrive(stage);
    reduce(stage);
    vector.unpack(own);
  }

  void reduce_scatter() {
    const uint64_t most = std::max<uint64_t>(settings_.piece_bytes / element_ / n_, 1);
    for (const Item& item : request_.items) {
      uint64_t longest = 0;
      for (const Slice& slice : item.send_slices) longest = std::max(longest, slice.count);
      for (uint64_t offset = 0; offset < longest; offset += most) {
        std::vector<Slice> shares = item.send_slices;
        for (Slice& slice : shares) {
          const uint64_t skipped = std::min(offset, slice.count);
          slice = {slice.begin + skipped, std::min(most, slice.count - skipped)};
        }
        Stage stage(wires_);
        stage.arrived = staging_.room(0, stride(shares[me_].count) * n_);
        post_shares(stage, item.send, shares);
        stage.out = item.recv + offset * element_;
        arrive(stage);
        reduce(stage);
      }
    }
  }

  const comm::Request& request_;
  const Settings& settings_;
  uint64_t position_, fingerprint_;
  Wires& wires_;
  Staging& staging_;
  size_t me_, n_, element_;
  Transfers greetings_;
  std::vector<Announcement> told_, greeted_;
  std::deque<Transfers> open_;
  bool compared_ = false;
  uint64_t step_ = 0;
};

}  // namespace

Announcement announce(const comm::Request& request, size_t peer) {
  Announcement out{};
  out.fingerprint = request.is_message() ? 0 : request.fingerprint();
  out.sends = request.sends_to(peer);
  out.tag = request.tag;
  const std::string words = request.describe();
  std::memcpy(out.text.data(), words.data(), std::min(words.size(), out.text.size() - 1));
  return out;
}

void compare(const comm::Request& request, const Announcement& theirs, size_t peer,
             int32_t peer_rank) {
  const bool same = theirs.fingerprint == request.fingerprint();
  if (same && theirs.sends == request.expects_from(peer)) return;
  std::array<char, sizeof theirs.text> words = theirs.text;
  words.back() = '\0';
  throw sdk::Error(
      CAPSTAN_BUG,
      text("the ranks disagree: this rank started ", request.describe(), ", but rank ", peer_rank,
           " started ", words.data(), same ? " with counts that differ for this pair" : ""),
      false, peer_rank);
}

char* Staging::room(size_t which, size_t bytes) {
  if (rooms[which].size() < bytes + 64) rooms[which].resize(bytes + 64);
  char* const raw = rooms[which].data();
  return raw + (64 - reinterpret_cast<uintptr_t>(raw) % 64) % 64;
}

void run_collective(const comm::Request& request, const Settings& settings, uint64_t position,
                    Wires& wires, Staging& staging) {
  Collective(request, settings, position, wires, staging).run();
}

}  // namespace capstan::gloo_comm
