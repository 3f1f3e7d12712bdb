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

std::vector<int64_t> chunks_of(const sdk::Program& program, const std::vector<sdk::Op>& ops,
                               int64_t chunks, const std::vector<int64_t>& split) {
  std::vector<int32_t> layer_of;
  int32_t layers = 0;
  for (const sdk::Op op : ops) {
    layer_of.push_back(program.get(op).layer);
    layers = std::max(layers, layer_of.back() + 1);
  }
  if (layers < chunks) {
    throw sdk::usage_error(sdk::text("[[strategy]] pp: the model has ", layers,
                                     " layers, fewer than the ", chunks,
                                     " chunks of the pipeline (stages x chunks); make mesh.pp or "
                                     "chunks smaller"));
  }
  // Ops without a layer count with the first or last, by whether any layer came before.
  std::vector<double> cost(static_cast<size_t>(layers), 0);
  int32_t last = 0;
  bool seen = false;
  for (size_t i = 0; i < ops.size(); ++i) {
    if (layer_of[i] >= 0) {
      last = layer_of[i];
      seen = true;
    } else {
      layer_of[i] = seen ? last : 0;
    }
    // Dropout is left out, so that programs which train and which evaluate are cut alike.
    if (program.get(ops[i]).kind != "dropout")
      cost[static_cast<size_t>(layer_of[i])] += program.flops(ops[i]);
  }
  std::vector<size_t> starts;
  if (split.empty()) {
    starts = balance(cost, static_cast<size_t>(chunks));
  } else {
    const int64_t sum = std::accumulate(split.begin(), split.end(), int64_t{0});
    const bool empty = std::any_of(split.begin(), split.end(), [](int64_t n) { return n < 1; });
    if (static_cast<int64_t>(split.size()) != chunks || sum != layers || empty) {
      throw sdk::usage_error(sdk::text("[[strategy]] pp: split has ", split.size(),
                                       " numbers that add up to ", sum, "; give ", chunks,
                                       " (stages x chunks), each 1 or more, that "
                                       "add up to the ",
                                       layers, " layers"));
    }
    size_t at = 0;
    for (const int64_t n : split) {
      starts.push_back(at);
      at += static_cast<size_t>(n);
    }
  }
  std::vector<int64_t> out;
  for (const int32_t layer : layer_of) {
    const auto next = std::upper_bound(starts.begin(), starts.end(), static_cast<size_t>(layer));
    out.push_back(next - starts.begin() - 1);
  }
  return out;
}

}  // namespace capstan::pp
