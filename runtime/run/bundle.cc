#include "runtime/run/bundle.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "runtime/run/convert.h"
#include "runtime/run/row_exchange.h"
#include "runtime/status.h"
#include "sdk/program.h"

namespace capstan {
namespace {

constexpr int64_t kPieceBytes = int64_t{16} << 20;

// What pieces pass through, kept from tensor to tensor.
struct Staging {
  HostBuffer host, turned;
};

// The store's writer, and how much this rank has given it.
struct Output {
  const Store& store;
  void* writer;
  int64_t bytes = 0;

  absl::Status Put(const StoredSlice& stored, int64_t element_bytes, const char* data) {
    bytes += ElementCount(stored.extent) * element_bytes;
    const capstan_store_slice slice = CSlice(stored, const_cast<char*>(data));  // put only reads it
    return FromC(store->put(store.self(), writer, &slice));
  }
};

// Writes this rank's share of a tensor: ranks that hold the same slice take its pieces in turns.
absl::Status PutTensor(Output& output, const Program& program, Storage& storage, TensorId id,
                       const StoredSlice& stored, const Shares::Share& share, Staging& staging) {
  const Tensor& t = program.tensor(id);
  const int64_t size = DTypeBytes(t.dtype());
  const std::vector<Piece> pieces = PiecesOf(t, stored);
  const auto turn = static_cast<uint64_t>(sdk::rng_key(pieces[0].stored.name)) >> 32;
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (static_cast<int64_t>((turn + i) % static_cast<uint64_t>(share.count)) != share.index)
      continue;
    const Piece& piece = pieces[i];
    const int64_t bytes = piece.elements * size;
    CAPSTAN_ASSIGN_OR_RETURN(
        const char* data, OnHost(program, storage, id, piece.offset * size, bytes, staging.host));
    if (piece.stored.transposed) {
      char* const turned = staging.turned.Get(bytes);
      const int64_t width = t.shape()[1];
      Transpose(data, width, piece.end - piece.begin, width, size, turned);
      data = turned;
    }
    CAPSTAN_RETURN_IF_ERROR(output.Put(piece.stored, size, data));
  }
  return absl::OkStatus();
}

// This rank's part of the bundle.
absl::Status WriteShares(Output& output, const Ranks& ranks, const Program& program,
                         Storage& storage, const std::vector<Placed>& list, const Shares& shares) {
  RowExchange exchange(program, storage, list, shares);
  CAPSTAN_RETURN_IF_ERROR(exchange.Meet());
  absl::Status written;
  for (size_t k = 0; k < exchange.size(); ++k) {
    CAPSTAN_ASSIGN_OR_RETURN(const RowExchange::Rows rows, exchange.Take(k));
    // A rank that can write no longer still has what others wait for.
    if (rows.data != nullptr && written.ok()) {
      written = output.Put(rows.slice, rows.element_bytes, rows.data);
    }
  }
  CAPSTAN_RETURN_IF_ERROR(written);
  Staging staging;
  // Each rank begins elsewhere: two that write to one file at a time wait for each other.
  const size_t first =
      list.size() * static_cast<size_t>(ranks.rank()) / static_cast<size_t>(ranks.size());
  for (size_t i = 0; i < list.size(); ++i) {
    const size_t at = (first + i) % list.size();
    if (exchange.Has(at)) continue;
    const Placed& p = list[at];
    CAPSTAN_RETURN_IF_ERROR(
        PutTensor(output, program, storage, p.id, p.slice, shares.Of(p.slice), staging));
  }
  return absl::OkStatus();
}

// What all ranks have written must be everything, once: `written` says how this one fared, and on the
// lead becomes a failure where a share was left out. A failure of its own is one of communication.
absl::Status CheckWhole(const Ranks& ranks, int64_t mine, int64_t whole, absl::Status& written) {
  CAPSTAN_ASSIGN_OR_RETURN(
      const Ranks::Gathered all,
      ranks.ToLead("checkpoint bytes", written.ok() ? StrCat(mine) : std::string()));
  if (!ranks.lead() || !written.ok()) return absl::OkStatus();
  int64_t sum = 0;
  for (const int value : all.of) {
    int64_t bytes = 0;
    if (!absl::SimpleAtoi(all.values[static_cast<size_t>(value)], &bytes)) return absl::OkStatus();
    sum += bytes;
  }
  if (sum == whole) return absl::OkStatus();
  written =
      BugError("the ranks together have written ", sum, " bytes of tensors that have ", whole);
  return absl::OkStatus();
}

// A bundle that all ranks write, each its share; the lead alone begins it and makes it visible.
class BundleJob {
 public:
  BundleJob(const Store& store, const Ranks& ranks, std::string path)
      : store_(store), ranks_(ranks), path_(std::move(path)) {}
  ~BundleJob() {
    if (writer_ != nullptr) store_->abort(store_.self(), writer_);
  }
  BundleJob(const BundleJob&) = delete;
  BundleJob& operator=(const BundleJob&) = delete;

