// Sampling by sorting everything: the oracle of kernels/cpu/sampling.h.
#ifndef CAPSTAN_KERNELS_CPU_REFERENCE_SAMPLING_H_
#define CAPSTAN_KERNELS_CPU_REFERENCE_SAMPLING_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "kernels/cpu/sampling.h"

namespace capstan::reference {

// The probability of each token after temperature, top-k and top-p. Finite logits, temperature > 0.
template <class T>
std::vector<T> sampling_probabilities(const cpu::SamplingParams& p, const float* logits) {
  std::vector<T> weight(static_cast<std::size_t>(p.vocab));
  const T max = *std::max_element(logits, logits + p.vocab);
  for (std::size_t i = 0; i < weight.size(); ++i) {
    weight[i] = std::exp((T(logits[i]) - max) / T(p.temperature));
  }
  std::vector<std::size_t> order(weight.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return weight[a] > weight[b]; });
  std::size_t keep = order.size();
  if (p.top_k > 0) keep = std::min(keep, static_cast<std::size_t>(p.top_k));
  T total = 0;
  for (std::size_t i = 0; i < keep; ++i) total += weight[order[i]];
  T sum = 0;
  for (std::size_t i = 0; i < keep; ++i) {
    sum += weight[order[i]];
    if (p.top_p < 1.0f && sum >= T(p.top_p) * total) keep = i + 1;
  }
  for (std::size_t i = keep; i < order.size(); ++i) weight[order[i]] = 0;
  total = std::accumulate(weight.begin(), weight.end(), T(0));
  for (T& w : weight) w /= total;
  return weight;
}

}  // namespace capstan::reference

#endif  // CAPSTAN_KERNELS_CPU_REFERENCE_SAMPLING_H_
