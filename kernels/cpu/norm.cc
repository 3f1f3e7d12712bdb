#include "kernels/cpu/norm.h"

#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/norm.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd_math-inl.h"

// Rows share their weight gradient through partial sums: the rows are cut into a number of blocks
// that depends on the shape alone, each block sums into its own [2, C] of the workspace, and the
// blocks are added in order at the end.
#ifndef CAPSTAN_KERNELS_CPU_NORM_ARGS_
#define CAPSTAN_KERNELS_CPU_NORM_ARGS_
namespace capstan::cpu {
struct NormBackwardArgs {
  std::int64_t channels;
  const float* dy;
  const float* x;
  const float* weight;
  const float* mean;  // null: RMS norm
  const float* rstd;
  float* dx;
};
}  // namespace capstan::cpu
#endif  // CAPSTAN_KERNELS_CPU_NORM_ARGS_

HWY_BEFORE_NAMESPACE();
namespace capstan::cpu {
namespace HWY_NAMESPACE {

constexpr int kUnroll = 4;

// Sum over a row of f(i, access), with independent accumulators to hide the latency of addition.
template <class F>
HWY_INLINE float row_sum(std::int64_t n, F&& f) {
  const F32 d;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  VF acc[kUnroll];
  for (VF& a : acc) a = hn::Zero(d);
  std::int64_t i = 0;
  for (; i + kUnroll * lanes <= n; i += kUnroll * lanes) {
    for (int u = 0; u < kUnroll; ++u) acc[u] = hn::Add(acc[u], f(i + u * lanes, FullAccess{}));
  }
  for (; i + lanes <= n; i += lanes) acc[0] = hn::Add(acc[0], f(i, FullAccess{}));
  if (i < n) acc[1] = hn::Add(acc[1], f(i, TailAccess{static_cast<std::size_t>(n - i)}));
  return sum_lanes(hn::Add(hn::Add(acc[0], acc[1]), hn::Add(acc[2], acc[3])));
}

// Sum of squared deviations; lanes past a tail would count mean^2, so they are masked.
HWY_INLINE float centred_square_sum(const float* x, std::int64_t n, float mean) {
  const F32 d;
  const VF m = hn::Set(d, mean);
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t whole = n / lanes * lanes;
  float sum = row_sum(whole, [&](std::int64_t i, auto access) HWY_ATTR {
    const VF c = hn::Sub(access.load(d, x + i), m);
    return hn::Mul(c, c);
  });
  if (whole < n) {
    const std::size_t rest = static_cast<std::size_t>(n - whole);
    const VF c = hn::Sub(TailAccess{rest}.load(d, x + whole), m);
    sum += sum_lanes(hn::IfThenElseZero(hn::FirstN(d, rest), hn::Mul(c, c)));
  }
  return sum;
}

void LayerNormRows(std::int64_t begin, std::int64_t end, const NormParams& p, const float* x,
                   const float* weight, const float* bias, float* y, float* mean, float* rstd) {
  const F32 d;
  const std::int64_t channels = p.channels;
  const float inverse = 1.0f / static_cast<float>(channels);
  for (std::int64_t row = begin; row < end; ++row) {
    const float* xr = x + row * channels;
    float* yr = y + row * channels;
    const float m = inverse * row_sum(channels, [&](std::int64_t i, auto access)
                                                    HWY_ATTR { return access.load(d, xr + i); });
    const float r = 1.0f / std::sqrt(centred_square_sum(xr, channels, m) * inverse + p.eps);
    const VF vm = hn::Set(d, m);
    const VF vr = hn::Set(d, r);
    for_each_vector(d, channels, [&](std::int64_t i, auto access) HWY_ATTR {
      prefetch_store(yr + i);
      VF v = hn::Mul(hn::Sub(access.load(d, xr + i), vm), vr);
      const VF b = bias != nullptr ? access.load(d, bias + i) : hn::Zero(d);
      v = weight != nullptr ? hn::MulAdd(v, access.load(d, weight + i), b) : hn::Add(v, b);
      access.store(v, d, yr + i);
    });
    if (mean != nullptr) mean[row] = m;
    if (rstd != nullptr) rstd[row] = r;
  }
}

void RmsNormRows(std::int64_t begin, std::int64_t end, const NormParams& p, const float* x,
                 const float* weight, float* y, float* rstd) {
  const F32 d;
  const std::int64_t channels = p.channels;
  for (std::int64_t row = begin; row < end; ++row) {
    const float* xr = x + row * channels;
    float* yr = y + row * channels;
    const float square = row_sum(channels, [&](std::int64_t i, auto access) HWY_ATTR {
      const VF v = access.load(d, xr + i);
      return hn::Mul(v, v);
    });
    const float r = 1.0f / std::sqrt(square / static_cast<float>(channels) + p.eps);
    const VF vr = hn::Set(d, r);
    for_each_vector(d, channels, [&](std::int64_t i, auto access) HWY_ATTR {
      prefetch_store(yr + i);
      VF v = hn::Mul(access.load(d, xr + i), vr);
      if (weight != nullptr) v = hn::Mul(v, access.load(d, weight + i));
      access.store(v, d, yr + i);
    });
    if (rstd != nullptr) rstd[row] = r;
  }
}

// What dx of a row needs to know about the whole row.
struct RowMeans {
  float g;   // mean of dy * weight
  float gx;  // mean of dy * weight * xhat
};

template <bool kCentred>
struct RowSums {
  VF g;
  VF gx;

