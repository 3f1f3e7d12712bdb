// Splits attention into tasks over the OpenMP pool. The arithmetic is in attention_forward.cc and
// attention_backward.cc.
#include "kernels/cpu/attention.h"

#include <omp.h>

#include <algorithm>
#include <cstring>

#include "kernels/cpu/attention_task.h"

namespace capstan::cpu {
namespace {

float* offset_bytes(void* base, std::size_t bytes) {
  return reinterpret_cast<float*>(static_cast<char*>(base) + bytes);
}

std::size_t align64(std::size_t bytes) { return (bytes + 63) & ~std::size_t{63}; }

std::size_t forward_scratch(const AttentionParams& p) {
  return attention_forward_scratch(p.S, p.D, p.dropout.p > 0.0f);
}

std::size_t backward_scratch(const AttentionParams& p) {
  return attention_backward_scratch(p.S, p.D, p.dropout.p > 0.0f);
}

// Bytes of one split's share of dk (and of dv).
std::size_t share_bytes(const AttentionParams& p) {
  return align64(static_cast<std::size_t>(p.B * p.S * p.G * p.D) * sizeof(float));
}

// out[i] = the sum of `splits` shares, in order.
void add_shares(const float* shares, std::size_t stride, std::int64_t splits, std::int64_t count,
                float* out) {
#pragma omp parallel for schedule(static)
  for (std::int64_t block = 0; block < count; block += 4096) {
    const std::int64_t end = std::min(count, block + 4096);
    std::memcpy(out + block, shares + block, static_cast<std::size_t>(end - block) * sizeof(float));
    for (std::int64_t s = 1; s < splits; ++s) {
      const float* share = shares + static_cast<std::size_t>(s) * stride;
      for (std::int64_t i = block; i < end; ++i) out[i] += share[i];
    }
  }
}

}  // namespace

std::size_t attention_forward_workspace(const AttentionParams& params) {
  return forward_scratch(params) * static_cast<std::size_t>(omp_get_max_threads());
}

void attention_forward(const AttentionParams& params, const float* q, const float* k,
                       const float* v, float* o, float* lse, void* workspace) {
  const AttentionParams& p = params;
  if (p.B == 0 || p.T == 0 || p.H == 0) return;
  const std::size_t scratch = forward_scratch(p);
  const std::int64_t splits = attention_splits(p.B * p.G, p.T, omp_get_max_threads());
#pragma omp parallel for collapse(3) schedule(dynamic)
  for (std::int64_t b = 0; b < p.B; ++b) {
    for (std::int64_t g = 0; g < p.G; ++g) {
      for (std::int64_t split = 0; split < splits; ++split) {
        auto task = attention_task<ForwardTask>(p, q, k, v, b, g, split, splits);
        task.o = o + (task.q - q);
        task.lse = lse + (b * p.H + g * task.heads) * p.T;
        attention_forward_task(
            task,
            offset_bytes(workspace, scratch * static_cast<std::size_t>(omp_get_thread_num())));
      }
    }
  }
}

std::size_t attention_backward_workspace(const AttentionParams& params) {
  const std::int64_t splits =
      attention_splits(params.B * params.G, params.T, omp_get_max_threads());
  const std::size_t shares =
      splits > 1 ? 2 * static_cast<std::size_t>(splits) * share_bytes(params) : 0;
  return backward_scratch(params) * static_cast<std::size_t>(omp_get_max_threads()) + shares;
}

void attention_backward(const AttentionParams& params, const float* dout, const float* q,
                        const float* k, const float* v, const float* o, const float* lse, float* dq,
                        float* dk, float* dv, void* workspace) {
  const AttentionParams& p = params;
  const std::int64_t kv_count = p.B * p.S * p.G * p.D;
  if (p.B == 0 || p.T == 0 || p.H == 0) {
    std::fill_n(dk, kv_count, 0.0f);
    std::fill_n(dv, kv_count, 0.0f);
    return;
  }
  const int threads = omp_get_max_threads();
  const std::size_t scratch = backward_scratch(p);
  const std::int64_t splits = attention_splits(p.B * p.G, p.T, threads);
  const std::size_t share = share_bytes(p) / sizeof(float);
  float* dk_shares = dk;
  float* dv_shares = dv;
  if (splits > 1) {
    dk_shares = offset_bytes(workspace, scratch * static_cast<std::size_t>(threads));
    dv_shares = dk_shares + share * static_cast<std::size_t>(splits);
  }
#pragma omp parallel for collapse(3) schedule(dynamic)
  for (std::int64_t b = 0; b < p.B; ++b) {
    for (std::int64_t g = 0; g < p.G; ++g) {
      for (std::int64_t split = 0; split < splits; ++split) {
        auto task = attention_task<BackwardTask>(p, q, k, v, b, g, split, splits);
        task.dout = dout + (task.q - q);
        task.o = o + (task.q - q);
        task.dq = dq + (task.q - q);
        task.lse = lse + (b * p.H + g * task.heads) * p.T;
        const std::size_t offset =
            static_cast<std::size_t>(split) * share + static_cast<std::size_t>(task.k - k);
        task.dk = dk_shares + offset;
        task.dv = dv_shares + offset;
        attention_backward_task(
            task,
            offset_bytes(workspace, scratch * static_cast<std::size_t>(omp_get_thread_num())));
      }
    }
  }
  if (splits > 1) {
    add_shares(dk_shares, share, splits, kv_count, dk);
    add_shares(dv_shares, share, splits, kv_count, dv);
  }
}

}  // namespace capstan::cpu
