// The backward pass of attention for one task (attention_task.h).
//
// Tile by tile, with P = exp(S - lse) recomputed and delta = rowsum(dout * o):
//   dV += P^T dO,  dS = P * (dO V^T - delta),  dQ += dS K,  dK += dS^T Q
// (Dao et al. 2022, appendix B.2). With dropout mask Z (0 or 1 / (1 - p)): dV reads P * Z, and dO
// V^T is multiplied by Z. The softmax scale is applied once, as dQ and dK are written.
#include "kernels/cpu/attention_task.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_backward.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include <limits>

#include "hwy/highway.h"
#include "kernels/cpu/attention_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace capstan::cpu {
namespace HWY_NAMESPACE {
namespace {

// The working set of one task. Sizes in floats: see attention_backward_scratch.
struct BackwardState {
  // Of all keys.
  float* k_columns;  // packed k, [S / kPanel, D, kPanel]
  float* v_columns;  // packed v
  float* k_rows;     // [S, padded]
  float* dk;         // [S, padded], without the softmax scale
  float* dv;         // [S, padded]
  // Of one tile of queries.
  float* q_rows;     // [kTileQueries, padded]
  float* dout_rows;  // [kTileQueries, padded]
  float* dq;         // [kTileQueries, padded], without the softmax scale
  float* lse;        // [kTileQueries], in units of log2
  float* delta;      // [kTileQueries]
  // Of one tile.
  float* p;        // [kTileQueries, kTileKeys]
  float* ds;       // [kTileQueries, kTileKeys]
  float* factors;  // [kTileQueries, kTileKeys], with dropout; else null
  std::int64_t padded;
};

// p[r0 + i, c0 + j] = 2^(scale * log2(e) * q . k - lse), 0 where the row does not see the key.
struct ProbabilityKernel {
  const BackwardState* s;
  const Tile* tile;
  std::int64_t depth;
  const float* k_panel;

  template <int MR, int NR>
  HWY_NOINLINE void run(int r0, int c0) const {
    const F32 d;
    VF acc[MR][NR];
    zero_block(acc);
    multiply_block(s->q_rows + r0 * s->padded, s->padded, 1, k_panel, kPanel, depth, acc);
    const VF scale = hn::Set(d, tile->task->scale * kLog2E);
    float* out = s->p + r0 * kTileKeys + c0;
    if (tile->whole) {
#pragma GCC unroll 8
      for (int i = 0; i < MR; ++i) {
        const VF lse = hn::Set(d, s->lse[r0 + i]);
#pragma GCC unroll 8
        for (int j = 0; j < NR; ++j) {
          hn::Store(vexp2_flush(hn::MulSub(acc[i][j], scale, lse)), d,
                    out + i * kTileKeys + j * kLanes);
        }
      }
      return;
    }
    for (int i = 0; i < MR; ++i) {
      const VF lse = hn::Set(d, s->lse[r0 + i]);
      const int visible = tile->visible(r0 + i) - c0;
#pragma GCC unroll 8
      for (int j = 0; j < NR; ++j) {
        const int left = std::clamp(visible - j * kLanes, 0, kLanes);
        const VF p = vexp2_flush(hn::MulSub(acc[i][j], scale, lse));
        hn::Store(hn::IfThenElseZero(hn::FirstN(d, static_cast<std::size_t>(left)), p), d,
                  out + i * kTileKeys + j * kLanes);
      }
    }
  }
};

// ds[r0 + i, c0 + j] = p * (dout . v - delta); with dropout also p *= factor.
struct ScoreGradientKernel {
  const BackwardState* s;
  std::int64_t depth;
  const float* v_panel;

