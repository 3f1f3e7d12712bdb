// Communication of all ranks checked before the first step: what each rank will start and wait for is
// written down, told to the lead and played through there.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "runtime/exec/plan.h"
#include "runtime/mesh.h"
#include "runtime/program/program.h"

namespace capstan {

// What one rank does in one step of a Program, a line an event, in order:
//   start <axis> <what must be equal on the group's ranks> | <op>
//   send <axis> <peer> <channel> <what must be equal on both> | <op>     (recv alike)
//   wait <number of the start, send or recv, from 0>
std::string CommScript(const Program& program, const MemoryPlan& plan);

// Plays the scripts of all ranks: rank r's is scripts[of[r]]. Collectives of a group match in order, messages in order
// per (source, destination, channel); a start or send never blocks, a wait does until all of the group
// have started, or the message's other side has. Refuses a mismatch and a cycle in one sentence that
// names two ranks and their ops. Any order of ranks gives the same answer.
absl::Status CheckCommunication(const Mesh& mesh, const std::vector<std::string>& scripts,
                                const std::vector<int>& of);
// scripts[r] is rank r's.
absl::Status CheckCommunication(const Mesh& mesh, const std::vector<std::string>& scripts);

}  // namespace capstan
