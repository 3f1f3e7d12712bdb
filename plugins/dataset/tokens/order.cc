#include "plugins/dataset/tokens/order.h"

#include <cmath>

namespace capstan::tokens {
namespace {

constexpr int kFeistelRounds = 6;
constexpr int kShareBits = 62;

__extension__ using Wide = unsigned __int128;

// How many of the first m draws at a node go left.
std::uint64_t left_draws(std::uint64_t m, std::uint64_t share) {
  return static_cast<std::uint64_t>(static_cast<Wide>(m) * share >> kShareBits);
}

double sum(const std::vector<double>& weights, std::size_t begin, std::size_t end) {
  double total = 0;
  for (std::size_t s = begin; s < end; ++s) total += weights[s];
  return total;
}

}  // namespace

Permutation::Permutation(std::uint64_t n, PhiloxKey key) : n_(n), half_bits_(1), key_(key) {
  while (half_bits_ < 31 && std::uint64_t{1} << (2 * half_bits_) < n) ++half_bits_;
  half_mask_ = (std::uint64_t{1} << half_bits_) - 1;
}

std::uint64_t Permutation::encrypt(std::uint64_t i) const {
  std::uint64_t left = i >> half_bits_;
  std::uint64_t right = i & half_mask_;
  for (int round = 0; round < kFeistelRounds; ++round) {
    const Philox4 bits = philox4x32(philox_counter(right, static_cast<std::uint64_t>(round)), key_);
    const std::uint64_t next = (left ^ bits.v[0]) & half_mask_;
    left = right;
    right = next;
  }
  return left << half_bits_ | right;
}

std::uint64_t Permutation::operator()(std::uint64_t i) const {
  do {
    i = encrypt(i);
  } while (i >= n_);
  return i;
}

Mixture::Mixture(const std::vector<double>& weights) { root_ = build(weights, 0, weights.size()); }

std::size_t Mixture::build(const std::vector<double>& weights, std::size_t begin, std::size_t end) {
  Node node;
  if (end - begin == 1) {
    node.leaf = true;
    node.source = begin;
  } else {
    const std::size_t middle = begin + (end - begin) / 2;
    const double left = sum(weights, begin, middle);
    const double right = sum(weights, middle, end);
    // A side without weight gets exactly nothing, whatever the rounding.
    const double share = left == 0 ? 0 : right == 0 ? 1 : left / (left + right);
    node.left_share = static_cast<std::uint64_t>(std::ldexp(share, kShareBits));
    node.left = build(weights, begin, middle);
    node.right = build(weights, middle, end);
  }
  nodes_.push_back(node);
  return nodes_.size() - 1;
}

Draw Mixture::operator()(std::uint64_t index) const {
  std::uint64_t m = index;
  const Node* node = &nodes_[root_];
  while (!node->leaf) {
    const std::uint64_t before = left_draws(m, node->left_share);
    if (left_draws(m + 1, node->left_share) > before) {
      m = before;
      node = &nodes_[node->left];
    } else {
      m -= before;
      node = &nodes_[node->right];
    }
  }
  return Draw{node->source, m};
}

}  // namespace capstan::tokens
