// The last rewrites before planning, for the device at hand: fusions it is faster with, and standard ops
// in place of plugins' ops it has no kernel for.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "runtime/program/program.h"

namespace capstan {

// linear followed by gelu in the same segment becomes linear_gelu, when `fusions` lists it. Readers
// of the pre-activation (the backward pass) read the fused op's second output.
absl::Status FuseLinearGelu(Program& program, const std::vector<std::string>& fusions);

// Every op of a plugin that brings no kernel for `device` but a decomposition becomes standard ops.
absl::Status DecomposePluginOps(Program& program, const std::string& device);

}  // namespace capstan
