// Fully sharded data parallelism (Zhao et al. 2023): parameters, gradients and optimizer states are
// divided over the ranks of an axis that share the batch; the parameters of a unit of layers are
// gathered before it computes. With a second axis, groups of ranks hold the same blocks (hybrid
// sharding). See common/sharded.h.
#include "plugins/strategy/common/zero.h"

namespace capstan {
namespace {

constexpr capstan_option kOptions[] = {
    sharded::kAxisOption,
    sdk::string_option(
        "replicate_axis", "\"\"",
        "A second axis that shares the batch and holds the same blocks; empty: none."),
    sdk::int_option("unit_layers", "1", "Layers whose parameters are gathered together.")
        .range(1, 100000),
    sdk::bool_option(
        "reshard_after_forward", "true",
        "Free gathered parameters after the forward pass and gather them again for the "
        "backward pass."),
    sharded::kPrefetchOption,
    sharded::kBucketOption,
};

constexpr const char* kRivals[] = {"dp", "zero1", "zero2", "zero3", nullptr};

class Fsdp {
 public:
  Fsdp(const sdk::Host& host, const sdk::Options& options) {
    settings_.level = sharded::Level::kParameters;
    settings_.axis.name = options.get_string("axis");
    settings_.axis.size = host.axis_size(settings_.axis.name);
    settings_.axis.index = host.axis_index(settings_.axis.name);
    replicas_ = options.get_string("replicate_axis");
    if (replicas_ == settings_.axis.name) {
      throw sdk::usage_error(sdk::text("[[strategy]] fsdp: axis and replicate_axis are both \"",
                                       replicas_,
                                       "\"; name two axes, or leave replicate_axis out"));
    }
    if (host.axis_size(replicas_) > 1) settings_.replicas = replicas_;
    settings_.unit_layers = options.get_int("unit_layers");
    settings_.reshard = options.get_bool("reshard_after_forward");
    settings_.prefetch = options.get_int("prefetch");
    settings_.bucket_bytes = static_cast<int64_t>(1e6 * options.get_float("bucket_mb"));
    uses_[0] = sdk::make_axis(settings_.axis.name.c_str(), CAPSTAN_AXIS_DATA);
    uses_[1] = sdk::make_axis(replicas_.c_str(), CAPSTAN_AXIS_DATA);
  }

  std::span<const capstan_phase> phases() const noexcept { return {sharded::kPhases, 1}; }
  std::span<const capstan_axis_use> axes() const noexcept {
    return {uses_, replicas_.empty() ? size_t{1} : size_t{2}};
  }
  const char* const* conflicts() const noexcept { return kRivals; }

  void rewrite(std::string_view, sdk::Program& program) {
    if (settings_.axis.size > 1 || !settings_.replicas.empty())
      sharded::Sharder(program, settings_).divide();
  }

 private:
  sharded::Settings settings_;
  std::string replicas_;
  capstan_axis_use uses_[2];
};

}  // namespace
}  // namespace capstan

CAPSTAN_PLUGIN_ENTRY("fsdp", "1.0.0", "Apache-2.0", "Fully sharded data parallelism.",
                     capstan::sdk::strategy_component<capstan::Fsdp>(
                         "fsdp", "1.0.0",
                         "Divides parameters, gradients and optimizer states, and gathers the "
                         "parameters of each unit of layers when it computes.",
                         capstan::kOptions));
