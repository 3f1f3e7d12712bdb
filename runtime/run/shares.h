// Who writes which part of a checkpoint: every rank its own slices, and what several ranks hold alike
// in turns.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/program/types.h"
#include "runtime/run/ranks.h"

namespace capstan {

// Where a tensor lies in the store: a hyper-rectangle of a named stored tensor.
struct StoredSlice {
  std::string name, group;
  Dims shape;  // of the whole stored tensor
  Dims start, extent;
  bool transposed = false;
};

// A stored tensor, whole.
struct BundleTensor {
  std::string name, group;
  DType dtype;
  Dims shape;
};

// What a rank knows after all have told what they hold.
struct Shares {
  struct Share {
    int64_t index = 0, count = 1;  // this rank's turn among the ranks that hold the same slice
  };
  std::vector<BundleTensor> tensors;      // the same list on every rank
  std::map<std::string, Share> by_slice;  // this rank's, key: SliceKey
  static std::string SliceKey(const StoredSlice& slice);
  Share Of(const StoredSlice& slice) const;
};

// Each rank gives the slices it holds. Refuses two that say different things of one stored tensor, and
// a tensor of which all ranks together do not hold every element.
absl::StatusOr<Shares> ShareOut(const Ranks& ranks, std::string_view name,
                                const std::vector<std::pair<StoredSlice, DType>>& mine);

}  // namespace capstan
