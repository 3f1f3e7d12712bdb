#include "kernels/cpu/matmul.h"

#include <dnnl.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "kernels/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/matmul.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include "hwy/highway.h"
#include "kernels/cpu/micro_kernel-inl.h"

#ifndef CAPSTAN_KERNELS_CPU_MATMUL_ONCE
#define CAPSTAN_KERNELS_CPU_MATMUL_ONCE
namespace capstan::cpu {

// With 1 or 4 rows a product streams the weight once, at memory bandwidth, on our own path. oneDNN
// does so by itself with 2 or 3 rows (and is as fast with 1), but from 4 on it packs the weight;
// from 5 on its arithmetic has caught up.
inline bool streams_weight(std::int64_t M) { return M == 1 || M == 4; }

// A linear layer of 1 or 4 rows.
struct FewRows {
  LinearShape shape;
  const float* x = nullptr;
  const float* weight = nullptr;
  const float* bias = nullptr;
  float* y = nullptr;
};

// What follows a product: pre [M, N] += bias, then y = gelu_tanh(pre).
struct Epilogue {
  std::int64_t N = 0;
  const float* bias = nullptr;  // null: none
  float* pre = nullptr;
  float* y = nullptr;  // null: no GELU
};

}  // namespace capstan::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace capstan::cpu {
namespace HWY_NAMESPACE {
namespace {

// ---- a few rows
// ----------------------------------------------------------------------------------

// y[m, n + r] for m in [0, M) and r in [0, R): R rows of the weight at once.
template <int M, int R>
HWY_INLINE void few_dots(const FewRows& t, std::int64_t n) {
  const F32 d;
  const std::int64_t K = t.shape.K;
  VF acc[M][R];
#pragma GCC unroll 4
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) acc[m][r] = hn::Zero(d);
  }
  const float* w = t.weight + n * K;
  for_each_vector(d, K, [&](std::int64_t i, auto access) {
    VF row[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) row[r] = access.load(d, w + r * K + i);
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) {
      const VF x = access.load(d, t.x + m * K + i);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) acc[m][r] = hn::MulAdd(x, row[r], acc[m][r]);
    }
  });
  for (int m = 0; m < M; ++m) {
    float sums[R];
    if constexpr (R == 4) {
      sum_four(acc[m], sums);
    } else {
      for (int r = 0; r < R; ++r) sums[r] = sum_lanes(acc[m][r]);
    }
    float* y = t.y + m * t.shape.N + n;
    for (int r = 0; r < R; ++r) y[r] = sums[r] + (t.bias == nullptr ? 0.0f : t.bias[n + r]);
  }
}

template <int M>
void few_rows_linear(const FewRows& t, std::int64_t begin, std::int64_t end) {
  std::int64_t n = begin;
  for (; n + 4 <= end; n += 4) few_dots<M, 4>(t, n);
  for (; n < end; ++n) few_dots<M, 1>(t, n);
}

void few_rows(const FewRows& t, std::int64_t begin, std::int64_t end) {
  if (t.shape.M == 1) return few_rows_linear<1>(t, begin, end);
  few_rows_linear<4>(t, begin, end);
}

// ---- epilogues
// -----------------------------------------------------------------------------------

void epilogue_row(const Epilogue& t, std::int64_t row, std::int64_t begin, std::int64_t end) {
  const F32 d;
  float* pre = t.pre + row * t.N + begin;
  float* y = t.y == nullptr ? nullptr : t.y + row * t.N + begin;
  const float* bias = t.bias == nullptr ? nullptr : t.bias + begin;
  for_each_vector(d, end - begin, [&](std::int64_t i, auto access) {
    VF x = access.load(d, pre + i);
    if (bias != nullptr) {
      x = hn::Add(x, access.load(d, bias + i));
      access.store(x, d, pre + i);
    }
    if (y != nullptr) access.store(vgelu_tanh(x), d, y + i);
  });
}

// ---- bias gradient
// -------------------------------------------------------------------------------

