#include "runtime/run/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace capstan {

double LearningRate(const Schedule& s, double base, int64_t step, int64_t steps) {
  if (step < s.warmup_steps) {
    return base * static_cast<double>(step + 1) / static_cast<double>(s.warmup_steps);
  }
  const double low = std::min(s.min_lr, base);
  if (s.kind == "linear" || s.kind == "cosine") {
    const int64_t span = std::max<int64_t>(1, steps - 1 - s.warmup_steps);
    const double t = std::clamp(
        static_cast<double>(step - s.warmup_steps) / static_cast<double>(span), 0.0, 1.0);
    const double fall = s.kind == "linear" ? 1.0 - t : 0.5 * (1.0 + std::cos(std::numbers::pi * t));
    return low + (base - low) * fall;
  }
  if (s.kind == "wsd") {
    const int64_t decay = s.decay_steps > 0 ? s.decay_steps : std::max<int64_t>(1, steps / 10);
    const int64_t start = steps - decay;
    if (step < start) return base;
    const double t =
        std::clamp(static_cast<double>(step - start + 1) / static_cast<double>(decay), 0.0, 1.0);
    return low + (base - low) * (1.0 - t);
  }
  return base;
}

}  // namespace capstan
