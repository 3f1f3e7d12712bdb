// Attention as plain loops over one row of scores at a time: the oracle of kernels/cpu/attention.h.
//
// T is float or double; shapes and conventions are those of kernels/cpu/attention.h.
#ifndef CAPSTAN_KERNELS_CPU_REFERENCE_ATTENTION_H_
#define CAPSTAN_KERNELS_CPU_REFERENCE_ATTENTION_H_

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/common/philox.h"
#include "kernels/cpu/attention.h"

namespace capstan::reference {

// What multiplies one probability: 1 without dropout, else 0 or 1 / (1 - p).
template <typename T>
T attention_drop_factor(const cpu::AttentionParams& p, std::int64_t b, std::int64_t h,
                        std::int64_t t, std::int64_t s) {
  if (p.dropout.p <= 0.0f) return T(1);
  const std::uint32_t word =
      cpu::attention_dropout_word(p.dropout.key, p.dropout.sample_ids[b], p.dropout.head_offset + h,
                                  p.query_offset + t, p.key_offset + s);
  return word < bernoulli_threshold(p.dropout.p) ? T(0) : T(1) / (T(1) - T(p.dropout.p));
}

// One row of softmax probabilities [S] and its log-sum-exp.
template <typename T>
T attention_row(const cpu::AttentionParams& p, const T* q, const T* k, std::int64_t b,
                std::int64_t h, std::int64_t t, std::vector<T>& probabilities) {
  const std::int64_t g = h / (p.H / p.G);
  T maximum = -std::numeric_limits<T>::infinity();
  probabilities.assign(static_cast<std::size_t>(p.S), -std::numeric_limits<T>::infinity());
  for (std::int64_t s = 0; s < p.S; ++s) {
    if (p.causal && s + p.key_offset > t + p.query_offset) continue;
    T dot = 0;
    for (std::int64_t i = 0; i < p.D; ++i) {
      dot += q[((b * p.T + t) * p.H + h) * p.D + i] * k[((b * p.S + s) * p.G + g) * p.D + i];
    }
    probabilities[s] = dot * T(p.scale);
    if (probabilities[s] > maximum) maximum = probabilities[s];
  }
  T sum = 0;
  for (T& x : probabilities) {
    x = x == -std::numeric_limits<T>::infinity() ? T(0) : std::exp(x - maximum);
    sum += x;
  }
  if (sum == T(0)) return -std::numeric_limits<T>::infinity();
  for (T& x : probabilities) x /= sum;
  return maximum + std::log(sum);
}

template <typename T>
void attention_forward(const cpu::AttentionParams& p, const T* q, const T* k, const T* v, T* o,
                       T* lse) {
  std::vector<T> row;
  for (std::int64_t b = 0; b < p.B; ++b) {
    for (std::int64_t h = 0; h < p.H; ++h) {
      const std::int64_t g = h / (p.H / p.G);
      for (std::int64_t t = 0; t < p.T; ++t) {
        lse[(b * p.H + h) * p.T + t] = attention_row(p, q, k, b, h, t, row);
        T* out = o + ((b * p.T + t) * p.H + h) * p.D;
        for (std::int64_t i = 0; i < p.D; ++i) out[i] = 0;
        for (std::int64_t s = 0; s < p.S; ++s) {
          const T weight = row[s] * attention_drop_factor<T>(p, b, h, t, s);
          const T* value = v + ((b * p.S + s) * p.G + g) * p.D;
          for (std::int64_t i = 0; i < p.D; ++i) out[i] += weight * value[i];
        }
      }
    }
  }
}

// Straight from the chain rule through the softmax; recomputes the forward pass.
template <typename T>
void attention_backward(const cpu::AttentionParams& p, const T* dout, const T* q, const T* k,
                        const T* v, T* dq, T* dk, T* dv) {
  for (std::int64_t i = 0; i < p.B * p.T * p.H * p.D; ++i) dq[i] = 0;
  for (std::int64_t i = 0; i < p.B * p.S * p.G * p.D; ++i) dk[i] = dv[i] = 0;
  std::vector<T> row, drow(static_cast<std::size_t>(p.S));
  for (std::int64_t b = 0; b < p.B; ++b) {
    for (std::int64_t h = 0; h < p.H; ++h) {
      const std::int64_t g = h / (p.H / p.G);
      for (std::int64_t t = 0; t < p.T; ++t) {
        attention_row(p, q, k, b, h, t, row);
        const std::int64_t at_q = ((b * p.T + t) * p.H + h) * p.D;
        T mean = 0;  // of the probabilities' gradients, under the probabilities
        for (std::int64_t s = 0; s < p.S; ++s) {
          const std::int64_t at_k = ((b * p.S + s) * p.G + g) * p.D;
          const T factor = attention_drop_factor<T>(p, b, h, t, s);
          drow[s] = 0;
          for (std::int64_t i = 0; i < p.D; ++i) {
            drow[s] += dout[at_q + i] * v[at_k + i] * factor;
            dv[at_k + i] += row[s] * factor * dout[at_q + i];
          }
          mean += row[s] * drow[s];
        }
        for (std::int64_t s = 0; s < p.S; ++s) {
          const std::int64_t at_k = ((b * p.S + s) * p.G + g) * p.D;
          const T dscore = row[s] * (drow[s] - mean) * T(p.scale);
          for (std::int64_t i = 0; i < p.D; ++i) {
            dq[at_q + i] += dscore * k[at_k + i];
            dk[at_k + i] += dscore * q[at_q + i];
          }
        }
      }
    }
  }
}

template <typename T>
void attention_cached(const cpu::CachedAttentionParams& c, const T* q, const T* k_cache,
                      const T* v_cache, const std::int32_t* position, T* o) {
  for (std::int64_t b = 0; b < c.B; ++b) {
    cpu::AttentionParams p;
    p.B = 1;
    p.T = c.T;
    p.S = c.S_max;
    p.H = c.H;
    p.G = c.G;
    p.D = c.D;
    p.scale = c.scale;
    p.causal = true;
    p.query_offset = position[b];
    std::vector<T> lse(static_cast<std::size_t>(c.H * c.T));
    attention_forward<T>(p, q + b * c.T * c.H * c.D, k_cache + b * c.S_max * c.G * c.D,
                         v_cache + b * c.S_max * c.G * c.D, o + b * c.T * c.H * c.D, lse.data());
  }
}

}  // namespace capstan::reference

#endif  // CAPSTAN_KERNELS_CPU_REFERENCE_ATTENTION_H_
