// Writing the persistent tensors of a Program as one bundle of a store, by all ranks that hold them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "plugin_api/store.h"
#include "runtime/exec/executor.h"
#include "runtime/program/program.h"
#include "runtime/run/owned.h"
#include "runtime/run/ranks.h"
#include "runtime/run/shares.h"

namespace capstan {

using Store = Owned<capstan_store_v1>;

// A text file of a bundle.
struct NamedText {
  std::string name, text;
};

// A tensor of the Program and where it goes.
struct Placed {
  TensorId id;
  StoredSlice slice;
};

// Host memory for one use after the other. What it held is gone, nothing is cleared.
class HostBuffer {
 public:
  char* Get(int64_t bytes);
  // Gives it up without freeing it: another rank may still write to it.
  void Abandon() {
    static_cast<void>(memory_.release());
    bytes_ = 0;
  }

 private:
  std::unique_ptr<char[]> memory_;
  int64_t bytes_ = 0;
};

// `bytes` of a tensor at `offset`, in host memory: the tensor's own where the host reads it there.
absl::StatusOr<const char*> OnHost(const Program& program, Storage& storage, TensorId id,
                                   int64_t offset, int64_t bytes, HostBuffer& scratch);

// Rows [begin, end) of a tensor, and where they lie in the store.
struct Piece {
  int64_t begin = 0, end = 0;
  int64_t offset = 0, elements = 0;  // of the tensor
  StoredSlice stored;
};

// Tensors move in pieces of whole rows, so that the host never holds a copy of a large one.
std::vector<Piece> PiecesOf(const Tensor& t, const StoredSlice& whole);

capstan_store_slice CSlice(const StoredSlice& s, void* data);

// Writes the bundle `path`, whole or not at all. Each rank writes its own slices, and what several
// hold alike in turns; of matrices that they hold by columns the ranks of an axis exchange parts first,
// and write rows. Refused where it is there already. All ranks call it, with the same texts. Returns
// the bytes of the tensors, of all ranks together.
absl::StatusOr<int64_t> WriteBundle(const Store& store, const Ranks& ranks, const std::string& path,
                                    const Program& program, Storage& storage,
                                    const std::vector<Placed>& list,
                                    const std::vector<NamedText>& texts);

}  // namespace capstan
