// Tensors out of nothing: constants and random values.
#include <cstring>
#include <string>

#include "kernels/cpu/cast.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/random_fill.h"
#include "kernels/cpu/reference/random_fill.h"
#include "plugins/device/cpu/kernel.h"

namespace capstan::cpu_device {
namespace {

// The bytes of one element of the given dtype that is worth `value`.
struct Element {
  char bytes[8] = {};
  size_t size = 0;
};

template <class T>
Element element(T value) {
  Element e;
  e.size = sizeof(T);
  std::memcpy(e.bytes, &value, sizeof(T));
  return e;
}

Element element_of(const Request& r, const Operand& y, double value) {
  if (y.is(sdk::kF32)) return element(static_cast<float>(value));
  if (y.is(sdk::kF64)) return element(value);
  if (y.is(sdk::kBF16)) return element(cpu::convert<cpu::Bf16>(value));
  if (y.is(sdk::kF16)) return element(cpu::convert<cpu::F16>(value));
  if (y.is(sdk::kI32)) return element(cpu::convert<int32_t>(value));
  if (y.is(sdk::kI64)) return element(cpu::convert<int64_t>(value));
  if (y.is(sdk::kI8)) return element(cpu::convert<int8_t>(value));
  if (y.is(sdk::kBool)) return element(cpu::convert<cpu::Bool>(value));
  r.refuse_dtypes();
}

void fill(const Request& r, capstan_kernel* out) {
  const Operand& y = r.out(0);
  const Element e = element_of(r, y, r.need_float("value"));
  const int64_t n = y.size();
  emit(r, out, "fill", [=](const Launch& l) { cpu::fill(n, e.size, e.bytes, l.out<char>(0)); });
}

// Values depend on seed, key and the place in the whole tensor alone.
cpu::RandomFillParams random_params(const Request& r) {
  const Operand& y = r.out(0);
  if (y.rank() > cpu::kRandomFillMaxRank) {
    throw sdk::unsupported_error(sdk::text("device cpu: ", r.describe(), " has more than ",
                                           cpu::kRandomFillMaxRank, " dims"));
  }
  cpu::RandomFillParams p;
  p.rank = y.rank();
  for (int d = 0; d < p.rank; ++d) p.global_shape[d] = p.shape[d] = y.dim(d);
  const std::vector<int64_t> whole = r.attrs().get_ints("global_shape");
  const std::vector<int64_t> start = r.attrs().get_ints("start");
  if (!whole.empty() || !start.empty()) {
    bool fits =
        static_cast<int>(whole.size()) == p.rank && static_cast<int>(start.size()) == p.rank;
    for (int d = 0; fits && d < p.rank; ++d) {
      p.global_shape[d] = whole[d];
      p.start[d] = start[d];
      fits = start[d] >= 0 && start[d] + y.dim(d) <= whole[d];
    }
    if (!fits) {
      throw sdk::bug_error(sdk::text("device cpu: ", r.describe(),
                                     ": global_shape and start do not hold the output's shape"));
    }
  }
  p.key = derive_key(r.seed(), static_cast<uint64_t>(r.need_int("key")));
  return p;
}

// Where element i of the part lies in the row-major order of the whole.
uint64_t global_index(const cpu::RandomFillParams& p, int64_t i) {
  int64_t at = 0, stride = 1;
  for (int d = p.rank - 1; d >= 0; --d) {
    at += (p.start[d] + i % p.shape[d]) * stride;
    i /= p.shape[d];
    stride *= p.global_shape[d];
  }
  return static_cast<uint64_t>(at);
}

// a, b: mean and standard deviation, or the two ends.
void random(const Request& r, capstan_kernel* out, bool normal, double a, double b) {
  const cpu::RandomFillParams p = random_params(r);
  const int64_t n = r.out(0).size();
  by_dtype(
      r, r.out(0),
      [&] {
        emit(r, out, "random (Philox)", [=](const Launch& l) {
          const auto first = static_cast<float>(a), second = static_cast<float>(b);
          if (normal) return cpu::random_normal(p, first, second, l.out(0));
          cpu::random_uniform(p, first, second, l.out(0));
        });
      },
      [&]<class T>(T) {
        emit(r, out, "plain random (Philox)", [=](const Launch& l) {
          for (int64_t i = 0; i < n; ++i) {
            const uint64_t at = global_index(p, i);
            l.out<T>(0)[i] = normal ? reference::random_normal(p.key, at, T(a), T(b))
                                    : reference::random_uniform(p.key, at, T(a), T(b));
          }
        });
      });
}

void random_normal(const Request& r, capstan_kernel* out) {
  random(r, out, true, r.get_float("mean", 0.0), r.get_float("std", 1.0));
}
void random_uniform(const Request& r, capstan_kernel* out) {
  random(r, out, false, r.get_float("low", 0.0), r.get_float("high", 1.0));
}

constexpr Adapter kAdapters[] = {
    {"fill", fill},
    {"random_normal", random_normal},
    {"random_uniform", random_uniform},
};

}  // namespace

std::span<const Adapter> random_adapters() { return kAdapters; }

}  // namespace capstan::cpu_device
