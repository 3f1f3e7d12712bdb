#include "plugins/tracker/jsonl/record.h"

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

namespace capstan::jsonl {
namespace {

using Json = nlohmann::json;

std::string json_string(std::string_view text) {
  return Json(std::string(text)).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string number_text(double value, bool integer) {
  char buffer[512];  // the longest fixed double has 309 digits before the point
  // Fixed notation of a whole number has no fraction and no exponent; of another, it has one.
  const bool whole = integer && std::trunc(value) == value;
  const auto result =
      whole ? std::to_chars(buffer, buffer + sizeof buffer, value + 0.0, std::chars_format::fixed)
            : std::to_chars(buffer, buffer + sizeof buffer, value);
  return std::string(buffer, result.ptr);
}

const char* non_finite_text(double value) {
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

}  // namespace

std::string metrics_line(std::string_view scope, std::int64_t step,
                         std::span<const capstan_metric> metrics) {
  std::string line = "{\"step\":" + std::to_string(step);
  if (scope != "train") line += ",\"scope\":" + json_string(scope);
  std::string non_finite;
  for (const capstan_metric& metric : metrics) {
    const std::string name = json_string(metric.name);
    line += "," + name + ":";
    if (std::isfinite(metric.value)) {
      line += number_text(metric.value, metric.integer != 0);
      continue;
    }
    line += "null";
    if (!non_finite.empty()) non_finite += ",";
    non_finite += name + ":\"" + non_finite_text(metric.value) + "\"";
  }
  if (!non_finite.empty()) line += ",\"non_finite\":{" + non_finite + "}";
  return line + "}\n";
}

std::string event_line(std::string_view name, std::int64_t step, std::string_view text) {
  return "{\"step\":" + std::to_string(step) + ",\"event\":" + json_string(name) +
         ",\"text\":" + json_string(text) + "}\n";
}

std::optional<std::int64_t> line_step(std::string_view line) {
  const Json record = Json::parse(line.begin(), line.end(), nullptr, false);
  if (!record.is_object()) return std::nullopt;
  const auto step = record.find("step");
  if (step == record.end() || !step->is_number_integer()) return std::nullopt;
  return step->get<std::int64_t>();
}

}  // namespace capstan::jsonl
