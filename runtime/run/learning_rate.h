// Learning-rate schedules.
#pragma once

#include <cstdint>

#include "runtime/config.h"

namespace capstan {

// The factor of step `step` (0-based) of `steps`, times the base rate, gives the rate; min_lr is
// relative to `base`. Warm-up rises linearly to 1 at step warmup_steps - 1.
//   constant; linear and cosine (Loshchilov & Hutter 2017, eq. 5, one cycle) from 1 to min_lr/base
//   at the last step; wsd (Hu et al. 2024): flat, then linear to min_lr over the last decay_steps.
double LearningRate(const Schedule& schedule, double base, int64_t step, int64_t steps);

}  // namespace capstan
