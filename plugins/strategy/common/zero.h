// The strategies zero1, zero2 and zero3: one class, three levels of what is divided.
#ifndef CAPSTAN_PLUGINS_STRATEGY_COMMON_ZERO_H_
#define CAPSTAN_PLUGINS_STRATEGY_COMMON_ZERO_H_

#include <string_view>

#include "plugins/strategy/common/sharded.h"

namespace capstan::sharded {

inline constexpr sdk::Option kAxisOption = sdk::string_option(
    "axis", "\"dp\"", "The mesh axis whose ranks share the batch and the states.");
inline constexpr sdk::Option kBucketOption =
    sdk::float_option("bucket_mb", "25",
                      "Gradients are scattered, and parameters gathered, together until a bucket "
                      "holds this many MB (10^6 bytes); 0: each by itself.")
        .range(0, 1e6);
inline constexpr sdk::Option kPrefetchOption =
    sdk::int_option("prefetch", "1",
                    "Units whose parameters are gathered ahead of the one that computes.")
        .range(0, 1000);

inline constexpr capstan_phase kPhases[] = {sdk::make_phase(CAPSTAN_PHASE_GRADIENT),
                                            sdk::make_phase(CAPSTAN_PHASE_PUBLISH)};

// Who else reduces or divides the same gradients.
template <Level kLevel>
constexpr const char* kRivals[] = {"dp", kLevel == Level::kStates ? "zero3" : "zero1",
                                   kLevel == Level::kGradients ? "zero3" : "zero2", "fsdp",
                                   nullptr};

template <Level kLevel>
class Zero {
 public:
  Zero(const sdk::Host& host, const sdk::Options& options) {
    settings_.level = kLevel;
    settings_.axis.name = options.get_string("axis");
    settings_.axis.size = host.axis_size(settings_.axis.name);
    settings_.axis.index = host.axis_index(settings_.axis.name);
    settings_.bucket_bytes = static_cast<int64_t>(1e6 * options.get_float("bucket_mb"));
    if (kLevel == Level::kParameters) settings_.prefetch = options.get_int("prefetch");
    uses_[0] = sdk::make_axis(settings_.axis.name.c_str(), CAPSTAN_AXIS_DATA);
  }

  std::span<const capstan_phase> phases() const noexcept { return kPhases; }
  std::span<const capstan_axis_use> axes() const noexcept { return uses_; }
  const char* const* conflicts() const noexcept { return kRivals<kLevel>; }

  void rewrite(std::string_view phase, sdk::Program& program) {
    if (settings_.axis.size == 1) return;
    Sharder sharder(program, settings_);
    if (phase == CAPSTAN_PHASE_GRADIENT) {
      sharder.divide();
    } else if (kLevel != Level::kParameters && program.name() == "train") {
      sharder.publish();
    }
  }

 private:
  Settings settings_;
  capstan_axis_use uses_[1];
};

}  // namespace capstan::sharded

#endif  // CAPSTAN_PLUGINS_STRATEGY_COMMON_ZERO_H_
