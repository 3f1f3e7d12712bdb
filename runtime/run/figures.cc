#include "runtime/run/figures.h"

#include <cmath>
#include <iterator>

#include "absl/strings/str_format.h"

namespace capstan {
namespace {

// `value` over the largest power of 1000 that keeps it at 1 or more.
struct Scaled {
  double value;
  size_t power;
};

Scaled Scale(double value, size_t most) {
  Scaled s{value, 0};
  // 999.96 would print as 1000.0, so it already counts as the next unit.
  while (s.power < most && std::fabs(s.value) >= 999.95) s = {s.value / 1000, s.power + 1};
  return s;
}

}  // namespace

std::string GroupedText(int64_t value) {
  std::string text = absl::StrFormat("%d", value);
  const int first = value < 0 ? 1 : 0;
  for (int at = static_cast<int>(text.size()) - 3; at > first; at -= 3) text.insert(at, 1, ',');
  return text;
}

std::string BytesText(double bytes) {
  static constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
  const Scaled s = Scale(bytes, std::size(kUnits) - 1);
  return absl::StrFormat("%.*f %s", s.power == 0 ? 0 : 1, s.value, kUnits[s.power]);
}

std::string GigabytesText(double bytes) {
  const double gigabytes = bytes / 1e9;
  return absl::StrFormat("%.*f GB", gigabytes < 0.095 && gigabytes > 0 ? 3 : 1, gigabytes);
}

std::string FlopsText(double operations) {
  static constexpr const char* kUnits[] = {"FLOP",  "kFLOP", "MFLOP", "GFLOP",
                                           "TFLOP", "PFLOP", "EFLOP", "ZFLOP"};
  const Scaled s = Scale(operations, std::size(kUnits) - 1);
  return absl::StrFormat("%.*f %s", s.power == 0 ? 0 : 2, s.value, kUnits[s.power]);
}

std::string CountText(double count) {
  if (count >= 999.995e6) return absl::StrFormat("%.2f billion", count / 1e9);
  if (count >= 999.995e3) return absl::StrFormat("%.2f million", count / 1e6);
  return absl::StrFormat("%.0f", count);
}

std::string PercentText(double share) { return absl::StrFormat("%.1f%%", 100 * share); }

}  // namespace capstan
