#include "kernels/cpu/reduce.h"

#include <algorithm>
#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/reduce.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace capstan::cpu {
namespace HWY_NAMESPACE {

using F64 = hn::ScalableTag<double>;
using HalfF32 = hn::Rebind<float, F64>;

double SumSquaresBlock(const float* x, std::int64_t n) {
  const F64 d;
  const HalfF32 dh;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  hn::Vec<F64> acc[4];
  for (auto& a : acc) a = hn::Zero(d);
  const auto add = [&](hn::Vec<HalfF32> v, hn::Vec<F64>& a) HWY_ATTR {
    const auto wide = hn::PromoteTo(d, v);
    a = hn::MulAdd(wide, wide, a);
  };
  std::int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    for (int u = 0; u < 4; ++u) add(hn::LoadU(dh, x + i + u * lanes), acc[u]);
  }
  for (; i + lanes <= n; i += lanes) add(hn::LoadU(dh, x + i), acc[0]);
  double sum =
      hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(acc[0], acc[1]), hn::Add(acc[2], acc[3]))));
  for (; i < n; ++i) sum += static_cast<double>(x[i]) * x[i];
  return sum;
}

// Exponent bits all ones: infinity or NaN.
bool FiniteBlock(const float* x, std::int64_t n) {
  const F32 d;
  const I32 di;
  const VI exponent = hn::Set(di, 0x7f800000);
  VI bad = hn::Zero(di);
  for_each_vector(d, n, [&](std::int64_t i, auto access) HWY_ATTR {
    const VI bits = hn::And(hn::BitCast(di, access.load(d, x + i)), exponent);
    bad = hn::Or(bad, hn::VecFromMask(di, hn::Eq(bits, exponent)));
  });
  return hn::AllTrue(di, hn::Eq(bad, hn::Zero(di)));
}

// The larger, or NaN where either is.
HWY_INLINE VF nan_max(VF a, VF b) {
  const auto keep = hn::Or(hn::Gt(a, b), hn::IsNaN(a));
  return hn::IfThenElse(keep, a, b);
}

template <bool kMax>
HWY_INLINE VF combine(VF a, VF b) {
  if constexpr (kMax) return nan_max(a, b);
  return hn::Add(a, b);
}

HWY_INLINE float nan_max_scalar(float a, float b) { return a > b || a != a ? a : b; }

// One row of n contiguous values.
template <bool kMax>
HWY_INLINE float reduce_row(const float* x, std::int64_t n) {
  const F32 d;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const VF start = hn::Set(d, kMax ? -std::numeric_limits<float>::infinity() : 0.0f);
  VF acc[4] = {start, start, start, start};
  std::int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    for (int u = 0; u < 4; ++u) acc[u] = combine<kMax>(acc[u], hn::LoadU(d, x + i + u * lanes));
  }
  for (; i + lanes <= n; i += lanes) acc[0] = combine<kMax>(acc[0], hn::LoadU(d, x + i));
  const VF all = combine<kMax>(combine<kMax>(acc[0], acc[1]), combine<kMax>(acc[2], acc[3]));
  HWY_ALIGN float values[HWY_MAX_BYTES / sizeof(float)];
  hn::Store(all, d, values);
  float result = values[0];
  for (std::int64_t k = 1; k < lanes; ++k) {
    result = kMax ? nan_max_scalar(result, values[k]) : result + values[k];
  }
  for (; i < n; ++i) result = kMax ? nan_max_scalar(result, x[i]) : result + x[i];
  return result;
}

