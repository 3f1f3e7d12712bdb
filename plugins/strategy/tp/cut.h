// How tensor parallelism cuts the logical axes of a model: which part of each this rank holds.
#ifndef CAPSTAN_PLUGINS_STRATEGY_TP_CUT_H_
#define CAPSTAN_PLUGINS_STRATEGY_TP_CUT_H_

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "sdk/gradients.h"
#include "sdk/strategy.h"

namespace capstan::tp {

// Elements a rank holds of a dim.
struct Part {
  std::vector<int64_t> counts;  // by rank
  int64_t start = 0, size = 0;  // this rank's
  bool even() const {
    return std::all_of(counts.begin(), counts.end(),
                       [&](int64_t n) { return n == counts.front(); });
  }
};

// The shape of attention, as the model's attention ops tell it.
struct Heads {
  int64_t head_dim = 0, heads = 0, kv_heads = 0;
};

class Cuts {
 public:
  // Throws usage errors for what cannot be cut, naming the numbers and the remedy.
  Cuts(const sdk::Program& program, sdk::MeshAxis axis);

  const sdk::MeshAxis& axis() const { return axis_; }
  // The part of a dim of `extent` elements named by a logical axis ("heads", "kv_heads", "mlp",
  // "vocab"); nullopt: not cut.
  std::optional<Part> of(const std::string& logical, int64_t extent) const;
  // True where there are fewer key/value heads than ranks: their weights are whole on every rank, and
  // each takes the one that its query heads, all of one group, read.
  bool shares_kv_heads() const { return heads_.kv_heads > 0 && heads_.kv_heads < axis_.size; }
  // Channels of the whole k or v that this rank's query heads read.
  Part kv_slice() const;
  int64_t first_head() const;  // global index of this rank's first query head

  // Makes the program's parameters and states those of this rank.
  void apply(sdk::Program& program) const;

 private:
  Part blocks(int64_t units, int64_t unit) const;
  Part of_counts(std::vector<int64_t> counts, int64_t unit) const;
  // Ranks that read each key/value head, where ranks share them: consecutive ones.
  std::vector<int64_t> readers() const;

  sdk::MeshAxis axis_;
  Heads heads_;
};

}  // namespace capstan::tp

#endif  // CAPSTAN_PLUGINS_STRATEGY_TP_CUT_H_
