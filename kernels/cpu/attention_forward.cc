// The forward pass of attention for one task (attention_task.h).
//
// Scores are kept in units of log2: queries are scaled by scale * log2(e) as they are packed, so
// that the softmax is a plain 2^x.
#include "kernels/cpu/attention_task.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_forward.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include <cmath>
#include <limits>

#include "hwy/highway.h"
#include "kernels/cpu/attention_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace capstan::cpu {
namespace HWY_NAMESPACE {
namespace {

// Below every finite score, yet its differences are finite: the maximum of nothing.
constexpr float kNoMaximum = -1e30f;

// The working set of one task. Sizes in floats: see attention_forward_scratch.
struct ForwardState {
  float* k_columns;  // packed k, [S / kPanel, D, kPanel]
  float* v_rows;     // [S, padded]
  float* q_rows;     // [kTileQueries, padded], scaled
  float* scores;     // [kTileQueries, kTileKeys]: scores, then probabilities
  float* o;          // [kTileQueries, padded]
  float* sums;       // [kTileQueries, kLanes]: of probabilities, lane by lane
  float* maxima;     // [kTileQueries]
  float* decay;      // [kTileQueries]: 2^(old maximum - new maximum)
  float* factors;    // [kTileQueries, kTileKeys], with dropout
  std::int64_t padded;
};

// scores[r0 + i, c0 + j] = q . k
struct ScoreKernel {
  const ForwardState* s;
  std::int64_t depth;
  const float* k_panel;

  template <int MR, int NR>
  HWY_NOINLINE void run(int r0, int c0) const {
    VF acc[MR][NR];
    zero_block(acc);
    multiply_block(s->q_rows + r0 * s->padded, s->padded, 1, k_panel, kPanel, depth, acc);
    float* out = s->scores + r0 * kTileKeys + c0;
#pragma GCC unroll 8
    for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 8
      for (int j = 0; j < NR; ++j) hn::Store(acc[i][j], F32(), out + i * kTileKeys + j * kLanes);
    }
  }
};

// o[r0 + i, c0 + j] = decay[r0 + i] * o + probabilities . v
struct ValueKernel {
  const ForwardState* s;
  const float* v_tile;  // row of the tile's first key

  template <int MR, int NR>
  HWY_NOINLINE void run(int r0, int c0, int depth) const {
    const F32 d;
    float* out = s->o + r0 * s->padded + c0;
    VF acc[MR][NR];
#pragma GCC unroll 8
    for (int i = 0; i < MR; ++i) {
      const VF decay = hn::Set(d, s->decay[r0 + i]);
#pragma GCC unroll 8
      for (int j = 0; j < NR; ++j) {
        acc[i][j] = hn::Mul(decay, hn::Load(d, out + i * s->padded + j * kLanes));
      }
    }
    multiply_block(s->scores + r0 * kTileKeys, kTileKeys, 1, v_tile + c0, s->padded, depth, acc);
#pragma GCC unroll 8
    for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 8
      for (int j = 0; j < NR; ++j) hn::Store(acc[i][j], d, out + i * s->padded + j * kLanes);
    }
  }
};

void compute_scores(const Tile& tile, const ForwardState& s) {
  const std::int64_t D = tile.task->D;
  for (int c0 = 0; c0 < tile.keys; c0 += kPanel) {
    const ScoreKernel kernel{&s, D, s.k_columns + (tile.key0 + c0) * D};
    for (int r0 = 0; r0 < tile.rows;) {
      const int rows = block_rows(tile.rows - r0);
      const int columns = std::min(kPanel, tile.visible(r0 + rows - 1) - c0);
      if (columns > 0) dispatch_block(kernel, rows, (columns + kLanes - 1) / kLanes, r0, c0);
      r0 += rows;
    }
  }
}

