#include "kernels/cpu/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace capstan::cpu {
namespace {

struct Candidate {
  double weight;  // exp((logit - max) / temperature)
  std::int64_t token;
};

bool before(const Candidate& a, const Candidate& b) {
  return a.weight != b.weight ? a.weight > b.weight : a.token < b.token;
}

std::int64_t largest(std::int64_t vocab, const float* logits) {
  std::int64_t best = -1;
  float value = -std::numeric_limits<float>::infinity();
  for (std::int64_t i = 0; i < vocab; ++i) {
    if (logits[i] > value) {
      value = logits[i];
      best = i;
    }
  }
  return best;
}

double total_weight(const Candidate* c, std::int64_t n) {
  double sum = 0.0;
  for (std::int64_t i = 0; i < n; ++i) sum += c[i].weight;
  return sum;
}

// Orders only as much of the front as reaches top_p of the whole weight; returns how many that is.
std::int64_t nucleus(Candidate* c, std::int64_t n, double top_p) {
  const double bar = top_p * total_weight(c, n);
  double sum = 0.0;
  std::int64_t sorted = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    if (i == sorted) {
      sorted = std::min(n, std::max<std::int64_t>(64, 4 * sorted));
      std::partial_sort(c + i, c + sorted, c + n, before);
    }
    sum += c[i].weight;
    if (sum >= bar) return i + 1;
  }
  return n;
}

}  // namespace

std::size_t sampling_workspace(const SamplingParams& p) {
  return static_cast<std::size_t>(p.vocab) * sizeof(Candidate);
}

double sampling_uniform(PhiloxKey key, std::int64_t sample, std::int64_t position) {
  const Philox4 r = philox4x32(
      philox_counter(static_cast<std::uint64_t>(position), static_cast<std::uint64_t>(sample)),
      key);
  return uniform_double(r.v[0], r.v[1]);
}

std::int64_t sample_token(const SamplingParams& p, const float* logits, double uniform,
                          void* workspace) {
  const std::int64_t best = largest(p.vocab, logits);
  if (best < 0 || p.temperature <= 0.0f || std::isinf(logits[best])) return best;
  Candidate* c = static_cast<Candidate*>(workspace);
  const double max = logits[best];
  const double inverse = 1.0 / static_cast<double>(p.temperature);
  std::int64_t n = 0;
  for (std::int64_t i = 0; i < p.vocab; ++i) {
    const double weight = std::exp((logits[i] - max) * inverse);
    if (weight > 0.0) c[n++] = Candidate{weight, i};  // false for NaN
  }
  if (p.top_k > 0 && p.top_k < n) {
    std::nth_element(c, c + p.top_k - 1, c + n, before);
    n = p.top_k;
  }
  if (p.top_p < 1.0f) {
    n = nucleus(c, n, p.top_p);
  } else if (p.top_k > 0) {
    std::sort(c, c + n, before);  // nth_element's order is the library's own business
  }
  double rest = uniform * total_weight(c, n);
  for (std::int64_t i = 0; i < n; ++i) {
    rest -= c[i].weight;
    if (rest < 0.0) return c[i].token;
  }
  return c[n - 1].token;  // rounding carried the last bit over the end
}

}  // namespace capstan::cpu
