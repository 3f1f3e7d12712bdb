#include "kernels/cpu/layout.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/parallel.h"

namespace capstan::cpu {
namespace {

// Calls visit with a null pointer of an unsigned type of `size` bytes.
template <class Visit>
void with_element(std::size_t size, Visit&& visit) {
  switch (size) {
    case 1:
      return visit(static_cast<std::uint8_t*>(nullptr));
    case 2:
      return visit(static_cast<std::uint16_t*>(nullptr));
    case 4:
      return visit(static_cast<std::uint32_t*>(nullptr));
    default:
      return visit(static_cast<std::uint64_t*>(nullptr));
  }
}

// ---- slices ----------------------------------------------------------------------------------

// A slice as runs: `rows` runs of `length` elements, `step` apart in the whole tensor.
struct SliceRuns {
  SliceParams p;  // with trailing whole dims merged
  std::int64_t rows = 1;
  std::int64_t length = 1;
  std::int64_t step = 1;

  // Offset in the whole tensor of the first element of a run.
  std::int64_t offset(std::int64_t row) const {
    std::int64_t index = p.start[p.rank - 1];
    std::int64_t pitch = p.shape[p.rank - 1];
    for (int dim = p.rank - 2; dim >= 0; --dim) {
      index += (p.start[dim] + row % p.size[dim] * p.step[dim]) * pitch;
      pitch *= p.shape[dim];
      row /= p.size[dim];
    }
    return index;
  }
};

SliceRuns runs_of(const SliceParams& params) {
  SliceRuns runs{params};
  SliceParams& p = runs.p;
  if (p.rank == 0) {
    p.rank = 1;
    p.shape[0] = p.size[0] = p.step[0] = 1;
    p.start[0] = 0;
  }
  // A trailing dim taken whole is contiguous with the one before it, if that has step 1.
  while (p.rank > 1 && p.start[p.rank - 1] == 0 && p.step[p.rank - 1] == 1 &&
         p.size[p.rank - 1] == p.shape[p.rank - 1] && p.step[p.rank - 2] == 1) {
    const std::int64_t inner = p.shape[p.rank - 1];
    --p.rank;
    p.start[p.rank - 1] *= inner;
    p.size[p.rank - 1] *= inner;
    p.shape[p.rank - 1] *= inner;
  }
  for (int dim = 0; dim + 1 < p.rank; ++dim) runs.rows *= p.size[dim];
  runs.length = p.size[p.rank - 1];
  runs.step = p.step[p.rank - 1];
  return runs;
}

std::int64_t element_count(const SliceParams& p) {
  std::int64_t n = 1;
  for (int dim = 0; dim < p.rank; ++dim) n *= p.shape[dim];
  return n;
}

// Calls body(whole_offset, part_offset, count) for pieces of runs, in parallel.
template <class Body>
void for_each_run(const SliceRuns& runs, std::int64_t bytes_per_element, Body&& body) {
  const std::int64_t total = runs.rows * runs.length;
  parallel_ranges(total, 64, total * bytes_per_element,
                  [&](std::int64_t begin, std::int64_t end, int) {
                    while (begin < end) {
                      const std::int64_t row = begin / runs.length;
                      const std::int64_t column = begin - row * runs.length;
                      const std::int64_t count = std::min(end - begin, runs.length - column);
                      body(runs.offset(row) + column * runs.step, begin, count);
                      begin += count;
                    }
                  });
}

template <class T>
void copy_strided(const T* from, std::int64_t from_step, T* to, std::int64_t to_step,
                  std::int64_t n) {
  if (from_step == 1 && to_step == 1) {
    std::memcpy(to, from, static_cast<std::size_t>(n) * sizeof(T));
    return;
  }
  for (std::int64_t i = 0; i < n; ++i) to[i * to_step] = from[i * from_step];
}

// ---- permutation -----------------------------------------------------------------------------

// Dims of the output in order, each with its stride in x.
struct PermutePlan {
  int rank = 0;
  std::int64_t size[kMaxRank] = {};
  std::int64_t stride[kMaxRank] = {};
};

// Drops dims of size 1 and merges dims that stay neighbours.
PermutePlan plan_of(const PermuteParams& p) {
  std::int64_t strides[kMaxRank] = {};
  std::int64_t pitch = 1;
  for (int dim = p.rank - 1; dim >= 0; --dim) {
    strides[dim] = pitch;
    pitch *= p.shape[dim];
  }
  PermutePlan plan;
  for (int i = 0; i < p.rank; ++i) {
    const std::int64_t size = p.shape[p.perm[i]];
    const std::int64_t stride = strides[p.perm[i]];
    if (size == 1) continue;
    if (plan.rank > 0 && plan.stride[plan.rank - 1] == stride * size) {
      plan.size[plan.rank - 1] *= size;
      plan.stride[plan.rank - 1] = stride;
      continue;
    }
    plan.size[plan.rank] = size;
    plan.stride[plan.rank++] = stride;
  }
  if (plan.rank == 0) {
    plan.rank = 1;
    plan.size[0] = plan.stride[0] = 1;
  }
  return plan;
}

// One tile: to[c * to_stride + r] = from[r * from_stride + c] (rows r run along the output).
// Through a local copy, so that each cache line of either side is touched once: strides that are
// multiples of a page would otherwise evict a line before its next element is wanted.
template <class T, std::int64_t kTile>
void transpose_tile(const T* from, std::int64_t from_stride, T* to, std::int64_t to_stride,
                    std::int64_t rows, std::int64_t columns) {
  T tile[kTile][kTile];
  if (rows == kTile && columns == kTile) {
    for (std::int64_t r = 0; r < kTile; ++r) {
      for (std::int64_t c = 0; c < kTile; ++c) tile[c][r] = from[r * from_stride + c];
    }
    for (std::int64_t c = 0; c < kTile; ++c)
      std::memcpy(to + c * to_stride, tile[c], sizeof(tile[c]));
    return;
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) tile[c][r] = from[r * from_stride + c];
  }
  for (std::int64_t c = 0; c < columns; ++c) std::copy(tile[c], tile[c] + rows, to + c * to_stride);
}

// The offset in x and in the output of index `i` over all dims of the plan but those two.
struct Offsets {
  std::int64_t in = 0;
  std::int64_t out = 0;
};
Offsets offsets_of(const PermutePlan& plan, std::int64_t i, int skip_a, int skip_b) {
  Offsets o;
  std::int64_t pitch = 1;
  for (int dim = plan.rank - 1; dim >= 0; --dim) {
    if (dim != skip_a && dim != skip_b) {
      o.in += i % plan.size[dim] * plan.stride[dim];
      o.out += i % plan.size[dim] * pitch;
      i /= plan.size[dim];
    }
    pitch *= plan.size[dim];
  }
  return o;
}

template <class T>
void permute_rows(const PermutePlan& plan, const T* x, T* out) {
  const int last = plan.rank - 1;
  const std::int64_t length = plan.size[last];
  std::int64_t rows = 1;
  for (int dim = 0; dim < last; ++dim) rows *= plan.size[dim];
  const std::int64_t bytes = rows * length * 2 * static_cast<std::int64_t>(sizeof(T));
  parallel_ranges(rows, 1, bytes, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t row = begin; row < end; ++row) {
      const Offsets o = offsets_of(plan, row, last, last);
      std::memcpy(out + row * length, x + o.in, static_cast<std::size_t>(length) * sizeof(T));
    }
  });
}

