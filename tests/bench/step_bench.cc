// A whole training step against what the machine can do, measured in turns in one process:
//
//   step_bench CONFIG [ROUNDS]
//
// Every round times one plain step, one step with each launch timed, and oneDNN's sgemm on the matrix
// products of that step (same shapes, counts and orientations). Prints medians:
//   - model FLOP/s (three times the forward Program's own count: 6N a token plus causal attention) as a
//     share of sgemm's flop-weighted rate;
//   - what sgemm would take for the products alone, as a share of the step;
//   - time by op kind;
//   - host overhead: step time minus the time inside kernels, in all and per launch.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <numeric>

#include "dnnl.h"
#include "runtime/run/session.h"
#include "runtime/run/trace.h"

namespace {

using namespace capstan;

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double Median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

[[noreturn]] void Die(const absl::Status& status) {
  std::fprintf(stderr, "step_bench: %s\n", std::string(status.message()).c_str());
  std::exit(1);
}

template <typename T>
T Need(absl::StatusOr<T> value) {
  if (!value.ok()) Die(value.status());
  return *std::move(value);
}

void Need(const absl::Status& status) {
  if (!status.ok()) Die(status);
}

// C[m,n] = op(A) op(B), as dnnl_sgemm takes it.
struct Product {
  char a, b;
  int64_t m, n, k;
  auto operator<=>(const Product&) const = default;
};

// The matrix products of a step: forward y = x W^T, dx = dy W, dW = dy^T x, and how often.
std::map<Product, int> Products(const Program& p, const MemoryPlan& plan) {
  std::map<Product, int> products;
  for (const PlannedLaunch& launch : plan.launches(p)) {
    const Op& op = p.op(launch.op);
    auto rows = [&](size_t i) {
      return p.tensor(op.inputs[i]).elements() / p.tensor(op.inputs[i]).shape().back();
    };
    auto shape = [&](size_t i) { return p.tensor(op.inputs[i]).shape(); };
    const std::string& kind = op.kind();
    if (kind == "linear" || kind == "linear_gelu")
      ++products[{'N', 'T', rows(0), shape(1)[0], shape(1)[1]}];
    if (kind == "linear_dx") ++products[{'N', 'N', rows(0), shape(1)[1], shape(1)[0]}];
    if (kind == "linear_dw") ++products[{'T', 'N', shape(1).back(), shape(0).back(), rows(0)}];
    if (kind == "linear_cross_entropy_grad") {
      ++products[{'N', 'T', rows(0), shape(1)[0], shape(1)[1]}];
      ++products[{'N', 'N', rows(0), shape(1)[1], shape(1)[0]}];
      ++products[{'T', 'N', shape(1)[0], shape(1)[1], rows(0)}];
    }
  }
  return products;
}

// Seconds that sgemm takes for all of them, each shape timed once and multiplied.
double SgemmSeconds(const std::map<Product, int>& products, double* flops) {
  double seconds = 0;
  *flops = 0;
  for (const auto& [p, count] : products) {
    std::vector<float> a(p.m * p.k, 0.5f), b(p.k * p.n, 0.25f), c(p.m * p.n);
    const int64_t lda = p.a == 'N' ? p.k : p.m, ldb = p.b == 'N' ? p.n : p.k;
    double best = 1e30;
    for (int i = 0; i < 2; ++i) {  // the first touches memory
      const double begin = Now();
      dnnl_sgemm(p.a, p.b, p.m, p.n, p.k, 1.0f, a.data(), lda, b.data(), ldb, 0.0f, c.data(), p.n);
      best = std::min(best, Now() - begin);
    }
    seconds += best * count;
    *flops += 2.0 * static_cast<double>(p.m * p.n) * static_cast<double>(p.k) * count;
  }
  return seconds;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: step_bench CONFIG [ROUNDS]\n");
    return 2;
  }
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 3;
  // Plugins lie beside the host, two folders up.
  const auto plugins = std::filesystem::canonical("/proc/self/exe").parent_path() / "../../plugins";
  ::setenv("CAPSTAN_PLUGIN_PATH", plugins.c_str(), /*overwrite=*/0);
  auto host = Need(HostEnvironment::Create());
  auto session = Need(Session::Open(argv[1], {}, host.get()));
  Device* device = Need(session->device());
  auto train = Need(ComposeTrain(session->ingredients()));
  auto eval = Need(ComposeEval(session->ingredients()));
  auto init = Need(ComposeInit(*train, true));
  const uint64_t seed = session->config().run.seed;
  MemoryPlan plan;
  Need(plan.Add(*train, device, seed));
  Need(plan.Add(*init, device, seed));
  auto storage = Need(Storage::Allocate(device, &plan));
  auto executor = Need(Executor::Compile(train.get(), storage.get()));
  Need(Need(Executor::Compile(init.get(), storage.get()))->Run(0));
  Need(SetScalar(*train, *storage, kInputStep, int64_t{1}));
  const RunConfig& run = session->config().run;
  for (size_t g = 0; g < session->ingredients().optimizers.size(); ++g) {
    Need(SetScalar(*train, *storage, session->ingredients().optimizers[g].lr_input, 1e-4));
  }
  const int64_t tokens = run.global_batch * run.sequence_length;
  Need(SetScalar(*train, *storage, kInputCount, static_cast<double>(tokens)));
  // Tokens: any ids do; time does not depend on them.
  for (int m = 0; m < train->options().microbatches; ++m) {
    for (const char* name : {"tokens", "targets"}) {
      const TensorId t = train->FindTensor(name);
      std::vector<int32_t> ids(train->tensor(t).elements());
      for (size_t i = 0; i < ids.size(); ++i) {
        ids[i] = static_cast<int32_t>((i * 7919 + m) % session->model_info().vocabulary);
      }
      Need(device->Copy(storage->Data(*train, t, m), ids.data(), ids.size() * sizeof(int32_t)));
    }
  }
  const double model_flops = Need(ModelFlops(*eval, run.global_batch));
  const std::map<Product, int> products = Products(*train, plan);
  Need(executor->Run(0));  // warms up
  std::vector<double> steps, timed, inside, sgemm, share, bound;
  std::map<std::string, double> by_kind;
  double sgemm_flops = 0;
  for (int r = 0; r < rounds; ++r) {
    double begin = Now();
    Need(executor->Run(r + 1));
    steps.push_back(Now() - begin);
    std::vector<LaunchTime> times;
    times.reserve(executor->launch_count());
    begin = Now();
    Need(executor->RunTimed(r + 1, times));
    timed.push_back(Now() - begin);
    double kernels = 0;
    for (const LaunchTime& t : times) {
      const double seconds = 1e-9 * static_cast<double>(t.end_ns - t.begin_ns);
      kernels += seconds;
      by_kind[train->op(t.op).kind()] += seconds / rounds;
    }
    inside.push_back(kernels);
    sgemm.push_back(SgemmSeconds(products, &sgemm_flops));
    bound.push_back(sgemm.back() / steps.back());
    share.push_back((model_flops / steps.back()) / (sgemm_flops / sgemm.back()));
  }
  const double step = Median(steps);
  std::printf("%s: %lld tokens a step, %zu launches, %s\n", run.name.c_str(),
              static_cast<long long>(tokens), executor->launch_count(),
              device->description().c_str());
  std::printf("step             %10.3f s   %.0f tokens/s\n", step,
              static_cast<double>(tokens) / step);
  std::printf("model            %10.1f GFLOP/s\n", 1e-9 * model_flops / step);
  std::printf("sgemm, its shapes%10.1f GFLOP/s\n", 1e-9 * sgemm_flops / Median(sgemm));
  std::printf("model / sgemm    %10.1f %%   (median of rounds)\n", 100 * Median(share));
  std::printf("products / step  %10.1f %%   (sgemm's time for them alone)\n", 100 * Median(bound));
  std::vector<double> overhead;
  for (int r = 0; r < rounds; ++r) overhead.push_back(timed[r] - inside[r]);
  std::printf(
      "host overhead    %10.3f %% of the step, %.2f us a launch (two clock reads included)\n",
      100 * Median(overhead) / Median(timed),
      1e6 * Median(overhead) / static_cast<double>(executor->launch_count()));
  std::vector<std::pair<double, std::string>> ranked;
  for (const auto& [kind, seconds] : by_kind) ranked.emplace_back(seconds, kind);
  std::sort(ranked.rbegin(), ranked.rend());
  for (const auto& [seconds, kind] : ranked) {
    std::printf("  %-30s %9.1f ms %5.1f %%\n", kind.c_str(), 1e3 * seconds, 100 * seconds / step);
  }
  return 0;
}