  // Spelt out: an implicit constructor would not be compiled for the SIMD target.
  HWY_INLINE RowSums() : g(hn::Zero(F32())), gx(hn::Zero(F32())) {}

  // One vector of dy * weight and x. A tail's spare lanes have g = 0.
  HWY_INLINE void add(VF g_part, VF x, VF mean) {
    if constexpr (kCentred) {
      g = hn::Add(g, g_part);
      x = hn::Sub(x, mean);
    }
    gx = hn::MulAdd(g_part, x, gx);
  }
  HWY_INLINE RowMeans means(std::int64_t channels, float rstd) const {
    const float n = 1.0f / static_cast<float>(channels);
    return RowMeans{kCentred ? sum_lanes(g) * n : 0.0f, sum_lanes(gx) * rstd * n};
  }
};

template <class Access>
HWY_INLINE VF weight_at(const NormBackwardArgs& a, std::int64_t i, Access access) {
  return a.weight != nullptr ? access.load(F32(), a.weight + i) : constant(1.0f);
}

template <bool kCentred>
HWY_INLINE RowMeans row_means(const NormBackwardArgs& a, std::int64_t row) {
  const F32 d;
  const std::int64_t start = row * a.channels;
  const VF mean = hn::Set(d, kCentred ? a.mean[row] : 0.0f);
  RowSums<kCentred> sums;
  for_each_vector(d, a.channels, [&](std::int64_t i, auto access) HWY_ATTR {
    const VF dy = access.load(d, a.dy + start + i);
    sums.add(hn::Mul(dy, weight_at(a, i, access)), access.load(d, a.x + start + i), mean);
  });
  return sums.means(a.channels, a.rstd[row]);
}

// A group of kRows rows: dx of each, and their part of dweight and dbias read and written once. In
// the same sweep the sums of the next kRows rows are taken (kNext), so that memory streams the next
// rows in while this group, by now in cache, is worked on. `means` holds this group's on entry and
// the next group's on return.
template <int kRows, bool kCentred, bool kNext>
HWY_INLINE void backward_rows(const NormBackwardArgs& a, std::int64_t row, std::int64_t end,
                              RowMeans* means, float* dweight, float* dbias) {
  const F32 d;
  // Rows end before the hardware prefetcher finds its stride: fetch by hand, two groups ahead to
  // read and one ahead to write.
  const std::int64_t left = end - row - kRows;
  const std::int64_t read_ahead = std::min<std::int64_t>(2 * kRows, left) * a.channels;
  const std::int64_t write_ahead = std::min<std::int64_t>(kRows, left) * a.channels;
  VF mean[2 * kRows], rstd[kRows], g_mean[kRows], gx_mean[kRows];
  RowSums<kCentred> next[kRows];
  for (int r = 0; r < (kNext ? 2 : 1) * kRows; ++r) {
    mean[r] = hn::Set(d, kCentred ? a.mean[row + r] : 0.0f);
  }
  for (int r = 0; r < kRows; ++r) {
    rstd[r] = hn::Set(d, a.rstd[row + r]);
    g_mean[r] = hn::Set(d, means[r].g);
    gx_mean[r] = hn::Set(d, means[r].gx);
  }
  for_each_vector(d, a.channels, [&](std::int64_t i, auto access) HWY_ATTR {
    const VF weight = weight_at(a, i, access);
    VF dw = access.load(d, dweight + i);
    VF db = kCentred ? access.load(d, dbias + i) : hn::Zero(d);
    for (int r = 0; r < kRows; ++r) {
      const std::int64_t at = (row + r) * a.channels + i;
      __builtin_prefetch(a.dy + at + read_ahead, 0, 2);
      __builtin_prefetch(a.x + at + read_ahead, 0, 2);
      __builtin_prefetch(a.dx + at + write_ahead, 1, 2);
      const VF dy = access.load(d, a.dy + at);
      VF xhat = access.load(d, a.x + at);
      if constexpr (kCentred) xhat = hn::Sub(xhat, mean[r]);
      xhat = hn::Mul(xhat, rstd[r]);
      dw = hn::MulAdd(dy, xhat, dw);
      VF g = hn::Mul(dy, weight);
      if constexpr (kCentred) {
        db = hn::Add(db, dy);
        g = hn::Sub(g, g_mean[r]);
      }
      g = hn::NegMulAdd(xhat, gx_mean[r], g);
      access.store(hn::Mul(g, rstd[r]), d, a.dx + at);
      if constexpr (kNext) {
        const std::int64_t then = at + kRows * a.channels;
        next[r].add(hn::Mul(access.load(d, a.dy + then), weight), access.load(d, a.x + then),
                    mean[kRows + r]);
      }
    }
    access.store(dw, d, dweight + i);
    if constexpr (kCentred) access.store(db, d, dbias + i);
  });
  if constexpr (kNext) {
    for (int r = 0; r < kRows; ++r) {
      means[r] = next[r].means(a.channels, a.rstd[row + kRows + r]);
    }
  }
}

template <bool kCentred>
HWY_INLINE void backward_block(const NormBackwardArgs& a, std::int64_t begin, std::int64_t end,
                               float* dweight, float* dbias) {
  RowMeans means[2];
  std::int64_t row = begin;
  if (row + 2 <= end) {
    for (int r = 0; r < 2; ++r) means[r] = row_means<kCentred>(a, row + r);
  }
  for (; row + 4 <= end; row += 2) {
    backward_rows<2, kCentred, true>(a, row, end, means, dweight, dbias);
  }
  for (; row + 2 <= end; row += 2) {
    backward_rows<2, kCentred, false>(a, row, end, means, dweight, dbias);
  }
  if (row < end) {
    means[0] = row_means<kCentred>(a, row);
    backward_rows<1, kCentred, false>(a, row, end, means, dweight, dbias);
  }
}

void NormBackwardBlock(const NormBackwardArgs& a, std::int64_t begin, std::int64_t end,
                       float* dweight, float* dbias) {
  std::fill(dweight, dweight + a.channels, 0.0f);
  if (a.mean != nullptr) {
    std::fill(dbias, dbias + a.channels, 0.0f);
    backward_block<true>(a, begin, end, dweight, dbias);
  } else {
    backward_block<false>(a, begin, end, dweight, dbias);
  }
}

void AddPartials(std::int64_t begin, std::int64_t end, std::int64_t blocks, std::int64_t stride,
                 const float* partials, bool accumulate, float* out) {
  const F32 d;
  for_each_vector(d, end - begin, [&](std::int64_t i, auto access) HWY_ATTR {
    VF sum = access.load(d, partials + begin + i);
    for (std::int64_t b = 1; b < blocks; ++b) {
      sum = hn::Add(sum, access.load(d, partials + b * stride + begin + i));
    }
    if (accumulate) sum = hn::Add(sum, access.load(d, out + begin + i));
    access.store(sum, d, out + begin + i);
  });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace capstan::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace capstan::cpu {

HWY_EXPORT(LayerNormRows);
HWY_EXPORT(RmsNormRows);
HWY_EXPORT(NormBackwardBlock);
HWY_EXPORT(AddPartials);

namespace {

constexpr std::int64_t kRowsPerBlock = 64;
constexpr std::int64_t kMaxBlocks = 64;

std::int64_t block_count(const NormParams& p) {
  return std::clamp<std::int64_t>(p.rows / kRowsPerBlock, 1, kMaxBlocks);
}

std::int64_t padded_channels(const NormParams& p) { return (p.channels + 15) / 16 * 16; }

std::int64_t traffic(const NormParams& p, int tensors) {
  return p.rows * p.channels * tensors * static_cast<std::int64_t>(sizeof(float));
}

void backward(const NormParams& p, const NormBackwardArgs& args, float* dweight, float* dbias,
              bool accumulate, void* workspace) {
  const std::int64_t blocks = block_count(p);
  const std::int64_t padded = padded_channels(p);
  const std::int64_t stride = 2 * padded;
  float* partials = static_cast<float*>(workspace);
  parallel_ranges(blocks, 1, traffic(p, 3), [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t b = begin; b < end; ++b) {
      float* part = partials + b * stride;
      HWY_DYNAMIC_DISPATCH(NormBackwardBlock)
      (args, p.rows * b / blocks, p.rows * (b + 1) / blocks, part, part + padded);
    }
  });
  const std::int64_t bytes = blocks * p.channels * 4;
  parallel_ranges(p.channels, 16, bytes, [&](std::int64_t begin, std::int64_t end, int) {
    const auto add = HWY_DYNAMIC_DISPATCH(AddPartials);
    if (dweight != nullptr) add(begin, end, blocks, stride, partials, accumulate, dweight);
    if (dbias != nullptr) add(begin, end, blocks, stride, partials + padded, accumulate, dbias);
  });
}

}  // namespace

void layer_norm_forward(const NormParams& p, const float* x, const float* weight, const float* bias,
                        float* y, float* mean, float* rstd) {
  parallel_ranges(p.rows, 1, traffic(p, 2), [&](std::int64_t begin, std::int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(LayerNormRows)(begin, end, p, x, weight, bias, y, mean, rstd);
  });
}

void rms_norm_forward(const NormParams& p, const float* x, const float* weight, float* y,
                      float* rstd) {
  parallel_ranges(p.rows, 1, traffic(p, 2), [&](std::int64_t begin, std::int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(RmsNormRows)(begin, end, p, x, weight, y, rstd);
  });
}

std::size_t norm_backward_workspace(const NormParams& p) {
  return static_cast<std::size_t>(block_count(p) * 2 * padded_channels(p)) * sizeof(float);
}

void layer_norm_backward(const NormParams& p, const float* dy, const float* x, const float* weight,
                         const float* mean, const float* rstd, float* dx, float* dweight,
                         float* dbias, bool accumulate, void* workspace) {
  backward(p, NormBackwardArgs{p.channels, dy, x, weight, mean, rstd, dx}, dweight, dbias,
           accumulate, workspace);
}

void rms_norm_backward(const NormParams& p, const float* dy, const float* x, const float* weight,
                       const float* rstd, float* dx, float* dweight, bool accumulate,
                       void* workspace) {
  backward(p, NormBackwardArgs{p.channels, dy, x, weight, nullptr, rstd, dx}, dweight, nullptr,
           accumulate, workspace);
}

}  // namespace capstan::cpu
#endif  // HWY_ONCE
