// Calls of every op of the catalogue, in f64, over several sizes.
#ifndef CAPSTAN_TESTS_DEVICE_OP_CASES_H_
#define CAPSTAN_TESTS_DEVICE_OP_CASES_H_

#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "tests/device/harness.h"

namespace capstan::test {

// B sequences, T positions, S keys, H query and G key heads of D channels, C and K features, N
// output features, V words.
struct Sizes {
  int64_t B, T, S, H, G, D, C, K, N, V;
};

// An ordinary shape, the smallest of everything, and odd ones that no vector or tile divides.
inline const std::vector<Sizes>& all_sizes() {
  static const std::vector<Sizes> sizes = {
      {2, 5, 5, 2, 1, 8, 16, 24, 12, 33},
      {1, 1, 1, 1, 1, 2, 1, 1, 1, 2},
      {3, 17, 17, 4, 2, 16, 65, 67, 129, 259},
      {2, 65, 65, 3, 3, 32, 96, 96, 70, 300},
  };
  return sizes;
}

enum class Effect { kWrite, kAccumulate, kUpdate };

// One call and what may be varied about it.
struct OpCase {
  Call call;
  std::vector<Effect> effects;    // one per output
  bool optional_outputs = false;  // each output may be left out while another is read
  bool elementwise = false;       // output 0 may be input 0
  double tolerance = 3e-6;  // of f32 against f64, relative to the largest value of a tensor ...
  double scale = 1e-3;      // ... or to this, where cancellation may leave nothing but tiny values
};

// Random operands, all exact in f32, so that both precisions see the same numbers.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  std::vector<double> uniform(int64_t n, double low, double high) {
    std::uniform_real_distribution<float> d(static_cast<float>(low), static_cast<float>(high));
    return fill(n, d);
  }
  std::vector<double> integers(int64_t n, int64_t low, int64_t high) {  // both included
    std::uniform_int_distribution<int64_t> d(low, high);
    return fill(n, d);
  }
  Array f(const Shape& shape, double low = -1.0, double high = 1.0) {
    Array a = f64(shape, {});
    a.values = uniform(a.size(), low, high);
    return a;
  }
  Array ids(const Shape& shape, int64_t low, int64_t high) {
    Array a = i32(shape, {});
    a.values = integers(a.size(), low, high);
    return a;
  }

 private:
  template <class Distribution>
  std::vector<double> fill(int64_t n, Distribution& d) {
    std::vector<double> out;
    for (int64_t i = 0; i < n; ++i) out.push_back(static_cast<double>(d(engine_)));
    return out;
  }
  std::mt19937_64 engine_;
};

// ---- what cases are written with

inline constexpr Effect kWrite = Effect::kWrite, kAccumulate = Effect::kAccumulate,
                        kUpdate = Effect::kUpdate;

using Cases = std::vector<OpCase>;
using MakeCases = std::function<Cases(const Sizes&, Random&)>;
using Table = std::map<std::string, MakeCases>;

inline Array scalar(double value) { return f64({1}, {value}); }
inline Array step(int64_t value) { return i64({1}, {static_cast<double>(value)}); }

// By op.
std::map<std::string, MakeCases> all_op_cases();
// The part of it in element_op_cases.cc: arithmetic, shapes, constants and updates.
void add_element_op_cases(std::map<std::string, MakeCases>& cases);

}  // namespace capstan::test

#endif  // CAPSTAN_TESTS_DEVICE_OP_CASES_H_
