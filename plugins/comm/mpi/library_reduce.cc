// Reductions by MPI: its algorithms, its order, its rounding.
#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "plugins/comm/common/reduce.h"
#include "plugins/comm/mpi/library.h"
#include "plugins/comm/mpi/piece.h"
#include "sdk/program.h"

namespace capstan::mpi {
namespace {

using comm::Slice;

// An operator of our own for elements MPI has none for: two arrays at a time, each pair rounded.
template <int kReduce, int kKind>
void combine(void* in, void* in_out, int* count, MPI_Datatype*) {
  constexpr capstan_dtype kDtypes[] = {sdk::kBF16, sdk::kF16, sdk::kBool};
  const std::array<const void*, 2> sources = {in, in_out};
  comm::reduce_in_order(kDtypes[kKind], kReduce, sources, in_out, static_cast<size_t>(*count));
}

template <int kReduce, int kKind>
MPI_Op own_operator() {
  // Made once a process, under the library's lock, and given back to MPI when it ends.
  static const MPI_Op made = [] {
    MPI_Op op = MPI_OP_NULL;
    check(MPI_Op_create(&combine<kReduce, kKind>, /*commute=*/1, &op), "MPI_Op_create");
    return op;
  }();
  return made;
}

struct Arithmetic {
  MPI_Datatype type;
  MPI_Op op;
};

MPI_Datatype number(capstan_dtype d) {
  if (d.code == CAPSTAN_DTYPE_FLOAT) return d.bits == 64 ? MPI_DOUBLE : MPI_FLOAT;
  const bool is_signed = d.code == CAPSTAN_DTYPE_INT;
  if (d.bits == 8) return is_signed ? MPI_INT8_T : MPI_UINT8_T;
  if (d.bits == 16) return is_signed ? MPI_INT16_T : MPI_UINT16_T;
  if (d.bits == 32) return is_signed ? MPI_INT32_T : MPI_UINT32_T;
  return is_signed ? MPI_INT64_T : MPI_UINT64_T;
}

Arithmetic arithmetic(capstan_dtype dtype, int32_t reduce) {
  const bool max = reduce == CAPSTAN_COMM_MAX;
  constexpr int kSum = CAPSTAN_COMM_SUM, kMax = CAPSTAN_COMM_MAX;
  if (sdk::same_dtype(dtype, sdk::kBF16)) {
    return {MPI_UINT16_T, max ? own_operator<kMax, 0>() : own_operator<kSum, 0>()};
  }
  if (sdk::same_dtype(dtype, sdk::kF16)) {
    return {MPI_UINT16_T, max ? own_operator<kMax, 1>() : own_operator<kSum, 1>()};
  }
  if (sdk::same_dtype(dtype, sdk::kBool)) {
    return {MPI_UINT8_T, max ? own_operator<kMax, 2>() : own_operator<kSum, 2>()};
  }
  return {number(dtype), max ? MPI_MAX : MPI_SUM};
}

class LibraryAllReducePiece : public Piece {
 public:
  LibraryAllReducePiece(const comm::Request& request, const Links& links, const comm::Item& item,
                        const Settings& settings)
      : request_(request), item_(item), ranks_(links.size), most_(settings.largest_count) {}

  void begin(const Links& links, char*) override {
    const auto [type, op] = arithmetic(request_.dtype, request_.reduce);
    for (uint64_t at = 0; at < item_.count; at += most_) {
      const size_t offset = at * request_.element;
      const void* const send =
          item_.send == item_.recv ? MPI_IN_PLACE : static_cast<const void*>(item_.send + offset);
      check(MPI_Iallreduce(send, item_.recv + offset,
                           static_cast<int>(std::min(most_, item_.count - at)), type, op,
                           links.first, requests.add()),
            "MPI_Iallreduce");
    }
  }
  void finish() override {
    if (request_.reduce != CAPSTAN_COMM_AVERAGE || item_.count == 0) return;
    comm::divide(request_.dtype, item_.recv, item_.count, static_cast<double>(ranks_));
  }

 private:
  const comm::Request& request_;
  comm::Item item_;
  size_t ranks_;
  uint64_t most_;
};

class LibraryReduceScatterPiece : public Piece {
 public:
  LibraryReduceScatterPiece(const comm::Request& request, const Links& links,
                            const comm::Item& item, const Settings& settings)
      : request_(request),
        item_(item),
        own_(item.send_slices[links.index]),
        most_(settings.largest_count),
        in_place_(item.recv == item.send + own_.begin * request.element),
        result_bytes_(in_place_ ? own_.count * request.element : 0) {
    if (item.count > most_) return;
    for (const Slice& slice : item.send_slices) counts_.push_back(static_cast<int>(slice.count));
  }

  // MPI's own in-place form puts the result elsewhere and destroys the rest, so the result of ours
  // arrives in memory of its own.
  void begin(const Links& links, char*) override {
    if (result_bytes_ != 0) result_.resize(result_bytes_);
    char* const recv = result_bytes_ != 0 ? result_.data() : item_.recv;
    const auto [type, op] = arithmetic(request_.dtype, request_.reduce);
    if (!counts_.empty()) {
      check(MPI_Ireduce_scatter(item_.send, recv, counts_.data(), type, op, links.first,
                                requests.add()),
            "MPI_Ireduce_scatter");
      return;
    }
    for (size_t root = 0; root < links.size; ++root) {
      const Slice slice = item_.send_slices[root];
      for (uint64_t at = 0; at < slice.count; at += most_) {
        check(MPI_Ireduce(item_.send + (slice.begin + at) * request_.element,
                          root == links.index ? recv + at * request_.element : nullptr,
                          static_cast<int>(std::min(most_, slice.count - at)), type, op,
                          static_cast<int>(root), links.first, requests.add()),
              "MPI_Ireduce");
      }
    }
  }
  void finish() override {
    if (result_bytes_ != 0) std::memcpy(item_.recv, result_.data(), result_bytes_);
    if (request_.reduce != CAPSTAN_COMM_AVERAGE || own_.count == 0) return;
    const double ranks = static_cast<double>(item_.send_slices.size());
    comm::divide(request_.dtype, item_.recv, own_.count, ranks);
  }

 private:
  const comm::Request& request_;
  comm::Item item_;
  Slice own_;
  uint64_t most_;
  bool in_place_;
  size_t result_bytes_;
  std::vector<int> counts_;
  std::vector<char> result_;
};

}  // namespace

void plan_library_all_reduce(const comm::Request& request, const Links& links,
                             const Settings& settings, Pieces& out) {
  for (const comm::Item& item : request.items) {
    out.push_back(std::make_unique<LibraryAllReducePiece>(request, links, item, settings));
  }
}

void plan_library_reduce_scatter(const comm::Request& request, const Links& links,
                                 const Settings& settings, Pieces& out) {
  for (const comm::Item& item : request.items) {
    out.push_back(std::make_unique<LibraryReduceScatterPiece>(request, links, item, settings));
  }
}

}  // namespace capstan::mpi
