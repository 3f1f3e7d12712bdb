// Conversions of tensors at rest, on the host.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "runtime/program/types.h"

namespace capstan {

// Between float dtypes f16, bf16, f32, f64 (to f32 or f64), n elements.
absl::Status Convert(const void* from, DType from_dtype, void* to, DType to_dtype, int64_t n);

// to[c][r] = from[r][c] of elements of `element_bytes`; `to` is dense, rows of `from` are `stride`
// elements apart.
void Transpose(const char* from, int64_t stride, int64_t rows, int64_t columns,
               int64_t element_bytes, char* to);

}  // namespace capstan
