#include "kernels/cpu/linear_cross_entropy.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu/matmul.h"
#include "kernels/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear_cross_entropy.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include "hwy/highway.h"
#include "kernels/cpu/micro_kernel-inl.h"

#ifndef CAPSTAN_KERNELS_CPU_LINEAR_CROSS_ENTROPY_ONCE
#define CAPSTAN_KERNELS_CPU_LINEAR_CROSS_ENTROPY_ONCE
namespace capstan::cpu {

// The maximum of a row of logits and the sum of exponentials relative to it.
struct RowStats {
  float maximum = -std::numeric_limits<float>::infinity();
  double sum = 0.0;
  double lse() const { return maximum + std::log(sum); }
};

}  // namespace capstan::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace capstan::cpu {
namespace HWY_NAMESPACE {
namespace {

float stretch_maximum(const float* x, std::int64_t n) {
  const F32 d;
  const VF lowest = constant(-std::numeric_limits<float>::infinity());
  VF m[4] = {lowest, lowest, lowest, lowest};
  std::int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) m[j] = hn::Max(m[j], hn::LoadU(d, x + i + j * kLanes));
  }
  m[0] = hn::Max(hn::Max(m[0], m[1]), hn::Max(m[2], m[3]));
  float maximum = hn::GetLane(hn::MaxOfLanes(d, m[0]));
  for (; i < n; ++i) maximum = std::max(maximum, x[i]);
  return maximum;
}

// e^(x - top) for x <= top + 88, exactly 0 below top - 87.7.
HWY_INLINE VF relative_exp(VF x, VF top) {
  return exp2_product(hn::Max(constant(-88.0f), hn::Sub(x, top)), constant(kLog2E));
}

float stretch_sum(const float* x, std::int64_t n, float maximum) {
  const F32 d;
  const VF top = constant(maximum);
  VF sum = hn::Zero(d);
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    sum = hn::Add(sum, relative_exp(hn::LoadU(d, x + i), top));
  }
  if (i < n) {
    const std::size_t left = static_cast<std::size_t>(n - i);
    const VF e = relative_exp(TailAccess{left}.load(d, x + i), top);
    sum = hn::Add(sum, hn::IfThenElseZero(hn::FirstN(d, left), e));
  }
  return sum_lanes(sum);
}

// Two passes over stretches that fit the first-level cache: one pass over memory.
RowStats row_stats(const float* x, std::int64_t n) {
  constexpr std::int64_t kStretch = 2048;
  RowStats stats;
  for (std::int64_t i = 0; i < n; i += kStretch) {
    const std::int64_t count = std::min(kStretch, n - i);
    const float maximum = std::max(stats.maximum, stretch_maximum(x + i, count));
    if (stats.sum != 0.0) stats.sum *= std::exp(static_cast<double>(stats.maximum) - maximum);
    stats.maximum = maximum;
    stats.sum += stretch_sum(x + i, count, maximum);
  }
  return stats;
}

