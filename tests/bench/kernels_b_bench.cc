// Memory-bound kernels at the sizes of GPT-2 124M (4 x 1024 tokens, 768 channels), against the
// machine's own triad bandwidth measured first in the same process.
//
// Counters: bytes_per_second counts each tensor once for each time the algorithm must read or write
// it; "triad" is that rate as a share of the triad's (the library prints it with /s).
#include <benchmark/benchmark.h>
#include <omp.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <new>

#include "kernels/cpu/activation.h"
#include "kernels/cpu/dropout.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/embedding.h"
#include "kernels/cpu/layout.h"
#include "kernels/cpu/norm.h"
#include "kernels/cpu/optimizer.h"
#include "kernels/cpu/random_fill.h"
#include "kernels/cpu/reduce.h"
#include "kernels/cpu/rotary.h"
#include "kernels/cpu/softmax.h"

namespace capstan::cpu {
namespace {

constexpr std::int64_t kBatch = 4, kSeq = 1024, kRows = kBatch * kSeq;
constexpr std::int64_t kChannels = 768, kHidden = 3072, kHeads = 12;
constexpr std::int64_t kVocab = 50257;
constexpr std::int64_t kAdamw = 16 * 1000 * 1000;

// Huge-page memory, touched once: page faults would drown every kernel otherwise.
template <class T = float>
class Buffer {
 public:
  explicit Buffer(std::int64_t n) : bytes_(round_up(static_cast<std::size_t>(n) * sizeof(T))) {
    data_ = std::aligned_alloc(kHuge, bytes_);
    if (data_ == nullptr) throw std::bad_alloc();
    madvise(data_, bytes_, MADV_HUGEPAGE);
    T* x = data();
    for (std::int64_t i = 0; i < n; ++i) x[i] = static_cast<T>((i * 37 % 1001 - 500) * 0.004);
  }
  ~Buffer() { std::free(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  T* data() { return static_cast<T*>(data_); }

 private:
  static constexpr std::size_t kHuge = std::size_t{2} << 20;
  static std::size_t round_up(std::size_t n) { return (n + kHuge - 1) / kHuge * kHuge; }
  std::size_t bytes_;
  void* data_ = nullptr;
};

// a = b + s * c over n floats each, as STREAM counts it: 12 bytes an element.
void triad(std::int64_t n, const float* b, const float* c, float* a) {
#pragma omp parallel for schedule(static)
  for (std::int64_t i = 0; i < n; ++i) a[i] = b[i] + 0.5f * c[i];
}

// Best of several passes over arrays far larger than the last-level cache.
double measured_triad() {
  const std::int64_t n = 16 << 20;
  Buffer a(n), b(n), c(n);
  double best = 0.0;
  for (int pass = 0; pass < 12; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    triad(n, b.data(), c.data(), a.data());
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    best = std::max(best, 12.0 * static_cast<double>(n) / took.count());
  }
  return best;
}

double triad_bandwidth() {
  static const double value = measured_triad();
  return value;
}

template <class F>
void measure(benchmark::State& state, double bytes, F&& f) {
  f();
  for (auto _ : state) {
    f();
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(bytes) * state.iterations());
  state.counters["triad"] =
      benchmark::Counter(bytes * static_cast<double>(state.iterations()) / triad_bandwidth(),
                         benchmark::Counter::kIsRate);
}

double floats(double count) { return 4.0 * count; }

void BM_triad(benchmark::State& state) {
  const std::int64_t n = 16 << 20;
  Buffer a(n), b(n), c(n);
  measure(state, floats(3.0 * static_cast<double>(n)),
          [&] { triad(n, b.data(), c.data(), a.data()); });
}

void BM_layer_norm_forward(benchmark::State& state) {
  Buffer x(kRows * kChannels), y(kRows * kChannels), w(kChannels), b(kChannels), mean(kRows),
      rstd(kRows);
  const NormParams p{kRows, kChannels, 1e-5f};
  measure(state, floats(2.0 * kRows * kChannels), [&] {
    layer_norm_forward(p, x.data(), w.data(), b.data(), y.data(), mean.data(), rstd.data());
  });
}

void BM_layer_norm_backward(benchmark::State& state) {
  Buffer x(kRows * kChannels), dy(kRows * kChannels), dx(kRows * kChannels), w(kChannels),
      dw(kChannels), db(kChannels), mean(kRows), rstd(kRows);
  const NormParams p{kRows, kChannels, 1e-5f};
  Buffer<std::uint8_t> workspace(static_cast<std::int64_t>(norm_backward_workspace(p)));
  measure(state, floats(3.0 * kRows * kChannels), [&] {
    layer_norm_backward(p, dy.data(), x.data(), w.data(), mean.data(), rstd.data(), dx.data(),
                        dw.data(), db.data(), false, workspace.data());
  });
}

void BM_rms_norm_forward(benchmark::State& state) {
  Buffer x(kRows * kChannels), y(kRows * kChannels), w(kChannels), rstd(kRows);
  const NormParams p{kRows, kChannels, 1e-5f};
  measure(state, floats(2.0 * kRows * kChannels),
          [&] { rms_norm_forward(p, x.data(), w.data(), y.data(), rstd.data()); });
}

void BM_rms_norm_backward(benchmark::State& state) {
  Buffer x(kRows * kChannels), dy(kRows * kChannels), dx(kRows * kChannels), w(kChannels),
      dw(kChannels), rstd(kRows);
  const NormParams p{kRows, kChannels, 1e-5f};
  Buffer<std::uint8_t> workspace(static_cast<std::int64_t>(norm_backward_workspace(p)));
  measure(state, floats(3.0 * kRows * kChannels), [&] {
    rms_norm_backward(p, dy.data(), x.data(), w.data(), rstd.data(), dx.data(), dw.data(), false,
                      workspace.data());
  });
}

void BM_unary_forward(benchmark::State& state, Unary function) {
  const std::int64_t n = kRows * kHidden;
  Buffer x(n), y(n);
  measure(state, floats(2.0 * static_cast<double>(n)),
          [&] { unary_forward(function, n, x.data(), y.data()); });
}

void BM_unary_backward(benchmark::State& state, Unary function) {
  const std::int64_t n = kRows * kHidden;
  Buffer x(n), dy(n), dx(n);
  measure(state, floats(3.0 * static_cast<double>(n)),
          [&] { unary_backward(function, n, dy.data(), x.data(), dx.data()); });
}

void BM_swiglu_forward(benchmark::State& state) {
  const std::int64_t n = kRows * kHidden;
  Buffer gate(n), up(n), y(n);
  measure(state, floats(3.0 * static_cast<double>(n)), [&] {
    swiglu_forward({kRows, kHidden, 0, 0}, gate.data(), up.data(), y.data());
  });
}

void BM_swiglu_backward(benchmark::State& state) {
  const std::int64_t n = kRows * kHidden;
  Buffer gate(n), up(n), dy(n), dgate(n), dup(n);
  measure(state, floats(5.0 * static_cast<double>(n)), [&] {
    swiglu_backward({kRows, kHidden, 0, 0}, dy.data(), gate.data(), up.data(), dgate.data(),
                    dup.data());
  });
}

void BM_rotary(benchmark::State& state, bool interleaved) {
  const std::int64_t n = kRows * kChannels;
  Buffer x(n), y(n);
  Buffer<std::int32_t> position(kSeq);
  for (std::int64_t t = 0; t < kSeq; ++t) position.data()[t] = static_cast<std::int32_t>(t);
  RotaryParams p;
  p.batch = kBatch, p.seq = kSeq, p.heads = kHeads, p.head_dim = kChannels / kHeads;
  p.interleaved = interleaved;
  Buffer<std::uint8_t> workspace(static_cast<std::int64_t>(rotary_workspace(p)));
  measure(state, floats(2.0 * static_cast<double>(n)),
          [&] { rotary(p, x.data(), position.data(), y.data(), workspace.data()); });
}

void fill_ids(std::int32_t* ids) {
  for (std::int64_t i = 0; i < kRows; ++i) {
    ids[i] = static_cast<std::int32_t>(i * 7919 % kVocab);
  }
}

void BM_embedding_forward(benchmark::State& state) {
  Buffer table(kVocab * kChannels), out(kRows * kChannels);
  Buffer<std::int32_t> ids(kRows);
  fill_ids(ids.data());
  const EmbeddingParams p{kRows, kChannels, kVocab, 0, 0};
  measure(state, floats(2.0 * kRows * kChannels), [&] {
    benchmark::DoNotOptimize(embedding_forward(p, ids.data(), table.data(), out.data()));
  });
}

void BM_embedding_backward(benchmark::State& state) {
  Buffer table(kVocab * kChannels), dy(kRows * kChannels);
  Buffer<std::int32_t> ids(kRows);
  fill_ids(ids.data());
  const EmbeddingParams p{kRows, kChannels, kVocab, 0, 0};
  measure(state, floats(3.0 * kRows * kChannels), [&] {
    benchmark::DoNotOptimize(embedding_backward(p, ids.data(), dy.data(), table.data(), true));
  });
}

void BM_dropout(benchmark::State& state) {
  const std::int64_t n = kRows * kChannels;
  Buffer x(n), y(n);
  Buffer<std::int32_t> position(kSeq);
  for (std::int64_t t = 0; t < kSeq; ++t) position.data()[t] = static_cast<std::int32_t>(t);
  const std::int64_t sample[kBatch] = {0, 1, 2, 3};
  DropoutParams p;
  p.batch = kBatch, p.seq = kSeq, p.channels = kChannels, p.p = 0.1;
  measure(state, floats(2.0 * static_cast<double>(n)),
          [&] { dropout(p, 1, sample, position.data(), x.data(), y.data()); });
}

void BM_adamw(benchmark::State& state) {
  Buffer grad(kAdamw), param(kAdamw), m(kAdamw), v(kAdamw);
  for (std::int64_t i = 0; i < kAdamw; ++i) v.data()[i] = 0.01f;
  const float lr = 1e-4f, scale = 1.0f;
  const std::int64_t step = 10;
  measure(state, floats(7.0 * static_cast<double>(kAdamw)), [&] {
    adamw({0.9, 0.95, 1e-8, 0.1}, kAdamw, &lr, &step, &scale, grad.data(), param.data(), m.data(),
          v.data());
  });
}

void BM_add(benchmark::State& state) {
  const std::int64_t n = kRows * kHidden;
  Buffer a(n), b(n), y(n);
  measure(state, floats(3.0 * static_cast<double>(n)), [&] {
    binary({Binary::kAdd, BroadcastB::kNone, kRows, kHidden}, a.data(), b.data(), y.data());
  });
}

void BM_softmax_forward(benchmark::State& state) {
  const std::int64_t n = kRows * kHidden;
  Buffer x(n), y(n);
  measure(state, floats(2.0 * static_cast<double>(n)),
          [&] { softmax_forward(kRows, kHidden, x.data(), y.data()); });
}

void BM_sum_squares(benchmark::State& state) {
  Buffer x(kAdamw);
  const ConstBuffer b{x.data(), kAdamw};
  Buffer<std::uint8_t> workspace(static_cast<std::int64_t>(sum_squares_workspace(&b, 1)));
  measure(state, floats(kAdamw),
          [&] { benchmark::DoNotOptimize(sum_squares(&b, 1, workspace.data())); });
}

void BM_bias_gradient(benchmark::State& state) {
  const ReduceParams p{1, kRows, kHidden};
  Buffer x(kRows * kHidden), out(kHidden);
  Buffer<std::uint8_t> workspace(static_cast<std::int64_t>(reduce_workspace(p)));
  measure(state, floats(1.0 * kRows * kHidden),
          [&] { reduce(Reduction::kSum, p, x.data(), out.data(), false, workspace.data()); });
}

void BM_transpose(benchmark::State& state) {
  Buffer x(kRows * kHidden), y(kRows * kHidden);
  measure(state, floats(2.0 * kRows * kHidden),
          [&] { transpose(kRows, kHidden, 4, x.data(), y.data()); });
}

void BM_random_normal(benchmark::State& state) {
  Buffer out(kAdamw);
  RandomFillParams p;
  p.rank = 1;
  p.global_shape[0] = p.shape[0] = kAdamw;
  measure(state, floats(kAdamw), [&] { random_normal(p, 0.0f, 0.02f, out.data()); });
}

// The thread count of every benchmark is OMP_NUM_THREADS.
BENCHMARK(BM_triad)->UseRealTime();
BENCHMARK(BM_add)->UseRealTime();
BENCHMARK(BM_layer_norm_forward)->UseRealTime();
BENCHMARK(BM_layer_norm_backward)->UseRealTime();
BENCHMARK(BM_rms_norm_forward)->UseRealTime();
BENCHMARK(BM_rms_norm_backward)->UseRealTime();
BENCHMARK_CAPTURE(BM_unary_forward, gelu_tanh, Unary::kGeluTanh)->UseRealTime();
BENCHMARK_CAPTURE(BM_unary_backward, gelu_tanh, Unary::kGeluTanh)->UseRealTime();
BENCHMARK_CAPTURE(BM_unary_forward, gelu_erf, Unary::kGeluErf)->UseRealTime();
BENCHMARK_CAPTURE(BM_unary_backward, gelu_erf, Unary::kGeluErf)->UseRealTime();
BENCHMARK(BM_swiglu_forward)->UseRealTime();
BENCHMARK(BM_swiglu_backward)->UseRealTime();
BENCHMARK_CAPTURE(BM_rotary, halves, false)->UseRealTime();
BENCHMARK_CAPTURE(BM_rotary, interleaved, true)->UseRealTime();
BENCHMARK(BM_embedding_forward)->UseRealTime();
BENCHMARK(BM_embedding_backward)->UseRealTime();
BENCHMARK(BM_dropout)->UseRealTime();
BENCHMARK(BM_adamw)->UseRealTime();
BENCHMARK(BM_softmax_forward)->UseRealTime();
BENCHMARK(BM_sum_squares)->UseRealTime();
BENCHMARK(BM_bias_gradient)->UseRealTime();
BENCHMARK(BM_transpose)->UseRealTime();
BENCHMARK(BM_random_normal)->UseRealTime();

}  // namespace
}  // namespace capstan::cpu

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  std::printf("triad: %.1f GB/s with %d threads\n", capstan::cpu::triad_bandwidth() * 1e-9,
              omp_get_max_threads());
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
