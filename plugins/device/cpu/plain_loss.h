// Plain loops for the parts of a vocabulary-parallel cross-entropy that combine shards; the rest is
// in kernels/cpu/reference. T is float or double.
#ifndef CAPSTAN_PLUGINS_DEVICE_CPU_PLAIN_LOSS_H_
#define CAPSTAN_PLUGINS_DEVICE_CPU_PLAIN_LOSS_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/cpu/reference/matmul.h"

namespace capstan::cpu_device {

// stats [R, M, 3] -> lse [M] (0 for ignored rows) and the sum over rows of lse minus target logit.
template <class T>
T plain_lce_merge(int64_t R, int64_t M, const T* stats, const int32_t* targets, T* lse) {
  T sum = 0;
  for (int64_t i = 0; i < M; ++i) {
    lse[i] = 0;
    if (targets[i] < 0) continue;
    T maximum = -std::numeric_limits<T>::infinity(), exponentials = 0, target = 0;
    for (int64_t r = 0; r < R; ++r) maximum = std::max(maximum, stats[(r * M + i) * 3]);
    for (int64_t r = 0; r < R; ++r) {
      const T* s = stats + (r * M + i) * 3;
      if (s[1] != T(0)) exponentials += s[1] * std::exp(s[0] - maximum);
      target += s[2];
    }
    lse[i] = maximum + std::log(exponentials);
    sum += lse[i] - target;
  }
  return sum;
}

// kept: the logits [M, V], or null to make them again.
// dlogits = factor * (exp(logits - lse) - onehot) over the `valid` first rows of this shard's
// weight, then through the product: dh [M, K], dweight [V, K].
template <class T>
void plain_lce_grad(int64_t M, int64_t K, int64_t V, int64_t valid, int64_t vocab_start, const T* h,
                    const T* weight, const int32_t* targets, const T* lse, T factor, const T* kept,
                    bool accumulate, T* dh, T* dweight) {
  std::vector<T> logits(static_cast<size_t>(M * V));
  if (kept != nullptr) {
    std::copy_n(kept, M * V, logits.data());
  } else {
    reference::linear<T>(M, V, K, h, weight, nullptr, logits.data());
  }
  for (int64_t i = 0; i < M; ++i) {
    for (int64_t j = 0; j < V; ++j) {
      T& d = logits[static_cast<size_t>(i * V + j)];
      const bool counts = targets[i] >= 0 && j < valid;
      d = counts ? factor * (std::exp(d - lse[i]) - T(j + vocab_start == targets[i])) : T(0);
    }
  }
  reference::linear_dx<T>(M, V, K, logits.data(), weight, false, dh);
  reference::linear_dw<T>(M, V, K, h, logits.data(), accumulate, dweight, nullptr);
}

}  // namespace capstan::cpu_device

#endif  // CAPSTAN_PLUGINS_DEVICE_CPU_PLAIN_LOSS_H_
