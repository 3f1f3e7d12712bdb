// What a step leaves behind: persistent tensors end it with the placement they began with.
#pragma once

#include "absl/status/status.h"
#include "runtime/program/program.h"

namespace capstan {

// Writing a part (a view) that one rank holds of a tensor that every rank holds makes the whole out
// of date until it is gathered. Refuses an op that reads such a parameter or state, and a step that
// leaves one so, naming the op and the remedy.
absl::Status CheckFlow(const Program& program);

}  // namespace capstan