// out[0..columns) over n rows `stride` apart, four rows at a time: each row is read from end to
// end, as memory likes it, and the running result stays in L1.
template <bool kMax>
HWY_INLINE void reduce_columns(const float* x, std::int64_t n, std::int64_t stride,
                               std::int64_t columns, float* out) {
  const F32 d;
  const float start = kMax ? -std::numeric_limits<float>::infinity() : 0.0f;
  std::fill(out, out + columns, start);
  std::int64_t r = 0;
  for (; r + 4 <= n; r += 4) {
    const float* row = x + r * stride;
    const std::int64_t ahead = r + 8 <= n ? 4 * stride : 0;  // the next four rows
    for_each_vector(d, columns, [&](std::int64_t i, auto access) HWY_ATTR {
      for (int u = 0; u < 4; ++u) __builtin_prefetch(row + u * stride + ahead + i, 0, 2);
      const VF a = combine<kMax>(access.load(d, row + i), access.load(d, row + stride + i));
      const VF b =
          combine<kMax>(access.load(d, row + 2 * stride + i), access.load(d, row + 3 * stride + i));
      access.store(combine<kMax>(access.load(d, out + i), combine<kMax>(a, b)), d, out + i);
    });
  }
  for (; r < n; ++r) {
    for_each_vector(d, columns, [&](std::int64_t i, auto access) HWY_ATTR {
      const VF v = access.load(d, x + r * stride + i);
      access.store(combine<kMax>(access.load(d, out + i), v), d, out + i);
    });
  }
}

