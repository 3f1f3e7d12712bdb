// ZeRO stage 3: optimizer states, gradients and parameters divided over data-parallel ranks. See common/sharded.h.
#include "plugins/strategy/common/zero.h"

namespace {
constexpr capstan_option kOptions[] = {capstan::sharded::kAxisOption,
                                       capstan::sharded::kBucketOption,
                                       capstan::sharded::kPrefetchOption};
}  // namespace

CAPSTAN_PLUGIN_ENTRY(
    "zero3", "1.0.0", "Apache-2.0",
    "ZeRO stage 3: optimizer states, gradients and parameters divided over data-parallel ranks.",
    capstan::sdk::strategy_component<capstan::sharded::Zero<capstan::sharded::Level::kParameters>>(
        "zero3", "1.0.0",
        "Divides optimizer states, gradients and parameters over the ranks that share the batch.",
        kOptions));