  template <int MR, int NR>
  HWY_NOINLINE void run(int r0, int c0) const {
    const F32 d;
    VF acc[MR][NR];
    zero_block(acc);
    multiply_block(s->dout_rows + r0 * s->padded, s->padded, 1, v_panel, kPanel, depth, acc);
    float* p = s->p + r0 * kTileKeys + c0;
    float* ds = s->ds + r0 * kTileKeys + c0;
    if (s->factors == nullptr) {
#pragma GCC unroll 8
      for (int i = 0; i < MR; ++i) {
        const VF delta = hn::Set(d, s->delta[r0 + i]);
#pragma GCC unroll 8
        for (int j = 0; j < NR; ++j) {
          const int at = i * kTileKeys + j * kLanes;
          hn::Store(hn::Mul(hn::Load(d, p + at), hn::Sub(acc[i][j], delta)), d, ds + at);
        }
      }
      return;
    }
    const float* factor = s->factors + r0 * kTileKeys + c0;
#pragma GCC unroll 8
    for (int i = 0; i < MR; ++i) {
      const VF delta = hn::Set(d, s->delta[r0 + i]);
#pragma GCC unroll 8
      for (int j = 0; j < NR; ++j) {
        const int at = i * kTileKeys + j * kLanes;
        const VF z = hn::Load(d, factor + i * kTileKeys + j * kLanes);
        const VF probability = hn::Load(d, p + at);
        hn::Store(hn::Mul(probability, hn::MulSub(acc[i][j], z, delta)), d, ds + at);
        hn::Store(hn::Mul(probability, z), d, p + at);
      }
    }
  }
};

// out[i, c0 + j] += sum over k of a(i, k) * b[k, c0 + j]; a is a tile (kTileKeys wide), read along
// rows or, transposed, along columns. `out` and `b` are `padded` wide.
template <bool kTransposed>
struct AccumulateKernel {
  std::int64_t padded;

  template <int MR, int NR>
  HWY_NOINLINE void run(const float* a, const float* b, float* out, int depth) const {
    const F32 d;
    VF acc[MR][NR];
#pragma GCC unroll 8
    for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 8
      for (int j = 0; j < NR; ++j) acc[i][j] = hn::Load(d, out + i * padded + j * kLanes);
    }
    multiply_block(a, kTransposed ? 1 : kTileKeys, kTransposed ? kTileKeys : 1, b, padded, depth,
                   acc);
#pragma GCC unroll 8
    for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 8
      for (int j = 0; j < NR; ++j) hn::Store(acc[i][j], d, out + i * padded + j * kLanes);
    }
  }
};

// Runs a kernel on every block of the tile that some row sees; the rest of `zeroed` (may be null)
// becomes 0, for the transposed products read whole columns.
template <class MakeKernel>
void for_visible_blocks(const Tile& tile, float* zeroed, MakeKernel&& make_kernel) {
  const F32 d;
  for (int c0 = 0; c0 < tile.keys; c0 += kPanel) {
    const auto kernel = make_kernel(c0);
    for (int r0 = 0; r0 < tile.rows;) {
      const int rows = block_rows(tile.rows - r0);
      const int columns = std::clamp(tile.visible(r0 + rows - 1) - c0, 0, kPanel);
      const int vectors = (columns + kLanes - 1) / kLanes;
      if (vectors > 0) dispatch_block(kernel, rows, vectors, r0, c0);
      if (zeroed != nullptr) {
        for (int r = r0; r < r0 + rows; ++r) {
          for (int c = vectors * kLanes; c < kPanel; c += kLanes) {
            hn::Store(hn::Zero(d), d, zeroed + r * kTileKeys + c0 + c);
          }
        }
      }
      r0 += rows;
    }
  }
}

