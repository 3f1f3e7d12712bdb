// Rotary embedding, attention, and the key-value cache.
#include "kernels/cpu/attention.h"

#include <cmath>

#include "kernels/cpu/cache.h"
#include "kernels/cpu/reference/attention.h"
#include "kernels/cpu/reference/rotary.h"
#include "kernels/cpu/rotary.h"
#include "plugins/device/cpu/kernel.h"

namespace capstan::cpu_device {
namespace {

void rotary(const Request& r, capstan_kernel* out) {
  const Operand& x = r.in(0);
  cpu::RotaryParams p;
  p.head_dim = r.need_int("head_dim");
  r.require(x.rank() == 3 && p.head_dim > 0 && p.head_dim % 2 == 0 && x.last() % p.head_dim == 0,
            "x must be [B, T, H * head_dim] with an even head_dim");
  p.batch = x.dim(0);
  p.seq = x.dim(1);
  p.heads = x.dim(2) / p.head_dim;
  p.theta = r.get_float("theta", 10000.0);
  p.inverse = r.get_flag("inverse", false);
  p.interleaved = r.get_flag("interleaved", false);
  p.position_stride = p.seq;
  p.scaling.factor = r.get_float("scaling_factor", 1.0);
  p.scaling.low_freq_factor = r.get_float("low_freq_factor", 1.0);
  p.scaling.high_freq_factor = r.get_float("high_freq_factor", 4.0);
  p.scaling.original_max_position = r.get_int("original_max_position", 0);
  r.in(1, sdk::kI32, p.batch * p.seq);
  r.expect_out(0, x.size());
  by_dtype(
      r, x,
      [&] {
        Workspace w;
        const auto scratch = w.take_bytes(cpu::rotary_workspace(p));
        emit(
            r, out, "rotary",
            [=](const Launch& l) {
              cpu::rotary(p, l.in(0), l.in<int32_t>(1), l.out(0), l.at(scratch));
            },
            0, w.bytes());
      },
      [&]<class T>(T) {
        emit(r, out, "plain rotary", [=](const Launch& l) {
          reference::rotary(p, l.in<T>(0), l.in<int32_t>(1), l.out<T>(0));
        });
      });
}

// ---- attention -------------------------------------------------------------------------------

struct Attention {
  cpu::AttentionParams params;
  uint64_t seed = 0, key = 0;  // of dropout
  size_t step_at = 0, sample_at = 0;