// The last dim of x is dim `inner` of the output, not its last: matrices to transpose, tile by
// tile.
template <class T>
void permute_tiles(const PermutePlan& plan, int inner, const T* x, T* out) {
  constexpr std::int64_t kTile = 64 / sizeof(T);  // a cache line each way
  const int last = plan.rank - 1;
  std::int64_t matrices = 1, out_stride = 1;
  for (int dim = 0; dim < last; ++dim) {
    if (dim != inner) matrices *= plan.size[dim];
    if (dim > inner) out_stride *= plan.size[dim];
  }
  out_stride *= plan.size[last];
  const std::int64_t rows = plan.size[last], columns = plan.size[inner];
  const std::int64_t bands = (rows + kTile - 1) / kTile;
  const std::int64_t bytes = matrices * rows * columns * 2 * static_cast<std::int64_t>(sizeof(T));
  parallel_ranges(matrices * bands, 1, bytes, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t unit = begin; unit < end; ++unit) {
      const Offsets o = offsets_of(plan, unit / bands, inner, last);
      const std::int64_t r = unit % bands * kTile;
      for (std::int64_t c = 0; c < columns; c += kTile) {
        transpose_tile<T, kTile>(x + o.in + r * plan.stride[last] + c, plan.stride[last],
                                 out + o.out + c * out_stride + r, out_stride,
                                 std::min(kTile, rows - r), std::min(kTile, columns - c));
      }
    }
  });
}

}  // namespace

