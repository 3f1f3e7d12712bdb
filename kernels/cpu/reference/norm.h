// Normalisation, one row at a time: the oracle of kernels/cpu/norm.h.
#ifndef CAPSTAN_KERNELS_CPU_REFERENCE_NORM_H_
#define CAPSTAN_KERNELS_CPU_REFERENCE_NORM_H_

#include <cmath>
#include <cstdint>

namespace capstan::reference {

template <class T>
void layer_norm_forward(std::int64_t rows, std::int64_t channels, T eps, const T* x,
                        const T* weight, const T* bias, T* y, T* mean, T* rstd) {
  for (std::int64_t r = 0; r < rows; ++r) {
    T sum = 0, square = 0;
    for (std::int64_t c = 0; c < channels; ++c) sum += x[r * channels + c];
    mean[r] = sum / T(channels);
    for (std::int64_t c = 0; c < channels; ++c) {
      const T d = x[r * channels + c] - mean[r];
      square += d * d;
    }
    rstd[r] = T(1) / std::sqrt(square / T(channels) + eps);
    for (std::int64_t c = 0; c < channels; ++c) {
      y[r * channels + c] = (x[r * channels + c] - mean[r]) * rstd[r] * weight[c] + bias[c];
    }
  }
}

// Adds to dweight and dbias.
template <class T>
void layer_norm_backward(std::int64_t rows, std::int64_t channels, const T* dy, const T* x,
                         const T* weight, const T* mean, const T* rstd, T* dx, T* dweight,
                         T* dbias) {
  for (std::int64_t r = 0; r < rows; ++r) {
    T g_mean = 0, gx_mean = 0;
    for (std::int64_t c = 0; c < channels; ++c) {
      const std::int64_t i = r * channels + c;
      const T xhat = (x[i] - mean[r]) * rstd[r];
      g_mean += dy[i] * weight[c] / T(channels);
      gx_mean += dy[i] * weight[c] * xhat / T(channels);
      dweight[c] += dy[i] * xhat;
      dbias[c] += dy[i];
    }
    for (std::int64_t c = 0; c < channels; ++c) {
      const std::int64_t i = r * channels + c;
      const T xhat = (x[i] - mean[r]) * rstd[r];
      dx[i] = rstd[r] * (dy[i] * weight[c] - g_mean - xhat * gx_mean);
    }
  }
}

template <class T>
void rms_norm_forward(std::int64_t rows, std::int64_t channels, T eps, const T* x, const T* weight,
                      T* y, T* rstd) {
  for (std::int64_t r = 0; r < rows; ++r) {
    T square = 0;
    for (std::int64_t c = 0; c < channels; ++c) square += x[r * channels + c] * x[r * channels + c];
    rstd[r] = T(1) / std::sqrt(square / T(channels) + eps);
    for (std::int64_t c = 0; c < channels; ++c) {
      y[r * channels + c] = x[r * channels + c] * rstd[r] * weight[c];
    }
  }
}

// Adds to dweight.
template <class T>
void rms_norm_backward(std::int64_t rows, std::int64_t channels, const T* dy, const T* x,
                       const T* weight, const T* rstd, T* dx, T* dweight) {
  for (std::int64_t r = 0; r < rows; ++r) {
    T gx_mean = 0;
    for (std::int64_t c = 0; c < channels; ++c) {
      const std::int64_t i = r * channels + c;
      gx_mean += dy[i] * weight[c] * x[i] * rstd[r] / T(channels);
      dweight[c] += dy[i] * x[i] * rstd[r];
    }
    for (std::int64_t c = 0; c < channels; ++c) {
      const std::int64_t i = r * channels + c;
      dx[i] = rstd[r] * (dy[i] * weight[c] - x[i] * rstd[r] * gx_mean);
    }
  }
}

}  // namespace capstan::reference

#endif  // CAPSTAN_KERNELS_CPU_REFERENCE_NORM_H_