  absl::Status Begin(const Shares& shares) {
    std::vector<capstan_store_tensor> tensors;
    for (const BundleTensor& t : shares.tensors) {
      tensors.push_back({sizeof(capstan_store_tensor), t.name.c_str(), t.group.c_str(), t.dtype,
                         static_cast<int32_t>(t.shape.size()), t.shape.data()});
    }
    if (ranks_.size() > 1 && store_->join == nullptr) {
      return UnsupportedError("the checkpoint store writes from one process only, this run has ",
                              ranks_.size(), " ranks; choose another [checkpoint] plugin");
    }
    CAPSTAN_ASSIGN_OR_RETURN(
        const std::string ticket,
        ranks_.FromLead("checkpoint begin", [&]() -> absl::StatusOr<std::string> {
          CAPSTAN_RETURN_IF_ERROR(store_->begin(store_.self(), path_.c_str(), tensors.data(),
                                                tensors.size(), &writer_));
          if (ranks_.size() == 1) return std::string();
          const char* text = nullptr;
          CAPSTAN_RETURN_IF_ERROR(store_->ticket(store_.self(), writer_, &text));
          return std::string(text);
        }));
    absl::Status joined;
    if (!ranks_.lead()) {
      joined = FromC(
          store_->join(store_.self(), ticket.c_str(), tensors.data(), tensors.size(), &writer_));
    }
    return ranks_.Agree("checkpoint join", joined);
  }

  // All ranks have put their shares, `written` says how this one fared.
  absl::Status End(absl::Status written, const std::vector<NamedText>& texts) {
    if (ranks_.lead() && written.ok()) {
      for (const NamedText& t : texts) {
        written.Update(FromC(store_->put_text(store_.self(), writer_, t.name.c_str(), t.text.data(),
                                              t.text.size())));
      }
    }
    if (!ranks_.lead() && written.ok()) written = Commit();
    CAPSTAN_RETURN_IF_ERROR(ranks_.Agree("checkpoint written", written));
    return ranks_.Agree("checkpoint commit", ranks_.lead() ? Commit() : absl::OkStatus());
  }

  void* writer() const { return writer_; }

 private:
  absl::Status Commit() {
    void* writer = writer_;
    writer_ = nullptr;  // consumed, also on failure
    return FromC(store_->commit(store_.self(), writer));
  }

  const Store& store_;
  const Ranks& ranks_;
  std::string path_;
  void* writer_ = nullptr;
};

}  // namespace

char* HostBuffer::Get(int64_t bytes) {
  if (bytes > bytes_) {
    memory_.reset();
    memory_ = std::make_unique_for_overwrite<char[]>(static_cast<size_t>(bytes));
    bytes_ = bytes;
  }
  return memory_.get();
}

absl::StatusOr<const char*> OnHost(const Program& program, Storage& storage, TensorId id,
                                   int64_t offset, int64_t bytes, HostBuffer& scratch) {
  const char* const data = storage.Data(program, id) + offset;
  if (storage.device()->on_host()) return data;
  char* const copy = scratch.Get(bytes);
  CAPSTAN_RETURN_IF_ERROR(storage.device()->Copy(copy, data, static_cast<uint64_t>(bytes)));
  return static_cast<const char*>(copy);
}

capstan_store_slice CSlice(const StoredSlice& s, void* data) {
  return {sizeof(capstan_store_slice),
          s.name.c_str(),
          s.group.c_str(),
          static_cast<int32_t>(s.start.size()),
          s.start.data(),
          s.extent.data(),
          data};
}

std::vector<Piece> PiecesOf(const Tensor& t, const StoredSlice& whole) {
  if (t.shape().empty() || t.elements() == 0) return {{0, 1, 0, t.elements(), whole}};
  const int64_t rows = t.shape()[0], row = t.elements() / rows;
  const int64_t step =
      std::max<int64_t>(1, kPieceBytes / std::max<int64_t>(1, row * DTypeBytes(t.dtype())));
  std::vector<Piece> pieces;
  for (int64_t begin = 0; begin < rows; begin += step) {
    const int64_t end = std::min(rows, begin + step);
    Piece piece{begin, end, begin * row, (end - begin) * row, whole};
    const size_t dim = whole.transposed ? whole.start.size() - 1 : 0;
    piece.stored.start[dim] += begin;
    piece.stored.extent[dim] = end - begin;
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

absl::StatusOr<int64_t> WriteBundle(const Store& store, const Ranks& ranks, const std::string& path,
                                    const Program& program, Storage& storage,
                                    const std::vector<Placed>& list,
                                    const std::vector<NamedText>& texts) {
  std::vector<std::pair<StoredSlice, DType>> mine;
  for (const Placed& p : list) mine.emplace_back(p.slice, program.tensor(p.id).dtype());
  CAPSTAN_ASSIGN_OR_RETURN(const Shares shares, ShareOut(ranks, "checkpoint shares", mine));
  BundleJob job(store, ranks, path);
  CAPSTAN_RETURN_IF_ERROR(Annotate(job.Begin(shares), StrCat("writing ", path)));
  int64_t bytes = 0;
  for (const BundleTensor& t : shares.tensors) bytes += ElementCount(t.shape) * DTypeBytes(t.dtype);
  Output output{store, job.writer()};
  absl::Status written = WriteShares(output, ranks, program, storage, list, shares);
  CAPSTAN_RETURN_IF_ERROR(CheckWhole(ranks, output.bytes, bytes, written));
  CAPSTAN_RETURN_IF_ERROR(Annotate(job.End(written, texts), StrCat("writing ", path)));
  return bytes;
}

}  // namespace capstan
