// What the tests of the compute-heavy CPU kernels share: random data, comparison against a double
// reference, finite differences, and a run under every SIMD target and thread count.
#ifndef CAPSTAN_TESTS_KERNELS_COMPUTE_TEST_UTIL_H_
#define CAPSTAN_TESTS_KERNELS_COMPUTE_TEST_UTIL_H_

#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "hwy/targets.h"

namespace capstan::test {

// Normal values, rounded to float so that the double reference sees the same inputs.
inline std::vector<float> random_values(std::int64_t n, unsigned seed, float deviation = 1.0f) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0.0f, deviation);
  std::vector<float> values(static_cast<std::size_t>(n));
  for (float& v : values) v = normal(engine);
  return values;
}

inline std::vector<double> widen(const std::vector<float>& v) { return {v.begin(), v.end()}; }

// Largest difference relative to the largest magnitude expected (at least `floor`).
inline void expect_close(const std::vector<float>& actual, const std::vector<double>& expected,
                         double tolerance, const std::string& what, double floor = 1e-6) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  double scale = floor;
  for (const double e : expected) scale = std::max(scale, std::abs(e));
  for (std::size_t i = 0; i < actual.size(); ++i) {
    if (!(std::abs(actual[i] - expected[i]) <= tolerance * scale)) {
      ADD_FAILURE() << what << "[" << i << "] = " << actual[i] << ", expected " << expected[i]
                    << " (scale " << scale << ")";
      return;
    }
  }
}

// 64-byte aligned bytes with a guard after them; fails if the guard was written.
class GuardedWorkspace {
 public:
  explicit GuardedWorkspace(std::size_t bytes) : bytes_(bytes), data_(allocate(bytes + kGuard)) {
    std::fill_n(data_.get(), bytes + kGuard, std::byte{0xa5});
  }
  ~GuardedWorkspace() {
    for (std::size_t i = 0; i < kGuard; ++i) {
      if (data_.get()[bytes_ + i] != std::byte{0xa5}) {
        ADD_FAILURE() << "workspace of " << bytes_ << " bytes overrun";
        return;
      }
    }
  }
  void* get() { return data_.get(); }

 private:
  static constexpr std::size_t kGuard = 256;
  struct Free {
    void operator()(std::byte* p) const { ::operator delete[](p, std::align_val_t{64}); }
  };
  static std::byte* allocate(std::size_t n) {
    return static_cast<std::byte*>(::operator new[](n, std::align_val_t{64}));
  }
  std::size_t bytes_;
  std::unique_ptr<std::byte[], Free> data_;
};

// Calls body(description) under each SIMD target this machine has, with 1 and with 2 threads (and
// 3, which no share divides evenly, on the best target).
template <class Body>
void for_each_setting(Body&& body) {
  const int threads_before = omp_get_max_threads();
  const std::int64_t supported = hwy::SupportedTargets() & ~(HWY_SSSE3 | HWY_SSE4);
  bool best = true;
  for (std::int64_t left = supported; left != 0; left &= left - 1) {
    const std::int64_t target = left & -left;  // lower bits are better targets
    hwy::SetSupportedTargetsForTest(left);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    for (int threads = 1; threads <= (best ? 3 : 1); ++threads) {
      omp_set_num_threads(threads);
      body(std::string(hwy::TargetName(target)) + ", " + std::to_string(threads) + " threads");
      if (::testing::Test::HasFatalFailure()) break;
    }
    best = false;
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  omp_set_num_threads(threads_before);
}

// Checks gradient[i] of the scalar function f() of `values` by central differences, for a spread of
// at most `samples` elements.
template <class F>
void expect_gradient(std::vector<double>& values, const std::vector<double>& gradient, F&& f,
                     const std::string& what, double tolerance = 1e-6, std::size_t samples = 40) {
  ASSERT_EQ(values.size(), gradient.size());
  const double step = 1e-5;
  const std::size_t stride = std::max<std::size_t>(1, values.size() / samples);
  double scale = 1e-3;
  for (const double g : gradient) scale = std::max(scale, std::abs(g));
  for (std::size_t i = 0; i < values.size(); i += stride) {
    const double saved = values[i];
    values[i] = saved + step;
    const double above = f();
    values[i] = saved - step;
    const double below = f();
    values[i] = saved;
    EXPECT_NEAR(gradient[i], (above - below) / (2 * step), tolerance * scale) << what << " " << i;
  }
}

}  // namespace capstan::test

#endif  // CAPSTAN_TESTS_KERNELS_COMPUTE_TEST_UTIL_H_