// New row maxima, and how much the old ones decay. Scores a row must not see become -inf.
void update_maxima(const Tile& tile, const ForwardState& s) {
  const F32 d;
  const VF lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
  for (int r = 0; r < tile.rows; ++r) {
    float* row = s.scores + r * kTileKeys;
    const int visible = tile.visible(r);
    VF m = lowest;
    int c = 0;
    for (; c + kLanes <= visible; c += kLanes) m = hn::Max(m, hn::Load(d, row + c));
    if (c < visible) {
      const VF x = hn::IfThenElse(hn::FirstN(d, static_cast<std::size_t>(visible - c)),
                                  hn::Load(d, row + c), lowest);
      hn::Store(x, d, row + c);
      m = hn::Max(m, x);
    }
    const float old_maximum = s.maxima[r];
    const float maximum = std::max(old_maximum, hn::GetLane(hn::MaxOfLanes(d, m)));
    s.decay[r] = old_maximum - maximum;
    s.maxima[r] = maximum;
  }
  for (int r = 0; r < tile.rows; r += kLanes) {
    hn::Store(vexp2_flush(hn::Load(d, s.decay + r)), d, s.decay + r);
  }
}

// Scores to probabilities (relative to the row maximum) and their sums.
void exponentiate(const Tile& tile, const ForwardState& s) {
  const F32 d;
  for (int r0 = 0; r0 < tile.rows;) {
    const int rows = block_rows(tile.rows - r0);
    // Columns the value product reads for this block of rows.
    const int columns = static_cast<int>(round_up(tile.visible(r0 + rows - 1), kLanes));
    for (int r = r0; r < r0 + rows; ++r) {
      float* row = s.scores + r * kTileKeys;
      const VF maximum = hn::Set(d, s.maxima[r]);
      const int visible = static_cast<int>(round_up(tile.visible(r), kLanes));
      VF sum = hn::Mul(hn::Set(d, s.decay[r]), hn::Load(d, s.sums + r * kLanes));
      int c = 0;
      for (; c < visible; c += kLanes) {
        const VF p = vexp2_flush(hn::Sub(hn::Load(d, row + c), maximum));
        hn::Store(p, d, row + c);
        sum = hn::Add(sum, p);
      }
      hn::Store(sum, d, s.sums + r * kLanes);
      for (; c < columns; c += kLanes) hn::Store(hn::Zero(d), d, row + c);
    }
    r0 += rows;
  }
}

// Probabilities times their drop factors. The sums keep the undropped ones.
void drop_probabilities(const Tile& tile, const ForwardState& s) {
  const F32 d;
  const int columns = static_cast<int>(round_up(tile.keys, kLanes));
  for (int r = 0; r < tile.rows; ++r) {
    float* row = s.scores + r * kTileKeys;
    for (int c = 0; c < columns; c += kLanes) {
      hn::Store(hn::Mul(hn::Load(d, row + c), hn::Load(d, s.factors + r * kTileKeys + c)), d,
                row + c);
    }
  }
}

void accumulate_values(const Tile& tile, const ForwardState& s) {
  const ValueKernel kernel{&s, s.v_rows + tile.key0 * s.padded};
  const int width = static_cast<int>(s.padded);
  for (int c0 = 0; c0 < width; c0 += kPanel) {
    const int vectors = std::min(kPanel, width - c0) / kLanes;
    for (int r0 = 0; r0 < tile.rows;) {
      const int rows = block_rows(tile.rows - r0);
      const int depth = tile.visible(r0 + rows - 1);
      if (depth > 0) dispatch_block(kernel, rows, vectors, r0, c0, depth);
      r0 += rows;
    }
  }
}

// Divides by the sums and writes a finished tile of queries.
void write_tile(const ForwardTask& task, const ForwardState& s, std::int64_t head,
                std::int64_t query0, int rows) {
  const F32 d;
  for (int r = 0; r < rows; ++r) {
    const std::int64_t t = query0 + r;
    const float sum = sum_lanes(hn::Load(d, s.sums + r * kLanes));
    const bool empty = task.visible(t) == 0;
    float* out = task.o + t * task.q_stride + head * task.D;
    unpack_rows(s.o + r * s.padded, s.padded, 1, task.D, empty ? 0.0f : 1.0f / sum, 0, out);
    if (task.lse != nullptr) {
      task.lse[head * task.T + t] =
          empty ? -std::numeric_limits<float>::infinity() : kLn2 * s.maxima[r] + std::log(sum);
    }
  }
}

