#include "tests/comm/elements.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "kernels/cpu/convert.h"
#include "sdk/program.h"

namespace capstan::test {
namespace {

template <class Visit>
auto WithType(capstan_dtype d, Visit&& visit) {
  if (sdk::same_dtype(d, sdk::kF32)) return visit(float{});
  if (sdk::same_dtype(d, sdk::kF64)) return visit(double{});
  if (sdk::same_dtype(d, sdk::kBF16)) return visit(cpu::Bf16{});
  if (sdk::same_dtype(d, sdk::kF16)) return visit(cpu::F16{});
  if (sdk::same_dtype(d, sdk::kBool)) return visit(cpu::Bool{});
  const bool is_signed = d.code == CAPSTAN_DTYPE_INT;
  if (d.bits == 8) return is_signed ? visit(int8_t{}) : visit(uint8_t{});
  if (d.bits == 32 && is_signed) return visit(int32_t{});
  if (d.bits == 64 && is_signed) return visit(int64_t{});
  throw std::logic_error("the tests have no values of dtype " + sdk::dtype_name(d));
}

double ReduceFloats(capstan_dtype dtype, int32_t reduce, std::span<const double> values) {
  const bool wide = dtype.bits == 64;
  const auto round = [&](double x) {
    return wide ? x : static_cast<double>(static_cast<float>(x));
  };
  double out = values[0];
  for (size_t r = 1; r < values.size(); ++r) {
    if (reduce == CAPSTAN_COMM_MAX) {
      out = std::isnan(out) || out > values[r] ? out : values[r];
    } else {
      out = round(out + values[r]);
    }
  }
  const auto n = static_cast<double>(values.size());
  return reduce == CAPSTAN_COMM_AVERAGE ? round(out / n) : out;
}

}  // namespace

size_t ElementBytes(capstan_dtype dtype) { return dtype.bits / 8u; }

bool IsFloat(capstan_dtype dtype) {
  return dtype.code == CAPSTAN_DTYPE_FLOAT || dtype.code == CAPSTAN_DTYPE_BFLOAT;
}

uint64_t Mix(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
  uint64_t x = a * 0x9e3779b97f4a7c15u ^ b * 0xc2b2ae3d27d4eb4fu ^ c * 0x165667b19e3779f9u ^
               d * 0x27d4eb2f165667c5u;
  x ^= x >> 29;
  x *= 0xff51afd7ed558ccdu;
  x ^= x >> 32;
  x *= 0xc4ceb9fe1a85ec53u;
  return x ^ (x >> 29);
}

double Values::at(int rank, size_t item, uint64_t index) const {
  const uint64_t bits = Mix(seed, static_cast<uint64_t>(rank) + 1, item + 1, index + 1);
  if (dtype.code == CAPSTAN_DTYPE_BOOL) return static_cast<double>(bits & 1u);
  if (dtype.code == CAPSTAN_DTYPE_UINT) return static_cast<double>(bits % 16);
  if (!real || !IsFloat(dtype)) return static_cast<double>(bits % 15) - 7.0;
  // Magnitudes from 2^-6 to 2^6, which every floating dtype holds; rounded to the dtype, so that
  // what a rank sends is what the reference adds.
  const double mantissa = static_cast<double>(bits >> 11) * 0x1p-53 * 2.0 - 1.0;
  char memory[8];
  Store(dtype, memory, 0, std::ldexp(mantissa, static_cast<int>(bits % 13) - 6));
  return Load(dtype, memory, 0);
}

void Store(capstan_dtype dtype, char* memory, uint64_t index, double value) {
  WithType(dtype, [&]<class T>(T) {
    const T element = cpu::convert<T>(value);
    std::memcpy(memory + index * sizeof(T), &element, sizeof(T));
  });
}

double Load(capstan_dtype dtype, const char* memory, uint64_t index) {
  return WithType(dtype, [&]<class T>(T) {
    T element;
    std::memcpy(&element, memory + index * sizeof(T), sizeof(T));
    return cpu::convert<double>(element);
  });
}

double Reduce(capstan_dtype dtype, int32_t reduce, std::span<const double> values) {
  if (IsFloat(dtype)) return ReduceFloats(dtype, reduce, values);
  double out = values[0];
  for (size_t r = 1; r < values.size(); ++r) {
    if (reduce == CAPSTAN_COMM_MAX || dtype.code == CAPSTAN_DTYPE_BOOL) {
      out = std::max(out, values[r]);
    } else {
      out += values[r];
    }
  }
  return out;
}

std::vector<uint64_t> UnevenParts(uint64_t total, size_t n, uint64_t seed) {
  std::vector<uint64_t> weights(n), parts(n);
  uint64_t sum = 0;
  for (size_t r = 0; r < n; ++r) sum += weights[r] = Mix(seed, r, n) % 4;
  uint64_t left = total;
  for (size_t r = 0; r < n && sum > 0; ++r) left -= parts[r] = total * weights[r] / sum;
  parts[seed % n] += left;
  return parts;
}

}  // namespace capstan::test
