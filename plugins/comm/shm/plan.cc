#include "plugins/comm/shm/plan.h"

#include <algorithm>

#include "plugins/comm/shm/operation.h"

namespace capstan::shm {
namespace {

// Bytes of one array in a tile: small enough to share the work evenly, large enough that the
// processor's own prefetching gets going.
constexpr uint64_t kLeastTileBytes = uint64_t{16} << 10;
constexpr uint64_t kMostTileBytes = uint64_t{1} << 20;
constexpr uint64_t kTiles = 64;
// All-reduce without mapped memory: members' chunks begin at multiples of this many elements.
constexpr uint64_t kChunkUnit = 64;

class Builder {
 public:
  Builder(const comm::Request& request, size_t index, std::span<const MemberView> members)
      : q_(request), me_(index), members_(members), n_(members.size()) {
    const auto all = [&](uint32_t flag) {
      return std::all_of(members.begin(), members.end(),
                         [&](const MemberView& m) { return (m.flags & flag) != 0; });
    };
    plan_.mode = all(kEager) ? Plan::kEager : all(kMapped) ? Plan::kShared : Plan::kPull;
    payload_at_.assign(n_, 0);
  }

  Plan build() {
    for (const MemberView& m : members_) plan_.identities.push_back(m.identity);
    for (item_ = 0; item_ < q_.items.size(); ++item_) {
      add_item();
      for (size_t r = 0; r < n_; ++r) payload_at_[r] += padded(given_bytes(r));
    }
    plan_.second_phase = plan_.parts.size();
    if (q_.operation == CAPSTAN_COMM_ALL_REDUCE && plan_.mode == Plan::kPull) gather_chunks();
    if (plan_.mode == Plan::kShared) cut_tiles();
    return std::move(plan_);
  }

 private:
  const comm::Item& item() const { return q_.items[item_]; }

  // ---- one item ------------------------------------------------------------------------------

  void add_item() {
    switch (q_.operation) {
      case CAPSTAN_COMM_ALL_REDUCE:
        return all_reduce();
      case CAPSTAN_COMM_REDUCE_SCATTER:
        return for_each_target([&](size_t to) {
          const comm::Slice slice = item().send_slices[to];
          part(slice.count, everyone_sends(slice.begin, slice.count),
               {received(to, 0, slice.count)});
        });
      case CAPSTAN_COMM_ALL_GATHER:
        return all_gather();
      case CAPSTAN_COMM_BROADCAST: {
        const auto root = static_cast<size_t>(q_.root);
        return part(item().count, {sent(root, 0, item().count)},
                    everyone_receives(0, item().count));
      }
      case CAPSTAN_COMM_ALL_TO_ALL:
        return for_each_target([&](size_t to) {
          for (size_t from = 0; from < n_; ++from) {
            const uint64_t count = counts(from)[to];
            part(count, {sent(from, before(counts(from), to), count)},
                 {received(to, before(counts(to) + n_, from), count)});
          }
        });
      default:
        return;
    }
  }

  void all_reduce() {
    if (plan_.mode != Plan::kPull) {
      return part(item().count, everyone_sends(0, item().count),
                  everyone_receives(0, item().count));
    }
    const auto [begin, count] = chunk(me_);
    part(count, everyone_sends(begin, count), {received(me_, begin, count)});
  }

  void all_gather() {
    for (size_t from = 0; from < n_; ++from) {
      const comm::Slice slice = item().recv_slices[from];
      part(slice.count, {sent(from, 0, slice.count)}, everyone_receives(slice.begin, slice.count));
    }
  }

  // The chunks that the others have reduced.
  void gather_chunks() {
    for (item_ = 0; item_ < q_.items.size(); ++item_) {
      for (size_t r = 0; r < n_; ++r) {
        if (r == me_) continue;
        const auto [begin, count] = chunk(r);
        const Place& place = members_[r].record->item_records()[item_].recv;
        part(count, {at(r, place, begin, count)}, {received(me_, begin, count)});
      }
    }
  }

  comm::Slice chunk(size_t r) const {
    const uint64_t units = (item().count + kChunkUnit - 1) / kChunkUnit;
    const auto edge = [&](size_t k) { return std::min(item().count, units * k / n_ * kChunkUnit); };
    return {edge(r), edge(r + 1) - edge(r)};
  }

  // ---- addresses -----------------------------------------------------------------------------

  // ALL_TO_ALL: what a member sends to each, and behind it what it receives from each.
  const uint64_t* counts(size_t member) const {
    return members_[member].record->part_counts(item_);
  }
  static uint64_t before(const uint64_t* counts, size_t end) {
    uint64_t sum = 0;
    for (size_t r = 0; r < end; ++r) sum += counts[r];
    return sum;
  }