void ReduceBlock(bool max, const float* x, std::int64_t n, std::int64_t stride,
                 std::int64_t columns, float* out) {
  if (stride == 1) {
    *out = max ? reduce_row<true>(x, n) : reduce_row<false>(x, n);
  } else if (max) {
    reduce_columns<true>(x, n, stride, columns, out);
  } else {
    reduce_columns<false>(x, n, stride, columns, out);
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace capstan::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace capstan::cpu {

HWY_EXPORT(SumSquaresBlock);
HWY_EXPORT(FiniteBlock);
HWY_EXPORT(ReduceBlock);

namespace {

constexpr std::int64_t kBlock = 16384;  // elements of a block of a buffer list

std::int64_t blocks_of(const ConstBuffer& b) { return (b.n + kBlock - 1) / kBlock; }

struct ListSize {
  std::int64_t blocks = 0;
  std::int64_t elements = 0;
};

ListSize size_of(const ConstBuffer* buffers, std::size_t count) {
  ListSize size;
  for (std::size_t i = 0; i < count; ++i) {
    size.blocks += blocks_of(buffers[i]);
    size.elements += buffers[i].n;
  }
  return size;
}

// Calls visit(block, data, n) for blocks [begin, end) of the list; stops where it returns false.
template <class Visit>
void for_each_block(const ConstBuffer* buffers, std::int64_t begin, std::int64_t end,
                    Visit&& visit) {
  std::int64_t first = 0;  // index of the current buffer's first block
  for (std::int64_t block = begin; block < end;) {
    const std::int64_t blocks = blocks_of(*buffers);
    if (block >= first + blocks) {
      first += blocks;
      ++buffers;
      continue;
    }
    const std::int64_t offset = (block - first) * kBlock;
    if (!visit(block, buffers->data + offset, std::min(kBlock, buffers->n - offset))) return;
    ++block;
  }
}

// How the middle dim is cut: enough pieces to share a tall, narrow reduction among threads, and
// short enough to keep float sums accurate.
std::int64_t pieces_of(const ReduceParams& p) {
  constexpr std::int64_t kRowsPerPiece = 64;
  constexpr std::int64_t kElementsPerPiece = 16384;
  constexpr std::int64_t kMaxPieces = 64;
  const std::int64_t by_size = p.n * p.inner / kElementsPerPiece;
  return std::clamp<std::int64_t>(std::min(by_size, p.n / kRowsPerPiece), 1, kMaxPieces);
}

void combine_pieces(Reduction reduction, const ReduceParams& p, std::int64_t pieces,
                    const float* partial, bool accumulate, float* out) {
  const float scale = reduction == Reduction::kMean ? 1.0f / static_cast<float>(p.n) : 1.0f;
  const std::int64_t total = p.outer * p.inner;
  const std::int64_t bytes = pieces * total * 4;
  parallel_ranges(total, 16, bytes, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t o = i / p.inner;
      const float* from = partial + (o * pieces) * p.inner + (i - o * p.inner);
      float value = from[0];
      for (std::int64_t k = 1; k < pieces; ++k) {
        const float next = from[k * p.inner];
        if (reduction == Reduction::kMax) {
          value = value > next || value != value ? value : next;
        } else {
          value += next;
        }
      }
      if (reduction != Reduction::kMax) value = value * scale + (accumulate ? out[i] : 0.0f);
      out[i] = value;
    }
  });
}

}  // namespace

std::size_t sum_squares_workspace(const ConstBuffer* buffers, std::size_t count) {
  return static_cast<std::size_t>(size_of(buffers, count).blocks) * sizeof(double);
}

double sum_squares(const ConstBuffer* buffers, std::size_t count, void* workspace) {
  double* partial = static_cast<double*>(workspace);
  const ListSize size = size_of(buffers, count);
  parallel_ranges(size.blocks, 1, size.elements * 4,
                  [&](std::int64_t begin, std::int64_t end, int) {
                    const auto kernel = HWY_DYNAMIC_DISPATCH(SumSquaresBlock);
                    for_each_block(buffers, begin, end, [&](auto block, auto data, auto n) {
                      partial[block] = kernel(data, n);
                      return true;
                    });
                  });
  double sum = 0.0;
  for (std::int64_t i = 0; i < size.blocks; ++i) sum += partial[i];
  return sum;
}

ClipScale clip_scale(double norm2, double clip) {
  const double norm = std::sqrt(norm2);
  double scale = 1.0;
  if (clip > 0.0) {
    const double limit = clip / (norm + 1e-6);
    scale = limit > 1.0 ? 1.0 : limit;
  }
  return ClipScale{static_cast<float>(norm), static_cast<float>(scale)};
}

bool all_finite(const ConstBuffer* buffers, std::size_t count) {
  const ListSize size = size_of(buffers, count);
  bool finite = true;
  parallel_ranges(size.blocks, 1, size.elements * 4,
                  [&](std::int64_t begin, std::int64_t end, int) {
                    const auto kernel = HWY_DYNAMIC_DISPATCH(FiniteBlock);
                    for_each_block(buffers, begin, end, [&](auto, auto data, auto n) {
                      if (kernel(data, n)) return true;
#pragma omp atomic write
                      finite = false;
                      return false;
                    });
                  });
  return finite;
}

std::size_t reduce_workspace(const ReduceParams& p) {
  return static_cast<std::size_t>(pieces_of(p) * p.outer * p.inner) * sizeof(float);
}

void reduce(Reduction reduction, const ReduceParams& p, const float* x, float* out, bool accumulate,
            void* workspace) {
  // Units of work: (outer, piece, group of columns). Narrow groups only where rows are short.
  constexpr std::int64_t kColumns = 2048;
  const std::int64_t pieces = pieces_of(p);
  const std::int64_t groups = (p.inner + kColumns - 1) / kColumns;
  const std::int64_t units = p.outer * pieces * groups;
  float* partial = static_cast<float*>(workspace);
  const std::int64_t bytes = p.outer * p.n * p.inner * 4;
  parallel_ranges(units, 1, bytes, [&](std::int64_t begin, std::int64_t end, int) {
    const auto kernel = HWY_DYNAMIC_DISPATCH(ReduceBlock);
    for (std::int64_t unit = begin; unit < end; ++unit) {
      const std::int64_t slot = unit / groups;  // (outer, piece)
      const std::int64_t column = unit % groups * kColumns;
      const std::int64_t o = slot / pieces;
      const std::int64_t piece = slot % pieces;
      const std::int64_t first = p.n * piece / pieces;
      const std::int64_t rows = p.n * (piece + 1) / pieces - first;
      kernel(reduction == Reduction::kMax, x + (o * p.n + first) * p.inner + column, rows, p.inner,
             std::min(kColumns, p.inner - column), partial + slot * p.inner + column);
    }
  });
  combine_pieces(reduction, p, pieces, partial, accumulate, out);
}

}  // namespace capstan::cpu
#endif  // HWY_ONCE
