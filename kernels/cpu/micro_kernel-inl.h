// Register-blocked matrix products on packed operands, and the packing: what attention is built of.
// Compiled once for each SIMD target.
//
// A block product keeps a C block of `MR` rows by `NR` vectors in registers and runs over the depth
// with one broadcast of A and NR vectors of B a row: pure FMA. (This is the classical GEBP kernel:
// Goto and van de Geijn 2008.)
#if defined(CAPSTAN_KERNELS_CPU_MICRO_KERNEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CAPSTAN_KERNELS_CPU_MICRO_KERNEL_INL_H_
#undef CAPSTAN_KERNELS_CPU_MICRO_KERNEL_INL_H_
#else
#define CAPSTAN_KERNELS_CPU_MICRO_KERNEL_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/cpu/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace capstan::cpu {
namespace HWY_NAMESPACE {

constexpr int kLanes = static_cast<int>(hn::MaxLanes(F32()));

// Register block: 6 x 4 vectors where there are 32 vector registers, 6 x 2 where there are 16.
constexpr int kBlockRows = 6;
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON
constexpr int kPanelVectors = 4;
#else
constexpr int kPanelVectors = 2;
#endif
constexpr int kPanel = kPanelVectors * kLanes;  // columns of a packed panel of B

HWY_INLINE std::int64_t round_up(std::int64_t n, std::int64_t unit) {
  return (n + unit - 1) / unit * unit;
}

// acc[i][j] += sum over k in [0, depth) of a[i * row_stride + k * depth_stride] times vector j of
// row k of b. Rows of b are `b_stride` elements apart and need no alignment.
template <int MR, int NR>
HWY_INLINE void multiply_block(const float* HWY_RESTRICT a, std::ptrdiff_t row_stride,
                               std::ptrdiff_t depth_stride, const float* HWY_RESTRICT b,
                               std::ptrdiff_t b_stride, std::int64_t depth, VF (&acc)[MR][NR]) {
  const F32 d;
#pragma GCC unroll 1
  for (std::int64_t k = 0; k < depth; ++k) {
    VF row[NR];
#pragma GCC unroll 8
    for (int j = 0; j < NR; ++j) row[j] = hn::LoadU(d, b + j * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < MR; ++i) {
      const VF scalar = hn::Set(d, a[i * row_stride]);
#pragma GCC unroll 8
      for (int j = 0; j < NR; ++j) acc[i][j] = hn::MulAdd(scalar, row[j], acc[i][j]);
    }
    a += depth_stride;
    b += b_stride;
  }
}

template <int MR, int NR>
HWY_INLINE void zero_block(VF (&acc)[MR][NR]) {
#pragma GCC unroll 8
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < NR; ++j) acc[i][j] = hn::Zero(F32());
  }
}

// Rows of the next block when `left` remain: one of 6, 4, 2, 1, the heights kernels exist for.
HWY_INLINE int block_rows(int left) { return left >= 6 ? 6 : left >= 4 ? 4 : left >= 2 ? 2 : 1; }

template <int NR, class Kernel, class... Args>
HWY_INLINE void dispatch_rows(const Kernel& kernel, int rows, Args... args) {
  switch (rows) {
    case 6:
      return kernel.template run<6, NR>(args...);
    case 4:
      return kernel.template run<4, NR>(args...);
    case 2:
      return kernel.template run<2, NR>(args...);
    default:
      return kernel.template run<1, NR>(args...);
  }
}

// Calls kernel.run<rows, vectors>(args...) for rows in {6, 4, 2, 1}, vectors in [1, kPanelVectors].
template <class Kernel, class... Args>
HWY_INLINE void dispatch_block(const Kernel& kernel, int rows, int vectors, Args... args) {
  switch (vectors) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON
    case 4:
      return dispatch_rows<4>(kernel, rows, args...);
    case 3:
      return dispatch_rows<3>(kernel, rows, args...);
#endif
    case 2:
      return dispatch_rows<2>(kernel, rows, args...);
    default:
      return dispatch_rows<1>(kernel, rows, args...);
  }
}

// ---- packing -----------------------------------------------------------------------------------
//
// A head's rows are short pieces far apart, which hardware prefetchers do not follow: whoever walks
// them asks for them ahead.

constexpr std::int64_t kPrefetchRows = 16;

// Asks for `rows` rows of `width` floats, `stride` apart, to be read or (kWrite = 1) written soon.
template <int kWrite>
HWY_INLINE void prefetch_rows(const float* base, std::int64_t stride, std::int64_t rows,
                              std::int64_t width) {
  for (std::int64_t r = 0; r < rows; ++r, base += stride) {
    for (std::int64_t i = 0; i < width; i += 16) __builtin_prefetch(base + i, kWrite, 3);
  }
}

// Floats that pack_columns writes for `rows` rows of `depth`.
HWY_INLINE std::int64_t packed_columns_size(std::int64_t rows, std::int64_t depth) {
  return round_up(rows, kPanel) * depth;
}

// to[k * kPanel + r] = from[r * stride + k] for r in [0, 4) and k in [0, depth).
HWY_INLINE void transpose_rows4(const float* from, std::int64_t stride, std::int64_t depth,
                                float* HWY_RESTRICT to) {
  std::int64_t k = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::Full128<float> d;
  const hn::Full128<double> pairs;
  for (; k + 4 <= depth; k += 4) {
    const auto r0 = hn::LoadU(d, from + k), r1 = hn::LoadU(d, from + stride + k);
    const auto r2 = hn::LoadU(d, from + 2 * stride + k), r3 = hn::LoadU(d, from + 3 * stride + k);
    const auto low01 = hn::BitCast(pairs, hn::InterleaveLower(d, r0, r1));
    const auto low23 = hn::BitCast(pairs, hn::InterleaveLower(d, r2, r3));
    const auto high01 = hn::BitCast(pairs, hn::InterleaveUpper(d, r0, r1));
    const auto high23 = hn::BitCast(pairs, hn::InterleaveUpper(d, r2, r3));
    float* out = to + k * kPanel;
    hn::StoreU(hn::BitCast(d, hn::InterleaveLower(pairs, low01, low23)), d, out);
    hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(pairs, low01, low23)), d, out + kPanel);
    hn::StoreU(hn::BitCast(d, hn::InterleaveLower(pairs, high01, high23)), d, out + 2 * kPanel);
    hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(pairs, high01, high23)), d, out + 3 * kPanel);
  }
