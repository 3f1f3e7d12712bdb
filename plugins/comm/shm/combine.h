// The inner loop: several arrays reduced, in order, into one or several.
#ifndef CAPSTAN_PLUGINS_COMM_SHM_COMBINE_H_
#define CAPSTAN_PLUGINS_COMM_SHM_COMBINE_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "plugin_api/comm.h"

namespace capstan::shm {

// For all i: every targets[j][i] = sources[0][i] (+) sources[1][i] (+) ..., from left to right, by the
// rules of plugins/comm/common/reduce.h; one source is copied. A target may be one of the sources
// (the same address). `stream`: store past the caches, for targets that are larger than those.
// The stores are visible to whoever sees a later release by this thread. [any thread]
void combine(capstan_dtype dtype, int32_t reduce, std::span<const char* const> sources,
             std::span<char* const> targets, size_t count, bool stream);

}  // namespace capstan::shm

#endif  // CAPSTAN_PLUGINS_COMM_SHM_COMBINE_H_