  uint64_t given_bytes(size_t member) const {
    if (q_.operation == CAPSTAN_COMM_ALL_TO_ALL) return before(counts(member), n_) * q_.element;
    return given(q_, item_, member).bytes;
  }

  Source at(size_t member, const Place& place, uint64_t begin, uint64_t count) const {
    Source source;
    source.member = static_cast<uint32_t>(member);
    Place from = place;
    from.address += begin * q_.element;
    from.offset += begin * q_.element;
    source.pointer = members_[member].peer->locate(from, count * q_.element);
    source.address = from.address;
    source.kind = source.pointer != nullptr ? Source::kHere : Source::kFar;
    return source;
  }

  Source sent(size_t member, uint64_t begin, uint64_t count) const {
    if ((members_[member].flags & kEager) != 0 && plan_.mode != Plan::kShared) {
      Source source;
      source.kind = Source::kPayload;
      source.member = static_cast<uint32_t>(member);
      source.address = payload_at_[member] + begin * q_.element;
      return source;
    }
    if (count == 0) return {};
    return at(member, members_[member].record->item_records()[item_].send, begin, count);
  }

  char* received(size_t member, uint64_t begin, uint64_t count) const {
    Place to = members_[member].record->item_records()[item_].recv;
    to.address += begin * q_.element;
    to.offset += begin * q_.element;
    return count == 0 ? nullptr : members_[member].peer->locate(to, count * q_.element);
  }

  std::vector<Source> everyone_sends(uint64_t begin, uint64_t count) const {
    std::vector<Source> out;
    for (size_t r = 0; r < n_; ++r) out.push_back(sent(r, begin, count));
    return out;
  }
  std::vector<char*> everyone_receives(uint64_t begin, uint64_t count) const {
    std::vector<char*> out;
    for_each_target([&](size_t to) { out.push_back(received(to, begin, count)); });
    return out;
  }

  // Those whose memory this plan writes: its own, or everyone's where tiles are shared.
  template <class Visit>
  void for_each_target(Visit&& visit) const {
    if (plan_.mode != Plan::kShared) return visit(me_);
    for (size_t r = 0; r < n_; ++r) visit(r);
  }

  // ---- parts and tiles -----------------------------------------------------------------------

  void part(uint64_t elements, const std::vector<Source>& sources,
            const std::vector<char*>& targets) {
    if (elements == 0) return;
    Plan::Part out{};
    out.elements = elements;
    out.first_target = static_cast<uint32_t>(plan_.targets.size());
    for (char* target : targets) {
      // A copy onto itself: the part that lies in place.
      if (sources.size() == 1 && sources[0].kind == Source::kHere && sources[0].pointer == target) {
        continue;
      }
      plan_.targets.push_back(target);
      ++out.target_count;
    }
    if (out.target_count == 0) return;
    out.first_source = static_cast<uint32_t>(plan_.sources.size());
    out.source_count = static_cast<uint32_t>(sources.size());
    plan_.sources.insert(plan_.sources.end(), sources.begin(), sources.end());
    plan_.parts.push_back(out);
    plan_.bytes_moved += elements * q_.element * (out.source_count + out.target_count);
  }

  // Tiles of about equal bytes: long parts are cut, short ones share a tile.
  void cut_tiles() {
    uint64_t bytes = 0;
    for (const Plan::Part& part : plan_.parts) bytes += part.elements * q_.element;
    const uint64_t most =
        std::clamp(bytes / kTiles, kLeastTileBytes, kMostTileBytes) / 64 * 64 / q_.element;
    uint64_t filled = most;  // of the last tile, in elements; full: begin another
    for (uint32_t p = 0; p < plan_.parts.size(); ++p) {
      for (uint64_t begin = 0; begin < plan_.parts[p].elements;) {
        if (filled >= most) {
          plan_.tiles.push_back(static_cast<uint32_t>(plan_.pieces.size()));
          filled = 0;
        }
        const uint64_t count = std::min(plan_.parts[p].elements - begin, most);
        plan_.pieces.push_back({p, static_cast<uint32_t>(count), begin});
        begin += count;
        filled += count;
      }
    }
    plan_.tiles.push_back(static_cast<uint32_t>(plan_.pieces.size()));
  }

  const comm::Request& q_;
  const size_t me_;
  const std::span<const MemberView> members_;
  const size_t n_;
  size_t item_ = 0;
  std::vector<uint64_t> payload_at_;  // of the present item, by member
  Plan plan_;
};

}  // namespace

Plan make_plan(const comm::Request& request, size_t index, std::span<const MemberView> members) {
  return Builder(request, index, members).build();
}

}  // namespace capstan::shm
