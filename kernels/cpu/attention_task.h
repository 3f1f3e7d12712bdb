// What one thread does at a time in attention: the query heads of one key/value head of one batch
// row, over every `tile_step`-th tile of queries. Private to the attention kernels.
#ifndef CAPSTAN_KERNELS_CPU_ATTENTION_TASK_H_
#define CAPSTAN_KERNELS_CPU_ATTENTION_TASK_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/common/philox.h"
#include "kernels/cpu/attention.h"

namespace capstan::cpu {

// A tile is kTileQueries queries by kTileKeys keys: multiples of the widest vector and panel. Its
// scores stay in the first- and second-level caches. (On Zen 4, sizes from 48 x 64 to 128 x 128 are
// within 4% of each other.) 128 keys are also one step of random words on AVX-512.
constexpr int kTileQueries = 64;
constexpr int kTileKeys = 128;
constexpr std::int64_t kWidestPanel = 64;  // floats: kPanel of every SIMD target divides it
constexpr std::int64_t kWidestVector = 16;

struct AttentionTask {
  // Pointers to the first head of the group in this batch row; strides in elements.
  const float* q = nullptr;
  const float* k = nullptr;
  const float* v = nullptr;
  std::int64_t q_stride = 0;   // between queries, of q, o, dout and dq
  std::int64_t kv_stride = 0;  // between keys, of k and v
  std::int64_t T = 0;
  std::int64_t S = 0;
  std::int64_t D = 0;
  std::int64_t heads = 1;  // query heads in the group, D elements apart
  float scale = 1.0f;
  bool causal = false;
  std::int64_t shift = 0;  // query t sees keys 0 .. t + shift (causal)
  std::int64_t tile_begin = 0;
  std::int64_t tile_step = 1;
  // Dropout. Drops words below the threshold; 0: no dropout.
  std::uint32_t drop_threshold = 0;
  float keep_factor = 1.0f;
  PhiloxKey key;
  std::int64_t sample = 0;
  std::int64_t head = 0;          // global index of the first query head
  std::int64_t query_offset = 0;  // global positions of query 0 and key 0
  std::int64_t key_offset = 0;

  // Keys that query t sees.
  std::int64_t visible(std::int64_t t) const {
    return causal ? std::clamp<std::int64_t>(t + shift + 1, 0, S) : S;
  }
};

struct ForwardTask : AttentionTask {
  float* o = nullptr;
  float* lse = nullptr;  // [heads, T]; may be null
};

struct BackwardTask : AttentionTask {
  const float* dout = nullptr;
  const float* o = nullptr;
  const float* lse = nullptr;  // [heads, T]
  float* dq = nullptr;
  float* dk = nullptr;  // laid out as k; this task's share, overwritten
  float* dv = nullptr;
};

// Query tiles of a task are dealt out round-robin to this many tasks, so that every thread finds
// work when there are few heads. A function of the sizes and the thread count alone.
inline std::int64_t attention_splits(std::int64_t groups, std::int64_t T, int threads) {
  if (threads <= 1 || groups <= 0) return 1;
  const std::int64_t tiles = (T + kTileQueries - 1) / kTileQueries;
  const std::int64_t wanted = (4 * static_cast<std::int64_t>(threads) + groups - 1) / groups;
  return std::clamp<std::int64_t>(wanted, 1, std::max<std::int64_t>(tiles, 1));
}

// Fills the fields common to both passes for batch row b, key/value head g.
template <class Task>
Task attention_task(const AttentionParams& p, const float* q, const float* k, const float* v,
                    std::int64_t b, std::int64_t g, std::int64_t split, std::int64_t splits) {
  Task task;
  task.heads = p.H / p.G;
  task.q_stride = p.H * p.D;
  task.kv_stride = p.G * p.D;
  task.q = q + b * p.T * task.q_stride + g * task.heads * p.D;
  task.k = k + b * p.S * task.kv_stride + g * p.D;
  task.v = v + b * p.S * task.kv_stride + g * p.D;
  task.T = p.T;
  task.S = p.S;
  task.D = p.D;
  task.scale = p.scale;
  task.causal = p.causal;
  task.shift = p.query_offset - p.key_offset;
  task.tile_begin = split;
  task.tile_step = splits;
  task.query_offset = p.query_offset;
  task.key_offset = p.key_offset;
  if (p.dropout.p > 0.0f) {
    task.drop_threshold = bernoulli_threshold(p.dropout.p);
    task.keep_factor = 1.0f / (1.0f - p.dropout.p);
    task.key = p.dropout.key;
    task.sample = p.dropout.sample_ids[b];
    task.head = p.dropout.head_offset + g * task.heads;
  }
  return task;
}

// Bytes of scratch of one task.
std::size_t attention_forward_scratch(std::int64_t S, std::int64_t D, bool dropout);
std::size_t attention_backward_scratch(std::int64_t S, std::int64_t D, bool dropout);

// Run one task on the calling thread with the best SIMD target. `scratch` is 64-byte aligned.
void attention_forward_task(const ForwardTask& task, float* scratch);
void attention_backward_task(const BackwardTask& task, float* scratch);

}  // namespace capstan::cpu

#endif  // CAPSTAN_KERNELS_CPU_ATTENTION_TASK_H_
