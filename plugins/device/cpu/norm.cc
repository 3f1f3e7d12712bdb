// Normalisation and softmax.
#include "kernels/cpu/norm.h"

#include "kernels/cpu/reference/elementwise.h"
#include "kernels/cpu/reference/norm.h"
#include "kernels/cpu/softmax.h"
#include "plugins/device/cpu/kernel.h"

namespace capstan::cpu_device {
namespace {

cpu::NormParams norm_params(const Request& r, const Operand& x, const Operand& weight) {
  r.require(x.rank() >= 1 && weight.size() == x.last() && sdk::same_dtype(x.dtype, weight.dtype),
            "x must be [..., C] and weight [C]");
  cpu::NormParams p;
  p.rows = x.rows();
  p.channels = x.last();
  p.eps = static_cast<float>(r.get_float("eps", 1e-5));
  return p;
}

// Statistics are f64 beside f64 operands, else f32.
template <class T>
void expect_statistic(const Request& r, size_t output, int64_t rows) {
  r.expect_out(output, rows);
  if (r.wants(output) && !r.out(output).is(dtype_of<T>())) r.refuse_dtypes();
}

void layer_norm(const Request& r, capstan_kernel* out) {
  const cpu::NormParams p = norm_params(r, r.in(0), r.in(1));
  const bool bias = r.has(2);
  if (bias) r.in(2, r.in(0).dtype, p.channels);
  r.expect_out(0, p.rows * p.channels);
  by_dtype(
      r, r.in(0),
      [&] {
        expect_statistic<float>(r, 1, p.rows);
        expect_statistic<float>(r, 2, p.rows);
        Workspace w;
        const auto y = w.take<float>(r.wants(0) ? 0 : p.rows * p.channels);
        emit(
            r, out, "layer_norm",
            [=](const Launch& l) {
              cpu::layer_norm_forward(p, l.in(0), l.in(1), bias ? l.in(2) : nullptr, l.out_or(0, y),
                                      l.out(1), l.out(2));
            },
            0, w.bytes());
      },
      [&]<class T>(T) {
        expect_statistic<T>(r, 1, p.rows);
        expect_statistic<T>(r, 2, p.rows);
        Workspace w;
        const auto mean = w.take<T>(p.rows), rstd = w.take<T>(p.rows),
                   zeros = w.take<T>(p.channels),
                   y = w.take<T>(r.wants(0) ? 0 : p.rows * p.channels);
        const T eps = T(r.get_float("eps", 1e-5));
        emit(
            r, out, "plain layer_norm",
            [=](const Launch& l) {
              std::fill_n(l.at(zeros), p.channels, T(0));
              reference::layer_norm_forward(p.rows, p.channels, eps, l.in<T>(0), l.in<T>(1),
                                            bias ? l.in<T>(2) : l.at(zeros), l.out_or(0, y),
                                            l.out_or(1, mean), l.out_or(2, rstd));
            },
            0, w.bytes());
      });
}

void layer_norm_grad(const Request& r, capstan_kernel* out) {
  const cpu::NormParams p = norm_params(r, r.in(1), r.in(2));
  const int64_t n = p.rows * p.channels;
  r.expect_in(0, n);
  r.expect_out(0, n);
  r.expect_out(1, p.channels);
  r.expect_out(2, p.channels);
  Workspace w;
  by_dtype(
      r, r.in(1),
      [&] {
        r.in(3, sdk::kF32, p.rows), r.in(4, sdk::kF32, p.rows);
        const auto scratch = w.take_bytes(cpu::norm_backward_workspace(p));
        const auto dx = w.take<float>(r.wants(0) ? 0 : n);
        emit(
            r, out, "layer_norm_grad",
            [=](const Launch& l) {
              const bool add = accumulate_jointly<float>(
                  l, {{1, l.out(1), p.channels}, {2, l.out(2), p.channels}});
              cpu::layer_norm_backward(p, l.in(0), l.in(1), l.in(2), l.in(3), l.in(4),
                                       l.out_or(0, dx), l.out(1), l.out(2), add, l.at(scratch));
            },
            outputs({1, 2}), w.bytes());
      },
      [&]<class T>(T) {
        r.in(3, dtype_of<T>(), p.rows), r.in(4, dtype_of<T>(), p.rows);
        const auto dx = w.take<T>(r.wants(0) ? 0 : n);
        const auto dweight = w.take<T>(p.channels), dbias = w.take<T>(p.channels);
        emit(
            r, out, "plain layer_norm_grad",
            [=](const Launch& l) {
              T* dw = l.out_or(1, dweight);
              T* db = l.out_or(2, dbias);
              if (!l.accumulates(1)) std::fill_n(dw, p.channels, T(0));
              if (!l.accumulates(2)) std::fill_n(db, p.channels, T(0));
              reference::layer_norm_backward(p.rows, p.channels, l.in<T>(0), l.in<T>(1), l.in<T>(2),
                                             l.in<T>(3), l.in<T>(4), l.out_or(0, dx), dw, db);
            },
            outputs({1, 2}), w.bytes());
      });
}

void rms_norm(const Request& r, capstan_kernel* out) {
  const cpu::NormParams p = norm_params(r, r.in(0), r.in(1));
  r.expect_out(0, p.rows * p.channels);
  by_dtype(
      r, r.in(0),
      [&] {
        expect_statistic<float>(r, 1, p.rows);
        Workspace w;
        const auto y = w.take<float>(r.wants(0) ? 0 : p.rows * p.channels);
        emit(
            r, out, "rms_norm",
            [=](const Launch& l) {
              cpu::rms_norm_forward(p, l.in(0), l.in(1), l.out_or(0, y), l.out(1));
            },
            0, w.bytes());
      },
      [&]<class T>(T) {
        expect_statistic<T>(r, 1, p.rows);
        Workspace w;
        const auto rstd = w.take<T>(p.rows);
        const auto y = w.take<T>(r.wants(0) ? 0 : p.rows * p.channels);
        const T eps = T(r.get_float("eps", 1e-5));
        emit(
            r, out, "plain rms_norm",
            [=](const Launch& l) {
              reference::rms_norm_forward(p.rows, p.channels, eps, l.in<T>(0), l.in<T>(1),
                                          l.out_or(0, y), l.out_or(1, rstd));
            },
            0, w.bytes());
      });
}

void rms_norm_grad(const Request& r, capstan_kernel* out) {
  const cpu::NormParams p = norm_params(r, r.in(1), r.in(2));
  const int64_t n = p.rows * p.channels;
  r.expect_in(0, n);
  r.expect_out(0, n);
  r.expect_out(1, p.channels);
  Workspace w;
  by_dtype(
      r, r.in(1),
      [&] {
        r.in(3, sdk::kF32, p.rows);
        const auto scratch = w.take_bytes(cpu::norm_backward_workspace(p));
        const auto dx = w.take<float>(r.wants(0) ? 0 : n);
        emit(
            r, out, "rms_norm_grad",
            [=](const Launch& l) {
              cpu::rms_norm_backward(p, l.in(0), l.in(1), l.in(2), l.in(3), l.out_or(0, dx),
                                     l.out(1), l.accumulates(1), l.at(scratch));
            },
            outputs({1}), w.bytes());
      },
      [&]<class T>(T) {
        r.in(3, dtype_of<T>(), p.rows);
        const auto dx = w.take<T>(r.wants(0) ? 0 : n);
        const auto dweight = w.take<T>(p.channels);
        emit(
            r, out, "plain rms_norm_grad",
            [=](const Launch& l) {
              T* dw = l.out_or(1, dweight);
              if (!l.accumulates(1)) std::fill_n(dw, p.channels, T(0));
              reference::rms_norm_backward(p.rows, p.channels, l.in<T>(0), l.in<T>(1), l.in<T>(2),
                                           l.in<T>(3), l.out_or(0, dx), dw);
            },
            outputs({1}), w.bytes());
      });
}

void softmax(const Request& r, capstan_kernel* out) {
  const Operand& x = r.in(0);
  r.require(x.rank() >= 1, "x must have a last dim");
  r.expect_out(0, x.size());
  const int64_t rows = x.rows(), columns = x.last();
  by_dtype(
      r, x,
      [&] {
        emit(r, out, "softmax",
             [=](const Launch& l) { cpu::softmax_forward(rows, columns, l.in(0), l.out(0)); });
      },
      [&]<class T>(T) {
        emit(r, out, "plain softmax", [=](const Launch& l) {
          if (columns > 0) reference::softmax_forward(rows, columns, l.in<T>(0), l.out<T>(0));
        });
      });
}

void softmax_grad(const Request& r, capstan_kernel* out) {
  const Operand& y = r.in(1);
  r.require(y.rank() >= 1, "y must have a last dim");
  r.expect_in(0, y.size());
  r.expect_out(0, y.size());
  const int64_t rows = y.rows(), columns = y.last();
  by_dtype(
      r, y,
      [&] {
        emit(r, out, "softmax_grad", [=](const Launch& l) {
          cpu::softmax_backward(rows, columns, l.in(0), l.in(1), l.out(0));
        });
      },
      [&]<class T>(T) {
        emit(r, out, "plain softmax_grad", [=](const Launch& l) {
          reference::softmax_backward(rows, columns, l.in<T>(0), l.in<T>(1), l.out<T>(0));
        });
      });
}

constexpr Adapter kAdapters[] = {
    {"layer_norm", layer_norm}, {"layer_norm_grad", layer_norm_grad},
    {"rms_norm", rms_norm},     {"rms_norm_grad", rms_norm_grad},
    {"softmax", softmax},       {"softmax_grad", softmax_grad},
};

}  // namespace

std::span<const Adapter> norm_adapters() { return kAdapters; }

}  // namespace capstan::cpu_device
