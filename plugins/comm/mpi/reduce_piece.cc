// Reductions in the order of the ranks: every rank receives its share of all others, adds them up
// itself, one rounding at the end, and (all-reduce) gives the result to all. The volume is that of a
// ring, 2 (n-1)/n of the data sent by each rank, or (n-1)/n for reduce-scatter, in two exchanges.
#include <algorithm>
#include <cstring>

#include "plugins/comm/common/reduce.h"
#include "plugins/comm/common/vector.h"
#include "plugins/comm/mpi/library.h"
#include "plugins/comm/mpi/piece.h"

namespace capstan::mpi {
namespace {

using comm::Slice;
using comm::Vector;

constexpr size_t kAlignment = 64;

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Where the ranks' contributions to one share lie in staging memory: one behind the other, each
// aligned. In elements, as an exchange counts.
std::vector<Slice> staging_slices(uint64_t count, size_t parts, size_t element) {
  const uint64_t stride = aligned(count * element) / element;
  std::vector<Slice> out;
  for (size_t r = 0; r < parts; ++r) out.push_back({r * stride, count});
  return out;
}

// What bounds both sides of an exchange on every rank: `total` elements sent, and shares of at most
// `share` elements received.
uint64_t extent_of(uint64_t total, uint64_t share, const Links& links, size_t element) {
  return std::max<uint64_t>({total, aligned(share * element) / element * links.size, 1});
}

// Elements a rank's share may have in one piece.
uint64_t share_elements(const Links& links, const Settings& settings, size_t element) {
  return std::max<uint64_t>(settings.piece_bytes / element / links.size, 16);
}

// Reduces what has arrived for this rank's share: `arrived` from the others, `own` from here.
void reduce_share(const comm::Request& request, const Links& links,
                  const std::vector<Slice>& staging, const char* arrived, const char* own,
                  char* out, uint64_t count, std::vector<const void*>& sources) {
  for (size_t r = 0; r < sources.size(); ++r) {
    sources[r] = r == links.index ? own : arrived + staging[r].begin * request.element;
  }
  if (count != 0) comm::reduce_in_order(request.dtype, request.reduce, sources, out, count);
}

class AllReducePiece : public Piece {
 public:
  AllReducePiece(const comm::Request& request, const Links& links, const Settings& settings,
                 Vector vector)
      : request_(request),
        links_(links),
        vector_(std::move(vector)),
        shares_(comm::even_slices(vector_.elements(), links.size)),
        own_(shares_[links.index]),
        staging_(staging_slices(own_.count, links.size, request.element)),
        to_owners_(Exchange::all_to_others(
            links, request.element, settings.largest_count, shares_, staging_,
            extent_of(vector_.elements(), shares_.front().count, links, request.element))),
        to_all_(Exchange::all_gather(links, request.element, settings.largest_count, shares_)),
        sources_(links.size) {}

  size_t slot_bytes() const override { return staging_bytes() + packing_bytes(); }
  bool has_second() const override { return true; }

  void begin(const Links& links, char* slot) override {
    slot_ = slot;
    send_ = vector_.gather(slot_ + staging_bytes());
    result_ = vector_.result(slot_ + staging_bytes());
    to_owners_.post(links.first, send_, slot_, requests);
  }
  void between() override {
    reduce_share(request_, links_, staging_, slot_, send_ + at(own_), result_ + at(own_),
                 own_.count, sources_);
  }
  void second(const Links& links) override {
    to_all_.post(links.second, result_ + at(own_), result_, requests);
  }
  void finish() override {
    if (vector_.packed()) vector_.unpack(result_);
  }

 private:
  uint64_t at(const Slice& slice) const { return slice.begin * request_.element; }
  size_t staging_bytes() const { return aligned(own_.count * request_.element) * links_.size; }
  size_t packing_bytes() const { return vector_.packed() ? vector_.bytes() : 0; }

  const comm::Request& request_;
  const Links& links_;
  Vector vector_;
  std::vector<Slice> shares_;
  Slice own_;
  std::vector<Slice> staging_;
  Exchange to_owners_, to_all_;
  std::vector<const void*> sources_;
  char* slot_ = nullptr;
  const char* send_ = nullptr;
  char* result_ = nullptr;
};

// A small all-reduce: everything to everyone, and each adds up all of it. One exchange.
class GatheredReducePiece : public Piece {
 public:
  GatheredReducePiece(const comm::Request& request, const Links& links, const Settings& settings,
                      Vector vector)
      : request_(request),
        links_(links),
        vector_(std::move(vector)),
        staging_(staging_slices(vector_.elements(), links.size, request.element)),
        to_all_(Exchange::all_gather(links, request.element, settings.largest_count, staging_)),
        sources_(links.size) {}

