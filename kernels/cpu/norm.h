// Layer normalisation (Ba, Kiros and Hinton 2016) and RMS normalisation (Zhang and Sennrich 2019).
//
// All tensors are dense row-major float32. Threads: the OpenMP pool. Results do not depend on the
// thread count.
#ifndef CAPSTAN_KERNELS_CPU_NORM_H_
#define CAPSTAN_KERNELS_CPU_NORM_H_

#include <cstddef>
#include <cstdint>

namespace capstan::cpu {

struct NormParams {
  std::int64_t rows = 0;      // M: every leading dim
  std::int64_t channels = 0;  // C: the normalised dim
  float eps = 1e-5f;          // added to the variance (or mean square); unused by backward
};

// y = (x - mean) * rstd * weight + bias, rstd = 1 / sqrt(variance + eps), biased variance.
// x, y [M, C]; weight, bias [C] (either may be null: 1 and 0); mean, rstd [M] (may be null when no
// backward follows). y may be x.
void layer_norm_forward(const NormParams& p, const float* x, const float* weight, const float* bias,
                        float* y, float* mean, float* rstd);

// Bytes of workspace of layer_norm_backward and rms_norm_backward, 64-byte aligned by the caller.
std::size_t norm_backward_workspace(const NormParams& p);

// dx [M, C] (may be dy or x); dweight, dbias [C], each null where not wanted, accumulated where
// `accumulate`. weight may be null (1). Workspace: norm_backward_workspace bytes.
void layer_norm_backward(const NormParams& p, const float* dy, const float* x, const float* weight,
                         const float* mean, const float* rstd, float* dx, float* dweight,
                         float* dbias, bool accumulate, void* workspace);

// y = x * rstd * weight, rstd = 1 / sqrt(mean(x^2) + eps). x, y [M, C]; weight [C]; rstd [M] (may
// be null when no backward follows). y may be x.
void rms_norm_forward(const NormParams& p, const float* x, const float* weight, float* y,
                      float* rstd);

// dx [M, C] (may be dy or x); dweight [C] (null where not wanted), accumulated where `accumulate`.
// Workspace: norm_backward_workspace bytes.
void rms_norm_backward(const NormParams& p, const float* dy, const float* x, const float* weight,
                       const float* rstd, float* dx, float* dweight, bool accumulate,
                       void* workspace);

}  // namespace capstan::cpu

#endif  // CAPSTAN_KERNELS_CPU_NORM_H_
