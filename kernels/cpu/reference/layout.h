// Layout changes element by element, through multi-indices: the oracle of kernels/cpu/layout.h.
#ifndef CAPSTAN_KERNELS_CPU_REFERENCE_LAYOUT_H_
#define CAPSTAN_KERNELS_CPU_REFERENCE_LAYOUT_H_

#include <cstdint>

#include "kernels/cpu/layout.h"

namespace capstan::reference {

// Calls visit(index) for every multi-index of `size`, last dim fastest.
template <class Visit>
void for_each_index(int rank, const std::int64_t* size, Visit&& visit) {
  std::int64_t total = 1;
  for (int d = 0; d < rank; ++d) total *= size[d];
  std::int64_t index[cpu::kMaxRank] = {};
  for (std::int64_t i = 0; i < total; ++i) {
    visit(static_cast<const std::int64_t*>(index));
    for (int d = rank - 1; d >= 0 && ++index[d] == size[d]; --d) index[d] = 0;
  }
}

// Row-major offset of an index.
inline std::int64_t offset_in(int rank, const std::int64_t* shape, const std::int64_t* index) {
  std::int64_t offset = 0;
  for (int d = 0; d < rank; ++d) offset = offset * shape[d] + index[d];
  return offset;
}

// Where element `index` of a slice lies in the whole tensor.
inline std::int64_t slice_offset(const cpu::SliceParams& p, const std::int64_t* index) {
  std::int64_t at[cpu::kMaxRank];
  for (int d = 0; d < p.rank; ++d) at[d] = p.start[d] + index[d] * p.step[d];
  return offset_in(p.rank, p.shape, at);
}

template <class T>
void slice(const cpu::SliceParams& p, const T* whole, T* part) {
  for_each_index(p.rank, p.size,
                 [&](const std::int64_t* index) { *part++ = whole[slice_offset(p, index)]; });
}

// Adds the part to the whole.
template <class T>
void slice_add(const cpu::SliceParams& p, const T* part, T* whole) {
  for_each_index(p.rank, p.size, [&](const std::int64_t* index) {
    T& to = whole[slice_offset(p, index)];
    to = static_cast<T>(to + *part++);
  });
}

template <class T>
void permute(const cpu::PermuteParams& p, const T* x, T* out) {
  std::int64_t out_shape[cpu::kMaxRank];
  for (int d = 0; d < p.rank; ++d) out_shape[d] = p.shape[p.perm[d]];
  for_each_index(p.rank, out_shape, [&](const std::int64_t* index) {
    std::int64_t at[cpu::kMaxRank];
    for (int d = 0; d < p.rank; ++d) at[p.perm[d]] = index[d];
    *out++ = x[offset_in(p.rank, p.shape, at)];
  });
}

}  // namespace capstan::reference

#endif  // CAPSTAN_KERNELS_CPU_REFERENCE_LAYOUT_H_