// out[j] (+)= sum over i of dy[i, j], j in [begin, end). Short runs of rows are summed in float and
// the runs in double, which keeps the rounding error far below that of one long sum.
void column_sums(const float* dy, std::int64_t M, std::int64_t N, std::int64_t begin,
                 std::int64_t end, bool accumulate, float* out) {
  constexpr std::int64_t kRun = 128;
  constexpr std::int64_t kColumns = 512;
  const F32 d;
  double total[kColumns];
  HWY_ALIGN float run[kColumns];
  for (std::int64_t j0 = begin; j0 < end; j0 += kColumns) {
    const std::int64_t width = std::min(kColumns, end - j0);
    std::fill_n(total, width, 0.0);
    for (std::int64_t i0 = 0; i0 < M; i0 += kRun) {
      std::fill_n(run, width, 0.0f);
      for (std::int64_t i = i0; i < std::min(M, i0 + kRun); ++i) {
        const float* row = dy + i * N + j0;
        for_each_vector(d, width, [&](std::int64_t j, auto access) {
          hn::Store(hn::Add(hn::Load(d, run + j), access.load(d, row + j)), d, run + j);
        });
      }
      for (std::int64_t j = 0; j < width; ++j) total[j] += run[j];
    }
    for (std::int64_t j = 0; j < width; ++j) {
      out[j0 + j] = static_cast<float>((accumulate ? out[j0 + j] : 0.0) + total[j]);
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace capstan::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace capstan::cpu {
namespace {

HWY_EXPORT(few_rows);
HWY_EXPORT(epilogue_row);
HWY_EXPORT(column_sums);

void run_epilogue(const Epilogue& t, std::int64_t rows) {
  // Columns are cut too, so that a decode step's single row uses every thread.
  constexpr std::int64_t kColumns = 1024;
  const std::int64_t pieces = (t.N + kColumns - 1) / kColumns;
  parallel_ranges(rows * pieces, 1, rows * t.N * 12,
                  [&](std::int64_t begin, std::int64_t end, int) {
                    for (std::int64_t i = begin; i < end; ++i) {
                      const std::int64_t column = i % pieces * kColumns;
                      HWY_DYNAMIC_DISPATCH(epilogue_row)
                      (t, i / pieces, column, std::min(t.N, column + kColumns));
                    }
                  });
}

void linear_few_rows(const LinearShape& shape, const float* x, const float* weight,
                     const float* bias, float* y) {
  const FewRows t{shape, x, weight, bias, y};
  parallel_ranges(shape.N, 4, shape.N * shape.K * 4,
                  [&](std::int64_t begin, std::int64_t end, int) {
                    HWY_DYNAMIC_DISPATCH(few_rows)(t, begin, end);
                  });
}

// The shared body of linear and linear_gelu: the product, then bias and GELU in one pass over it.
// (Running both on row panels that stay in the last-level cache is slower: packing the weight anew
// for each panel of 1024 rows costs 2-4% at GPT-2's sizes, the pass over memory 1-3%.)
void linear_large(const LinearShape& s, const float* x, const float* weight,
                  const Epilogue& epilogue) {
  sgemm(false, true, s.M, s.N, s.K, 1.0f, x, s.K, weight, s.K, 0.0f, epilogue.pre, s.N);
  if (epilogue.bias != nullptr || epilogue.y != nullptr) run_epilogue(epilogue, s.M);
}

dnnl_status_t raw_sgemm(bool transpose_a, bool transpose_b, std::int64_t M, std::int64_t N,
                        std::int64_t K, float alpha, const float* a, std::int64_t lda,
                        const float* b, std::int64_t ldb, float beta, float* c, std::int64_t ldc) {
  return dnnl_sgemm(transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N', M, N, K, alpha, a, lda, b,
                    ldb, beta, c, ldc);
}

void check(dnnl_status_t status) {
  if (status == dnnl_success) return;
  throw std::runtime_error("oneDNN sgemm failed with status " + std::to_string(status) +
                           (status == dnnl_out_of_memory ? " (out of memory)" : ""));
}

// With no depth the product is 0: oneDNN refuses such sizes.
void scale_output(std::int64_t M, std::int64_t N, float beta, float* c, std::int64_t ldc) {
  for (std::int64_t i = 0; i < M; ++i) {
    for (std::int64_t j = 0; j < N; ++j)
      c[i * ldc + j] = beta == 0.0f ? 0.0f : beta * c[i * ldc + j];
  }
}

// How many threads share the rows of a product, and how many its columns.
struct Grid {
  std::int64_t rows = 1, columns = 1;
};

// Each thread packs its rows of A and its columns of B for itself: the grid with the least to pack.
// Rows and columns come to the micro-kernel in blocks, so parts are whole blocks and not too few. A
// single thread: leave it to oneDNN.
constexpr std::int64_t kRowBlock = 8, kColumnBlock = 48, kLeastBlocks = 8;
constexpr std::int64_t kLeastPerThread = 8 << 20;  // multiplications

Grid grid_of(std::int64_t M, std::int64_t N, std::int64_t K, std::int64_t threads) {
  Grid best;
  if (threads <= 1 || omp_in_parallel() || M * N / threads * K < kLeastPerThread) return best;
  std::int64_t least = 0;
  for (std::int64_t rows = 1; rows <= threads; ++rows) {
    if (threads % rows != 0) continue;
    const std::int64_t columns = threads / rows;
    if (M < rows * kRowBlock * kLeastBlocks || N < columns * kColumnBlock * kLeastBlocks) continue;
    const std::int64_t packed = M / rows + N / columns;
    if (best.rows * best.columns > 1 && packed >= least) continue;
    best = {rows, columns};
    least = packed;
  }
  return best;
}

// The border before part i of n.
std::int64_t border(std::int64_t count, std::int64_t i, std::int64_t n, std::int64_t block) {
  return i == n ? count : std::min(count, count / block * i / n * block);
}

}  // namespace

void sgemm(bool transpose_a, bool transpose_b, std::int64_t M, std::int64_t N, std::int64_t K,
           float alpha, const float* a, std::int64_t lda, const float* b, std::int64_t ldb,
           float beta, float* c, std::int64_t ldc) {
  if (M == 0 || N == 0) return;
  if (K == 0) return scale_output(M, N, beta, c, ldc);
  const Grid grid = grid_of(M, N, K, omp_get_max_threads());
  const std::int64_t parts = grid.rows * grid.columns;
  if (parts == 1) {
    return check(raw_sgemm(transpose_a, transpose_b, M, N, K, alpha, a, lda, b, ldb, beta, c, ldc));
  }
  // oneDNN's own division loses 1 to 10% at a language model's sizes. Inside the region it keeps to one
  // thread.
  int failed = dnnl_success;
#pragma omp parallel for schedule(static) reduction(max : failed)
  for (std::int64_t part = 0; part < parts; ++part) {
    const std::int64_t r = part / grid.columns, s = part % grid.columns;
    const std::int64_t row = border(M, r, grid.rows, kRowBlock);
    const std::int64_t rows = border(M, r + 1, grid.rows, kRowBlock) - row;
    const std::int64_t column = border(N, s, grid.columns, kColumnBlock);
    const std::int64_t columns = border(N, s + 1, grid.columns, kColumnBlock) - column;
    const int status = raw_sgemm(
        transpose_a, transpose_b, rows, columns, K, alpha, a + row * (transpose_a ? 1 : lda), lda,
        b + column * (transpose_b ? ldb : 1), ldb, beta, c + row * ldc + column, ldc);
    failed = std::max(failed, status);
  }
  check(static_cast<dnnl_status_t>(failed));
}

void linear(const LinearShape& shape, const float* x, const float* weight, const float* bias,
            float* y) {
  if (shape.M == 0 || shape.N == 0) return;
  if (streams_weight(shape.M)) return linear_few_rows(shape, x, weight, bias, y);
  linear_large(shape, x, weight, Epilogue{shape.N, bias, y, nullptr});
}

void linear_gelu(const LinearShape& shape, const float* x, const float* weight, const float* bias,
                 float* pre, float* y) {
  if (shape.M == 0 || shape.N == 0) return;
  if (streams_weight(shape.M)) {
    linear_few_rows(shape, x, weight, bias, pre);
    return run_epilogue(Epilogue{shape.N, nullptr, pre, y}, shape.M);
  }
  linear_large(shape, x, weight, Epilogue{shape.N, bias, pre, y});
}

void linear_dx(const LinearShape& shape, const float* dy, const float* weight, bool accumulate,
               float* dx) {
  sgemm(false, false, shape.M, shape.K, shape.N, 1.0f, dy, shape.N, weight, shape.K,
        accumulate ? 1.0f : 0.0f, dx, shape.K);
}

void linear_dw(const LinearShape& shape, const float* x, const float* dy, bool accumulate,
               float* dweight, float* dbias) {
  sgemm(true, false, shape.N, shape.K, shape.M, 1.0f, dy, shape.N, x, shape.K,
        accumulate ? 1.0f : 0.0f, dweight, shape.K);
  if (dbias == nullptr) return;
  parallel_ranges(shape.N, 64, shape.M * shape.N * 4,
                  [&](std::int64_t begin, std::int64_t end, int) {
                    HWY_DYNAMIC_DISPATCH(column_sums)
                    (dy, shape.M, shape.N, begin, end, accumulate, dbias);
                  });
}

void matmul(const MatmulParams& params, const float* a, const float* b, float* c) {
  const MatmulParams& p = params;
  if (p.batch == 0 || p.M == 0 || p.N == 0) return;
  const std::int64_t lda = p.transpose_a ? p.M : p.K;
  const std::int64_t ldb = p.transpose_b ? p.K : p.N;
  const float beta = p.accumulate ? 1.0f : 0.0f;
  // Enough items to go round: a thread an item. Inside the region sgemm keeps to one thread.
  if (p.batch >= omp_get_max_threads() && p.batch > 1 && p.K > 0) {
    int failed = dnnl_success;
#pragma omp parallel for schedule(static) reduction(max : failed)
    for (std::int64_t i = 0; i < p.batch; ++i) {
      const int status =
          raw_sgemm(p.transpose_a, p.transpose_b, p.M, p.N, p.K, p.alpha, a + i * p.stride_a, lda,
                    b + i * p.stride_b, ldb, beta, c + i * p.stride_c, p.N);
      failed = std::max(failed, status);
    }
    return check(static_cast<dnnl_status_t>(failed));
  }
  for (std::int64_t i = 0; i < p.batch; ++i) {
    sgemm(p.transpose_a, p.transpose_b, p.M, p.N, p.K, p.alpha, a + i * p.stride_a, lda,
          b + i * p.stride_b, ldb, beta, c + i * p.stride_c, p.N);
  }
}

}  // namespace capstan::cpu
#endif  // HWY_ONCE
