// Matrix products: linear layers with their gradients, and a general batched product.
//
// All tensors are dense, row-major float32 in caller-owned memory; outputs never alias inputs.
// Products run on oneDNN's sgemm (which may allocate its own packing buffers), or, with the few
// rows of decoding, on a path of our own where that is faster. Every function uses up to
// omp_get_max_threads() OpenMP threads, must not be called from inside a parallel region, and is
// deterministic for a fixed thread count. Throws std::runtime_error if oneDNN fails (out of
// memory); a zero-sized dimension is fine.
#ifndef CAPSTAN_KERNELS_CPU_MATMUL_H_
#define CAPSTAN_KERNELS_CPU_MATMUL_H_

#include <cstdint>

namespace capstan::cpu {

// The sizes of a linear layer: M rows (tokens), N output and K input features.
struct LinearShape {
  std::int64_t M = 0;
  std::int64_t N = 0;
  std::int64_t K = 0;
};

// y[M,N] = x[M,K] weight[N,K]^T + bias[N]. `bias` may be null.
void linear(const LinearShape& shape, const float* x, const float* weight, const float* bias,
            float* y);

// pre[M,N] = x[M,K] weight[N,K]^T + bias[N]; y[M,N] = gelu_tanh(pre). `bias` may be null. The
// pre-activation is what the backward pass of GELU reads.
void linear_gelu(const LinearShape& shape, const float* x, const float* weight, const float* bias,
                 float* pre, float* y);

// dx[M,K] = dy[M,N] weight[N,K], or added to dx when `accumulate`.
void linear_dx(const LinearShape& shape, const float* dy, const float* weight, bool accumulate,
               float* dx);

// dweight[N,K] = dy[M,N]^T x[M,K] and dbias[N] = column sums of dy, or added to what is there when
// `accumulate`. `dbias` may be null.
void linear_dw(const LinearShape& shape, const float* x, const float* dy, bool accumulate,
               float* dweight, float* dbias);

// c_i[M,N] = alpha op(a_i) op(b_i) for i in [0, batch), added to c_i when `accumulate`.
// op(a_i) is [M,K]: a_i is stored [M,K], or [K,M] when `transpose_a`; likewise op(b_i) is [K,N].
// A stride is the distance in elements between batch items; 0 shares one matrix across the batch
// (not allowed for c when batch > 1).
struct MatmulParams {
  std::int64_t batch = 1;
  std::int64_t M = 0;
  std::int64_t N = 0;
  std::int64_t K = 0;
  bool transpose_a = false;
  bool transpose_b = false;
  std::int64_t stride_a = 0;
  std::int64_t stride_b = 0;
  std::int64_t stride_c = 0;
  float alpha = 1.0f;
  bool accumulate = false;
};

void matmul(const MatmulParams& params, const float* a, const float* b, float* c);

// row-major c[M,N] = alpha op(a) op(b) + beta c with leading dimensions (elements between rows of
// the stored matrices). A thin layer over oneDNN for kernels that work on parts of matrices.
void sgemm(bool transpose_a, bool transpose_b, std::int64_t M, std::int64_t N, std::int64_t K,
           float alpha, const float* a, std::int64_t lda, const float* b, std::int64_t ldb,
           float beta, float* c, std::int64_t ldc);

}  // namespace capstan::cpu

#endif  // CAPSTAN_KERNELS_CPU_MATMUL_H_
