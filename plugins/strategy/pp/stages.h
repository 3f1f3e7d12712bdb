// Which chunk of the pipeline each forward op belongs to.
#ifndef CAPSTAN_PLUGINS_STRATEGY_PP_STAGES_H_
#define CAPSTAN_PLUGINS_STRATEGY_PP_STAGES_H_

#include <map>
#include <vector>

#include "sdk/program.h"

namespace capstan::pp {

// Contiguous runs of `costs` whose largest sum is as small as can be. `parts` <= costs.size(); every
// run has one at least. Gives the first index of each run.
std::vector<size_t> balance(const std::vector<double>& costs, size_t parts);

// The first layer of each chunk. Layers are spread by the FLOPs of their ops, the first and last with
// what comes before and after; `split` (layers a chunk, may be empty) overrules. Throws usage errors with
// the numbers and the remedy.
std::vector<size_t> chunk_starts(const sdk::Program& program, const std::vector<sdk::Op>& ops,
                                 int64_t chunks, const std::vector<int64_t>& split);

// The chunk of each op, in order: those before the first layer go with it, those after the last with that.
std::vector<int64_t> chunks_of(const sdk::Program& program, const std::vector<sdk::Op>& ops,
                               const std::vector<size_t>& starts);

}  // namespace capstan::pp

#endif  // CAPSTAN_PLUGINS_STRATEGY_PP_STAGES_H_
