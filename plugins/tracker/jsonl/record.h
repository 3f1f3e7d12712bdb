// One line of metrics.jsonl.
//
//   {"step":12,"loss":3.4651,"tokens":98304}                       scope "train"
//   {"step":200,"scope":"validation","loss":3.21}                  any other scope
//   {"step":200,"event":"checkpoint","text":"saved"}
//   {"step":13,"loss":null,"non_finite":{"loss":"nan"}}            JSON has no NaN or infinity
//
// Numbers are the shortest decimals that read back to the same double.
#ifndef CAPSTAN_PLUGINS_TRACKER_JSONL_RECORD_H_
#define CAPSTAN_PLUGINS_TRACKER_JSONL_RECORD_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "plugin_api/tracker.h"

namespace capstan::jsonl {

// Both end in a newline. Bytes that are not UTF-8 are replaced.
std::string metrics_line(std::string_view scope, std::int64_t step,
                         std::span<const capstan_metric> metrics);
std::string event_line(std::string_view name, std::int64_t step, std::string_view text);

// The step of a line (without its newline); nothing when it is not one of ours.
std::optional<std::int64_t> line_step(std::string_view line);

}  // namespace capstan::jsonl

#endif  // CAPSTAN_PLUGINS_TRACKER_JSONL_RECORD_H_
