// Fusions the host makes where the device says they are faster.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "runtime/program/program.h"

namespace capstan {

// linear followed by gelu in the same segment becomes linear_gelu, when `fusions` lists it. Readers
// of the pre-activation (the backward pass) read the fused op's second output.
absl::Status FuseLinearGelu(Program& program, const std::vector<std::string>& fusions);

}  // namespace capstan
