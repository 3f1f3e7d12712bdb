// Choosing a token from a row of logits.
#ifndef CAPSTAN_KERNELS_CPU_SAMPLING_H_
#define CAPSTAN_KERNELS_CPU_SAMPLING_H_

#include <cstddef>
#include <cstdint>

#include "kernels/common/philox.h"

namespace capstan::cpu {

struct SamplingParams {
  std::int64_t vocab = 0;    // V
  float temperature = 1.0f;  // <= 0: the largest logit, lowest index first
  std::int64_t top_k = 0;    // only the k largest logits; 0: all
  float top_p = 1.0f;  // only the fewest tokens, largest first, whose probabilities reach top_p
                       // (nucleus sampling, Holtzman et al. 2020), after temperature and top_k
};

// Bytes of workspace, 8-byte aligned by the caller.
std::size_t sampling_workspace(const SamplingParams& p);

// The uniform in [0, 1) that decides position `position` of sequence `sample`: the same for any
// batching and sharding.
double sampling_uniform(PhiloxKey key, std::int64_t sample, std::int64_t position);

// The token sampled from logits [V] at `uniform` in [0, 1), or -1 where no logit is a number above
// -inf. NaN counts as -inf. One thread.
std::int64_t sample_token(const SamplingParams& p, const float* logits, double uniform,
                          void* workspace);

}  // namespace capstan::cpu

#endif  // CAPSTAN_KERNELS_CPU_SAMPLING_H_
