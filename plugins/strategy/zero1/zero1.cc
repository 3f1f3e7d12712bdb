// ZeRO stage 1: optimizer states divided over data-parallel ranks. See common/sharded.h.
#include "plugins/strategy/common/zero.h"

namespace {
constexpr capstan_option kOptions[] = {capstan::sharded::kAxisOption,
                                       capstan::sharded::kBucketOption};
}  // namespace

CAPSTAN_PLUGIN_ENTRY(
    "zero1", "1.0.0", "Apache-2.0",
    "ZeRO stage 1: optimizer states divided over data-parallel ranks.",
    capstan::sdk::strategy_component<capstan::sharded::Zero<capstan::sharded::Level::kStates>>(
        "zero1", "1.0.0", "Divides optimizer states over the ranks that share the batch.",
        kOptions));
