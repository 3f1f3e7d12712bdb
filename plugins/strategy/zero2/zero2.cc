// ZeRO stage 2: optimizer states and gradients divided over data-parallel ranks. See common/sharded.h.
#include "plugins/strategy/common/zero.h"

namespace {
constexpr capstan_option kOptions[] = {capstan::sharded::kAxisOption,
                                       capstan::sharded::kBucketOption};
}  // namespace

CAPSTAN_PLUGIN_ENTRY(
    "zero2", "1.0.0", "Apache-2.0",
    "ZeRO stage 2: optimizer states and gradients divided over data-parallel ranks.",
    capstan::sdk::strategy_component<capstan::sharded::Zero<capstan::sharded::Level::kGradients>>(
        "zero2", "1.0.0",
        "Divides optimizer states and gradients over the ranks that share the batch.", kOptions));
