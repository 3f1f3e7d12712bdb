#include "kernels/cpu/optimizer.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/optimizer.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd_math-inl.h"

// Coefficients of one step, worked out in double and rounded once.
#ifndef CAPSTAN_KERNELS_CPU_OPTIMIZER_ARGS_
#define CAPSTAN_KERNELS_CPU_OPTIMIZER_ARGS_
namespace capstan::cpu {
struct AdamwStep {
  float grad_scale;
  float decay;         // 1 - lr * weight_decay
  float beta1, rest1;  // beta1, 1 - beta1
  float beta2, rest2;
  float rate;        // lr / (1 - beta1^step)
  float root_scale;  // 1 / sqrt(1 - beta2^step)
  float eps;
};
struct SgdStep {
  float grad_scale;
  float weight_decay;
  float momentum;
  float lr;
  bool nesterov;
};
}  // namespace capstan::cpu
#endif  // CAPSTAN_KERNELS_CPU_OPTIMIZER_ARGS_

HWY_BEFORE_NAMESPACE();
namespace capstan::cpu {
namespace HWY_NAMESPACE {

void AdamwRange(const AdamwStep& s, std::int64_t n, const float* grad, float* param, float* m,
                float* v) {
  const F32 d;
  for_each_vector(d, n, [&](std::int64_t i, auto access) HWY_ATTR {
    const VF g = hn::Mul(access.load(d, grad + i), constant(s.grad_scale));
    const VF m1 =
        hn::MulAdd(access.load(d, m + i), constant(s.beta1), hn::Mul(g, constant(s.rest1)));
    const VF v1 = hn::MulAdd(access.load(d, v + i), constant(s.beta2),
                             hn::Mul(hn::Mul(g, g), constant(s.rest2)));
    const VF root = hn::MulAdd(hn::Sqrt(v1), constant(s.root_scale), constant(s.eps));
    const VF update = hn::Div(hn::Mul(m1, constant(s.rate)), root);
    const VF decayed = hn::Mul(access.load(d, param + i), constant(s.decay));
    access.store(m1, d, m + i);
    access.store(v1, d, v + i);
    access.store(hn::Sub(decayed, update), d, param + i);
  });
}

void SgdRange(const SgdStep& s, std::int64_t n, const float* grad, float* param, float* buffer) {
  const F32 d;
  for_each_vector(d, n, [&](std::int64_t i, auto access) HWY_ATTR {
    const VF old = access.load(d, param + i);
    const VF scaled = hn::Mul(access.load(d, grad + i), constant(s.grad_scale));
    const VF g = hn::MulAdd(old, constant(s.weight_decay), scaled);
    VF direction = g;
    if (buffer != nullptr) {
      const VF b = hn::MulAdd(access.load(d, buffer + i), constant(s.momentum), g);
      access.store(b, d, buffer + i);
      direction = s.nesterov ? hn::MulAdd(b, constant(s.momentum), g) : b;
    }
    access.store(hn::NegMulAdd(direction, constant(s.lr), old), d, param + i);
  });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace capstan::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace capstan::cpu {

HWY_EXPORT(AdamwRange);
HWY_EXPORT(SgdRange);

void adamw(const AdamwParams& p, std::int64_t n, const float* lr, const std::int64_t* step,
           const float* grad_scale, const float* grad, float* param, float* m, float* v) {
  const double t = static_cast<double>(*step);
  AdamwStep s;
  s.grad_scale = *grad_scale;
  s.decay = static_cast<float>(1.0 - *lr * p.weight_decay);
  s.beta1 = static_cast<float>(p.beta1);
  s.rest1 = static_cast<float>(1.0 - p.beta1);
  s.beta2 = static_cast<float>(p.beta2);
  s.rest2 = static_cast<float>(1.0 - p.beta2);
  s.rate = static_cast<float>(*lr / (1.0 - std::pow(p.beta1, t)));
  s.root_scale = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(p.beta2, t)));
  s.eps = static_cast<float>(p.eps);
  parallel_ranges(n, 16, n * 28, [&](std::int64_t begin, std::int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(AdamwRange)
    (s, end - begin, grad + begin, param + begin, m + begin, v + begin);
  });
}

void sgd(const SgdParams& p, std::int64_t n, const float* lr, const float* grad_scale,
         const float* grad, float* param, float* buffer) {
  const SgdStep s{*grad_scale, static_cast<float>(p.weight_decay), static_cast<float>(p.momentum),
                  *lr, p.nesterov};
  parallel_ranges(n, 16, n * 20, [&](std::int64_t begin, std::int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(SgdRange)
    (s, end - begin, grad + begin, param + begin, buffer != nullptr ? buffer + begin : nullptr);
  });
}

}  // namespace capstan::cpu
#endif  // HWY_ONCE