// During a tile of queries' last tile of keys: asks for where its output goes and for the next
// queries. `offset` is that of its first query.
void prefetch_last(const ForwardTask& task, std::int64_t offset, std::int64_t query0, int rows) {
  prefetch_rows<1>(task.o + offset, task.q_stride, rows, task.D);
  const std::int64_t step = task.tile_step * kTileQueries;
  const std::int64_t left = std::min<std::int64_t>(kTileQueries, task.T - query0 - step);
  if (left > 0) {
    prefetch_rows<0>(task.q + offset + step * task.q_stride, task.q_stride, left, task.D);
  }
}

void forward_query_tile(const ForwardTask& task, const ForwardState& s, std::int64_t head,
                        std::int64_t query0) {
  const int rows = static_cast<int>(std::min<std::int64_t>(kTileQueries, task.T - query0));
  const std::int64_t offset = query0 * task.q_stride + head * task.D;
  pack_rows(task.q + offset, task.q_stride, rows, task.D, task.scale * kLog2E, s.padded, s.q_rows);
  std::fill_n(s.o, rows * s.padded, 0.0f);
  std::fill_n(s.sums, rows * kLanes, 0.0f);
  std::fill_n(s.maxima, kTileQueries, kNoMaximum);
  const std::int64_t keys = task.visible(query0 + rows - 1);
  for (std::int64_t key0 = 0; key0 < keys; key0 += kTileKeys) {
    const Tile tile(task, query0, key0, rows);
    if (key0 + kTileKeys >= keys) prefetch_last(task, offset, query0, rows);
    compute_scores(tile, s);
    update_maxima(tile, s);
    exponentiate(tile, s);
    if (task.drop_threshold != 0) {
      drop_factors(tile, head, s.factors);
      drop_probabilities(tile, s);
    }
    accumulate_values(tile, s);
  }
  write_tile(task, s, head, query0, rows);
}

void forward_task(const ForwardTask& task, float* memory) {
  ForwardState s;
  s.padded = round_up(task.D, kLanes);
  Scratch scratch(memory);
  s.k_columns = scratch.take(packed_columns_size(task.S, task.D));
  s.v_rows = scratch.take(task.S * s.padded);
  s.q_rows = scratch.take(kTileQueries * s.padded);
  s.scores = scratch.take(kTileQueries * kTileKeys);
  s.o = scratch.take(kTileQueries * s.padded);
  s.sums = scratch.take(kTileQueries * kLanes);
  s.maxima = scratch.take(kTileQueries);
  s.decay = scratch.take(kTileQueries);
  s.factors = task.drop_threshold != 0 ? scratch.take(kTileQueries * kTileKeys) : nullptr;

  const std::int64_t tiles = (task.T + kTileQueries - 1) / kTileQueries;
  const std::int64_t last = tiles - 1 - (tiles - 1 - task.tile_begin) % task.tile_step;
  const std::int64_t keys = task.visible(std::min(task.T, (last + 1) * kTileQueries) - 1);
  pack_columns(task.k, task.kv_stride, keys, task.D, s.k_columns);
  pack_rows(task.v, task.kv_stride, keys, task.D, 1.0f, s.padded, s.v_rows);
  for (std::int64_t head = 0; head < task.heads; ++head) {
    for (std::int64_t tile = task.tile_begin; tile < tiles; tile += task.tile_step) {
      forward_query_tile(task, s, head, tile * kTileQueries);
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace capstan::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace capstan::cpu {

HWY_EXPORT(forward_task);

void attention_forward_task(const ForwardTask& task, float* scratch) {
  HWY_DYNAMIC_DISPATCH(forward_task)(task, scratch);
}

std::size_t attention_forward_scratch(std::int64_t S, std::int64_t D, bool dropout) {
  const auto up = [](std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit * unit; };
  const std::int64_t padded = up(D, kWidestVector);
  std::int64_t floats = up(S, kWidestPanel) * padded           // k_columns
                        + S * padded                           // v_rows
                        + 2 * kTileQueries * padded            // q_rows, o
                        + kTileQueries * kTileKeys             // scores
                        + kTileQueries * (kWidestVector + 2);  // sums, maxima, decay
  if (dropout) floats += kTileQueries * kTileKeys;
  return static_cast<std::size_t>(floats) * sizeof(float);
}

}  // namespace capstan::cpu
#endif  // HWY_ONCE
