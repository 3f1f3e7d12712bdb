// Which sample comes when: pure functions of the seed and the global index, so that any rank of any
// mesh finds the same sample by itself and a resumed run needs no saved position.
#ifndef CAPSTAN_PLUGINS_DATASET_TOKENS_ORDER_H_
#define CAPSTAN_PLUGINS_DATASET_TOKENS_ORDER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/common/philox.h"

namespace capstan::tokens {

// A permutation of 0 .. n-1 (n up to 2^62) without a table: a balanced Feistel network (Luby and
// Rackoff 1988) over the smallest power of four that holds n, walked until it lands inside (cycle
// walking: Black and Rogaway 2002). A step takes fewer than four rounds of walking on average.
class Permutation {
 public:
  Permutation(std::uint64_t n, PhiloxKey key);
  // i < n.
  std::uint64_t operator()(std::uint64_t i) const;

 private:
  std::uint64_t encrypt(std::uint64_t i) const;

  std::uint64_t n_;
  int half_bits_;
  std::uint64_t half_mask_;
  PhiloxKey key_;
};

// Draw `index` of a mixture: the k-th sample (from 0) of one source.
struct Draw {
  std::size_t source;
  std::uint64_t k;
};

// Interleaves sources in proportion to their weights. A binary tree over the sources splits the
// m-th draw that reaches a node: floor(m * p) of the first m go left, p being the left side's
// share. So after n draws source s has had n * w_s draws to within one for each level of the tree;
// there is no random drift, and each draw costs O(log sources).
class Mixture {
 public:
  // Weights are finite, >= 0 and not all zero; a source of weight 0 is never drawn.
  explicit Mixture(const std::vector<double>& weights);
  Draw operator()(std::uint64_t index) const;

 private:
  struct Node {
    std::uint64_t left_share = 0;  // in units of 2^-62
    std::size_t left = 0, right = 0;
    std::size_t source = 0;
    bool leaf = false;
  };
  std::size_t build(const std::vector<double>& weights, std::size_t begin, std::size_t end);

  std::vector<Node> nodes_;
  std::size_t root_ = 0;
};

}  // namespace capstan::tokens

#endif  // CAPSTAN_PLUGINS_DATASET_TOKENS_ORDER_H_
