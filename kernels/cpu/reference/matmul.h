// Matrix products as plain loops: the oracle of kernels/cpu/matmul.h.
//
// T is float or double. All matrices are dense and row-major.
#ifndef CAPSTAN_KERNELS_CPU_REFERENCE_MATMUL_H_
#define CAPSTAN_KERNELS_CPU_REFERENCE_MATMUL_H_

#include <cmath>
#include <cstdint>

namespace capstan::reference {

// c[M,N] (+)= alpha * op(a) op(b), where op(a) is [M,K] and op(b) is [K,N].
template <typename T>
void matmul(std::int64_t M, std::int64_t N, std::int64_t K, bool transpose_a, bool transpose_b,
            T alpha, const T* a, const T* b, bool accumulate, T* c) {
  for (std::int64_t i = 0; i < M; ++i) {
    for (std::int64_t j = 0; j < N; ++j) {
      T sum = 0;
      for (std::int64_t k = 0; k < K; ++k) {
        const T av = transpose_a ? a[k * M + i] : a[i * K + k];
        const T bv = transpose_b ? b[j * K + k] : b[k * N + j];
        sum += av * bv;
      }
      c[i * N + j] = (accumulate ? c[i * N + j] : T(0)) + alpha * sum;
    }
  }
}

// y[M,N] = x[M,K] weight[N,K]^T + bias[N]; bias may be null.
template <typename T>
void linear(std::int64_t M, std::int64_t N, std::int64_t K, const T* x, const T* weight,
            const T* bias, T* y) {
  matmul<T>(M, N, K, false, true, T(1), x, weight, false, y);
  if (bias == nullptr) return;
  for (std::int64_t i = 0; i < M; ++i) {
    for (std::int64_t j = 0; j < N; ++j) y[i * N + j] += bias[j];
  }
}

// dx[M,K] (+)= dy[M,N] weight[N,K].
template <typename T>
void linear_dx(std::int64_t M, std::int64_t N, std::int64_t K, const T* dy, const T* weight,
               bool accumulate, T* dx) {
  matmul<T>(M, K, N, false, false, T(1), dy, weight, accumulate, dx);
}

// dweight[N,K] (+)= dy[M,N]^T x[M,K]; dbias[N] (+)= the column sums of dy; dbias may be null.
template <typename T>
void linear_dw(std::int64_t M, std::int64_t N, std::int64_t K, const T* x, const T* dy,
               bool accumulate, T* dweight, T* dbias) {
  matmul<T>(N, K, M, true, false, T(1), dy, x, accumulate, dweight);
  if (dbias == nullptr) return;
  for (std::int64_t j = 0; j < N; ++j) {
    T sum = 0;
    for (std::int64_t i = 0; i < M; ++i) sum += dy[i * N + j];
    dbias[j] = (accumulate ? dbias[j] : T(0)) + sum;
  }
}

// The tanh form of GELU (Hendrycks and Gimpel 2016).
template <typename T>
T gelu_tanh(T x) {
  const T kSqrt2OverPi = T(0.79788456080286535588);
  return T(0.5) * x * (T(1) + std::tanh(kSqrt2OverPi * (x + T(0.044715) * x * x * x)));
}

// pre[M,N] = x weight^T + bias; y = gelu_tanh(pre). bias may be null.
template <typename T>
void linear_gelu(std::int64_t M, std::int64_t N, std::int64_t K, const T* x, const T* weight,
                 const T* bias, T* pre, T* y) {
  linear<T>(M, N, K, x, weight, bias, pre);
  for (std::int64_t i = 0; i < M * N; ++i) y[i] = gelu_tanh(pre[i]);
}

}  // namespace capstan::reference

#endif  // CAPSTAN_KERNELS_CPU_REFERENCE_MATMUL_H_
