// Attention over a key/value cache. Few new queries (decoding) read the cache once, as it lies, on
// a path bound by memory bandwidth; many (prefill) take the tiles of the training forward pass.
#include <omp.h>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/attention_task.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_cached.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include "hwy/highway.h"
#include "kernels/cpu/attention_tile-inl.h"

#ifndef CAPSTAN_KERNELS_CPU_ATTENTION_CACHED_ONCE
#define CAPSTAN_KERNELS_CPU_ATTENTION_CACHED_ONCE
namespace capstan::cpu {

// Scores kept between the two passes over a stretch of the cache.
constexpr int kDecodeKeys = 128;

// One query of one head against rows 0 .. keys-1 of its key/value head.
struct DecodeTask {
  const float* q = nullptr;  // [D]
  const float* k = nullptr;  // rows kv_stride apart
  const float* v = nullptr;
  float* o = nullptr;  // [D]
  std::int64_t kv_stride = 0;
  std::int64_t keys = 0;
  std::int64_t D = 0;
  float scale = 1.0f;
};

}  // namespace capstan::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace capstan::cpu {
namespace HWY_NAMESPACE {
namespace {

// scores[j] = q . k_j for `count` rows, four rows at a time.
void decode_scores(const DecodeTask& task, const float* q, std::int64_t key0, int count,
                   float* scores) {
  const F32 d;
  int j = 0;
  const float* k = task.k + key0 * task.kv_stride;
  const std::int64_t stride = task.kv_stride;
  for (; j + 4 <= count; j += 4, k += 4 * stride) {
    VF sums[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
    for_each_vector(d, task.D, [&](std::int64_t i, auto access) {
      const VF x = hn::Load(d, q + i);
      sums[0] = hn::MulAdd(x, access.load(d, k + i), sums[0]);
      sums[1] = hn::MulAdd(x, access.load(d, k + stride + i), sums[1]);
      sums[2] = hn::MulAdd(x, access.load(d, k + 2 * stride + i), sums[2]);
      sums[3] = hn::MulAdd(x, access.load(d, k + 3 * stride + i), sums[3]);
    });
    sum_four(sums, scores + j);
  }
  for (; j < count; ++j, k += stride) {
    VF sum = hn::Zero(d);
    for_each_vector(d, task.D, [&](std::int64_t i, auto access) {
      sum = hn::MulAdd(hn::Load(d, q + i), access.load(d, k + i), sum);
    });
    scores[j] = sum_lanes(sum);
  }
}

// o [padded] = decay * o + scores . v for `count` rows.
void decode_values(const DecodeTask& task, std::int64_t key0, int count, const float* scores,
                   float decay, float* o) {
  const F32 d;
  const VF factor = hn::Set(d, decay);
  const float* v = task.v + key0 * task.kv_stride;
  std::int64_t c = 0;
  for (; c + 4 * kLanes <= task.D; c += 4 * kLanes) {
    VF acc[1][4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) acc[0][j] = hn::Mul(factor, hn::Load(d, o + c + j * kLanes));
    multiply_block(scores, 0, 1, v + c, task.kv_stride, count, acc);
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) hn::Store(acc[0][j], d, o + c + j * kLanes);
  }
  for_each_vector(d, task.D - c, [&](std::int64_t i, auto access) {
    VF acc = hn::Mul(factor, hn::Load(d, o + c + i));
    for (int j = 0; j < count; ++j) {
      acc = hn::MulAdd(hn::Set(d, scores[j]), access.load(d, v + j * task.kv_stride + c + i), acc);
    }
    hn::Store(acc, d, o + c + i);
  });
}

// scratch: q and o, each D rounded up to a vector.
void decode_task(const DecodeTask& task, float* memory) {
  const F32 d;
  const std::int64_t padded = round_up(task.D, kLanes);
  float* q = memory;
  float* o = memory + round_up(task.D, kWidestVector);
  HWY_ALIGN float scores[kDecodeKeys];
  const VF scale = hn::Set(d, task.scale * kLog2E);
  for_each_vector(d, task.D, [&](std::int64_t i, auto access) {
    hn::Store(hn::Mul(scale, access.load(d, task.q + i)), d, q + i);
  });
  std::fill_n(o, padded, 0.0f);
  float maximum = -1e30f;
  VF sums = hn::Zero(d);
  for (std::int64_t key0 = 0; key0 < task.keys; key0 += kDecodeKeys) {
    const int count = static_cast<int>(std::min<std::int64_t>(kDecodeKeys, task.keys - key0));
    decode_scores(task, q, key0, count, scores);
    const float old_maximum = maximum;
    for (int j = 0; j < count; ++j) maximum = std::max(maximum, scores[j]);
    for (int j = count; j % kLanes != 0; ++j) scores[j] = -1e30f;
    const VF decay = vexp2_flush(hn::Set(d, old_maximum - maximum));
    sums = hn::Mul(sums, decay);
    for (int j = 0; j < count; j += kLanes) {
      const VF p = vexp2_flush(hn::Sub(hn::Load(d, scores + j), hn::Set(d, maximum)));
      hn::Store(p, d, scores + j);
      sums = hn::Add(sums, p);
    }
    decode_values(task, key0, count, scores, hn::GetLane(decay), o);
  }
  unpack_rows(o, padded, 1, task.D, 1.0f / sum_lanes(sums), 0, task.o);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace capstan::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace capstan::cpu {
namespace {

HWY_EXPORT(decode_task);

// From this many new queries a row, packing keys and values pays.
constexpr std::int64_t kPrefillQueries = 6;

std::size_t cached_scratch(const CachedAttentionParams& p) {
  if (p.T >= kPrefillQueries) return attention_forward_scratch(p.S_max, p.D, false);
  const std::int64_t padded = (p.D + kWidestVector - 1) / kWidestVector * kWidestVector;
  return static_cast<std::size_t>(2 * padded) * sizeof(float);
}

void prefill_row(const CachedAttentionParams& p, const float* q, const float* k, const float* v,
                 std::int64_t b, std::int64_t g, std::int64_t position, float* o, float* scratch) {
  AttentionParams row;
  row.B = p.B;
  row.T = p.T;
  row.S = p.S_max;
  row.H = p.H;
  row.G = p.G;
  row.D = p.D;
  row.scale = p.scale;
  row.causal = true;
  row.query_offset = position;
  auto task = attention_task<ForwardTask>(row, q, k, v, b, g, 0, 1);
  task.S = std::min(p.S_max, position + p.T);
  task.o = o + (task.q - q);
  attention_forward_task(task, scratch);
}

void decode_row(const CachedAttentionParams& p, const float* q, const float* k, const float* v,
                std::int64_t b, std::int64_t h, std::int64_t position, float* o, float* scratch) {
  const std::int64_t g = h / (p.H / p.G);
  DecodeTask task;
  task.kv_stride = p.G * p.D;
  task.k = k + b * p.S_max * task.kv_stride + g * p.D;
  task.v = v + b * p.S_max * task.kv_stride + g * p.D;
  task.D = p.D;
  task.scale = p.scale;
  for (std::int64_t t = 0; t < p.T; ++t) {
    const std::int64_t offset = ((b * p.T + t) * p.H + h) * p.D;
    task.q = q + offset;
    task.o = o + offset;
    task.keys = std::min(p.S_max, position + t + 1);
    HWY_DYNAMIC_DISPATCH(decode_task)(task, scratch);
  }
}

}  // namespace

std::size_t attention_cached_workspace(const CachedAttentionParams& params) {
  return cached_scratch(params) * static_cast<std::size_t>(omp_get_max_threads());
}

void attention_cached(const CachedAttentionParams& params, const float* q, const float* k_cache,
                      const float* v_cache, const std::int32_t* position, float* o,
                      void* workspace) {
  const CachedAttentionParams& p = params;
  const std::size_t scratch = cached_scratch(p) / sizeof(float);
  float* base = static_cast<float*>(workspace);
  const bool prefill = p.T >= kPrefillQueries;
  const std::int64_t heads = prefill ? p.G : p.H;
#pragma omp parallel for collapse(2) schedule(dynamic)
  for (std::int64_t b = 0; b < p.B; ++b) {
    for (std::int64_t h = 0; h < heads; ++h) {
      float* mine = base + scratch * static_cast<std::size_t>(omp_get_thread_num());
      if (prefill) {
        prefill_row(p, q, k_cache, v_cache, b, h, position[b], o, mine);
      } else {
        decode_row(p, q, k_cache, v_cache, b, h, position[b], o, mine);
      }
    }
  }
}

}  // namespace capstan::cpu
#endif  // HWY_ONCE