// out[i] = factor * e^(x[i] - lse); in place allowed.
void row_softmax(const float* x, std::int64_t n, float lse, float factor, float* out) {
  const F32 d;
  const VF top = constant(lse);
  const VF multiplier = constant(factor);
  for_each_vector(d, n, [&](std::int64_t i, auto access) {
    access.store(hn::Mul(relative_exp(access.load(d, x + i), top), multiplier), d, out + i);
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace capstan::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace capstan::cpu {
namespace {

HWY_EXPORT(row_stats);
HWY_EXPORT(row_softmax);

using Params = LinearCrossEntropyParams;

// Weight rows at hand that are not padding.
std::int64_t valid_rows(const Params& p) {
  if (p.valid_vocab < 0) return p.V;
  return std::clamp<std::int64_t>(p.valid_vocab - p.vocab_start, 0, p.V);
}

// Rows of logits at once. More rows amortise the traffic of the weight and its gradient, which
// every chunk streams, but from 256 on the gain is within the noise (128: 2% slower).
std::int64_t chunk_rows(const Params& p) {
  const std::int64_t rows = p.chunk_rows > 0 ? p.chunk_rows : 256;
  return std::max<std::int64_t>(1, std::min(rows, p.M));
}

// 1 / N times the scale, or 0 where there is nothing to weigh.
float gradient_factor(const float* total_weight, const float* grad_scale) {
  if (*total_weight == 0.0f) return 0.0f;
  return (grad_scale == nullptr ? 1.0f : *grad_scale) / *total_weight;
}

float normalised(double sum, const float* total_weight) {
  return *total_weight != 0.0f ? static_cast<float>(sum / *total_weight) : 0.0f;
}

struct Workspace {
  std::size_t active = 0;  // int32 [M]: rows with a target, ascending
  std::size_t nll = 0;     // double [chunk]
  std::size_t logits = 0;  // float [chunk, V]
  std::size_t h = 0;       // float [chunk, K]: gathered rows
  std::size_t dh = 0;      // float [chunk, K]
  std::size_t bytes = 0;   // the fields above are offsets from the base

  explicit Workspace(const Params& p) {
    const std::int64_t rows = chunk_rows(p);
    active = take(p.M * 4);
    nll = take(rows * 8);
    logits = take(rows * p.V * 4);
    h = take(rows * p.K * 4);
    dh = take(rows * p.K * 4);
  }

 private:
  std::size_t take(std::int64_t count) {
    const std::size_t offset = bytes;
    bytes += (static_cast<std::size_t>(count) + 63) & ~std::size_t{63};
    return offset;
  }
};

// Walks the rows that have a target, a chunk of logits at a time.
class ChunkWalk {
 public:
  // compute: whether next() fills the chunk's logits; else the caller does.
  ChunkWalk(const Params& params, const float* h, const float* weight, const std::int32_t* targets,
            void* workspace, bool compute = true)
      : p_(params),
        h_(h),
        weight_(weight),
        valid_(valid_rows(params)),
        offsets_(params),
        base_(static_cast<char*>(workspace)),
        compute_(compute) {
    std::int32_t* active = part<std::int32_t>(offsets_.active);
    for (std::int64_t row = 0; row < p_.M; ++row) {
      if (targets[row] >= 0) active[count_++] = static_cast<std::int32_t>(row);
    }
  }

  // Goes to the next chunk; false when no rows are left.
  bool next() {
    begin_ += rows_;
    rows_ = std::min(chunk_rows(p_), count_ - begin_);
    if (rows_ <= 0) return false;
    const std::int64_t first = row(0);
    contiguous_ = row(rows_ - 1) - first == rows_ - 1;
    chunk_h_ = h_ + first * p_.K;
    if (!contiguous_) {
      float* gathered = part<float>(offsets_.h);
      for (std::int64_t i = 0; i < rows_; ++i) {
        std::memcpy(gathered + i * p_.K, h_ + row(i) * p_.K, row_bytes());
      }
      chunk_h_ = gathered;
    }
    if (!compute_) return true;
    sgemm(false, true, rows_, valid_, p_.K, 1.0f, chunk_h_, p_.K, weight_, p_.K, 0.0f, logits(0),
          valid_);
    return true;
  }

  // Turns the chunk's gradient of logits (in place of the logits) into dh rows and a dweight share.
  void backward(bool accumulate, float* dh, float* dweight) {
    float* out = contiguous_ ? dh + row(0) * p_.K : part<float>(offsets_.dh);
    sgemm(false, false, rows_, p_.K, valid_, 1.0f, logits(0), valid_, weight_, p_.K, 0.0f, out,
          p_.K);
    if (!contiguous_) {
      for (std::int64_t i = 0; i < rows_; ++i) {
        std::memcpy(dh + row(i) * p_.K, out + i * p_.K, row_bytes());
      }
    }
    sgemm(true, false, valid_, p_.K, rows_, 1.0f, logits(0), valid_, chunk_h_, p_.K,
          accumulate || begin_ > 0 ? 1.0f : 0.0f, dweight, p_.K);
  }

  // What the chunks do not write: ignored rows of dh, padding rows of dweight.
  void zero_untouched(const std::int32_t* targets, bool accumulate, float* dh,
                      float* dweight) const {
    for (std::int64_t i = 0; i < p_.M; ++i) {
      if (targets[i] < 0) std::memset(dh + i * p_.K, 0, row_bytes());
    }
    if (accumulate) return;
    const std::int64_t written = count_ > 0 ? valid_ : 0;
    std::fill(dweight + written * p_.K, dweight + p_.V * p_.K, 0.0f);
  }

  // Calls f(i, row, logits of that row) for the chunk's rows, over the thread pool.
  template <class F>
  void for_rows(F&& f) {
    parallel_ranges(rows_, 1, rows_ * valid_ * 16, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t i = begin; i < end; ++i) f(i, row(i), logits(i));
    });
  }

  std::int64_t rows() const { return rows_; }
  std::int64_t valid() const { return valid_; }
  double* nll() const { return part<double>(offsets_.nll); }

  // Where the target's logit lies in a row, or -1 when it is not at hand.
  std::int64_t target_column(std::int32_t target) const {
    const std::int64_t column = target - p_.vocab_start;
    return column >= 0 && column < valid_ ? column : -1;
  }

 private:
  template <class T>
  T* part(std::size_t offset) const {
    return reinterpret_cast<T*>(base_ + offset);
  }
  std::int64_t row(std::int64_t i) const { return part<std::int32_t>(offsets_.active)[begin_ + i]; }
  float* logits(std::int64_t i) const { return part<float>(offsets_.logits) + i * valid_; }
  std::size_t row_bytes() const { return static_cast<std::size_t>(p_.K) * sizeof(float); }

  const Params p_;
  const float* const h_;
  const float* const weight_;
  const std::int64_t valid_;
  const Workspace offsets_;
  char* const base_;
  const bool compute_;
  std::int64_t count_ = 0;  // rows with a target
  std::int64_t begin_ = 0;  // of the chunk, among those
  std::int64_t rows_ = 0;   // of the chunk
  bool contiguous_ = false;
  const float* chunk_h_ = nullptr;
};

// The target's logit of a row; NaN for a target that is not a word, which must not pass unnoticed.
double target_logit(const float* logits, std::int64_t target) {
  return target >= 0 ? logits[target] : std::numeric_limits<double>::quiet_NaN();
}

// logits -> factor * (softmax - onehot), given the row's log-sum-exp.
void row_gradient(const float* logits, std::int64_t n, std::int64_t target, float lse, float factor,
                  float* out) {
  HWY_DYNAMIC_DISPATCH(row_softmax)(logits, n, lse, factor, out);
  if (target >= 0) out[target] -= factor;
}

double ordered_sum(const double* values, std::int64_t n) {
  double sum = 0.0;
  for (std::int64_t i = 0; i < n; ++i) sum += values[i];
  return sum;
}

}  // namespace

std::size_t linear_cross_entropy_workspace(const LinearCrossEntropyParams& params) {
  return Workspace(params).bytes;
}

void linear_cross_entropy_loss(const LinearCrossEntropyParams& params, const float* h,
                               const float* weight, const std::int32_t* targets,
                               const float* total_weight, float* loss, void* workspace) {
  ChunkWalk walk(params, h, weight, targets, workspace);
  double sum = 0.0;
  while (walk.next()) {
    double* nll = walk.nll();
    walk.for_rows([&](std::int64_t i, std::int64_t row, const float* logits) {
      nll[i] = HWY_DYNAMIC_DISPATCH(row_stats)(logits, walk.valid()).lse() -
               target_logit(logits, walk.target_column(targets[row]));
    });
    sum += ordered_sum(nll, walk.rows());
  }
  *loss = normalised(sum, total_weight);
}

void linear_cross_entropy(const LinearCrossEntropyParams& params, const float* h,
                          const float* weight, const std::int32_t* targets,
                          const float* total_weight, const float* grad_scale, bool accumulate,
                          float* loss, float* dh, float* dweight, void* workspace) {
  const float factor = gradient_factor(total_weight, grad_scale);
  ChunkWalk walk(params, h, weight, targets, workspace);
  walk.zero_untouched(targets, accumulate, dh, dweight);
  double sum = 0.0;
  while (walk.next()) {
    double* nll = walk.nll();
    walk.for_rows([&](std::int64_t i, std::int64_t row, float* logits) {
      const std::int64_t target = walk.target_column(targets[row]);
      const double lse = HWY_DYNAMIC_DISPATCH(row_stats)(logits, walk.valid()).lse();
      nll[i] = lse - target_logit(logits, target);
      row_gradient(logits, walk.valid(), target, static_cast<float>(lse), factor, logits);
    });
    sum += ordered_sum(nll, walk.rows());
    walk.backward(accumulate, dh, dweight);
  }
  *loss = normalised(sum, total_weight);
}

namespace {

// The numbers lce_stats gives of one row.
void put_stats(const Params& p, const float* logits, std::int32_t target, float* out) {
  const std::int64_t valid = valid_rows(p), column = target - p.vocab_start;
  RowStats s;
  if (target >= 0) s = HWY_DYNAMIC_DISPATCH(row_stats)(logits, valid);
  out[0] = s.maximum;
  out[1] = static_cast<float>(s.sum);
  out[2] = target >= 0 && column >= 0 && column < valid ? logits[column] : 0.0f;
  if (p.valid_vocab >= 0 && target >= p.valid_vocab) {
    out[2] = std::numeric_limits<float>::quiet_NaN();
  }
}

}  // namespace

void lce_stats(const LinearCrossEntropyParams& params, const float* h, const float* weight,
               const std::int32_t* targets, float* stats, void* workspace) {
  for (std::int64_t i = 0; i < params.M; ++i) {
    if (targets[i] < 0) put_stats(params, nullptr, targets[i], stats + 3 * i);
  }
  ChunkWalk walk(params, h, weight, targets, workspace);
  while (walk.next()) {
    walk.for_rows([&](std::int64_t, std::int64_t row, const float* logits) {
      put_stats(params, logits, targets[row], stats + 3 * row);
    });
  }
}

void ce_stats(const LinearCrossEntropyParams& params, const float* logits,
              const std::int32_t* targets, float* stats) {
  const std::int64_t work = params.M * params.V * 16;
  parallel_ranges(params.M, 1, work, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t i = begin; i < end; ++i) {
      put_stats(params, logits + i * params.V, targets[i], stats + 3 * i);
    }
  });
}

