// Cross-entropy, plain, fused with the head, and cut over the vocabulary.
#include <algorithm>

#include "kernels/cpu/linear_cross_entropy.h"
#include "kernels/cpu/reference/linear_cross_entropy.h"
#include "plugins/device/cpu/kernel.h"
#include "plugins/device/cpu/plain_loss.h"

namespace capstan::cpu_device {
namespace {

using cpu::LinearCrossEntropyParams;

// Negative targets are ignored; the kernels index by the others. `vocab` 0: unknown.
struct TargetCheck {
  const char* op;
  int64_t rows;
  int64_t vocab;

  void operator()(const int32_t* targets) const {
    if (vocab <= 0) return;
    for (int64_t i = 0; i < rows; ++i) {
      if (targets[i] < vocab) continue;
      throw sdk::data_error(sdk::text(op, ": target ", targets[i], " (element ", i, " of ", rows,
                                      ") is outside the vocabulary of ", vocab));
    }
  }
};

// The attribute's 0 says that no row is padding.
int64_t valid_vocab(const Request& r) {
  const int64_t valid = r.get_int("valid_vocab", 0);
  r.require(valid >= 0, "valid_vocab must not be negative");
  return valid == 0 ? -1 : valid;
}

// h [..., K], weight [V, K], targets [...].
LinearCrossEntropyParams linear_params(const Request& r) {
  const Operand& h = r.in(0);
  const Operand& weight = r.in(1, h.dtype);
  r.require(h.rank() >= 1 && weight.rank() == 2 && weight.dim(1) == h.last(),
            "h must be [..., K] and weight [V, K]");
  LinearCrossEntropyParams p;
  p.M = h.rows();
  p.K = h.last();
  p.V = weight.dim(0);
  p.valid_vocab = valid_vocab(r);
  p.vocab_start = r.get_int("vocab_start", 0);
  r.in(2, sdk::kI32, p.M);
  return p;
}

int64_t valid_rows(const LinearCrossEntropyParams& p) {
  return p.valid_vocab < 0 ? p.V : std::clamp<int64_t>(p.valid_vocab - p.vocab_start, 0, p.V);
}

// Of ops that hold the whole vocabulary.
TargetCheck whole_check(const char* op, int64_t rows, int64_t vocab, int64_t valid) {
  return {op, rows, valid < 0 ? vocab : std::min(vocab, valid)};
}

// Of ops that hold a shard: the end of the vocabulary is known only where padding is named.
TargetCheck shard_check(const char* op, const LinearCrossEntropyParams& p) {
  return {op, p.M, std::max<int64_t>(p.valid_vocab, 0)};
}

double normalised(double sum, double count) { return count != 0.0 ? sum / count : 0.0; }

// ---- linear_cross_entropy --------------------------------------------------------------------

void linear_cross_entropy(const Request& r, capstan_kernel* out) {
  const LinearCrossEntropyParams p = linear_params(r);
  const ScalarInput count = r.scalar(3);
  const ScalarOutput loss = r.scalar_out(0);
  const TargetCheck check = whole_check("linear_cross_entropy", p.M, p.V, p.valid_vocab);
  by_dtype(
      r, r.in(0),
      [&] {
        Workspace w;
        const auto scratch = w.take_bytes(cpu::linear_cross_entropy_workspace(p));
        emit(
            r, out, "linear_cross_entropy (chunked)",
            [=](const Launch& l) {
              check(l.in<int32_t>(2));
              const float n = static_cast<float>(l.read(count));
              float value = 0.0f;
              cpu::linear_cross_entropy_loss(p, l.in(0), l.in(1), l.in<int32_t>(2), &n, &value,
                                             l.at(scratch));
              l.write(loss, value);
            },
            0, w.bytes());
      },
      [&]<class T>(T) {
        emit(r, out, "plain linear_cross_entropy", [=](const Launch& l) {
          check(l.in<int32_t>(2));
          l.write(loss, reference::linear_cross_entropy<T>(
                            p.M, p.K, p.V, valid_rows(p), l.in<T>(0), l.in<T>(1), l.in<int32_t>(2),
                            T(l.read(count)), T(1), false, nullptr, nullptr));
        });
      });
}

void linear_cross_entropy_grad(const Request& r, capstan_kernel* out) {
  const LinearCrossEntropyParams p = linear_params(r);
  const ScalarInput count = r.scalar(3);
  const ScalarOutput loss = r.scalar_out(0);
  const TargetCheck check = whole_check("linear_cross_entropy_grad", p.M, p.V, p.valid_vocab);
  r.expect_out(1, p.M * p.K);
  r.expect_out(2, p.V * p.K);
  const int64_t h_size = r.wants(1) ? 0 : p.M * p.K, weight_size = r.wants(2) ? 0 : p.V * p.K;
  Workspace w;
  by_dtype(
      r, r.in(0),
      [&] {
        const auto dh = w.take<float>(h_size), dweight = w.take<float>(weight_size);
        const auto scratch = w.take_bytes(cpu::linear_cross_entropy_workspace(p));
        emit(
            r, out, "linear_cross_entropy_grad (chunked)",
            [=](const Launch& l) {
              check(l.in<int32_t>(2));
              const float n = static_cast<float>(l.read(count));
              float value = 0.0f;
              cpu::linear_cross_entropy(p, l.in(0), l.in(1), l.in<int32_t>(2), &n, nullptr,
                                        l.accumulates(2), &value, l.out_or(1, dh),
                                        l.out_or(2, dweight), l.at(scratch));
              l.write(loss, value);
            },
            outputs({2}), w.bytes());
      },
      [&]<class T>(T) {
        const auto dh = w.take<T>(h_size), dweight = w.take<T>(weight_size);
        emit(
            r, out, "plain linear_cross_entropy_grad",
            [=](const Launch& l) {
              check(l.in<int32_t>(2));
              l.write(loss, reference::linear_cross_entropy<T>(
                                p.M, p.K, p.V, valid_rows(p), l.in<T>(0), l.in<T>(1),
                                l.in<int32_t>(2), T(l.read(count)), T(1), l.accumulates(2),
                                l.out_or(1, dh), l.out_or(2, dweight)));
            },
            outputs({2}), w.bytes());
      });
}

// ---- cross_entropy of logits -----------------------------------------------------------------

cpu::CrossEntropyParams logits_params(const Request& r) {
  const Operand& logits = r.in(0);
  r.require(logits.rank() >= 1, "logits must be [..., V]");
  r.in(1, sdk::kI32, logits.rows());
  return {logits.rows(), logits.last(), valid_vocab(r)};
}

int64_t valid_columns(const cpu::CrossEntropyParams& p) {
  return p.valid_vocab < 0 ? p.V : std::min(p.V, p.valid_vocab);
}

void cross_entropy_with(const Request& r, capstan_kernel* out, bool gradient) {
  const cpu::CrossEntropyParams p = logits_params(r);
  const ScalarInput count = r.scalar(2);
  const ScalarOutput loss = r.scalar_out(0);
  const TargetCheck check = whole_check("cross_entropy", p.M, p.V, p.valid_vocab);
  const bool grad = gradient && r.wants(1);
  if (grad) r.expect_out(1, p.M * p.V);
  by_dtype(
      r, r.in(0),
      [&] {
        Workspace w;
        const auto lse = w.take<float>(p.M);
        emit(
            r, out, gradient ? "cross_entropy_grad" : "cross_entropy",
            [=](const Launch& l) {
              const auto* targets = l.in<int32_t>(1);
              check(targets);
              const float n = static_cast<float>(l.read(count));
              float value = 0.0f;
              cpu::cross_entropy_forward(p, l.in(0), targets, &n, &value, l.at(lse));
              l.write(loss, value);
              if (!grad) return;
              cpu::cross_entropy_backward(p, l.in(0), targets, l.at(lse), &n, nullptr, l.out(1));
            },
            0, w.bytes());
      },
      [&]<class T>(T) {
        emit(r, out, gradient ? "plain cross_entropy_grad" : "plain cross_entropy",
             [=](const Launch& l) {
               const auto* targets = l.in<int32_t>(1);
               check(targets);
               const T n = T(l.read(count));
               const int64_t valid = valid_columns(p);
               l.write(loss, reference::cross_entropy_forward<T>(p.M, p.V, valid, l.in<T>(0),
                                                                 targets, n));
               if (!grad) return;
               reference::cross_entropy_backward<T>(p.M, p.V, valid, l.in<T>(0), targets, n, T(1),
                                                    l.out<T>(1));
             });
      });
}

void cross_entropy(const Request& r, capstan_kernel* out) { cross_entropy_with(r, out, false); }
void cross_entropy_grad(const Request& r, capstan_kernel* out) { cross_entropy_with(r, out, true); }

// ---- vocabulary cut over ranks ---------------------------------------------------------------

void lce_stats(const Request& r, capstan_kernel* out) {
  const LinearCrossEntropyParams p = linear_params(r);
  const TargetCheck check = shard_check("lce_stats", p);
  r.expect_out(0, p.M * 3);
  by_dtype(
      r, r.in(0),
      [&] {
        if (!r.out(0).is(sdk::kF32)) r.refuse_dtypes();
        Workspace w;
        const auto scratch = w.take_bytes(cpu::linear_cross_entropy_workspace(p));
        emit(
            r, out, "lce_stats (chunked)",
            [=](const Launch& l) {
              check(l.in<int32_t>(2));
              cpu::lce_stats(p, l.in(0), l.in(1), l.in<int32_t>(2), l.out(0), l.at(scratch));
            },
            0, w.bytes());
      },
      [&]<class T>(T) {
        if (!r.out(0).is(dtype_of<T>())) r.refuse_dtypes();
        emit(r, out, "plain lce_stats", [=](const Launch& l) {
          check(l.in<int32_t>(2));
          reference::lce_stats(p.M, p.K, valid_rows(p), p.vocab_start, l.in<T>(0), l.in<T>(1),
                               l.in<int32_t>(2), l.out<T>(0));
        });
      });
}

void ce_stats(const Request& r, capstan_kernel* out) {
  const Operand& logits = r.in(0);
  r.require(logits.rank() >= 1, "logits must be [..., V]");
  LinearCrossEntropyParams p;
  p.M = logits.rows();
  p.V = logits.last();
  p.valid_vocab = valid_vocab(r);
  p.vocab_start = r.get_int("vocab_start", 0);
  r.in(1, sdk::kI32, p.M);
  const TargetCheck check = shard_check("ce_stats", p);
  r.expect_out(0, p.M * 3);
  by_dtype(
      r, logits,
      [&] {
        if (!r.out(0).is(sdk::kF32)) r.refuse_dtypes();
        emit(r, out, "ce_stats", [=](const Launch& l) {
          check(l.in<int32_t>(1));
          cpu::ce_stats(p, l.in(0), l.in<int32_t>(1), l.out(0));
        });
      },
      [&]<class T>(T) {
        if (!r.out(0).is(dtype_of<T>())) r.refuse_dtypes();
        emit(r, out, "plain ce_stats", [=](const Launch& l) {
          check(l.in<int32_t>(1));
          reference::ce_stats(p.M, p.V, valid_rows(p), p.vocab_start, l.in<T>(0), l.in<int32_t>(1),
                              l.out<T>(0));
        });
      });
}

// Inputs 3, 4 and 5 (h, weight, logits) are for differentiation alone.
void lce_merge(const Request& r, capstan_kernel* out) {
  const Operand& stats = r.in(0);
  r.require(stats.rank() >= 2 && stats.last() == 3 && stats.dim(0) > 0,
            "stats must be [R, ..., 3]");
  const int64_t R = stats.dim(0), M = stats.size() / R / 3;
  r.in(1, sdk::kI32, M);
  const ScalarInput count = r.scalar(2);
  const ScalarOutput loss = r.scalar_out(0);
  r.expect_out(1, M);
  if (r.wants(1) && !r.out(1).is(stats.dtype)) r.refuse_dtypes();
  Workspace w;
  by_dtype(
      r, stats,
      [&] {
        const auto lse = w.take<float>(r.wants(1) ? 0 : M);
        emit(
            r, out, "lce_merge",
            [=](const Launch& l) {
              const float n = static_cast<float>(l.read(count));
              float value = 0.0f;
              cpu::lce_merge(R, M, l.in(0), l.in<int32_t>(1), &n, &value, l.out_or(1, lse));
              l.write(loss, value);
            },
            0, w.bytes());
      },
      [&]<class T>(T) {
        const auto lse = w.take<T>(r.wants(1) ? 0 : M);
        emit(
            r, out, "plain lce_merge",
            [=](const Launch& l) {
              const T sum = plain_lce_merge(R, M, l.in<T>(0), l.in<int32_t>(1), l.out_or(1, lse));
              l.write(loss, normalised(sum, l.read(count)));
            },
            0, w.bytes());
      });
}

void lce_grad(const Request& r, capstan_kernel* out) {
  const LinearCrossEntropyParams p = linear_params(r);
  const ScalarInput count = r.scalar(4);
  const TargetCheck check = shard_check("lce_grad", p);
  r.expect_in(3, p.M);
  const bool kept = r.has(5);
  if (kept) r.in(5, r.in(0).dtype, p.M * p.V);
  r.expect_out(0, p.M * p.K);
  r.expect_out(1, p.V * p.K);
  const int64_t h_size = r.wants(0) ? 0 : p.M * p.K, weight_size = r.wants(1) ? 0 : p.V * p.K;
  Workspace w;
  by_dtype(
      r, r.in(0),
      [&] {
        r.in(3, sdk::kF32);
        const auto dh = w.take<float>(h_size), dweight = w.take<float>(weight_size);
        const auto scratch = w.take_bytes(cpu::linear_cross_entropy_workspace(p));
        emit(
            r, out, "lce_grad (chunked)",
            [=](const Launch& l) {
              check(l.in<int32_t>(2));
              const float n = static_cast<float>(l.read(count));
              cpu::lce_grad(p, l.in(0), l.in(1), l.in<int32_t>(2), l.in(3), &n, nullptr,
                            kept ? l.in(5) : nullptr, l.accumulates(1), l.out_or(0, dh),
                            l.out_or(1, dweight), l.at(scratch));
            },
            outputs({1}), w.bytes());
      },
      [&]<class T>(T) {
        r.in(3, dtype_of<T>());
        const auto dh = w.take<T>(h_size), dweight = w.take<T>(weight_size);
        emit(
            r, out, "plain lce_grad",
            [=](const Launch& l) {
              check(l.in<int32_t>(2));
              plain_lce_grad(p.M, p.K, p.V, valid_rows(p), p.vocab_start, l.in<T>(0), l.in<T>(1),
                             l.in<int32_t>(2), l.in<T>(3), T(normalised(1.0, l.read(count))),
                             kept ? l.in<T>(5) : nullptr, l.accumulates(1), l.out_or(0, dh),
                             l.out_or(1, dweight));
            },
            outputs({1}), w.bytes());
      });
}

constexpr Adapter kAdapters[] = {
    {"linear_cross_entropy", linear_cross_entropy},
    {"linear_cross_entropy_grad", linear_cross_entropy_grad},
    {"cross_entropy", cross_entropy},
    {"cross_entropy_grad", cross_entropy_grad},
    {"lce_stats", lce_stats},
    {"ce_stats", ce_stats},
    {"lce_merge", lce_merge},
    {"lce_grad", lce_grad},
};

}  // namespace

std::span<const Adapter> loss_adapters() { return kAdapters; }

}  // namespace capstan::cpu_device
