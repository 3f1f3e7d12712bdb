// Conversion between element types.
#ifndef CAPSTAN_KERNELS_CPU_CAST_H_
#define CAPSTAN_KERNELS_CPU_CAST_H_

#include <cstdint>

namespace capstan::cpu {

enum class ScalarType { kF32, kF64, kBf16, kF16, kI32, kI64, kU8, kBool };

// dst[i] = src[i] in the other type, n elements; src and dst do not overlap. To a narrower float:
// round to nearest, ties to even, overflow to infinity, NaN stays NaN. Float to integer: towards
// zero, saturating, NaN to 0. Integer to a narrower integer: saturating. To bool (a byte, 0 or 1):
// 1 where not zero (NaN too). Threads: the OpenMP pool.
void cast(ScalarType from, ScalarType to, std::int64_t n, const void* src, void* dst);

}  // namespace capstan::cpu

#endif  // CAPSTAN_KERNELS_CPU_CAST_H_