void lce_merge(std::int64_t R, std::int64_t M, const float* stats, const std::int32_t* targets,
               const float* total_weight, float* loss, float* lse) {
  double sum = 0.0;
  for (std::int64_t i = 0; i < M; ++i) {
    lse[i] = 0.0f;
    if (targets[i] < 0) continue;
    float maximum = -std::numeric_limits<float>::infinity();
    for (std::int64_t r = 0; r < R; ++r) maximum = std::max(maximum, stats[(r * M + i) * 3]);
    double exponentials = 0.0;
    double target_logit = 0.0;
    for (std::int64_t r = 0; r < R; ++r) {
      const float* s = stats + (r * M + i) * 3;
      if (s[1] != 0.0f) exponentials += s[1] * std::exp(static_cast<double>(s[0]) - maximum);
      target_logit += s[2];
    }
    const double row_lse = maximum + std::log(exponentials);
    lse[i] = static_cast<float>(row_lse);
    sum += row_lse - target_logit;
  }
  *loss = normalised(sum, total_weight);
}

void lce_grad(const LinearCrossEntropyParams& params, const float* h, const float* weight,
              const std::int32_t* targets, const float* lse, const float* total_weight,
              const float* grad_scale, const float* logits, bool accumulate, float* dh,
              float* dweight, void* workspace) {
  const float factor = gradient_factor(total_weight, grad_scale);
  ChunkWalk walk(params, h, weight, targets, workspace, logits == nullptr);
  walk.zero_untouched(targets, accumulate, dh, dweight);
  while (walk.next()) {
    walk.for_rows([&](std::int64_t, std::int64_t row, float* chunk) {
      const float* from = logits == nullptr ? chunk : logits + row * params.V;
      row_gradient(from, walk.valid(), walk.target_column(targets[row]), lse[row], factor, chunk);
    });
    walk.backward(accumulate, dh, dweight);
  }
}

