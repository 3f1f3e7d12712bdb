#include "runtime/suggest.h"

#include <algorithm>

#include "runtime/strings.h"

namespace capstan {

size_t EditDistance(std::string_view a, std::string_view b) {
  // Three rows of the table are enough: this, the one above, and the one above that for swaps.
  std::vector<size_t> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) above[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    std::swap(before, above);
    std::swap(above, row);
  }
  return above[b.size()];
}

std::string Nearest(std::string_view name, const std::vector<std::string>& known) {
  // A third of the letters may be wrong, at least one.
  const size_t limit = std::max<size_t>(1, name.size() / 3);
  size_t best_distance = limit + 1;
  std::string best;
  for (const std::string& candidate : known) {
    // Lengths alone already exceed the limit: spare the quadratic work on hostile names.
    const size_t longer = std::max(candidate.size(), name.size());
    const size_t shorter = std::min(candidate.size(), name.size());
    if (longer - shorter > limit) continue;
    const size_t distance = EditDistance(name, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  if (!best.empty() || name.size() < 3) return best;
  // "warmup" for "warmup_steps": the start of exactly one known name.
  for (const std::string& candidate : known) {
    if (candidate.compare(0, name.size(), name) != 0) continue;
    if (!best.empty()) return "";
    best = candidate;
  }
  return best;
}

std::string DidYouMean(std::string_view name, const std::vector<std::string>& known) {
  const std::string nearest = Nearest(name, known);
  return nearest.empty() ? "." : StrCat("; did you mean \"", nearest, "\"?");
}

}  // namespace capstan
