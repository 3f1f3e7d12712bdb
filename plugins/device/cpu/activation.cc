// Unary functions, SwiGLU and dropout.
#include "kernels/cpu/activation.h"

#include <algorithm>
#include <string_view>

#include "kernels/cpu/dropout.h"
#include "kernels/cpu/reference/activation.h"
#include "kernels/cpu/reference/dropout.h"
#include "plugins/device/cpu/kernel.h"

namespace capstan::cpu_device {
namespace {

using cpu::Unary;

struct NamedUnary {
  std::string_view name;
  Unary function;
};
constexpr NamedUnary kUnaries[] = {
    {"relu", Unary::kRelu}, {"silu", Unary::kSilu},     {"sigmoid", Unary::kSigmoid},
    {"tanh", Unary::kTanh}, {"exp", Unary::kExp},       {"log", Unary::kLog},
    {"sqrt", Unary::kSqrt}, {"rsqrt", Unary::kRsqrt},   {"reciprocal", Unary::kReciprocal},
    {"neg", Unary::kNeg},   {"square", Unary::kSquare}, {"abs", Unary::kAbs},
};

Unary find_unary(const Request& r, const std::string& name) {
  if (name == "gelu") {
    const std::string approximate = r.attrs().get_string("approximate", "tanh");
    r.require(approximate == "tanh" || approximate == "none", "approximate is tanh or none");
    return approximate == "tanh" ? Unary::kGeluTanh : Unary::kGeluErf;
  }
  for (const NamedUnary& u : kUnaries) {
    if (u.name == name) return u.function;
  }
  throw sdk::unsupported_error(sdk::text("device cpu: ", r.op(), " of the function '", name,
                                         "', which is none of the catalogue's"));
}

void unary(const Request& r, capstan_kernel* out) {
  const Unary f = find_unary(r, r.op());
  const int64_t n = r.in(0).size();
  r.expect_out(0, n);
  by_dtype(
      r, r.in(0),
      [&] {
        emit(r, out, "unary",
             [=](const Launch& l) { cpu::unary_forward(f, n, l.in(0), l.out(0)); });
      },
      [&]<class T>(T) {
        emit(r, out, "plain unary", [=](const Launch& l) {
          for (int64_t i = 0; i < n; ++i) {
            l.out<T>(0)[i] = reference::unary_value(f, l.in<T>(0)[i]);
          }
        });
      });
}

void unary_grad_of(const Request& r, capstan_kernel* out, Unary f) {
  const int64_t n = r.in(0).size();
  r.in(1, r.in(0).dtype, n);
  r.expect_out(0, n);
  by_dtype(
      r, r.in(0),
      [&] {
        emit(r, out, "unary_grad",
             [=](const Launch& l) { cpu::unary_backward(f, n, l.in(0), l.in(1), l.out(0)); });
      },
      [&]<class T>(T) {
        emit(r, out, "plain unary_grad", [=](const Launch& l) {
          for (int64_t i = 0; i < n; ++i) {
            l.out<T>(0)[i] = l.in<T>(0)[i] * reference::unary_derivative(f, l.in<T>(1)[i]);
          }
        });
      });
}

void unary_grad(const Request& r, capstan_kernel* out) {
  unary_grad_of(r, out, find_unary(r, r.attrs().get_string("function", "")));
}
void gelu_grad(const Request& r, capstan_kernel* out) {
  unary_grad_of(r, out, find_unary(r, "gelu"));
}

void swiglu(const Request& r, capstan_kernel* out) {
  const int64_t n = r.in(0).size();
  r.in(1, r.in(0).dtype, n);
  r.expect_out(0, n);
  const cpu::SwigluParams p{1, n, 0, 0};
  by_dtype(
      r, r.in(0),
      [&] {
        emit(r, out, "swiglu",
             [=](const Launch& l) { cpu::swiglu_forward(p, l.in(0), l.in(1), l.out(0)); });
      },
      [&]<class T>(T) {
        emit(r, out, "plain swiglu", [=](const Launch& l) {
          for (int64_t i = 0; i < n; ++i) {
            l.out<T>(0)[i] = reference::swiglu(l.in<T>(0)[i], l.in<T>(1)[i]);
          }
        });
      });
}

void swiglu_grad(const Request& r, capstan_kernel* out) {
  const int64_t n = r.in(0).size();
  r.in(1, r.in(0).dtype, n), r.in(2, r.in(0).dtype, n);
  r.expect_out(0, n);
  r.expect_out(1, n);
  const cpu::SwigluParams p{1, n, 0, 0};
  Workspace w;
  by_dtype(
      r, r.in(0),
      [&] {
        const auto dgate = w.take<float>(r.wants(0) ? 0 : n),
                   dup = w.take<float>(r.wants(1) ? 0 : n);
        emit(
            r, out, "swiglu_grad",
            [=](const Launch& l) {
              cpu::swiglu_backward(p, l.in(0), l.in(1), l.in(2), l.out_or(0, dgate),
                                   l.out_or(1, dup));
            },
            0, w.bytes());
      },
      [&]<class T>(T) {
        emit(r, out, "plain swiglu_grad", [=](const Launch& l) {
          for (int64_t i = 0; i < n; ++i) {
            T dgate, dup;  // both read before either is written: outputs may be inputs
            reference::swiglu_backward(l.in<T>(0)[i], l.in<T>(1)[i], l.in<T>(2)[i], &dgate, &dup);
            if (T* to = l.out<T>(0)) to[i] = dgate;
            if (T* to = l.out<T>(1)) to[i] = dup;
          }
        });
      });
}

void dropout(const Request& r, capstan_kernel* out) {
  const Operand& x = r.in(0);
  r.require(x.rank() == 3, "x must be [B, T, C]");
  cpu::DropoutParams p;
  p.batch = x.dim(0);
  p.seq = x.dim(1);
  p.channels = x.dim(2);
  p.channel_offset = r.get_int("channel_start", 0);
  p.position_stride = p.seq;
  p.p = r.need_float("p");
  r.require(p.p >= 0.0 && p.p <= 1.0, "p must be within 0 and 1");
  p.seed = r.seed();
  p.op_key = static_cast<uint64_t>(r.need_int("key"));
  r.in(1, sdk::kI64, 1), r.in(2, sdk::kI64, p.batch), r.in(3, sdk::kI32, p.batch * p.seq);
  r.expect_out(0, x.size());
  by_dtype(
      r, x,
      [&] {
        emit(r, out, "dropout (Philox)", [=](const Launch& l) {
          cpu::dropout(p, *l.in<int64_t>(1), l.in<int64_t>(2), l.in<int32_t>(3), l.in(0), l.out(0));
        });
      },
      [&]<class T>(T) {
        emit(r, out, "plain dropout (Philox)", [=](const Launch& l) {
          reference::dropout(p, *l.in<int64_t>(1), l.in<int64_t>(2), l.in<int32_t>(3), l.in<T>(0),
                             l.out<T>(0));
        });
      });
}

constexpr Adapter kAdapters[] = {
    {"gelu", unary},
    {"gelu_grad", gelu_grad},
    {"swiglu", swiglu},
    {"swiglu_grad", swiglu_grad},
    {"relu", unary},
    {"silu", unary},
    {"sigmoid", unary},
    {"tanh", unary},
    {"exp", unary},
    {"log", unary},
    {"sqrt", unary},
    {"rsqrt", unary},
    {"reciprocal", unary},
    {"neg", unary},
    {"square", unary},
    {"abs", unary},
    {"unary_grad", unary_grad},
    {"dropout", dropout},
};

}  // namespace

std::span<const Adapter> activation_adapters() { return kAdapters; }

}  // namespace capstan::cpu_device
