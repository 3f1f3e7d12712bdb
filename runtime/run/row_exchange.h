// Matrices that ranks hold by columns, as the store has them, brought together by rows: a row of a
// column range is short, a checkpoint of many such rows is slow to write everywhere, and slowest where
// several processes write to one page.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/run/bundle.h"

namespace capstan {

// All ranks make one over the same Programs, and call each method alike. [main thread]
class RowExchange {
 public:
  // Finds the matrices of `list` that are cut so; what it is given must outlive this object. Without a
  // communicator, or with one that does not move bytes, there are none.
  RowExchange(const Program& program, Storage& storage, const std::vector<Placed>& list,
              const Shares& shares);

  // The ranks of each axis tell each other what they hold, and leave out what does not fit together:
  // parts that overlap, or have different rows. A failure is one of communication.
  absl::Status Meet();

  // Matrices that are written by rows; of list[i], whether it belongs to one.
  size_t size() const { return cuts_.size(); }
  bool Has(size_t i) const { return taken_[i]; }

  // Whole rows of the columns that the ranks of an axis hold together.
  struct Rows {
    StoredSlice slice;
    int64_t element_bytes = 0;
    char* data = nullptr;  // dense, until the next call; nullptr: this rank has none to write
  };
  // This rank's rows of matrix k. For k = 0, 1, ... in this order. A failure is one of communication, or
  // of the device.
  absl::StatusOr<Rows> Take(size_t k);

 private:
  // What a rank holds of a matrix: some columns of some rows.
  struct Box {
    int64_t row, rows, column, columns;
  };
  struct Cut {
    std::string axis;           // its ranks hold the other columns
    std::vector<size_t> parts;  // of this rank, in the list
    bool mine = false;          // these ranks are to write it, not others that hold the same
    std::vector<std::vector<Box>> boxes;  // by rank of the axis, by part
    Box whole{};                          // all of them
  };

  bool Settle(Cut& cut, const std::vector<const int64_t*>& told) const;
  absl::Status Fill(const Cut& cut, char* to);

  const Program& program_;
  Storage& storage_;
  const std::vector<Placed>& list_;
  const Shares& shares_;
  Communicator* communicator_;
  std::vector<Cut> cuts_;
  std::vector<bool> taken_;
  std::map<size_t, HostBuffer> host_;  // by part
  HostBuffer sent_, received_, rows_;
};

}  // namespace capstan
