// Element-wise arithmetic, casts, reductions along a dim, int8 quantisation.
#include <algorithm>
#include <vector>

#include "kernels/cpu/cast.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/quantize.h"
#include "kernels/cpu/reduce.h"
#include "kernels/cpu/reference/elementwise.h"
#include "kernels/cpu/reference/quantize.h"
#include "kernels/cpu/reference/reduce.h"
#include "plugins/device/cpu/kernel.h"

namespace capstan::cpu_device {
namespace {

// How b lies against a: alike, one element, or a's trailing dims (leading ones of 1 do not count).
cpu::BinaryParams binary_params(const Request& r, cpu::Binary op) {
  const Operand& a = r.in(0);
  const Operand& b = r.in(1, a.dtype);
  cpu::BinaryParams p;
  p.op = op;
  p.inner = a.size();
  if (b.shape == a.shape) return p;
  if (b.size() == 1) {
    p.broadcast = cpu::BroadcastB::kScalar;
    return p;
  }
  size_t first = 0;
  while (first < b.shape.size() && b.shape[first] == 1) ++first;
  const std::vector<int64_t> tail(b.shape.begin() + static_cast<ptrdiff_t>(first), b.shape.end());
  r.require(
      tail.size() <= a.shape.size() && std::equal(tail.rbegin(), tail.rend(), a.shape.rbegin()),
      "b must have a's shape, its trailing dims or one element");
  p.broadcast = cpu::BroadcastB::kLeading;
  p.inner = b.size();
  p.outer = p.inner == 0 ? 0 : a.size() / p.inner;
  return p;
}

template <cpu::Binary kOp>
void binary(const Request& r, capstan_kernel* out) {
  const cpu::BinaryParams p = binary_params(r, kOp);
  r.expect_out(0, p.outer * p.inner);
  by_dtype(
      r, r.in(0),
      [&] {
        emit(r, out, "binary",
             [=](const Launch& l) { cpu::binary(p, l.in(0), l.in(1), l.out(0)); });
      },
      [&]<class T>(T) {
        emit(r, out, "plain binary",
             [=](const Launch& l) { reference::binary(p, l.in<T>(0), l.in<T>(1), l.out<T>(0)); });
      });
}

void scale(const Request& r, capstan_kernel* out) {
  const int64_t n = r.in(0).size();
  const double factor = r.need_float("factor");
  r.expect_out(0, n);
  by_dtype(
      r, r.in(0),
      [&] {
        emit(r, out, "scale", [=](const Launch& l) {
          cpu::scale(n, static_cast<float>(factor), l.in(0), l.out(0));
        });
      },
      [&]<class T>(T) {
        emit(r, out, "plain scale", [=](const Launch& l) {
          for (int64_t i = 0; i < n; ++i) l.out<T>(0)[i] = T(factor) * l.in<T>(0)[i];
        });
      });
}

void accumulate(const Request& r, capstan_kernel* out) {
  const int64_t n = r.in(0).size();
  r.expect_out(0, n);
  if (!r.out(0).is(r.in(0).dtype)) r.refuse_dtypes();
  by_dtype(
      r, r.in(0),
      [&] {
        emit(
            r, out, "accumulate",
            [=](const Launch& l) { cpu::accumulate(n, 1.0f, l.in(0), l.out(0), l.accumulates(0)); },
            outputs({0}));
      },
      [&]<class T>(T) {
        emit(
            r, out, "plain accumulate",
            [=](const Launch& l) {
              const bool add = l.accumulates(0);
              for (int64_t i = 0; i < n; ++i) {
                l.out<T>(0)[i] = (add ? l.out<T>(0)[i] : T(0)) + l.in<T>(0)[i];
              }
            },
            outputs({0}));
      });
}

cpu::ScalarType scalar_type(const Request& r, const Operand& x) {
  struct Known {
    capstan_dtype dtype;
    cpu::ScalarType type;
  };
  static constexpr Known kKnown[] = {
      {sdk::kF32, cpu::ScalarType::kF32},
      {sdk::kF64, cpu::ScalarType::kF64},
      {sdk::kBF16, cpu::ScalarType::kBf16},
      {sdk::kF16, cpu::ScalarType::kF16},
      {sdk::kI32, cpu::ScalarType::kI32},
      {sdk::kI64, cpu::ScalarType::kI64},
      {{CAPSTAN_DTYPE_UINT, 8, 1}, cpu::ScalarType::kU8},
      {sdk::kBool, cpu::ScalarType::kBool},
  };
  for (const Known& k : kKnown) {
    if (x.is(k.dtype)) return k.type;
  }
  r.refuse_dtypes();
}

// In place when both types have one size: the op is element-wise, so its output may be its input.
void cast(const Request& r, capstan_kernel* out) {
  const Operand& x = r.in(0);
  const int64_t n = x.size();
  r.expect_out(0, n);
  const cpu::ScalarType from = scalar_type(r, x), to = scalar_type(r, r.out(0));
  const int64_t bytes = r.out(0).bytes();
  Workspace w;
  const bool alike = from == to;
  const auto staged = w.take_bytes(alike ? 0 : static_cast<size_t>(bytes));
  emit(
      r, out, "cast",
      [=](const Launch& l) {
        const char* src = l.in<char>(0);
        char* dst = l.out<char>(0);
        if (src != dst) {
          if (alike) return cpu::copy(bytes, src, dst);
          return cpu::cast(from, to, n, src, dst);
        }
        if (alike) return;
        cpu::cast(from, to, n, src, l.at(staged));
        cpu::copy(bytes, l.at(staged), dst);
      },
      0, w.bytes());
}

void reduce_along(const Request& r, capstan_kernel* out, cpu::Reduction reduction) {
  const Operand& x = r.in(0);
  const int dim = r.dim("dim", x);
  cpu::ReduceParams p;
  p.n = x.dim(dim);
  for (int d = 0; d < dim; ++d) p.outer *= x.dim(d);
  for (int d = dim + 1; d < x.rank(); ++d) p.inner *= x.dim(d);
  r.expect_out(0, p.outer * p.inner);
  by_dtype(
      r, x,
      [&] {
        Workspace w;
        const auto scratch = w.take_bytes(cpu::reduce_workspace(p));
        emit(
            r, out, "reduce",
            [=](const Launch& l) {
              cpu::reduce(reduction, p, l.in(0), l.out(0), false, l.at(scratch));
            },
            0, w.bytes());
      },
      [&]<class T>(T) {
        emit(r, out, "plain reduce",
             [=](const Launch& l) { reference::reduce(reduction, p, l.in<T>(0), l.out<T>(0)); });
      });
}

void reduce_sum(const Request& r, capstan_kernel* out) {
  reduce_along(r, out, cpu::Reduction::kSum);
}
void reduce_max(const Request& r, capstan_kernel* out) {
  reduce_along(r, out, cpu::Reduction::kMax);
}

// ---- quantisation: scales are f32 whatever the dtype of x -------------------------------------

int64_t block_of(const Request& r) {
  const int64_t block = r.need_int("block");
  r.require(block > 0, "block must be positive");
  return block;
}

void quantize(const Request& r, capstan_kernel* out) {
  const int64_t n = r.in(0).size(), block = block_of(r), blocks = (n + block - 1) / block;
  r.expect_out(0, n);
  r.expect_out(1, blocks);
  r.require(r.out(0).is(sdk::kI8) && r.out(1).is(sdk::kF32), "codes must be i8 and scales f32");
  by_dtype(
      r, r.in(0),
      [&] {
        emit(r, out, "quantize", [=](const Launch& l) {
          cpu::quantize_int8(n, block, l.in(0), l.out<int8_t>(0), l.out(1));
        });
      },
      [&]<class T>(T) {
        Workspace w;
        const auto wide = w.take<T>(blocks);
        emit(
            r, out, "plain quantize",
            [=](const Launch& l) {
              T* scales = l.at(wide);
              reference::quantize_int8(n, block, l.in<T>(0), l.out<int8_t>(0), scales);
              for (int64_t i = 0; i < blocks; ++i) l.out(1)[i] = static_cast<float>(scales[i]);
            },
            0, w.bytes());
      });
}

void dequantize(const Request& r, capstan_kernel* out) {
  const int64_t n = r.in(0, sdk::kI8).size(), block = block_of(r), blocks = (n + block - 1) / block;
  r.in(1, sdk::kF32, blocks);
  r.expect_out(0, n);
  by_dtype(
      r, r.out(0),
      [&] {
        emit(r, out, "dequantize", [=](const Launch& l) {
          cpu::dequantize_int8(n, block, l.in<int8_t>(0), l.in(1), l.out(0));
        });
      },
      [&]<class T>(T) {
        Workspace w;
        const auto wide = w.take<T>(blocks);
        emit(
            r, out, "plain dequantize",
            [=](const Launch& l) {
              T* scales = l.at(wide);
              for (int64_t i = 0; i < blocks; ++i) scales[i] = T(l.in(1)[i]);
              reference::dequantize_int8(n, block, l.in<int8_t>(0), scales, l.out<T>(0));
            },
            0, w.bytes());
      });
}

constexpr Adapter kAdapters[] = {
    {"add", binary<cpu::Binary::kAdd>},
    {"sub", binary<cpu::Binary::kSub>},
    {"mul", binary<cpu::Binary::kMul>},
    {"div", binary<cpu::Binary::kDiv>},
    {"scale", scale},
    {"accumulate", accumulate},
    {"cast", cast},
    {"reduce_sum", reduce_sum},
    {"reduce_max", reduce_max},
    {"quantize", quantize},
    {"dequantize", dequantize},
};

}  // namespace

std::span<const Adapter> arithmetic_adapters() { return kAdapters; }

}  // namespace capstan::cpu_device
