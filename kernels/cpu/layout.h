// Moving elements without changing them: slices, padding, concatenation, permutation, broadcast.
//
// Element sizes are 1, 2, 4 or 8 bytes; buffers are dense row-major and never overlap. Threads: the
// OpenMP pool.
#ifndef CAPSTAN_KERNELS_CPU_LAYOUT_H_
#define CAPSTAN_KERNELS_CPU_LAYOUT_H_

#include <cstddef>
#include <cstdint>

namespace capstan::cpu {

constexpr int kMaxRank = 8;

// The part [start, start + size) of a tensor of `shape`, every `step`-th element of each dim:
// element i of a dim is start + i * step.
struct SliceParams {
  int rank = 0;
  std::int64_t shape[kMaxRank] = {};
  std::int64_t start[kMaxRank] = {};
  std::int64_t size[kMaxRank] = {};
  std::int64_t step[kMaxRank] = {1, 1, 1, 1, 1, 1, 1, 1};
  std::size_t element_size = 4;
};

// part [size...] = the slice of whole [shape...].
void slice(const SliceParams& p, const void* whole, void* part);

// The inverse: whole is zero outside the slice, and `part` inside.
void pad(const SliceParams& p, const void* part, void* whole);

// whole += part inside the slice; float32 only.
void slice_add(const SliceParams& p, const float* part, float* whole);

// out [outer, sum of sizes, inner] = inputs [outer, sizes[i], inner] side by side.
struct ConcatParams {
  std::int64_t outer = 1;
  std::int64_t inner = 1;
  std::size_t count = 0;
  const std::int64_t* sizes = nullptr;
  std::size_t element_size = 4;
};
void concat(const ConcatParams& p, const void* const* inputs, void* out);

// out dim i is x dim perm[i]. `shape` is x's.
struct PermuteParams {
  int rank = 0;
  std::int64_t shape[kMaxRank] = {};
  int perm[kMaxRank] = {};
  std::size_t element_size = 4;
};
void permute(const PermuteParams& p, const void* x, void* out);

// out [columns, rows] = x [rows, columns] transposed.
void transpose(std::int64_t rows, std::int64_t columns, std::size_t element_size, const void* x,
               void* out);

// out [outer, count, inner] = x [outer, inner] repeated along a new dim.
void broadcast_dim(std::int64_t outer, std::int64_t count, std::int64_t inner,
                   std::size_t element_size, const void* x, void* out);

}  // namespace capstan::cpu

#endif  // CAPSTAN_KERNELS_CPU_LAYOUT_H_