  size_t slot_bytes() const override { return aligned(vector_.bytes()) * links_.size; }

  void begin(const Links& links, char* slot) override {
    slot_ = slot;
    char* const own = slot_ + staging_[links_.index].begin * request_.element;
    vector_.pack(own);
    to_all_.post(links.first, own, slot_, requests);
  }
  void finish() override {
    char* const own = slot_ + staging_[links_.index].begin * request_.element;
    reduce_share(request_, links_, staging_, slot_, own, own, vector_.elements(), sources_);
    vector_.unpack(own);
  }

 private:
  const comm::Request& request_;
  const Links& links_;
  Vector vector_;
  std::vector<Slice> staging_;
  Exchange to_all_;
  std::vector<const void*> sources_;
  char* slot_ = nullptr;
};

// Of every rank's part of one tensor the elements from `offset` on, at most `most`: `shares`.
class ReduceScatterPiece : public Piece {
 public:
  ReduceScatterPiece(const comm::Request& request, const Links& links, const Settings& settings,
                     const comm::Item& item, std::vector<Slice> shares, uint64_t offset,
                     uint64_t most)
      : request_(request),
        links_(links),
        send_(item.send),
        out_(item.recv + offset * request.element),
        own_(shares[links.index]),
        staging_(staging_slices(own_.count, links.size, request.element)),
        to_owners_(Exchange::all_to_others(links, request.element, settings.largest_count, shares,
                                           staging_,
                                           extent_of(item.count, most, links, request.element))),
        sources_(links.size) {}

  // A rank without a share here still takes part in the exchange, and in the order of slots.
  size_t slot_bytes() const override {
    return std::max<size_t>(aligned(own_.count * request_.element) * links_.size, 1);
  }
  void begin(const Links& links, char* slot) override {
    slot_ = slot;
    to_owners_.post(links.first, send_, slot_, requests);
  }
  void finish() override {
    reduce_share(request_, links_, staging_, slot_, send_ + own_.begin * request_.element, out_,
                 own_.count, sources_);
  }

 private:
  const comm::Request& request_;
  const Links& links_;
  const char* send_;
  char* out_;
  Slice own_;
  std::vector<Slice> staging_;
  Exchange to_owners_;
  std::vector<const void*> sources_;
  char* slot_ = nullptr;
};

}  // namespace

size_t slot_bytes(const Links& links, const Settings& settings) {
  const size_t piece = std::max<size_t>(settings.piece_bytes, links.size * 16 * sizeof(double));
  const size_t gathered = settings.gathered_bytes * links.size;
  return std::max(2 * piece, gathered) + 2 * kAlignment * (links.size + 1);
}

void plan_all_reduce(const comm::Request& request, const Links& links, const Settings& settings,
                     Pieces& out) {
  if (request.elements() * request.element <= settings.gathered_bytes) {
    for (Vector& vector : comm::vectors_of(request, settings.gathered_bytes)) {
      out.push_back(
          std::make_unique<GatheredReducePiece>(request, links, settings, std::move(vector)));
    }
    return;
  }
  const uint64_t most =
      share_elements(links, settings, request.element) * links.size * request.element;
  for (Vector& vector : comm::vectors_of(request, most)) {
    out.push_back(std::make_unique<AllReducePiece>(request, links, settings, std::move(vector)));
  }
}

void plan_reduce_scatter(const comm::Request& request, const Links& links, const Settings& settings,
                         Pieces& out) {
  const uint64_t most = share_elements(links, settings, request.element);
  for (const comm::Item& item : request.items) {
    uint64_t longest = 0;
    for (const Slice& slice : item.send_slices) longest = std::max(longest, slice.count);
    for (uint64_t offset = 0; offset < longest; offset += most) {
      std::vector<Slice> shares = item.send_slices;
      for (Slice& slice : shares) {
        const uint64_t skipped = std::min(offset, slice.count);
        slice = {slice.begin + skipped, std::min(most, slice.count - skipped)};
      }
      out.push_back(std::make_unique<ReduceScatterPiece>(request, links, settings, item,
                                                         std::move(shares), offset, most));
    }
  }
}

}  // namespace capstan::mpi