#endif
  for (; k < depth; ++k) {
    for (int r = 0; r < 4; ++r) to[k * kPanel + r] = from[r * stride + k];
  }
}

// src [rows, depth] (rows `stride` apart) to panels [rows / kPanel, depth, kPanel]: the B operand
// of a product with src^T. Rows past the end read as 0.
HWY_INLINE void pack_columns(const float* src, std::int64_t stride, std::int64_t rows,
                             std::int64_t depth, float* HWY_RESTRICT dst) {
  for (std::int64_t row0 = 0; row0 < rows; row0 += kPanel, dst += depth * kPanel) {
    const std::int64_t count = std::min<std::int64_t>(kPanel, rows - row0);
    const float* from = src + row0 * stride;
    if (count < kPanel) std::fill(dst, dst + depth * kPanel, 0.0f);
    std::int64_t r = 0;
    if constexpr (kPanel >= 4) {
      for (; r + 4 <= count; r += 4) {
        const std::int64_t ahead = std::min<std::int64_t>(4, rows - row0 - r - kPrefetchRows);
        prefetch_rows<0>(from + (r + kPrefetchRows) * stride, stride, ahead, depth);
        transpose_rows4(from + r * stride, stride, depth, dst + r);
      }
    }
    for (; r < count; ++r) {
      for (std::int64_t k = 0; k < depth; ++k) dst[k * kPanel + r] = from[r * stride + k];
    }
  }
}

// factor * src [rows, width] (rows `stride` apart) to dst [rows, padded], zero-filled to `padded`,
// a multiple of kLanes.
HWY_INLINE void pack_rows(const float* src, std::int64_t stride, std::int64_t rows,
                          std::int64_t width, float factor, std::int64_t padded,
                          float* HWY_RESTRICT dst) {
  const F32 d;
  const VF scale = hn::Set(d, factor);
  for (std::int64_t r = 0; r < rows; ++r, src += stride, dst += padded) {
    if (r + kPrefetchRows < rows) prefetch_rows<0>(src + kPrefetchRows * stride, 0, 1, width);
    for_each_vector(d, width, [&](std::int64_t i, auto access) {
      hn::Store(hn::Mul(scale, access.load(d, src + i)), d, dst + i);
    });
  }
}

// dst [rows, width] (rows `stride` apart) = factor * src [rows, padded].
HWY_INLINE void unpack_rows(const float* HWY_RESTRICT src, std::int64_t padded, std::int64_t rows,
                            std::int64_t width, float factor, std::int64_t stride, float* dst) {
  const F32 d;
  const VF scale = hn::Set(d, factor);
  for (std::int64_t r = 0; r < rows; ++r, src += padded, dst += stride) {
    if (r + kPrefetchRows < rows) prefetch_rows<1>(dst + kPrefetchRows * stride, 0, 1, width);
    for_each_vector(d, width, [&](std::int64_t i, auto access) {
      access.store(hn::Mul(scale, hn::Load(d, src + i)), d, dst + i);
    });
  }
}

// ---- four sums at once -------------------------------------------------------------------------

#if HWY_TARGET != HWY_SCALAR
// The sum of a vector's 128-bit blocks.
template <class D, class V>
HWY_INLINE hn::Vec<hn::Full128<float>> sum_blocks(D, V v) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    return v;
  } else {
    const hn::Half<D> half;
    return sum_blocks(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}
#endif

// out[i] = the sum of v[i]'s lanes. A third of the work of four sums on their own.
HWY_INLINE void sum_four(const VF (&v)[4], float* out) {
#if HWY_TARGET == HWY_SCALAR
  for (int i = 0; i < 4; ++i) out[i] = hn::GetLane(v[i]);
#else
  const F32 d;
  const hn::RepartitionToWide<F32> pairs;
  const VF low = hn::Add(hn::InterleaveLower(d, v[0], v[1]), hn::InterleaveUpper(d, v[0], v[1]));
  const VF high = hn::Add(hn::InterleaveLower(d, v[2], v[3]), hn::InterleaveUpper(d, v[2], v[3]));
  const auto low2 = hn::BitCast(pairs, low), high2 = hn::BitCast(pairs, high);
  const VF blocks = hn::Add(hn::BitCast(d, hn::InterleaveLower(pairs, low2, high2)),
                            hn::BitCast(d, hn::InterleaveUpper(pairs, low2, high2)));
  hn::StoreU(sum_blocks(d, blocks), hn::Full128<float>(), out);
#endif
}

// ---- exponential -------------------------------------------------------------------------------

// 2^x for x <= 127, flushed to exactly 0 below -126.5 (the exponent bits of 2^-127 are 0); NaN
// stays NaN. Relative error below 2e-7.
HWY_INLINE VF vexp2_flush(VF x) {
  return exp2_product(hn::Max(constant(-127.0f), x), constant(1.0f));
}

}  // namespace HWY_NAMESPACE
}  // namespace capstan::cpu
HWY_AFTER_NAMESPACE();

#endif  // CAPSTAN_KERNELS_CPU_MICRO_KERNEL_INL_H_
