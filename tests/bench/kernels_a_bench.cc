// Matrix products, attention and the fused head, against the FMA peak of the same threads.
//
// Each benchmark measures the peak for a moment before it starts, so that a noisy or throttled
// machine lowers both. GFLOP/s count what must be computed: a causal attention counts the
// (query, key) pairs that are not masked, the backward pass five products a pair.
//
//   OMP_NUM_THREADS=2 ./kernels_a_bench --benchmark_filter=attention
#include <benchmark/benchmark.h>
#include <omp.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/linear_cross_entropy.h"
#include "kernels/cpu/matmul.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/bench/kernels_a_bench.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace capstan::bench {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// `rounds` of 12 independent fused multiply-adds on one thread; returns the FLOPs done.
double fma_loop(std::int64_t rounds, float* sink) {
  const hn::ScalableTag<float> d;
  const auto x = hn::LoadU(d, sink), y = hn::LoadU(d, sink + 64);
  // Twelve different starts, or the compiler would see equal chains and run one of them.
  const auto start = [&](int i) { return hn::LoadU(d, sink + 4 * i); };
  auto a0 = start(0), a1 = start(1), a2 = start(2), a3 = start(3), a4 = start(4), a5 = start(5);
  auto a6 = start(6), a7 = start(7), a8 = start(8), a9 = start(9), a10 = start(10), a11 = start(11);
  for (std::int64_t i = 0; i < rounds; ++i) {
    a0 = hn::MulAdd(a0, x, y);
    a1 = hn::MulAdd(a1, x, y);
    a2 = hn::MulAdd(a2, x, y);
    a3 = hn::MulAdd(a3, x, y);
    a4 = hn::MulAdd(a4, x, y);
    a5 = hn::MulAdd(a5, x, y);
    a6 = hn::MulAdd(a6, x, y);
    a7 = hn::MulAdd(a7, x, y);
    a8 = hn::MulAdd(a8, x, y);
    a9 = hn::MulAdd(a9, x, y);
    a10 = hn::MulAdd(a10, x, y);
    a11 = hn::MulAdd(a11, x, y);
  }
  a0 =
      hn::Add(hn::Add(hn::Add(a0, a1), hn::Add(a2, a3)), hn::Add(hn::Add(a4, a5), hn::Add(a6, a7)));
  hn::StoreU(hn::Add(a0, hn::Add(hn::Add(a8, a9), hn::Add(a10, a11))), d, sink);
  return static_cast<double>(rounds) * 12 * 2 * static_cast<double>(hn::Lanes(d));
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace capstan::bench
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace capstan::bench {
namespace {

HWY_EXPORT(fma_loop);

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double fma_peak_once(std::int64_t rounds) {
  double flops = 0;
  const double start = seconds();
#pragma omp parallel reduction(+ : flops)
  {
    std::vector<float> sink(128);
    for (std::size_t i = 0; i < 128; ++i) sink[i] = 0.25f + 0.001f * static_cast<float>(i);
    flops += HWY_DYNAMIC_DISPATCH(fma_loop)(rounds, sink.data());
    benchmark::DoNotOptimize(sink.data());
  }
  return flops / (seconds() - start);
}

// FLOP/s of pure FMA on all threads: the best of a few short runs.
double fma_peak() {
  double best = 0;
  for (int i = 0; i < 5; ++i) best = std::max(best, fma_peak_once(2000000));
  return best;
}

// Floats in huge pages, small random values.
class Buffer {
 public:
  explicit Buffer(std::int64_t floats) {
    const std::size_t page = std::size_t{2} << 20;
    const std::size_t bytes = (static_cast<std::size_t>(floats) * 4 + page - 1) / page * page;
    data_ = static_cast<float*>(std::aligned_alloc(page, bytes));
    madvise(data_, bytes, MADV_HUGEPAGE);
    std::uint32_t state = 12345;
    for (std::size_t i = 0; i < bytes / 4; ++i) {
      state = state * 1664525u + 1013904223u;
      data_[i] = static_cast<float>(state >> 8) * 0x1p-24f - 0.5f;
    }
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { std::free(data_); }
  operator float*() { return data_; }  // NOLINT: a buffer is its floats

 private:
  float* data_;
};

// Times `body` and reports its rate against the peak measured just before.
template <class Body>
void measure(benchmark::State& state, double flops, Body&& body) {
  const double peak = fma_peak();
  body();  // first touch
  double best = 1e30;
  for (auto _ : state) {
    const double start = seconds();
    body();
    best = std::min(best, seconds() - start);
  }
  state.counters["GFLOPS"] = flops / best * 1e-9;
  state.counters["peak%"] = 100 * flops / best / peak;
}

void fma_peak_bench(benchmark::State& state) {
  double best = 0;
  for (auto _ : state) best = std::max(best, fma_peak_once(2000000));
  state.counters["GFLOPS"] = best * 1e-9;
}
BENCHMARK(fma_peak_bench)->Unit(benchmark::kMillisecond)->UseRealTime();

// ---- matrix products ---------------------------------------------------------------------------

constexpr std::int64_t kRows = 4096;

void sgemm_bench(benchmark::State& state, bool ta, bool tb, std::int64_t M, std::int64_t N,
                 std::int64_t K) {
  Buffer a(M * K), b(N * K), c(M * N);
  measure(state, 2.0 * M * N * K,
          [&] { cpu::sgemm(ta, tb, M, N, K, 1.0f, a, ta ? M : K, b, tb ? K : N, 0.0f, c, N); });
}

void linear_bench(benchmark::State& state, std::int64_t M, std::int64_t N, std::int64_t K,
                  bool bias) {
  Buffer x(M * K), w(N * K), b(N), y(M * N);
  measure(state, 2.0 * M * N * K, [&] {
    cpu::linear({M, N, K}, x, w, bias ? static_cast<float*>(b) : nullptr, y);
  });
  if (M <= 4) {
    state.counters["GB/s"] =
        benchmark::Counter(4.0 * N * K * 1e-9 * state.iterations(), benchmark::Counter::kIsRate);
  }
}

void linear_gelu_bench(benchmark::State& state, std::int64_t M, std::int64_t N, std::int64_t K) {
  Buffer x(M * K), w(N * K), b(N), pre(M * N), y(M * N);
  measure(state, 2.0 * M * N * K, [&] { cpu::linear_gelu({M, N, K}, x, w, b, pre, y); });
}

void linear_dx_bench(benchmark::State& state, std::int64_t M, std::int64_t N, std::int64_t K) {
  Buffer dy(M * N), w(N * K), dx(M * K);
  measure(state, 2.0 * M * N * K, [&] { cpu::linear_dx({M, N, K}, dy, w, false, dx); });
}

void linear_dw_bench(benchmark::State& state, std::int64_t M, std::int64_t N, std::int64_t K,
                     bool bias) {
  Buffer x(M * K), dy(M * N), dw(N * K), db(N);
  measure(state, 2.0 * M * N * K, [&] {
    cpu::linear_dw({M, N, K}, x, dy, true, dw, bias ? static_cast<float*>(db) : nullptr);
  });
}

// ---- attention
// -----------------------------------------------------------------------------------

struct AttentionCase {
  std::int64_t B, T, H, G, D;
  bool causal;
  float drop;
};

void attention_bench(benchmark::State& state, const AttentionCase& c, bool backward) {
  std::vector<std::int64_t> samples(static_cast<std::size_t>(c.B));
  cpu::AttentionParams p;
  p.B = c.B;
  p.T = p.S = c.T;
  p.H = c.H;
  p.G = c.G;
  p.D = c.D;
  p.scale = 1.0f / std::sqrt(static_cast<float>(c.D));
  p.causal = c.causal;
  p.dropout.p = c.drop;
  p.dropout.sample_ids = samples.data();
  const std::int64_t nq = c.B * c.T * c.H * c.D, nk = c.B * c.T * c.G * c.D;
  Buffer q(nq), k(nk), v(nk), o(nq), lse(c.B * c.H * c.T), dout(nq), dq(nq), dk(nk), dv(nk);
  Buffer workspace(static_cast<std::int64_t>(
      std::max(cpu::attention_forward_workspace(p), cpu::attention_backward_workspace(p)) / 4));
  const double pairs =
      static_cast<double>(c.B * c.H) * (c.causal ? c.T * (c.T + 1) / 2.0 : 1.0 * c.T * c.T);
  const auto forward = [&] {
    cpu::attention_forward(p, q, k, v, o, lse, static_cast<float*>(workspace));
  };
  if (!backward) return measure(state, pairs * 4 * c.D, forward);
  forward();
  measure(state, pairs * 10 * c.D, [&] {
    cpu::attention_backward(p, dout, q, k, v, o, lse, dq, dk, dv, static_cast<float*>(workspace));
  });
}

void attention_cached_bench(benchmark::State& state, std::int64_t B, std::int64_t T,
                            std::int64_t position, std::int64_t H, std::int64_t G, std::int64_t D) {
  const cpu::CachedAttentionParams p{B, T, position + T, H, G, D, 0.125f};
  Buffer q(B * T * H * D), k(B * p.S_max * G * D), v(B * p.S_max * G * D), o(B * T * H * D);
  Buffer workspace(static_cast<std::int64_t>(cpu::attention_cached_workspace(p) / 4));
  const std::vector<std::int32_t> at(static_cast<std::size_t>(B),
                                     static_cast<std::int32_t>(position));
  measure(state, 4.0 * B * H * D * T * (position + (T + 1) / 2.0),
          [&] { cpu::attention_cached(p, q, k, v, at.data(), o, static_cast<float*>(workspace)); });
  state.counters["GB/s"] = benchmark::Counter(8.0 * B * G * D * p.S_max * 1e-9 * state.iterations(),
                                              benchmark::Counter::kIsRate);
}

// ---- head
// ------------------------------------------------------------------------------------------

void lce_bench(benchmark::State& state, std::int64_t M, std::int64_t K, std::int64_t V,
               std::int64_t chunk, bool gradients) {
  cpu::LinearCrossEntropyParams p;
  p.M = M;
  p.K = K;
  p.V = V;
  p.valid_vocab = V - 47;
  p.chunk_rows = chunk;
  Buffer h(M * K), w(V * K), dh(M * K), dw(V * K);
  Buffer workspace(static_cast<std::int64_t>(cpu::linear_cross_entropy_workspace(p) / 4));
  std::vector<std::int32_t> targets(static_cast<std::size_t>(M));
  for (std::int64_t i = 0; i < M; ++i) targets[i] = static_cast<std::int32_t>(i * 7919 % (V - 47));
  const float weight = static_cast<float>(M);
  float loss = 0;
  void* ws = static_cast<float*>(workspace);
  measure(state, (gradients ? 6.0 : 2.0) * M * K * (V - 47), [&] {
    if (gradients) {
      cpu::linear_cross_entropy(p, h, w, targets.data(), &weight, nullptr, true, &loss, dh, dw, ws);
    } else {
      cpu::linear_cross_entropy_loss(p, h, w, targets.data(), &weight, &loss, ws);
    }
    benchmark::DoNotOptimize(loss);
  });
}

// ---- registration
// ----------------------------------------------------------------------------------

template <class F, class... Args>
void add(const std::string& name, F f, Args... args) {
  benchmark::RegisterBenchmark(name.c_str(), f, args...)
      ->Unit(benchmark::kMillisecond)
      ->UseRealTime()
      ->MinTime(0.5);
}

void register_products() {
  const std::pair<std::int64_t, std::int64_t> layers[] = {{768, 768}, {3072, 768}, {768, 3072}};
  for (const auto& [N, K] : layers) {
    const std::string size =
        std::to_string(kRows) + "x" + std::to_string(N) + "x" + std::to_string(K);
    add("sgemm_nt/" + size, sgemm_bench, false, true, kRows, N, K);
    add("sgemm_nn/" + size, sgemm_bench, false, false, kRows, K, N);
    add("sgemm_tn/" + size, sgemm_bench, true, false, N, K, kRows);
    add("linear/" + size, linear_bench, kRows, N, K, false);
    add("linear_bias/" + size, linear_bench, kRows, N, K, true);
    add("linear_gelu/" + size, linear_gelu_bench, kRows, N, K);
    add("linear_dx/" + size, linear_dx_bench, kRows, N, K);
    add("linear_dw/" + size, linear_dw_bench, kRows, N, K, false);
    add("linear_dw_db/" + size, linear_dw_bench, kRows, N, K, true);
  }
  add("sgemm_nt/512x50304x768", sgemm_bench, false, true, 512, 50304, 768);
  add("sgemm_nn/512x768x50304", sgemm_bench, false, false, 512, 768, 50304);
  add("sgemm_tn/50304x768x512", sgemm_bench, true, false, 50304, 768, 512);
  for (const std::int64_t M : {1, 2, 4, 5, 8}) {
    add("linear_bias_rows/" + std::to_string(M) + "x3072x768", linear_bench, M, 3072, 768, true);
    add("linear_rows/" + std::to_string(M) + "x50304x768", linear_bench, M, 50304, 768, false);
  }
}

void register_attention() {
  for (const bool backward : {false, true}) {
    const std::string pass = backward ? "attention_backward/" : "attention_forward/";
    add(pass + "gpt2_causal", attention_bench, AttentionCase{4, 1024, 12, 12, 64, true, 0},
        backward);
    add(pass + "gpt2_full", attention_bench, AttentionCase{4, 1024, 12, 12, 64, false, 0},
        backward);
    add(pass + "gpt2_dropout", attention_bench, AttentionCase{4, 1024, 12, 12, 64, true, 0.1f},
        backward);
    add(pass + "grouped", attention_bench, AttentionCase{1, 1024, 16, 4, 64, true, 0}, backward);
    add(pass + "one_head", attention_bench, AttentionCase{1, 2048, 1, 1, 64, true, 0}, backward);
    for (const std::int64_t D : {16, 32, 80, 96, 128}) {
      add(pass + "D" + std::to_string(D), attention_bench,
          AttentionCase{1, 1024, 12, 12, D, true, 0}, backward);
    }
  }
  add("attention_cached/decode", attention_cached_bench, 1, 1, 1023, 12, 12, 64);
  add("attention_cached/decode_batch", attention_cached_bench, 16, 1, 1023, 12, 12, 64);
  add("attention_cached/decode_grouped", attention_cached_bench, 4, 1, 2047, 16, 4, 64);
  add("attention_cached/prefill", attention_cached_bench, 1, 512, 512, 12, 12, 64);
}

void register_head() {
  for (const std::int64_t chunk : {256, 512, 1024}) {
    add("lce/chunk" + std::to_string(chunk), lce_bench, 1024, 768, 50304, chunk, true);
  }
  add("lce/loss_only", lce_bench, 1024, 768, 50304, 0, false);
}

}  // namespace
}  // namespace capstan::bench

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  capstan::bench::register_products();
  capstan::bench::register_attention();
  capstan::bench::register_head();
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
#endif  // HWY_ONCE
