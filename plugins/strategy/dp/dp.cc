// Data parallelism: every rank along an axis holds the whole model and its own part of the batch.
// Gradients, partial over the axis, are summed in buckets, each as soon as the backward pass of the
// step's last microbatch has completed it, beside the rest of that pass (Li et al. 2020, "PyTorch
// Distributed", section 3.2).
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "sdk/gradients.h"
#include "sdk/strategy.h"

namespace capstan {
namespace {

constexpr capstan_option kOptions[] = {
    sdk::string_option("axis", "\"dp\"", "The mesh axis whose ranks share the batch."),
    sdk::float_option("bucket_mb", "25",
                      "Gradients are reduced together until a bucket holds this many MB (10^6 "
                      "bytes); 0: each by itself.")
        .range(0, 1e6),
};

constexpr capstan_phase kPhases[] = {sdk::make_phase(CAPSTAN_PHASE_GRADIENT)};
constexpr const char* kRivals[] = {"zero1", "zero2", "zero3", "fsdp", nullptr};

class DataParallel {
 public:
  DataParallel(const sdk::Host& host, const sdk::Options& options)
      : axis_{options.get_string("axis"), host.axis_size(options.get_string("axis")), 0},
        bucket_bytes_(static_cast<int64_t>(1e6 * options.get_float("bucket_mb"))),
        uses_{sdk::make_axis(axis_.name.c_str(), CAPSTAN_AXIS_DATA)} {}

  std::span<const capstan_phase> phases() const noexcept { return kPhases; }
  std::span<const capstan_axis_use> axes() const noexcept { return uses_; }
  const char* const* conflicts() const noexcept { return kRivals; }

  void rewrite(std::string_view, sdk::Program& program) {
    if (axis_.size == 1) return;
    const auto partial = sdk::partial_gradients(program, axis_.name);
    for (const sdk::Bucket& bucket : sdk::buckets(program, partial, bucket_bytes_)) {
      sdk::Graph g(program, program.after(bucket.complete()));
      g.set_when(sdk::last_microbatch());
      std::vector<sdk::Tensor> list;
      for (const sdk::PartialGradient& p : bucket.gradients) list.push_back(p.gradient);
      g.emit("reduce_gradient", list, {{"axis", axis_.name}}, list);
    }
  }

 private:
  sdk::MeshAxis axis_;
  int64_t bucket_bytes_;
  capstan_axis_use uses_[1];
};

}  // namespace
}  // namespace capstan

CAPSTAN_PLUGIN_ENTRY(
    "dp", "1.0.0", "Apache-2.0", "Data parallelism.",
    capstan::sdk::strategy_component<capstan::DataParallel>(
        "dp", "1.0.0",
        "Sums gradients over the ranks that share the batch, in buckets, beside the "
        "backward pass.",
        capstan::kOptions));
