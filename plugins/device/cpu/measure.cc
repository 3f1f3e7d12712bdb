#include "plugins/device/cpu/measure.h"

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "kernels/cpu/matmul.h"
#include "kernels/cpu/reference/matmul.h"
#include "plugins/device/cpu/launch_scope.h"
#include "plugins/device/cpu/memory.h"

namespace capstan::cpu_device {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Seconds of the fastest run, after one that is not counted, until the budget is spent.
template <class Body>
double best_seconds(double budget, Body&& body) {
  body();
  double best = 1e30;
  const auto begin = Clock::now();
  do {
    const auto start = Clock::now();
    body();
    best = std::min(best, seconds_since(start));
  } while (seconds_since(begin) < budget);
  return best;
}

// Memory of one measurement.
class Buffer {
 public:
  Buffer(const Settings& s, int64_t bytes)
      : regions_(s.threads, s.huge_pages),
        data_(static_cast<char*>(regions_.allocate("measurement", static_cast<uint64_t>(bytes)))) {}
  template <class T>
  T* at(int64_t element) const {
    return reinterpret_cast<T*>(data_) + element;
  }

 private:
  Regions regions_;
  char* data_;
};

// y = x w^T of a linear layer.
template <class T, class Product>
double matmul_rate(const Settings& s, const cpu::LinearShape& shape, Product&& product) {
  const int64_t x = shape.M * shape.K, w = shape.N * shape.K, y = shape.M * shape.N;
  const Buffer buffer(s, (x + w + y) * static_cast<int64_t>(sizeof(T)));
  for (int64_t i = 0; i < x + w; ++i) *buffer.at<T>(i) = T(i % 17) * T(0.0625) - T(0.5);
  const double best = best_seconds(
      0.08, [&] { product(shape, buffer.at<T>(0), buffer.at<T>(x), buffer.at<T>(x + w)); });
  return 2.0 * static_cast<double>(shape.M) * static_cast<double>(shape.N) *
         static_cast<double>(shape.K) / best;
}

template <class T>
void plain_product(const cpu::LinearShape& s, const T* x, const T* w, T* y) {
  reference::linear<T>(s.M, s.N, s.K, x, w, nullptr, y);
}

void fast_product(const cpu::LinearShape& s, const float* x, const float* w, float* y) {
  cpu::linear(s, x, w, nullptr, y);
}

}  // namespace

double measure_matmul(const Settings& s, capstan_dtype dtype) {
  const bool f32 = sdk::same_dtype(dtype, sdk::kF32);
  if (!f32 && !sdk::same_dtype(dtype, sdk::kF64)) {
    throw sdk::unsupported_error(
        sdk::text("device cpu computes in f32 and f64, not in ", sdk::dtype_name(dtype)));
  }
  const LaunchScope scope(s);
  if (f32 && !s.reference) return matmul_rate<float>(s, {1024, 768, 768}, fast_product);
  const cpu::LinearShape small{96, 96, 96};
  return f32 ? matmul_rate<float>(s, small, plain_product<float>)
             : matmul_rate<double>(s, small, plain_product<double>);
}

double measure_triad(const Settings& s) {
  constexpr int64_t kElements = int64_t{8} << 20;  // 3 arrays of 32 MiB
  const LaunchScope scope(s);
  const Buffer buffer(s, 3 * kElements * static_cast<int64_t>(sizeof(float)));
  float* const a = buffer.at<float>(0);
  const float* const b = buffer.at<float>(kElements);
  const float* const c = buffer.at<float>(2 * kElements);
  const double best = best_seconds(0.05, [&] {
#pragma omp parallel for simd schedule(static) num_threads(s.threads)
    for (int64_t i = 0; i < kElements; ++i) a[i] = b[i] + 0.5f * c[i];
  });
  return 3.0 * static_cast<double>(kElements) * sizeof(float) / best;
}

uint64_t library_bytes(const Settings& s) {
  // Measured as growth of the resident set; see the README for how and for the numbers.
  constexpr uint64_t kCode = uint64_t{48} << 20;      // pages of libdnnl and generated code
  constexpr uint64_t kPerThread = uint64_t{8} << 20;  // packed panels, stacks, malloc arenas
  return kCode + kPerThread * static_cast<uint64_t>(s.threads);
}

}  // namespace capstan::cpu_device
