// Scaled dot-product attention, tiled with an online softmax: no [T, S] matrix is ever kept.
//
// Forward and backward follow Dao, Fu, Ermon, Rudra and Re, "FlashAttention" (2022), algorithms 1
// and 4, and Dao, "FlashAttention-2" (2023), section 3.1, with the online normaliser of Milakov and
// Gimelshein (2018). Grouped queries as in Ainslie et al. (2023): query head h reads key/value head
// h / (H / G).
//
// All tensors are dense, row-major float32 in caller-owned memory; outputs never alias inputs.
// Workspaces are the caller's, 64-byte aligned, of attention_*_workspace() bytes, and hold nothing
// between calls; the sizes depend on omp_get_max_threads(), which must not grow between the two
// calls. Every function uses up to omp_get_max_threads() threads and must not be called from inside
// a parallel region. Forward results do not depend on the thread count; backward results are
// deterministic for a fixed one.
#ifndef CAPSTAN_KERNELS_CPU_ATTENTION_H_
#define CAPSTAN_KERNELS_CPU_ATTENTION_H_

#include <cstddef>
#include <cstdint>

#include "kernels/common/philox.h"

namespace capstan::cpu {

// Dropout of attention probabilities. Whether the probability of (sample, head, query, key) is
// dropped is a function of these global coordinates and `key` alone: any sharding of batch, heads
// or sequence, and the backward pass, draw the same mask (attention_dropout_word below).
struct AttentionDropout {
  float p = 0.0f;                            // drop probability in [0, 1); 0 costs nothing
  PhiloxKey key;                             // from (seed, op, step) by derive_key
  const std::int64_t* sample_ids = nullptr;  // [B], global, below 2^48; needed when p > 0
  std::int64_t head_offset = 0;              // global index of query head 0, below 2^16 - H
};

struct AttentionParams {
  std::int64_t B = 0;  // batch rows
  std::int64_t T = 0;  // queries a row
  std::int64_t S = 0;  // keys a row (T when training)
  std::int64_t H = 0;  // query heads
  std::int64_t G = 0;  // key/value heads; divides H
  std::int64_t D = 0;  // head dimension
  float scale = 1.0f;  // of the scores, usually 1 / sqrt(D)
  bool causal = false;
  // Global positions of query 0 and key 0 (below 2^32 with T and S added). Causal: a query sees
  // keys at positions up to its own. A query that sees none gets o = 0, lse = -inf and no gradient,
  // so that blocks of a ring can be merged by log-sum-exp.
  std::int64_t query_offset = 0;
  std::int64_t key_offset = 0;
  AttentionDropout dropout;
};

// Bytes of workspace of attention_forward and attention_backward.
std::size_t attention_forward_workspace(const AttentionParams& params);
std::size_t attention_backward_workspace(const AttentionParams& params);

// q [B, T, H*D], k and v [B, S, G*D]
//   -> o [B, T, H*D], lse [B, H, T] (natural log of the sum of exponentiated scores).
void attention_forward(const AttentionParams& params, const float* q, const float* k,
                       const float* v, float* o, float* lse, void* workspace);

// Gradients from the forward pass's inputs and outputs and dout [B, T, H*D]:
//   dq [B, T, H*D], dk and dv [B, S, G*D] (summed over the query heads of a group), overwritten.
void attention_backward(const AttentionParams& params, const float* dout, const float* q,
                        const float* k, const float* v, const float* o, const float* lse, float* dq,
                        float* dk, float* dv, void* workspace);

// Attention of new queries over a key/value cache, for generation.
struct CachedAttentionParams {
  std::int64_t B = 0;
  std::int64_t T = 0;      // new queries a row: 1 when decoding, more in prefill
  std::int64_t S_max = 0;  // rows of the cache
  std::int64_t H = 0;
  std::int64_t G = 0;
  std::int64_t D = 0;
  float scale = 1.0f;
};

std::size_t attention_cached_workspace(const CachedAttentionParams& params);

// q [B, T, H*D], k_cache and v_cache [B, S_max, G*D], position [B] (tokens cached before these
// queries, whose own keys and values are already in the cache; position + T <= S_max)
//   -> o [B, T, H*D]. Query t of row b attends to cache rows 0 .. position[b] + t.
void attention_cached(const CachedAttentionParams& params, const float* q, const float* k_cache,
                      const float* v_cache, const std::int32_t* position, float* o,
                      void* workspace);

// The 32 random bits of one probability (positions and head are global). It is dropped when they
// are below bernoulli_threshold(p); kept ones are scaled by 1 / (1 - p).
inline std::uint32_t attention_dropout_word(PhiloxKey key, std::int64_t sample, std::int64_t head,
                                            std::int64_t query, std::int64_t key_position) {
  const auto u64 = [](std::int64_t v) { return static_cast<std::uint64_t>(v); };
  const Philox4 words =
      philox4x32(philox_counter((u64(key_position) >> 2) | (u64(query) << 32),
                                (u64(sample) & 0xffffffffffffu) | (u64(head) << 48)),
                 key);
  return words.v[key_position & 3];
}

}  // namespace capstan::cpu

#endif  // CAPSTAN_KERNELS_CPU_ATTENTION_H_