  // With what varies by step.
  cpu::AttentionParams at(const Launch& l) const {
    cpu::AttentionParams p = params;
    if (p.dropout.p > 0.0f) {
      const auto step = static_cast<uint64_t>(*l.in<int64_t>(step_at));
      p.dropout.key = derive_key(derive_key(seed, key), step);
      p.dropout.sample_ids = l.in<int64_t>(sample_at);
    }
    return p;
  }
  int64_t query_size() const { return params.B * params.T * params.H * params.D; }
  int64_t key_size() const { return params.B * params.S * params.G * params.D; }
  int64_t lse_size() const { return params.B * params.H * params.T; }
};

double scale_of(const Request& r, int64_t head_dim) {
  const double scale = r.get_float("scale", 0.0);
  return scale != 0.0 ? scale : 1.0 / std::sqrt(static_cast<double>(head_dim));
}

// q, k, v are inputs first, first + 1, first + 2; step and sample are inputs step_at, step_at + 1.
Attention read_attention(const Request& r, size_t first, size_t step_at) {
  const Operand& q = r.in(first);
  const Operand& k = r.in(first + 1);
  const int64_t d = r.need_int("head_dim");
  r.require(q.rank() == 3 && k.rank() == 3 && d > 0 && q.last() % d == 0 && k.last() % d == 0 &&
                k.last() > 0 && q.last() % k.last() == 0 && q.dim(0) == k.dim(0),
            "q must be [B, T, H * head_dim] and k [B, S, G * head_dim], H a multiple of G");
  r.in(first + 1, q.dtype), r.in(first + 2, q.dtype, k.size());
  Attention a;
  cpu::AttentionParams& p = a.params;
  p.B = q.dim(0);
  p.T = q.dim(1);
  p.S = k.dim(1);
  p.D = d;
  p.H = q.last() / d;
  p.G = k.last() / d;
  p.scale = static_cast<float>(scale_of(r, d));
  p.causal = r.get_flag("causal", true);
  p.dropout.p = static_cast<float>(r.get_float("dropout", 0.0));
  p.dropout.head_offset = r.get_int("head_start", 0);
  r.require(p.dropout.p >= 0.0f && p.dropout.p < 1.0f, "dropout must be within [0, 1)");
  a.seed = r.seed();
  a.key = static_cast<uint64_t>(r.get_int("key", 0));
  a.step_at = step_at;
  a.sample_at = step_at + 1;
  if (p.dropout.p > 0.0f) r.in(step_at, sdk::kI64, 1), r.in(step_at + 1, sdk::kI64, p.B);
  return a;
}

void attention(const Request& r, capstan_kernel* out) {
  const Attention a = read_attention(r, 0, 3);
  r.expect_out(0, a.query_size());
  r.expect_out(1, a.lse_size());
  Workspace w;
  by_dtype(
      r, r.in(0),
      [&] {
        if (r.wants(1) && !r.out(1).is(sdk::kF32)) r.refuse_dtypes();
        const auto lse = w.take<float>(r.wants(1) ? 0 : a.lse_size());
        const auto scratch = w.take_bytes(cpu::attention_forward_workspace(a.params));
        emit(
            r, out, "attention (tiled, online softmax)",
            [=](const Launch& l) {
              cpu::attention_forward(a.at(l), l.in(0), l.in(1), l.in(2), l.out(0), l.out_or(1, lse),
                                     l.at(scratch));
            },
            0, w.bytes());
      },
      [&]<class T>(T) {
        if (r.wants(1) && !r.out(1).is(dtype_of<T>())) r.refuse_dtypes();
        const auto lse = w.take<T>(r.wants(1) ? 0 : a.lse_size());
        emit(
            r, out, "plain attention",
            [=](const Launch& l) {
              reference::attention_forward(a.at(l), l.in<T>(0), l.in<T>(1), l.in<T>(2), l.out<T>(0),
                                           l.out_or(1, lse));
            },
            0, w.bytes());
      });
}

// Inputs do, q, k, v, o, lse, step?, sample?.
void attention_grad(const Request& r, capstan_kernel* out) {
  const Attention a = read_attention(r, 1, 6);
  r.in(0, r.in(1).dtype, a.query_size()), r.in(4, r.in(1).dtype, a.query_size());
  r.expect_in(5, a.lse_size());
  r.expect_out(0, a.query_size());
  r.expect_out(1, a.key_size());
  r.expect_out(2, a.key_size());
  const int64_t q = r.wants(0) ? 0 : a.query_size();
  const int64_t k = r.wants(1) ? 0 : a.key_size(), v = r.wants(2) ? 0 : a.key_size();
  Workspace w;
  by_dtype(
      r, r.in(1),
      [&] {
        r.in(5, sdk::kF32);
        const auto dq = w.take<float>(q), dk = w.take<float>(k), dv = w.take<float>(v);
        const auto scratch = w.take_bytes(cpu::attention_backward_workspace(a.params));
        emit(
            r, out, "attention_grad (tiled)",
            [=](const Launch& l) {
              cpu::attention_backward(a.at(l), l.in(0), l.in(1), l.in(2), l.in(3), l.in(4), l.in(5),
                                      l.out_or(0, dq), l.out_or(1, dk), l.out_or(2, dv),
                                      l.at(scratch));
            },
            0, w.bytes());
      },
      [&]<class T>(T) {
        const auto dq = w.take<T>(q), dk = w.take<T>(k), dv = w.take<T>(v);
        emit(
            r, out, "plain attention_grad",
            [=](const Launch& l) {
              reference::attention_backward(a.at(l), l.in<T>(0), l.in<T>(1), l.in<T>(2), l.in<T>(3),
                                            l.out_or(0, dq), l.out_or(1, dk), l.out_or(2, dv));
            },
            0, w.bytes());
      });
}

// ---- cache -----------------------------------------------------------------------------------

void refuse_position(const char* what, const int32_t* position, int64_t row, int64_t rows,
                     int64_t capacity) {
  if (row < 0) return;
  throw sdk::data_error(sdk::text(what, ": position ", position[row], " of sequence ", row, " and ",
                                  rows, " new rows do not fit in a cache of ", capacity, " rows"));
}

int64_t first_bad_position(int64_t batch, int64_t rows, int64_t capacity, const int32_t* position) {
  for (int64_t b = 0; b < batch; ++b) {
    if (position[b] < 0 || position[b] + rows > capacity) return b;
  }
  return -1;
}

void attention_cached(const Request& r, capstan_kernel* out) {
  const Operand& q = r.in(0);
  const Operand& k = r.in(1, q.dtype);
  const int64_t d = r.need_int("head_dim");
  r.require(q.rank() == 3 && k.rank() == 3 && d > 0 && q.last() % d == 0 && k.last() % d == 0 &&
                k.last() > 0 && q.last() % k.last() == 0 && q.dim(0) == k.dim(0),
            "q must be [B, T, H * head_dim] and the caches [B, S, G * head_dim]");
  r.in(2, q.dtype, k.size()), r.in(3, sdk::kI32, q.dim(0));
  r.expect_out(0, q.size());
  cpu::CachedAttentionParams p;
  p.B = q.dim(0);
  p.T = q.dim(1);
  p.S_max = k.dim(1);
  p.D = d;
  p.H = q.last() / d;
  p.G = k.last() / d;
  p.scale = static_cast<float>(scale_of(r, d));
  const auto check = [p](const int32_t* position) {
    refuse_position("attention_cached", position, first_bad_position(p.B, p.T, p.S_max, position),
                    p.T, p.S_max);
  };
  by_dtype(
      r, q,
      [&] {
        Workspace w;
        const auto scratch = w.take_bytes(cpu::attention_cached_workspace(p));
        emit(
            r, out, "attention_cached",
            [=](const Launch& l) {
              check(l.in<int32_t>(3));
              cpu::attention_cached(p, l.in(0), l.in(1), l.in(2), l.in<int32_t>(3), l.out(0),
                                    l.at(scratch));
            },
            0, w.bytes());
      },
      [&]<class T>(T) {
        emit(r, out, "plain attention_cached", [=](const Launch& l) {
          check(l.in<int32_t>(3));
          reference::attention_cached(p, l.in<T>(0), l.in<T>(1), l.in<T>(2), l.in<int32_t>(3),
                                      l.out<T>(0));
        });
      });
}

// Moves elements of any size: one implementation for all dtypes.
cpu::CacheParams cache_params(const Request& r) {
  const Operand& x = r.in(0);
  r.require(x.rank() == 3, "the first input must be [B, T, C]");
  r.in(1, sdk::kI32, x.dim(0));
  return {x.dim(0), x.dim(1), 0, x.dim(2), x.element_size()};
}

void cache_write(const Request& r, capstan_kernel* out) {
  cpu::CacheParams p = cache_params(r);
  const Operand& cache = r.out(0);
  r.require(cache.rank() == 3 && cache.dim(0) == p.batch && cache.dim(2) == p.channels &&
                cache.is(r.in(0).dtype),
            "the cache must be [B, S, C]");
  p.capacity = cache.dim(1);
  emit(r, out, "cache_write", [=](const Launch& l) {
    const auto* position = l.in<int32_t>(1);
    const int64_t bad = cpu::cache_write(p, l.in<char>(0), position, l.out<char>(0));
    refuse_position("cache_write", position, bad, p.seq, p.capacity);
  });
}

void select_position(const Request& r, capstan_kernel* out) {
  const cpu::CacheParams p = cache_params(r);
  r.expect_out(0, p.batch * p.channels);
  emit(r, out, "select_position", [=](const Launch& l) {
    const auto* index = l.in<int32_t>(1);
    const int64_t bad = cpu::select_position(p, l.in<char>(0), index, l.out<char>(0));
    if (bad < 0) return;
    throw sdk::data_error(sdk::text("select_position: index ", index[bad], " of sequence ", bad,
                                    " is outside its ", p.seq, " positions"));
  });
}

constexpr Adapter kAdapters[] = {
    {"rotary", rotary},
    {"attention", attention},
    {"attention_grad", attention_grad},
    {"attention_cached", attention_cached},
    {"cache_write", cache_write},
    {"select_position", select_position},
};

}  // namespace

std::span<const Adapter> attention_adapters() { return kAdapters; }

}  // namespace capstan::cpu_device
