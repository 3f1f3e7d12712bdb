// Element-wise arithmetic with broadcasting, scaled accumulation, fill and copy.
//
// Dense float32 unless said. Outputs may be the same buffer as an input of the same shape. Threads:
// the OpenMP pool; results do not depend on their number.
#ifndef CAPSTAN_KERNELS_CPU_ELEMENTWISE_H_
#define CAPSTAN_KERNELS_CPU_ELEMENTWISE_H_

#include <cstddef>
#include <cstdint>

namespace capstan::cpu {

enum class Binary { kAdd, kSub, kMul, kDiv };

// Shape of the second operand against the first, [outer, inner].
enum class BroadcastB {
  kNone,     // [outer, inner]
  kLeading,  // [inner]: repeated along the leading dims
  kScalar,   // [1]
};

struct BinaryParams {
  Binary op = Binary::kAdd;
  BroadcastB broadcast = BroadcastB::kNone;
  std::int64_t outer = 1;
  std::int64_t inner = 0;
};

// y = a op b; a, y [outer, inner].
void binary(const BinaryParams& p, const float* a, const float* b, float* y);

// y = factor * x.
void scale(std::int64_t n, float factor, const float* x, float* y);

// y = factor * x, added to y where `accumulate`.
void accumulate(std::int64_t n, float factor, const float* x, float* y, bool accumulate);

// Every element of out becomes the `element_size` (1, 2, 4 or 8) bytes at `value`.
void fill(std::int64_t n, std::size_t element_size, const void* value, void* out);

// dst = src; the two do not overlap.
void copy(std::int64_t bytes, const void* src, void* dst);

}  // namespace capstan::cpu

#endif  // CAPSTAN_KERNELS_CPU_ELEMENTWISE_H_