// dv += p^T dout and dk += ds^T q, for the tile's keys.
void accumulate_key_gradients(const Tile& tile, const BackwardState& s) {
  const AccumulateKernel<true> kernel{s.padded};
  const int width = static_cast<int>(s.padded);
  for (int which = 0; which < 2; ++which) {
    const float* a = which == 0 ? s.p : s.ds;
    const float* b = which == 0 ? s.dout_rows : s.q_rows;
    float* out = (which == 0 ? s.dv : s.dk) + tile.key0 * s.padded;
    for (int c0 = 0; c0 < width; c0 += kPanel) {
      const int vectors = std::min(kPanel, width - c0) / kLanes;
      for (int key = 0; key < tile.keys;) {
        const int keys = block_rows(tile.keys - key);
        const int first = tile.first_row(key);
        dispatch_block(kernel, keys, vectors, a + first * kTileKeys + key,
                       b + first * s.padded + c0, out + key * s.padded + c0, tile.rows - first);
        key += keys;
      }
    }
  }
}

// dq += ds k, for the tile's queries.
void accumulate_query_gradients(const Tile& tile, const BackwardState& s) {
  const AccumulateKernel<false> kernel{s.padded};
  const int width = static_cast<int>(s.padded);
  const float* k_tile = s.k_rows + tile.key0 * s.padded;
  for (int c0 = 0; c0 < width; c0 += kPanel) {
    const int vectors = std::min(kPanel, width - c0) / kLanes;
    for (int r0 = 0; r0 < tile.rows;) {
      const int rows = block_rows(tile.rows - r0);
      const int depth = tile.visible(r0 + rows - 1);
      if (depth > 0) {
        dispatch_block(kernel, rows, vectors, static_cast<const float*>(s.ds + r0 * kTileKeys),
                       k_tile + c0, s.dq + r0 * s.padded + c0, depth);
      }
      r0 += rows;
    }
  }
}

void backward_tile(const Tile& tile, const BackwardState& s) {
  const std::int64_t D = tile.task->D;
  float* zeroed_p = tile.whole ? nullptr : s.p;
  float* zeroed_ds = tile.whole ? nullptr : s.ds;
  for_visible_blocks(tile, zeroed_p, [&](int c0) {
    return ProbabilityKernel{&s, &tile, D, s.k_columns + (tile.key0 + c0) * D};
  });
  for_visible_blocks(tile, zeroed_ds, [&](int c0) {
    return ScoreGradientKernel{&s, D, s.v_columns + (tile.key0 + c0) * D};
  });
  accumulate_key_gradients(tile, s);
  accumulate_query_gradients(tile, s);
}

// Packs what a tile of queries needs and computes its lse (in log2) and delta.
void load_query_tile(const BackwardTask& task, const BackwardState& s, std::int64_t head,
                     std::int64_t query0, int rows) {
  const F32 d;
  const std::int64_t offset = query0 * task.q_stride + head * task.D;
  const std::int64_t stride = task.q_stride;
  pack_rows(task.q + offset, stride, rows, task.D, 1.0f, s.padded, s.q_rows);
  pack_rows(task.dout + offset, stride, rows, task.D, 1.0f, s.padded, s.dout_rows);
  std::fill_n(s.dq, rows * s.padded, 0.0f);
  prefetch_rows<0>(task.o + offset, stride, std::min<std::int64_t>(rows, kPrefetchRows), task.D);
  for (int r = 0; r < rows; ++r) {
    // A row that saw nothing has lse = -inf; +inf makes its probabilities 0 instead of NaN.
    const float lse = task.lse[head * task.T + query0 + r] * kLog2E;
    s.lse[r] = lse == -std::numeric_limits<float>::infinity() ? -lse : lse;
    const float* o = task.o + offset + r * stride;
    if (r + kPrefetchRows < rows) prefetch_rows<0>(o + kPrefetchRows * stride, 0, 1, task.D);
    VF sum = hn::Zero(d);
    for_each_vector(d, task.D, [&](std::int64_t i, auto access) {
      sum = hn::MulAdd(access.load(d, o + i), hn::Load(d, s.dout_rows + r * s.padded + i), sum);
    });
    s.delta[r] = sum_lanes(sum);
  }
}

