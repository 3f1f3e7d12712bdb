// Shared by the tests of the memory-bound kernels: inputs, comparison, thread counts, differences.
#ifndef CAPSTAN_TESTS_KERNELS_MEMORY_BOUND_UTIL_H_
#define CAPSTAN_TESTS_KERNELS_MEMORY_BOUND_UTIL_H_

#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "hwy/targets.h"

namespace capstan::testing {

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

inline Floats random_floats(std::int64_t n, std::uint32_t seed, float low = -2.0f,
                            float high = 2.0f) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<float> draw(low, high);
  Floats x(static_cast<std::size_t>(n));
  for (float& v : x) v = draw(generator);
  return x;
}

inline Doubles widen(const Floats& x) { return Doubles(x.begin(), x.end()); }

// |actual - expected| <= tolerance * max(1, largest |expected|), element by element.
inline void expect_close(const Floats& actual, const Doubles& expected, double tolerance,
                         const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  double scale = 1.0;
  for (double v : expected) scale = std::max(scale, std::fabs(v));
  for (std::size_t i = 0; i < actual.size(); ++i) {
    ASSERT_LE(std::fabs(actual[i] - expected[i]), tolerance * scale)
        << what << " at " << i << ": " << actual[i] << " should be " << expected[i];
  }
}

// |actual - expected| <= tolerance * |expected| + floor, element by element.
inline void expect_relative(const Floats& actual, const Doubles& expected, double tolerance,
                            double floor, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    ASSERT_LE(std::fabs(actual[i] - expected[i]), tolerance * std::fabs(expected[i]) + floor)
        << what << " at " << i << ": " << actual[i] << " should be " << expected[i];
  }
}

// Runs f with 1 and with 2 OpenMP threads.
template <class F>
void with_thread_counts(F&& f) {
  const int before = omp_get_max_threads();
  for (int threads : {1, 2}) {
    omp_set_num_threads(threads);
    SCOPED_TRACE("threads = " + std::to_string(threads));
    f();
  }
  omp_set_num_threads(before);
}

// The SIMD targets the kernels are compiled for and this machine has, best first.
inline std::vector<std::int64_t> simd_targets() {
  std::vector<std::int64_t> targets;
  for (std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    if ((target & (HWY_SSSE3 | HWY_SSE4)) == 0) targets.push_back(target);
  }
  return targets;
}

// Runs f on each SIMD target with 1 and with 2 threads.
template <class F>
void everywhere(F&& f) {
  for (std::int64_t target : simd_targets()) {
    SCOPED_TRACE(std::string("target = ") + hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    with_thread_counts(f);
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

// Central difference of a scalar function of x, element i, in double.
template <class F>
double central_difference(F&& f, Doubles& x, std::size_t i, double h = 1e-5) {
  const double kept = x[i];
  x[i] = kept + h;
  const double up = f();
  x[i] = kept - h;
  const double down = f();
  x[i] = kept;
  return (up - down) / (2.0 * h);
}

inline double dot(const Doubles& a, const Doubles& b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// The gradient of f by every element of x against `gradient`.
template <class F>
void expect_gradient(F&& f, Doubles& x, const Doubles& gradient, const std::string& what) {
  for (std::size_t i = 0; i < x.size(); ++i) {
    ASSERT_NEAR(gradient[i], central_difference(f, x, i),
                1e-6 * std::max(1.0, std::fabs(gradient[i])))
        << what << " at " << i;
  }
}

// 64-byte aligned workspace.
class Workspace {
 public:
  explicit Workspace(std::size_t bytes) : memory_(bytes + 64) {}
  void* data() {
    const std::uintptr_t at = reinterpret_cast<std::uintptr_t>(memory_.data());
    return reinterpret_cast<void*>((at + 63) / 64 * 64);
  }

 private:
  std::vector<std::uint8_t> memory_;
};

}  // namespace capstan::testing

#endif  // CAPSTAN_TESTS_KERNELS_MEMORY_BOUND_UTIL_H_
