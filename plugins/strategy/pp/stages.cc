#include "plugins/strategy/pp/stages.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "sdk/error.h"

namespace capstan::pp {

std::vector<size_t> balance(const std::vector<double>& costs, size_t parts) {
  const size_t n = costs.size();
  std::vector<double> before(n + 1, 0);
  std::partial_sum(costs.begin(), costs.end(), before.begin() + 1);
  constexpr double kFar = std::numeric_limits<double>::infinity();
  // best[k][i]: the smallest largest sum of the first i in k runs; from[k][i]: where the last begins.
  std::vector<std::vector<double>> best(parts + 1, std::vector<double>(n + 1, kFar));
  std::vector<std::vector<size_t>> from(parts + 1, std::vector<size_t>(n + 1, 0));
  best[0][0] = 0;
  for (size_t k = 1; k <= parts; ++k) {
    for (size_t i = k; i + (parts - k) <= n; ++i) {
      for (size_t j = k - 1; j < i; ++j) {
        const double largest = std::max(best[k - 1][j], before[i] - before[j]);
        if (largest < best[k][i]) best[k][i] = largest, from[k][i] = j;
      }
    }
  }
  std::vector<size_t> starts(parts);
  for (size_t k = parts, i = n; k > 0; --k) starts[k - 1] = i = from[k][i];
  return starts;
}

namespace {

// The layer of each op; ops without one count with the first or last, by whether any layer came before.
std::vector<size_t> layers_of(const sdk::Program& program, const std::vector<sdk::Op>& ops) {
  std::vector<size_t> layers;
  size_t last = 0;
  for (const sdk::Op op : ops) {
    const int32_t layer = program.get(op).layer;
    if (layer >= 0) last = static_cast<size_t>(layer);
    layers.push_back(last);
  }
  return layers;
}

}  // namespace

std::vector<size_t> chunk_starts(const sdk::Program& program, const std::vector<sdk::Op>& ops,
                                 int64_t chunks, const std::vector<int64_t>& split) {
  int32_t layers = 0;
  for (const sdk::Op op : ops) layers = std::max(layers, program.get(op).layer + 1);
  if (layers < chunks) {
    throw sdk::usage_error(sdk::text("[[strategy]] pp: the model has ", layers,
                                     " layers, fewer than the ", chunks,
                                     " chunks of the pipeline (stages x chunks); make mesh.pp or "
                                     "chunks smaller"));
  }
  if (split.empty()) {
    const std::vector<size_t> layer_of = layers_of(program, ops);
    std::vector<double> cost(static_cast<size_t>(layers), 0);
    for (size_t i = 0; i < ops.size(); ++i) {
      // Dropout is left out, so that programs which train and which evaluate are cut alike.
      if (program.get(ops[i]).kind != "dropout") cost[layer_of[i]] += program.flops(ops[i]);
    }
    return balance(cost, static_cast<size_t>(chunks));
  }
  const int64_t sum = std::accumulate(split.begin(), split.end(), int64_t{0});
  const bool empty = std::any_of(split.begin(), split.end(), [](int64_t n) { return n < 1; });
  if (static_cast<int64_t>(split.size()) != chunks || sum != layers || empty) {
    throw sdk::usage_error(sdk::text("[[strategy]] pp: split has ", split.size(),
                                     " numbers that add up to ", sum, "; give ", chunks,
                                     " (stages x chunks), each 1 or more, that "
                                     "add up to the ",
                                     layers, " layers"));
  }
  std::vector<size_t> starts;
  size_t at = 0;
  for (const int64_t n : split) {
    starts.push_back(at);
    at += static_cast<size_t>(n);
  }
  return starts;
}

std::vector<int64_t> chunks_of(const sdk::Program& program, const std::vector<sdk::Op>& ops,
                               const std::vector<size_t>& starts) {
  std::vector<int64_t> out;
  for (const size_t layer : layers_of(program, ops)) {
    const auto next = std::upper_bound(starts.begin(), starts.end(), layer);
    out.push_back(next - starts.begin() - 1);
  }
  return out;
}

}  // namespace capstan::pp
