// Cross-entropy, plain and fused with the language-model head, as loops: the oracle of
// kernels/cpu/linear_cross_entropy.h, whose shapes and conventions these have. T is float or
// double.
#ifndef CAPSTAN_KERNELS_CPU_REFERENCE_LINEAR_CROSS_ENTROPY_H_
#define CAPSTAN_KERNELS_CPU_REFERENCE_LINEAR_CROSS_ENTROPY_H_

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/cpu/reference/matmul.h"

namespace capstan::reference {

// The log-sum-exp of n values.
template <typename T>
T log_sum_exp(const T* x, std::int64_t n) {
  T maximum = -std::numeric_limits<T>::infinity();
  for (std::int64_t i = 0; i < n; ++i) maximum = x[i] > maximum ? x[i] : maximum;
  T sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += std::exp(x[i] - maximum);
  return maximum + std::log(sum);
}

// Returns the loss of logits [M, V], of which columns [0, valid) count.
template <typename T>
T cross_entropy_forward(std::int64_t M, std::int64_t V, std::int64_t valid, const T* logits,
                        const std::int32_t* targets, T total_weight) {
  if (total_weight == T(0)) return T(0);
  T sum = 0;
  for (std::int64_t i = 0; i < M; ++i) {
    if (targets[i] < 0) continue;
    sum += log_sum_exp(logits + i * V, valid) - logits[i * V + targets[i]];
  }
  return sum / total_weight;
}

template <typename T>
void cross_entropy_backward(std::int64_t M, std::int64_t V, std::int64_t valid, const T* logits,
                            const std::int32_t* targets, T total_weight, T grad_scale, T* dlogits) {
  const T factor = total_weight != T(0) ? grad_scale / total_weight : T(0);
  for (std::int64_t i = 0; i < M; ++i) {
    T* out = dlogits + i * V;
    for (std::int64_t j = 0; j < V; ++j) out[j] = 0;
    if (targets[i] < 0) continue;
    const T lse = log_sum_exp(logits + i * V, valid);
    for (std::int64_t j = 0; j < valid; ++j) out[j] = factor * std::exp(logits[i * V + j] - lse);
    out[targets[i]] -= factor;
  }
}

// Returns the loss; dh and dweight (both or neither) may be null.
template <typename T>
T linear_cross_entropy(std::int64_t M, std::int64_t K, std::int64_t V, std::int64_t valid,
                       const T* h, const T* weight, const std::int32_t* targets, T total_weight,
                       T grad_scale, bool accumulate, T* dh, T* dweight) {
  std::vector<T> logits(static_cast<std::size_t>(M * V));
  linear<T>(M, V, K, h, weight, nullptr, logits.data());
  const T loss = cross_entropy_forward<T>(M, V, valid, logits.data(), targets, total_weight);
  if (dh == nullptr) return loss;
  std::vector<T> dlogits(logits.size());
  cross_entropy_backward<T>(M, V, valid, logits.data(), targets, total_weight, grad_scale,
                            dlogits.data());
  linear_dx<T>(M, V, K, dlogits.data(), weight, false, dh);
  linear_dw<T>(M, V, K, h, dlogits.data(), accumulate, dweight, nullptr);
  return loss;
}

// stats [M, 3] of logits [M, V] of the shard of the vocabulary that starts at vocab_start, of which
// columns [0, valid) count.
template <typename T>
void ce_stats(std::int64_t M, std::int64_t V, std::int64_t valid, std::int64_t vocab_start,
              const T* logits, const std::int32_t* targets, T* stats) {
  for (std::int64_t i = 0; i < M; ++i) {
    T maximum = -std::numeric_limits<T>::infinity();
    T sum = 0, target_logit = 0;
    if (targets[i] >= 0) {
      const T* row = logits + i * V;
      for (std::int64_t j = 0; j < valid; ++j) maximum = row[j] > maximum ? row[j] : maximum;
      for (std::int64_t j = 0; j < valid; ++j) sum += std::exp(row[j] - maximum);
      const std::int64_t column = targets[i] - vocab_start;
      if (column >= 0 && column < valid) target_logit = row[column];
    }
    stats[3 * i] = maximum;
    stats[3 * i + 1] = sum;
    stats[3 * i + 2] = target_logit;
  }
}

// The same from h [M, K] and the shard's weight [valid, K].
template <typename T>
void lce_stats(std::int64_t M, std::int64_t K, std::int64_t valid, std::int64_t vocab_start,
               const T* h, const T* weight, const std::int32_t* targets, T* stats) {
  std::vector<T> logits(static_cast<std::size_t>(M * valid));
  linear<T>(M, valid, K, h, weight, nullptr, logits.data());
  ce_stats<T>(M, valid, valid, vocab_start, logits.data(), targets, stats);
}

}  // namespace capstan::reference

#endif  // CAPSTAN_KERNELS_CPU_REFERENCE_LINEAR_CROSS_ENTROPY_H_
