// Pieces that the forward and the backward pass of attention share. Compiled once for each SIMD
// target.
#if defined(CAPSTAN_KERNELS_CPU_ATTENTION_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CAPSTAN_KERNELS_CPU_ATTENTION_TILE_INL_H_
#undef CAPSTAN_KERNELS_CPU_ATTENTION_TILE_INL_H_
#else
#define CAPSTAN_KERNELS_CPU_ATTENTION_TILE_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/cpu/attention_task.h"
#include "kernels/cpu/micro_kernel-inl.h"
#include "kernels/cpu/philox-inl.h"

HWY_BEFORE_NAMESPACE();
namespace capstan::cpu {
namespace HWY_NAMESPACE {

constexpr float kLn2 = 0.69314718055994530942f;

// Hands out parts of a task's scratch, each 64-byte aligned.
class Scratch {
 public:
  explicit Scratch(float* base) : next_(base) {}
  float* take(std::int64_t floats) {
    float* part = next_;
    next_ += round_up(floats, kWidestVector);
    return part;
  }

 private:
  float* next_;
};

// One tile of a task: queries [query0, query0 + rows) of one head by keys [key0, key0 + kTileKeys).
struct Tile {
  const AttentionTask* task;
  std::int64_t query0;
  std::int64_t key0;
  int rows;
  int keys;    // keys that any of the rows sees, at most kTileKeys
  bool whole;  // every row sees all kTileKeys keys

  Tile(const AttentionTask& t, std::int64_t query, std::int64_t key, int row_count)
      : task(&t), query0(query), key0(key), rows(row_count) {
    keys = visible(rows - 1);
    whole = visible(0) == kTileKeys;
  }

  // Keys of the tile that row r sees.
  int visible(int r) const {
    return static_cast<int>(
        std::clamp<std::int64_t>(task->visible(query0 + r) - key0, 0, kTileKeys));
  }

  // The first row that sees key c of the tile.
  int first_row(int c) const {
    if (!task->causal) return 0;
    return static_cast<int>(std::clamp<std::int64_t>(key0 + c - task->shift - query0, 0,
                                                     static_cast<std::int64_t>(rows)));
  }
};

// factors[r * kTileKeys + c]: what multiplies the probability of row r and key c of the tile, 0 or
// the keep factor.
[[maybe_unused]] static HWY_NOINLINE void drop_factors(const Tile& tile, std::int64_t head,
                                                       float* HWY_RESTRICT factors) {
  const F32 d;
  const U32 du;
  const AttentionTask& task = *tile.task;
  // Key positions need not start at a multiple of 4: one counter more, then a step's rounding.
  HWY_ALIGN std::uint32_t words[4 * (kTileKeys / 4 + 1 + 64)];
  const std::uint64_t key_position = static_cast<std::uint64_t>(task.key_offset + tile.key0);
  const std::uint64_t high = (static_cast<std::uint64_t>(task.sample) & 0xffffffffffffu) |
                             static_cast<std::uint64_t>(task.head + head) << 48;
  const std::uint64_t skip = key_position & 3;
  const std::uint64_t counters = kTileKeys / 4 + (skip != 0 ? 1 : 0);
  const std::uint64_t step = static_cast<std::uint64_t>(philox_step_counters());
  const auto threshold = hn::Set(du, task.drop_threshold);
  const VF keep = hn::Set(d, task.keep_factor);
  for (int r = 0; r < tile.rows; ++r, factors += kTileKeys) {
    const std::uint64_t query = static_cast<std::uint64_t>(task.query_offset + tile.query0 + r);
    for (std::uint64_t i = 0; i < counters; i += step) {
      philox_step(((key_position >> 2) + i) | query << 32, high, task.key, words + 4 * i);
    }
    for (int c = 0; c < kTileKeys; c += kLanes) {
      const auto dropped = hn::Lt(hn::LoadU(du, words + skip + c), threshold);
      hn::Store(hn::IfThenZeroElse(hn::RebindMask(d, dropped), keep), d, factors + c);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace capstan::cpu
HWY_AFTER_NAMESPACE();

#endif  // CAPSTAN_KERNELS_CPU_ATTENTION_TILE_INL_H_