namespace {

// A target's column among [0, valid), or -1.
std::int64_t column_of(std::int32_t target, std::int64_t valid) {
  return target < valid ? target : -1;
}

std::int64_t valid_columns(const CrossEntropyParams& p) {
  return p.valid_vocab < 0 ? p.V : std::min(p.V, p.valid_vocab);
}

}  // namespace

void cross_entropy_forward(const CrossEntropyParams& params, const float* logits,
                           const std::int32_t* targets, const float* total_weight, float* loss,
                           float* lse) {
  const std::int64_t V = params.V;
  const std::int64_t valid = valid_columns(params);
  parallel_ranges(params.M, 1, params.M * V * 16, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t i = begin; i < end; ++i) {
      lse[i] = 0.0f;
      if (targets[i] < 0) continue;
      lse[i] = static_cast<float>(HWY_DYNAMIC_DISPATCH(row_stats)(logits + i * V, valid).lse());
    }
  });
  double sum = 0.0;
  for (std::int64_t i = 0; i < params.M; ++i) {
    if (targets[i] < 0) continue;
    sum += lse[i] - target_logit(logits + i * V, column_of(targets[i], valid));
  }
  *loss = normalised(sum, total_weight);
}

void cross_entropy_backward(const CrossEntropyParams& params, const float* logits,
                            const std::int32_t* targets, const float* lse,
                            const float* total_weight, const float* grad_scale, float* dlogits) {
  const std::int64_t V = params.V;
  const std::int64_t valid = valid_columns(params);
  const float factor = gradient_factor(total_weight, grad_scale);
  parallel_ranges(params.M, 1, params.M * V * 16, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t i = begin; i < end; ++i) {
      float* out = dlogits + i * V;
      std::int64_t written = 0;
      if (targets[i] >= 0) {
        row_gradient(logits + i * V, valid, column_of(targets[i], valid), lse[i], factor, out);
        written = valid;
      }
      std::fill(out + written, out + V, 0.0f);
    }
  });
}

}  // namespace capstan::cpu
#endif  // HWY_ONCE
