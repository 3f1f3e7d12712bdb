// Dense layers: embedding, linear and its gradients, matmul.
#include <limits>

#include "kernels/cpu/activation.h"
#include "kernels/cpu/embedding.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/reduce.h"
#include "kernels/cpu/reference/activation.h"
#include "kernels/cpu/reference/embedding.h"
#include "kernels/cpu/reference/matmul.h"
#include "kernels/cpu/reference/reduce.h"
#include "plugins/device/cpu/kernel.h"

namespace capstan::cpu_device {
namespace {

// ---- rows of a table -------------------------------------------------------------------------

cpu::EmbeddingParams table_params(const Request& r, int64_t rows, int64_t channels, int64_t vocab) {
  cpu::EmbeddingParams p;
  p.rows = rows;
  p.channels = channels;
  p.vocab = vocab;
  p.vocab_start = r.get_int("vocab_start", 0);
  // A table cut over ranks says where its part begins; ids of the other parts are then no errors,
  // and how many rows all parts have together is not known here.
  if (r.attrs().has("vocab_start")) p.vocab_total = std::numeric_limits<int32_t>::max();
  return p;
}

int64_t first_bad_id(const cpu::EmbeddingParams& p, const int32_t* ids) {
  const int64_t high = p.vocab_total > 0 ? p.vocab_total : p.vocab;
  for (int64_t i = 0; i < p.rows; ++i) {
    if (ids[i] < 0 || ids[i] >= high) return i;
  }
  return -1;
}

// `what`: "embedding: id".
void refuse_bad_id(const char* what, const cpu::EmbeddingParams& p, const int32_t* ids,
                   int64_t bad) {
  if (bad < 0) return;
  const int64_t rows = p.vocab_total > 0 ? p.vocab_total : p.vocab;
  throw sdk::data_error(sdk::text(what, " ", ids[bad], " (element ", bad, " of ", p.rows,
                                  ") is outside the table of ", rows, " rows"));
}

// what: a literal, for messages.
void rows_of_table(const Request& r, capstan_kernel* out, const Operand& ids, size_t ids_at,
                   const Operand& table, size_t table_at, const char* what) {
  r.require(table.rank() == 2 && ids.is(sdk::kI32), "a table must be 2-D and indices i32");
  const auto p = table_params(r, ids.size(), table.dim(1), table.dim(0));
  r.expect_out(0, p.rows * p.channels);
  by_dtype(
      r, table,
      [&] {
        emit(r, out, "row gather", [=](const Launch& l) {
          const auto* id = l.in<int32_t>(ids_at);
          refuse_bad_id(what, p, id, cpu::embedding_forward(p, id, l.in(table_at), l.out(0)));
        });
      },
      [&]<class T>(T) {
        emit(r, out, "plain row gather", [=](const Launch& l) {
          const auto* id = l.in<int32_t>(ids_at);
          refuse_bad_id(what, p, id, first_bad_id(p, id));
          reference::embedding_forward(p, id, l.in<T>(table_at), l.out<T>(0));
        });
      });
}

void rows_of_table_grad(const Request& r, capstan_kernel* out, int64_t rows, const char* what) {
  const Operand& ids = r.in(0, sdk::kI32);
  const Operand& dy = r.in(1);
  r.require(rows > 0 && dy.rank() >= 1 && dy.rows() == ids.size(), "dy must have a row per index");
  const auto p = table_params(r, ids.size(), dy.last(), rows);
  r.expect_out(0, rows * p.channels);
  by_dtype(
      r, dy,
      [&] {
        emit(
            r, out, "row scatter-add",
            [=](const Launch& l) {
              const auto* id = l.in<int32_t>(0);
              refuse_bad_id(what, p, id,
                            cpu::embedding_backward(p, id, l.in(1), l.out(0), l.accumulates(0)));
            },
            outputs({0}));
      },
      [&]<class T>(T) {
        emit(
            r, out, "plain row scatter-add",
            [=](const Launch& l) {
              const auto* id = l.in<int32_t>(0);
              refuse_bad_id(what, p, id, first_bad_id(p, id));
              if (!l.accumulates(0)) std::fill_n(l.out<T>(0), rows * p.channels, T(0));
              reference::embedding_backward(p, id, l.in<T>(1), l.out<T>(0));
            },
            outputs({0}));
      });
}

void embedding(const Request& r, capstan_kernel* out) {
  rows_of_table(r, out, r.in(0), 0, r.in(1), 1, "embedding: id");
}
void embedding_grad(const Request& r, capstan_kernel* out) {
  rows_of_table_grad(r, out, r.need_int("vocab"), "embedding_grad: id");
}
void gather(const Request& r, capstan_kernel* out) {
  rows_of_table(r, out, r.in(1), 1, r.in(0), 0, "gather: index");
}
void gather_grad(const Request& r, capstan_kernel* out) {
  rows_of_table_grad(r, out, r.need_int("rows"), "gather_grad: index");
}

// ---- linear ----------------------------------------------------------------------------------

// x [..., K], weight [N, K], bias [N].
cpu::LinearShape linear_shape(const Request& r, const Operand& x, const Operand& weight) {
  r.require(x.rank() >= 1 && weight.rank() == 2 && x.last() == weight.dim(1) &&
                sdk::same_dtype(x.dtype, weight.dtype),
            "x must be [..., K] and weight [N, K]");
  return {x.rows(), weight.dim(0), weight.dim(1)};
}

void expect_bias(const Request& r, const cpu::LinearShape& s) {
  if (r.has(2)) r.in(2, r.in(0).dtype, s.N);
}

void linear(const Request& r, capstan_kernel* out) {
  const cpu::LinearShape s = linear_shape(r, r.in(0), r.in(1));
  expect_bias(r, s);
  r.expect_out(0, s.M * s.N);
  const bool bias = r.has(2);
  by_dtype(
      r, r.in(0),
      [&] {
        emit(r, out, "linear (oneDNN sgemm)", [=](const Launch& l) {
          cpu::linear(s, l.in(0), l.in(1), bias ? l.in(2) : nullptr, l.out(0));
        });
      },
      [&]<class T>(T) {
        emit(r, out, "plain linear", [=](const Launch& l) {
          reference::linear(s.M, s.N, s.K, l.in<T>(0), l.in<T>(1), bias ? l.in<T>(2) : nullptr,
                            l.out<T>(0));
        });
      });
}

void linear_dx(const Request& r, capstan_kernel* out) {
  const Operand& dy = r.in(0);
  const Operand& weight = r.in(1);
  r.require(dy.rank() >= 1 && weight.rank() == 2 && dy.last() == weight.dim(0) &&
                sdk::same_dtype(dy.dtype, weight.dtype),
            "dy must be [..., N] and weight [N, K]");
  const cpu::LinearShape s{dy.rows(), weight.dim(0), weight.dim(1)};
  r.expect_out(0, s.M * s.K);
  by_dtype(
      r, dy,
      [&] {
        emit(
            r, out, "linear_dx (oneDNN sgemm)",
            [=](const Launch& l) {
              cpu::linear_dx(s, l.in(0), l.in(1), l.accumulates(0), l.out(0));
            },
            outputs({0}));
      },
      [&]<class T>(T) {
        emit(
            r, out, "plain linear_dx",
            [=](const Launch& l) {
              reference::linear_dx(s.M, s.N, s.K, l.in<T>(0), l.in<T>(1), l.accumulates(0),
                                   l.out<T>(0));
            },
            outputs({0}));
      });
}

void linear_dw(const Request& r, capstan_kernel* out) {
  const Operand& x = r.in(0);
  const Operand& dy = r.in(1);
  r.require(x.rank() >= 1 && dy.rank() >= 1 && x.rows() == dy.rows() &&
                sdk::same_dtype(x.dtype, dy.dtype),
            "x must be [..., K] and dy [..., N]");
  const cpu::LinearShape s{x.rows(), dy.last(), x.last()};
  r.expect_out(0, s.N * s.K);
  by_dtype(
      r, x,
      [&] {
        emit(
            r, out, "linear_dw (oneDNN sgemm)",
            [=](const Launch& l) {
              cpu::linear_dw(s, l.in(0), l.in(1), l.accumulates(0), l.out(0), nullptr);
            },
            outputs({0}));
      },
      [&]<class T>(T) {
        emit(
            r, out, "plain linear_dw",
            [=](const Launch& l) {
              reference::linear_dw<T>(s.M, s.N, s.K, l.in<T>(0), l.in<T>(1), l.accumulates(0),
                                      l.out<T>(0), nullptr);
            },
            outputs({0}));
      });
}

void bias_grad(const Request& r, capstan_kernel* out) {
  const Operand& dy = r.in(0);
  r.require(dy.rank() >= 1, "dy must be [..., N]");
  const cpu::ReduceParams p{1, dy.rows(), dy.last()};
  r.expect_out(0, p.inner);
  by_dtype(
      r, dy,
      [&] {
        Workspace w;
        const Slot<char> scratch = w.take_bytes(cpu::reduce_workspace(p));
        emit(
            r, out, "bias_grad",
            [=](const Launch& l) {
              cpu::reduce(cpu::Reduction::kSum, p, l.in(0), l.out(0), l.accumulates(0),
                          l.at(scratch));
            },
            outputs({0}), w.bytes());
      },
      [&]<class T>(T) {
        emit(
            r, out, "plain bias_grad",
            [=](const Launch& l) {
              T* sums = l.out<T>(0);
              if (!l.accumulates(0)) std::fill_n(sums, p.inner, T(0));
              for (int64_t i = 0; i < p.n * p.inner; ++i) sums[i % p.inner] += l.in<T>(0)[i];
            },
            outputs({0}));
      });
}

// Only `y` when nothing reads the pre-activation: it is then overwritten in place.
void linear_gelu(const Request& r, capstan_kernel* out) {
  const cpu::LinearShape s = linear_shape(r, r.in(0), r.in(1));
  expect_bias(r, s);
  r.expect_out(0, s.M * s.N);
  r.expect_out(1, s.M * s.N);
  const bool bias = r.has(2), want_y = r.wants(0), want_pre = r.wants(1);
  const bool tanh = r.attrs().get_string("approximate", "tanh") == "tanh";
  const cpu::Unary gelu = tanh ? cpu::Unary::kGeluTanh : cpu::Unary::kGeluErf;
  by_dtype(
      r, r.in(0),
      [&] {
        emit(r, out, "linear_gelu (oneDNN sgemm)", [=](const Launch& l) {
          const float* b = bias ? l.in(2) : nullptr;
          if (want_y && want_pre && tanh) {
            return cpu::linear_gelu(s, l.in(0), l.in(1), b, l.out(1), l.out(0));
          }
          float* pre = want_pre ? l.out(1) : l.out(0);
          cpu::linear(s, l.in(0), l.in(1), b, pre);
          if (want_y) cpu::unary_forward(gelu, s.M * s.N, pre, l.out(0));
        });
      },
      [&]<class T>(T) {
        emit(r, out, "plain linear_gelu", [=](const Launch& l) {
          T* pre = want_pre ? l.out<T>(1) : l.out<T>(0);
          reference::linear(s.M, s.N, s.K, l.in<T>(0), l.in<T>(1), bias ? l.in<T>(2) : nullptr,
                            pre);
          if (!want_y) return;
          for (int64_t i = 0; i < s.M * s.N; ++i) {
            l.out<T>(0)[i] = reference::unary_value(gelu, pre[i]);
          }
        });
      });
}

// ---- matmul ----------------------------------------------------------------------------------

// Leading dims are the batch; an operand that has none is shared by all of it.
cpu::MatmulParams matmul_params(const Request& r) {
  const Operand& a = r.in(0);
  const Operand& b = r.in(1);
  r.require(a.rank() >= 2 && b.rank() >= 2 && sdk::same_dtype(a.dtype, b.dtype),
            "a and b must have two dims or more");
  cpu::MatmulParams p;
  p.transpose_a = r.get_flag("transpose_a", false);
  p.transpose_b = r.get_flag("transpose_b", false);
  p.M = a.dim(p.transpose_a ? -1 : -2);
  p.K = a.dim(p.transpose_a ? -2 : -1);
  p.N = b.dim(p.transpose_b ? -2 : -1);
  r.require(b.dim(p.transpose_b ? -1 : -2) == p.K, "the inner dims of a and b differ");
  int64_t a_batch = 1, b_batch = 1;
  for (int d = 0; d + 2 < a.rank(); ++d) a_batch *= a.dim(d);
  for (int d = 0; d + 2 < b.rank(); ++d) b_batch *= b.dim(d);
  r.require(a_batch == b_batch || a.rank() == 2 || b.rank() == 2,
            "the leading dims of a and b differ");
  p.batch = a.rank() == 2 ? b_batch : a_batch;
  if (b.rank() == 2 && !p.transpose_a) {  // one tall product
    p.M *= p.batch;
    p.batch = 1;
  }
  p.stride_a = a.rank() == 2 ? 0 : p.M * p.K;
  p.stride_b = b.rank() == 2 ? 0 : p.K * p.N;
  p.stride_c = p.M * p.N;
  r.expect_out(0, p.batch * p.M * p.N);
  return p;
}

void matmul(const Request& r, capstan_kernel* out) {
  const cpu::MatmulParams p = matmul_params(r);
  by_dtype(
      r, r.in(0),
      [&] {
        emit(
            r, out, "matmul (oneDNN sgemm)",
            [=](const Launch& l) {
              cpu::MatmulParams now = p;
              now.accumulate = l.accumulates(0);
              cpu::matmul(now, l.in(0), l.in(1), l.out(0));
            },
            outputs({0}));
      },
      [&]<class T>(T) {
        emit(
            r, out, "plain matmul",
            [=](const Launch& l) {
              for (int64_t i = 0; i < p.batch; ++i) {
                reference::matmul(p.M, p.N, p.K, p.transpose_a, p.transpose_b, T(1),
                                  l.in<T>(0) + i * p.stride_a, l.in<T>(1) + i * p.stride_b,
                                  l.accumulates(0), l.out<T>(0) + i * p.stride_c);
              }
            },
            outputs({0}));
      });
}

constexpr Adapter kAdapters[] = {
    {"embedding", embedding},     {"embedding_grad", embedding_grad},
    {"gather", gather},           {"gather_grad", gather_grad},
    {"linear", linear},           {"linear_dx", linear_dx},
    {"linear_dw", linear_dw},     {"bias_grad", bias_grad},
    {"linear_gelu", linear_gelu}, {"matmul", matmul},
};

}  // namespace

std::span<const Adapter> dense_adapters() { return kAdapters; }

}  // namespace capstan::cpu_device
