// Element-wise reduction of several ranks' arrays, in the order of the ranks, on the CPU.
#ifndef CAPSTAN_PLUGINS_COMM_COMMON_REDUCE_H_
#define CAPSTAN_PLUGINS_COMM_COMMON_REDUCE_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "plugin_api/comm.h"

namespace capstan::comm {

// The dtypes that travel and, where `can_reduce` says so, can be reduced. Zero-copy lists for
// capstan_comm_capabilities.
std::span<const capstan_dtype> dtypes();

// Bytes of one element; 0 for a dtype that is not in dtypes().
size_t element_bytes(capstan_dtype dtype);

// False for CAPSTAN_COMM_AVERAGE of integers and bool, whose quotient is no integer.
bool can_reduce(capstan_dtype dtype, int32_t reduce);

// out[i] = sources[0][i] (+) sources[1][i] (+) ..., from left to right, so the bits depend on nothing
// but the values and their order.
//   sum, average  f32 and f64 in their own precision; bf16 and f16 accumulate in f32 and are rounded
//                 once, to nearest, ties to even. average divides the sum by sources.size(), before
//                 that rounding. Integers wrap; bool is "or".
//   max           a NaN of any rank is kept
// `out` may be one of the sources (the same address), and must not overlap any in another way.
// Any thread; touches nothing but its arguments. can_reduce(dtype, reduce) must hold.
void reduce_in_order(capstan_dtype dtype, int32_t reduce, std::span<const void* const> sources,
                     void* out, size_t count);

// data[i] /= divisor, for the dtypes an average exists for; one rounding.
void divide(capstan_dtype dtype, void* data, size_t count, double divisor);

}  // namespace capstan::comm

#endif  // CAPSTAN_PLUGINS_COMM_COMMON_REDUCE_H_
