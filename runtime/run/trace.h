// Traces of a step, and what a step costs.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/exec/executor.h"
#include "runtime/program/program.h"

namespace capstan {

// The launches of one step in the Trace Event Format, which Perfetto and chrome://tracing open. Of
// several ranks (`world` > 1) each is a process of its own there, on the machine's common clock.
std::string TraceJson(const Program& program, const std::vector<LaunchTime>& times, int rank = 0,
                      int world = 1);

// Model FLOPs of a step of `sequences` sequences (Chowdhery 2022, appendix B, by the ops' own cost
// rules): three times the forward pass, `eval` being the forward Program of one microbatch.
absl::StatusOr<double> ModelFlops(const Program& eval, int64_t sequences);

}  // namespace capstan
