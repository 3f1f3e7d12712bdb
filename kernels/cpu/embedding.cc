#include "kernels/cpu/embedding.h"

#include <algorithm>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/embedding.cc"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace capstan::cpu {
namespace HWY_NAMESPACE {

// The table's row for ids[i], or -1 where this shard has none or i is past the end.
HWY_INLINE std::int64_t row_of(const EmbeddingParams& p, const std::int32_t* ids, std::int64_t i) {
  if (i >= p.rows) return -1;
  const std::int64_t row = ids[i] - p.vocab_start;
  return row >= 0 && row < p.vocab ? row : -1;
}

// Rows [begin, end) of out. Table rows lie anywhere, which no hardware prefetcher foresees; the ids
// do: the next row is fetched while one is copied.
void GatherRows(const EmbeddingParams& p, std::int64_t begin, std::int64_t end,
                const std::int32_t* ids, const float* table, float* out) {
  const F32 d;
  for (std::int64_t i = begin; i < end; ++i) {
    const std::int64_t row = row_of(p, ids, i);
    float* to = out + i * p.channels;
    if (row < 0) {
      std::memset(to, 0, static_cast<std::size_t>(p.channels) * sizeof(float));
      continue;
    }
    const float* from = table + row * p.channels;
    const float* next = table + std::max<std::int64_t>(row_of(p, ids, i + 1), 0) * p.channels;
    for_each_vector(d, p.channels, [&](std::int64_t c, auto access) HWY_ATTR {
      hwy::Prefetch(next + c);
      prefetch_store(to + c);
      access.store(access.load(d, from + c), d, to + c);
    });
  }
}

// Columns [begin, end) of every row whose id this table holds.
void ScatterAddColumns(const EmbeddingParams& p, std::int64_t begin, std::int64_t end,
                       const std::int32_t* ids, const float* dy, float* dtable) {
  const F32 d;
  for (std::int64_t i = 0; i < p.rows; ++i) {
    const std::int64_t row = row_of(p, ids, i);
    if (row < 0) continue;
    const float* from = dy + i * p.channels + begin;
    float* to = dtable + row * p.channels + begin;
    const float* next =
        dtable + std::max<std::int64_t>(row_of(p, ids, i + 1), 0) * p.channels + begin;
    for_each_vector(d, end - begin, [&](std::int64_t c, auto access) HWY_ATTR {
      hwy::Prefetch(next + c);
      access.store(hn::Add(access.load(d, to + c), access.load(d, from + c)), d, to + c);
    });
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace capstan::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace capstan::cpu {

HWY_EXPORT(GatherRows);
HWY_EXPORT(ScatterAddColumns);

namespace {

std::int64_t first_bad_id(const EmbeddingParams& p, const std::int32_t* ids) {
  const std::int64_t total = p.vocab_total > 0 ? p.vocab_total : p.vocab_start + p.vocab;
  const std::int64_t low = p.vocab_total > 0 ? 0 : p.vocab_start;
  for (std::int64_t i = 0; i < p.rows; ++i) {
    if (ids[i] < low || ids[i] >= total) return i;
  }
  return -1;
}

}  // namespace

std::int64_t embedding_forward(const EmbeddingParams& p, const std::int32_t* ids,
                               const float* table, float* out) {
  const std::int64_t bytes = p.rows * p.channels * 8;
  parallel_ranges(p.rows, 1, bytes, [&](std::int64_t begin, std::int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(GatherRows)(p, begin, end, ids, table, out);
  });
  return first_bad_id(p, ids);
}

std::int64_t embedding_backward(const EmbeddingParams& p, const std::int32_t* ids, const float* dy,
                                float* dtable, bool accumulate) {
  if (!accumulate) {
    const std::int64_t n = p.vocab * p.channels;
    parallel_ranges(n, 1024, n * 4, [&](std::int64_t begin, std::int64_t end, int) {
      std::fill(dtable + begin, dtable + end, 0.0f);
    });
  }
  const std::int64_t bytes = p.rows * p.channels * 12;
  parallel_ranges(p.channels, 16, bytes, [&](std::int64_t begin, std::int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(ScatterAddColumns)(p, begin, end, ids, dy, dtable);
  });
  return first_bad_id(p, ids);
}

}  // namespace capstan::cpu
#endif  // HWY_ONCE