void slice(const SliceParams& p, const void* whole, void* part) {
  const SliceRuns runs = runs_of(p);
  with_element(p.element_size, [&](auto* tag) {
    using T = std::remove_reference_t<decltype(*tag)>;
    for_each_run(runs, 2 * sizeof(T), [&](auto at, auto index, auto n) {
      copy_strided(static_cast<const T*>(whole) + at, runs.step, static_cast<T*>(part) + index, 1,
                   n);
    });
  });
}

void pad(const SliceParams& p, const void* part, void* whole) {
  const SliceRuns runs = runs_of(p);
  const std::uint64_t zero = 0;
  fill(element_count(p), p.element_size, &zero, whole);
  with_element(p.element_size, [&](auto* tag) {
    using T = std::remove_reference_t<decltype(*tag)>;
    for_each_run(runs, 2 * sizeof(T), [&](auto at, auto index, auto n) {
      copy_strided(static_cast<const T*>(part) + index, 1, static_cast<T*>(whole) + at, runs.step,
                   n);
    });
  });
}

void slice_add(const SliceParams& p, const float* part, float* whole) {
  const SliceRuns runs = runs_of(p);
  for_each_run(runs, 12, [&](auto at, auto index, auto n) {
    for (std::int64_t i = 0; i < n; ++i) whole[at + i * runs.step] += part[index + i];
  });
}

void concat(const ConcatParams& p, const void* const* inputs, void* out) {
  const std::int64_t unit = p.inner * static_cast<std::int64_t>(p.element_size);
  char* to = static_cast<char*>(out);
  if (p.outer == 1) {  // long pieces: share each among the threads
    for (std::size_t i = 0; i < p.count; ++i) {
      copy(p.sizes[i] * unit, inputs[i], to);
      to += p.sizes[i] * unit;
    }
    return;
  }
  std::int64_t row_bytes = 0;
  for (std::size_t i = 0; i < p.count; ++i) row_bytes += p.sizes[i] * unit;
  parallel_ranges(p.outer, 1, 2 * p.outer * row_bytes,
                  [&](std::int64_t begin, std::int64_t end, int) {
                    for (std::int64_t row = begin; row < end; ++row) {
                      char* at = to + row * row_bytes;
                      for (std::size_t i = 0; i < p.count; ++i) {
                        const std::int64_t bytes = p.sizes[i] * unit;
                        if (bytes == 0) continue;
                        std::memcpy(at, static_cast<const char*>(inputs[i]) + row * bytes,
                                    static_cast<std::size_t>(bytes));
                        at += bytes;
                      }
                    }
                  });
}

void permute(const PermuteParams& p, const void* x, void* out) {
  const PermutePlan plan = plan_of(p);
  for (int dim = 0; dim < plan.rank; ++dim) {
    if (plan.size[dim] == 0) return;
  }
  int inner = 0;
  while (plan.stride[inner] != 1) ++inner;
  with_element(p.element_size, [&](auto* tag) {
    using T = std::remove_reference_t<decltype(*tag)>;
    if (inner == plan.rank - 1) {
      permute_rows(plan, static_cast<const T*>(x), static_cast<T*>(out));
    } else {
      permute_tiles(plan, inner, static_cast<const T*>(x), static_cast<T*>(out));
    }
  });
}

void transpose(std::int64_t rows, std::int64_t columns, std::size_t element_size, const void* x,
               void* out) {
  PermuteParams p;
  p.rank = 2;
  p.shape[0] = rows;
  p.shape[1] = columns;
  p.perm[0] = 1;
  p.perm[1] = 0;
  p.element_size = element_size;
  permute(p, x, out);
}

void broadcast_dim(std::int64_t outer, std::int64_t count, std::int64_t inner,
                   std::size_t element_size, const void* x, void* out) {
  const std::int64_t row_bytes = inner * static_cast<std::int64_t>(element_size);
  if (inner == 1) {
    for (std::int64_t o = 0; o < outer; ++o) {
      fill(count, element_size, static_cast<const char*>(x) + o * row_bytes,
           static_cast<char*>(out) + o * count * row_bytes);
    }
    return;
  }
  parallel_ranges(outer * count, 1, outer * count * row_bytes,
                  [&](std::int64_t begin, std::int64_t end, int) {
                    for (std::int64_t k = begin; k < end; ++k) {
                      std::memcpy(static_cast<char*>(out) + k * row_bytes,
                                  static_cast<const char*>(x) + k / count * row_bytes,
                                  static_cast<std::size_t>(row_bytes));
                    }
                  });
}

}  // namespace capstan::cpu
