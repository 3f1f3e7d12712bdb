#include "runtime/run/row_exchange.h"

#include <algorithm>
#include <cstring>

#include "runtime/run/convert.h"
#include "runtime/status.h"
#include "sdk/program.h"

namespace capstan {
namespace {

constexpr int64_t kLeastBytes = 64 << 10;  // of a matrix: smaller ones gain nothing
constexpr int64_t kMostBytes = 256 << 20;  // of a rank's rows, which it holds three times
constexpr size_t kBoxNumbers = 4;
constexpr size_t kTurnNumbers = 2;

// The innermost axis of several ranks that cuts the columns of the stored matrix; "" without one.
std::string ColumnAxis(const Tensor& t, const StoredSlice& slice,
                       const Communicator& communicator) {
  if (t.shape().size() != 2 || slice.shape.size() != 2) return "";
  const int columns = slice.transposed ? 0 : 1;
  std::string found;
  for (const AxisPlacement& p : t.placement()) {
    if (p.kind == CAPSTAN_SHARD && p.dim == columns && communicator.AxisSize(p.axis) > 1)
      found = p.axis;
  }
  return found;
}

int64_t BytesOf(const Tensor& t, const Dims& shape) {
  return ElementCount(shape) * DTypeBytes(t.dtype());
}

int64_t First(int64_t rows, int64_t index, int64_t ranks) { return rows * index / ranks; }

}  // namespace

RowExchange::RowExchange(const Program& program, Storage& storage, const std::vector<Placed>& list,
                         const Shares& shares)
    : program_(program),
      storage_(storage),
      list_(list),
      shares_(shares),
      communicator_(storage.communicator()),
      taken_(list.size(), false) {
  if (communicator_ == nullptr || !communicator_->Moves(kU8) || !communicator_->Moves(kI64)) return;
  std::map<std::pair<std::string, std::string>, size_t> known;  // by axis and stored name
  for (size_t i = 0; i < list.size(); ++i) {
    const Tensor& t = program.tensor(list[i].id);
    const StoredSlice& slice = list[i].slice;
    const std::string axis = ColumnAxis(t, slice, *communicator_);
    if (axis.empty() || BytesOf(t, slice.shape) < kLeastBytes) continue;
    const auto [place, fresh] =
        known.try_emplace({axis, slice.group + '\n' + slice.name}, cuts_.size());
    if (fresh) {
      cuts_.emplace_back();
      cuts_.back().axis = axis;
    }
    cuts_[place->second].parts.push_back(i);
  }
}

absl::Status RowExchange::Meet() {
  std::map<std::string, std::vector<int64_t>> mine;  // by axis: of each cut, turns and boxes
  for (const Cut& cut : cuts_) {
    std::vector<int64_t>& told = mine[cut.axis];
    const Shares::Share share = shares_.Of(list_[cut.parts.front()].slice);
    told.insert(told.end(), {share.index, share.count});
    for (const size_t part : cut.parts) {
      const StoredSlice& s = list_[part].slice;
      told.insert(told.end(), {s.start[0], s.extent[0], s.start[1], s.extent[1]});
    }
  }
  std::map<std::string, HostBuffer> all, parts;
  std::map<std::string, const int64_t*> heard;
  for (const auto& [axis, told] : mine) {
    const auto bytes = static_cast<int64_t>(told.size() * sizeof(int64_t));
    char* const part = parts[axis].Get(bytes);
    char* const whole = all[axis].Get(bytes * communicator_->AxisSize(axis));
    std::memcpy(part, told.data(), static_cast<size_t>(bytes));
    const absl::Status gathered =
        communicator_->AllGather(axis, "checkpoint's cuts", kI64, part, told.size(), whole);
    if (!gathered.ok()) {
      parts[axis].Abandon();
      all[axis].Abandon();
      return gathered;
    }
    heard[axis] = reinterpret_cast<const int64_t*>(whole);
  }
  std::map<std::string, size_t> at;
  std::vector<Cut> kept;
  for (Cut& cut : cuts_) {
    const size_t ranks = static_cast<size_t>(communicator_->AxisSize(cut.axis));
    const size_t length = mine[cut.axis].size();
    std::vector<const int64_t*> told;
    for (size_t r = 0; r < ranks; ++r) told.push_back(heard[cut.axis] + r * length + at[cut.axis]);
    at[cut.axis] += kTurnNumbers + kBoxNumbers * cut.parts.size();
    if (!Settle(cut, told)) continue;
    for (const size_t part : cut.parts) taken_[part] = true;
    kept.push_back(std::move(cut));
  }
  cuts_ = std::move(kept);
  return absl::OkStatus();
}

// Decides from what all ranks of the axis have said, so that all decide alike.
bool RowExchange::Settle(Cut& cut, const std::vector<const int64_t*>& told) const {
  const StoredSlice& stored = list_[cut.parts.front()].slice;
  const auto drawn = static_cast<uint64_t>(sdk::rng_key(stored.name)) >> 32;
  std::vector<std::pair<int64_t, int64_t>> columns;  // begin and end, of all parts
  for (const int64_t* numbers : told) {
    const int64_t index = numbers[0], count = numbers[1];
    const bool turn = static_cast<int64_t>(drawn % static_cast<uint64_t>(count)) == index;
    if (cut.boxes.empty()) cut.mine = turn;
    if (turn != cut.mine) return false;
    std::vector<Box>& boxes = cut.boxes.emplace_back();
    for (size_t p = 0; p < cut.parts.size(); ++p) {
      const int64_t* box = numbers + kTurnNumbers + kBoxNumbers * p;
      boxes.push_back({box[0], box[1], box[2], box[3]});
      const Box& first = cut.boxes.front().front();
      if (boxes.back().row != first.row || boxes.back().rows != first.rows) return false;
      if (box[3] > 0) columns.emplace_back(box[2], box[2] + box[3]);
    }
  }
  std::sort(columns.begin(), columns.end());
  for (size_t i = 1; i < columns.size(); ++i) {
    if (columns[i].first != columns[i - 1].second) return false;
  }
  if (columns.empty()) return false;
  const Box& first = cut.boxes.front().front();
  cut.whole = {first.row, first.rows, columns.front().first,
               columns.back().second - columns.front().first};
  const Tensor& t = program_.tensor(list_[cut.parts.front()].id);
  return BytesOf(t, {cut.whole.rows, cut.whole.columns}) / static_cast<int64_t>(told.size()) <=
         kMostBytes;
}

absl::StatusOr<RowExchange::Rows> RowExchange::Take(size_t k) {
  const Cut& cut = cuts_[k];
  const int64_t size = DTypeBytes(program_.tensor(list_[cut.parts.front()].id).dtype());
  Rows out{list_[cut.parts.front()].slice, size, nullptr};
  if (!cut.mine) return out;
  const int64_t ranks = communicator_->AxisSize(cut.axis), me = communicator_->AxisIndex(cut.axis);
  const auto rows_of = [&](int64_t r) {
    return First(cut.whole.rows, r + 1, ranks) - First(cut.whole.rows, r, ranks);
  };
  const auto columns_of = [&](int64_t r) {
    int64_t sum = 0;
    for (const Box& box : cut.boxes[static_cast<size_t>(r)]) sum += box.columns;
    return sum;
  };
  std::vector<uint64_t> sends, receives;
  for (int64_t r = 0; r < ranks; ++r) {
    sends.push_back(static_cast<uint64_t>(rows_of(r) * columns_of(me) * size));
    receives.push_back(static_cast<uint64_t>(rows_of(me) * columns_of(r) * size));
  }
  char* const sent = sent_.Get(cut.whole.rows * columns_of(me) * size);
  CAPSTAN_RETURN_IF_ERROR(Fill(cut, sent));
  const int64_t bytes = rows_of(me) * cut.whole.columns * size;
  char* const received = received_.Get(bytes);
  const absl::Status exchanged = communicator_->AllToAll(cut.axis, "checkpoint's " + out.slice.name,
                                                         sent, sends, received, receives);
  if (!exchanged.ok()) {
    sent_.Abandon();
    received_.Abandon();
    return exchanged;
  }
  // A block a rank and part, next to each other now.
  char* const rows = rows_.Get(bytes);
  const char* from = received;
  for (const std::vector<Box>& boxes : cut.boxes) {
    for (const Box& box : boxes) {
      char* to = rows + (box.column - cut.whole.column) * size;
      for (int64_t r = 0; r < rows_of(me); ++r, from += box.columns * size) {
        std::memcpy(to + r * cut.whole.columns * size, from,
                    static_cast<size_t>(box.columns * size));
      }
    }
  }
  out.slice.start = {cut.whole.row + First(cut.whole.rows, me, ranks), cut.whole.column};
  out.slice.extent = {rows_of(me), cut.whole.columns};
  out.slice.transposed = false;
  if (bytes > 0) out.data = rows;
  return out;
}

// This rank's columns of every rank's rows, in the store's orientation: by rank, then by part.
absl::Status RowExchange::Fill(const Cut& cut, char* to) {
  const int64_t ranks = communicator_->AxisSize(cut.axis);
  std::vector<const char*> data;
  for (size_t p = 0; p < cut.parts.size(); ++p) {
    const Placed& part = list_[cut.parts[p]];
    CAPSTAN_ASSIGN_OR_RETURN(
        const char* on_host,
        OnHost(program_, storage_, part.id, 0, program_.tensor(part.id).bytes(), host_[p]));
    data.push_back(on_host);
  }
  for (int64_t r = 0; r < ranks; ++r) {
    const int64_t first = First(cut.whole.rows, r, ranks);
    const int64_t rows = First(cut.whole.rows, r + 1, ranks) - first;
    for (size_t p = 0; p < cut.parts.size(); ++p) {
      const Placed& part = list_[cut.parts[p]];
      const Tensor& t = program_.tensor(part.id);
      const int64_t size = DTypeBytes(t.dtype()), width = t.shape()[1];
      const int64_t bytes = rows * part.slice.extent[1] * size;
      if (part.slice.transposed) {
        Transpose(data[p] + first * size, width, t.shape()[0], rows, size, to);
      } else {
        std::memcpy(to, data[p] + first * width * size, static_cast<size_t>(bytes));
      }
      to += bytes;
    }
  }
  return absl::OkStatus();
}

}  // namespace capstan
