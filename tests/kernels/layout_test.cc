// Slices, padding, concatenation, permutation and broadcast against multi-index loops.
#include "kernels/cpu/layout.h"

#include <numeric>

#include "kernels/cpu/reference/layout.h"
#include "tests/kernels/memory_bound_util.h"

namespace capstan::cpu {
namespace {

using namespace capstan::testing;  // NOLINT: the tests' vocabulary

template <class T>
std::vector<T> counting(std::int64_t n) {
  std::vector<T> x(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<T>(i * 7 + 1);
  return x;
}

std::int64_t product(int rank, const std::int64_t* size) {
  return std::accumulate(size, size + rank, std::int64_t{1}, std::multiplies<>());
}

const SliceParams kSlices[] = {
    {1, {10}, {3}, {4}, {1}, 4},
    {1, {10}, {1}, {4}, {2}, 4},
    {2, {7, 5}, {2, 0}, {3, 5}, {1, 1}, 4},
    {2, {7, 5}, {0, 1}, {7, 3}, {1, 1}, 4},
    {3, {4, 6, 5}, {1, 2, 0}, {2, 3, 5}, {1, 1, 1}, 4},
    {3, {9, 6, 5}, {1, 0, 0}, {4, 6, 5}, {2, 1, 1}, 4},
    {4, {3, 2, 4, 6}, {0, 0, 1, 2}, {3, 2, 2, 2}, {1, 1, 1, 2}, 4},
    {2, {200, 300}, {10, 20}, {150, 250}, {1, 1}, 4},
    {2, {3, 3}, {1, 1}, {0, 2}, {1, 1}, 4},
};

template <class T>
void check_slices() {
  for (SliceParams p : kSlices) {
    p.element_size = sizeof(T);
    const std::vector<T> whole = counting<T>(product(p.rank, p.shape));
    std::vector<T> part(static_cast<std::size_t>(product(p.rank, p.size))), expected = part;
    slice(p, whole.data(), part.data());
    reference::slice(p, whole.data(), expected.data());
    EXPECT_EQ(part, expected);
    std::vector<T> padded(whole.size(), T(77)), zeros(whole.size(), T(0));
    pad(p, part.data(), padded.data());
    reference::slice_add(p, part.data(), zeros.data());
    EXPECT_EQ(padded, zeros);
  }
}

TEST(Slice, AndItsPaddingMatchTheReferenceForEveryElementSize) {
  everywhere([] {
    check_slices<std::uint8_t>();
    check_slices<std::uint16_t>();
    check_slices<float>();
    check_slices<std::uint64_t>();
  });
}

TEST(Slice, AddsIntoTheWhole) {
  for (const SliceParams& p : kSlices) {
    const Floats part = random_floats(product(p.rank, p.size), 1);
    Floats whole(static_cast<std::size_t>(product(p.rank, p.shape)), 1.0f), expected = whole;
    slice_add(p, part.data(), whole.data());
    reference::slice_add(p, part.data(), expected.data());
    EXPECT_EQ(whole, expected);
  }
}

TEST(Concat, PutsInputsSideBySideAndSlicesTakeThemApart) {
  everywhere([] {
    for (const auto& [outer, inner] :
         {std::pair<std::int64_t, std::int64_t>{1, 1}, {3, 5}, {70, 40}}) {
      const std::vector<std::int64_t> sizes = {2, 0, 7, 1};
      std::vector<Floats> inputs;
      std::vector<const void*> pointers;
      for (std::uint32_t i = 0; i < 4; ++i)
        inputs.push_back(random_floats(outer * sizes[i] * inner, i));
      for (const Floats& x : inputs) pointers.push_back(x.data());
      Floats out(static_cast<std::size_t>(outer * 10 * inner));
      concat({outer, inner, 4, sizes.data(), 4}, pointers.data(), out.data());
      std::int64_t start = 0;
      for (std::size_t i = 0; i < 4; ++i) {
        SliceParams p;
        p.rank = 3;
        p.shape[0] = p.size[0] = outer;
        p.shape[1] = 10, p.start[1] = start, p.size[1] = sizes[i];
        p.shape[2] = p.size[2] = inner;
        Floats part(inputs[i].size());
        reference::slice(p, out.data(), part.data());
        EXPECT_EQ(part, inputs[i]);
        start += sizes[i];
      }
    }
  });
}

template <class T>
void check_permute(const std::vector<std::int64_t>& shape) {
  PermuteParams p;
  p.rank = static_cast<int>(shape.size());
  std::copy(shape.begin(), shape.end(), p.shape);
  p.element_size = sizeof(T);
  std::iota(p.perm, p.perm + p.rank, 0);
  const std::vector<T> x = counting<T>(product(p.rank, p.shape));
  do {
    std::vector<T> out(x.size()), expected(x.size());
    permute(p, x.data(), out.data());
    reference::permute(p, x.data(), expected.data());
    ASSERT_EQ(out, expected);
  } while (std::next_permutation(p.perm, p.perm + p.rank));
}

TEST(Permute, MatchesTheReferenceForEveryPermutation) {
  everywhere([] {
    check_permute<float>({5});
    check_permute<float>({3, 17});
    check_permute<float>({2, 3, 4});
    check_permute<float>({1, 65, 33});
    check_permute<float>({2, 5, 3, 7});
    check_permute<float>({2, 1, 3, 4, 5});
    check_permute<std::uint8_t>({40, 3, 66});
    check_permute<std::uint16_t>({3, 35, 70});
    check_permute<std::uint64_t>({20, 3, 18});
  });
}

TEST(Transpose, SwapsRowsAndColumns) {
  everywhere([] {
    for (const auto& [rows, columns] :
         {std::pair<std::int64_t, std::int64_t>{1, 1}, {1, 9}, {65, 3}, {129, 257}}) {
      const Floats x = random_floats(rows * columns, 1);
      Floats y(x.size());
      transpose(rows, columns, 4, x.data(), y.data());
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t c = 0; c < columns; ++c) ASSERT_EQ(y[c * rows + r], x[r * columns + c]);
      }
    }
  });
}

TEST(BroadcastDim, RepeatsRowsAndScalars) {
  everywhere([] {
    for (const auto& [outer, count, inner] :
         {std::tuple<std::int64_t, std::int64_t, std::int64_t>{3, 4, 1}, {1, 5, 7}, {30, 6, 500}}) {
      const Floats x = random_floats(outer * inner, 1);
      Floats y(static_cast<std::size_t>(outer * count * inner));
      broadcast_dim(outer, count, inner, 4, x.data(), y.data());
      for (std::int64_t i = 0; i < outer * count * inner; ++i) {
        ASSERT_EQ(y[i], x[i / (count * inner) * inner + i % inner]);
      }
    }
  });
}

}  // namespace
}  // namespace capstan::cpu