void backward_query_tile(const BackwardTask& task, const BackwardState& s, std::int64_t head,
                         std::int64_t query0) {
  const int rows = static_cast<int>(std::min<std::int64_t>(kTileQueries, task.T - query0));
  load_query_tile(task, s, head, query0, rows);
  const std::int64_t keys = task.visible(query0 + rows - 1);
  for (std::int64_t key0 = 0; key0 < keys; key0 += kTileKeys) {
    const Tile tile(task, query0, key0, rows);
    if (task.drop_threshold != 0) drop_factors(tile, head, s.factors);
    backward_tile(tile, s);
  }
  unpack_rows(s.dq, s.padded, rows, task.D, task.scale, task.q_stride,
              task.dq + query0 * task.q_stride + head * task.D);
}

BackwardState backward_state(const BackwardTask& task, float* memory) {
  BackwardState s;
  s.padded = round_up(task.D, kLanes);
  Scratch scratch(memory);
  s.k_columns = scratch.take(packed_columns_size(task.S, task.D));
  s.v_columns = scratch.take(packed_columns_size(task.S, task.D));
  s.k_rows = scratch.take(task.S * s.padded);
  s.dk = scratch.take(task.S * s.padded);
  s.dv = scratch.take(task.S * s.padded);
  s.q_rows = scratch.take(kTileQueries * s.padded);
  s.dout_rows = scratch.take(kTileQueries * s.padded);
  s.dq = scratch.take(kTileQueries * s.padded);
  s.lse = scratch.take(kTileQueries);
  s.delta = scratch.take(kTileQueries);
  s.p = scratch.take(kTileQueries * kTileKeys);
  s.ds = scratch.take(kTileQueries * kTileKeys);
  s.factors = task.drop_threshold != 0 ? scratch.take(kTileQueries * kTileKeys) : nullptr;
  return s;
}

void backward_task(const BackwardTask& task, float* memory) {
  const BackwardState s = backward_state(task, memory);
  pack_columns(task.k, task.kv_stride, task.S, task.D, s.k_columns);
  pack_columns(task.v, task.kv_stride, task.S, task.D, s.v_columns);
  pack_rows(task.k, task.kv_stride, task.S, task.D, 1.0f, s.padded, s.k_rows);
  std::fill_n(s.dk, task.S * s.padded, 0.0f);
  std::fill_n(s.dv, task.S * s.padded, 0.0f);
  const std::int64_t tiles = (task.T + kTileQueries - 1) / kTileQueries;
  for (std::int64_t head = 0; head < task.heads; ++head) {
    for (std::int64_t tile = task.tile_begin; tile < tiles; tile += task.tile_step) {
      backward_query_tile(task, s, head, tile * kTileQueries);
    }
  }
  unpack_rows(s.dk, s.padded, task.S, task.D, task.scale, task.kv_stride, task.dk);
  unpack_rows(s.dv, s.padded, task.S, task.D, 1.0f, task.kv_stride, task.dv);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace capstan::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace capstan::cpu {

HWY_EXPORT(backward_task);

void attention_backward_task(const BackwardTask& task, float* scratch) {
  HWY_DYNAMIC_DISPATCH(backward_task)(task, scratch);
}

std::size_t attention_backward_scratch(std::int64_t S, std::int64_t D, bool dropout) {
  const auto up = [](std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit * unit; };
  const std::int64_t padded = up(D, kWidestVector);
  std::int64_t floats = 2 * up(S, kWidestPanel) * padded  // k_columns, v_columns
                        + 3 * S * padded                  // k_rows, dk, dv
                        + 3 * kTileQueries * padded       // q_rows, dout_rows, dq
                        + 2 * kTileQueries                // lse, delta
                        + 2 * kTileQueries * kTileKeys;   // p, ds
  if (dropout) floats += kTileQueries * kTileKeys;
  return static_cast<std::size_t>(floats) * sizeof(float);
}

}  // namespace capstan::cpu
#endif  // HWY_ONCE
