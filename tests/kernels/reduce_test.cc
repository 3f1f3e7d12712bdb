// Norms, finite checks and dim reductions against the reference.
#include "kernels/cpu/reduce.h"

#include <limits>

#include "kernels/cpu/reference/reduce.h"
#include "tests/kernels/memory_bound_util.h"

namespace capstan::cpu {
namespace {

using namespace capstan::testing;  // NOLINT: the tests' vocabulary

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct List {
  std::vector<Floats> storage;
  std::vector<ConstBuffer> buffers;
  explicit List(std::initializer_list<std::int64_t> sizes) {
    std::uint32_t seed = 1;
    for (std::int64_t n : sizes) storage.push_back(random_floats(n, seed++));
    for (const Floats& s : storage) {
      buffers.push_back({s.data(), static_cast<std::int64_t>(s.size())});
    }
  }
};

TEST(SumSquares, MatchesTheReferenceOnAnyThreadCountBitForBit) {
  for (const List& list :
       {List({1}), List({3, 0, 17}), List({16384, 16385, 1, 100000}), List({})}) {
    Workspace workspace(sum_squares_workspace(list.buffers.data(), list.buffers.size()));
    std::vector<double> seen;
    with_thread_counts([&] {
      seen.push_back(sum_squares(list.buffers.data(), list.buffers.size(), workspace.data()));
    });
    const double expected = reference::sum_squares(list.buffers.data(), list.buffers.size());
    EXPECT_NEAR(seen[0], expected, 1e-12 * expected);
    EXPECT_EQ(seen[0], seen[1]);
  }
}

TEST(SumSquares, DoesNotOverflowWhereFloatWould) {
  const Floats x(100, 1e30f);
  const ConstBuffer b{x.data(), 100};
  Workspace workspace(sum_squares_workspace(&b, 1));
  EXPECT_NEAR(sum_squares(&b, 1, workspace.data()) / 1e62, 1.0, 1e-6);
}

TEST(ClipScale, ShrinksOnlyLargeNorms) {
  EXPECT_EQ(clip_scale(16.0, 0.0).scale, 1.0f);
  EXPECT_EQ(clip_scale(16.0, 0.0).norm, 4.0f);
  EXPECT_EQ(clip_scale(0.25, 1.0).scale, 1.0f);
  EXPECT_NEAR(clip_scale(16.0, 1.0).scale, 0.25f, 1e-6);
  EXPECT_EQ(clip_scale(0.0, 1.0).scale, 1.0f);
  EXPECT_EQ(clip_scale(kInf, 1.0).scale, 0.0f);
  EXPECT_TRUE(std::isnan(clip_scale(kNan, 1.0).scale));
}

TEST(AllFinite, SeesOneBadValueAnywhere) {
  everywhere([] {
    List list({17, 40000, 3});
    EXPECT_TRUE(all_finite(list.buffers.data(), 3));
    for (float bad : {kInf, -kInf, kNan}) {
      for (const auto& [b, i] : {std::pair<std::size_t, std::size_t>{0, 16}, {1, 20000}, {2, 0}}) {
        const float kept = list.storage[b][i];
        list.storage[b][i] = bad;
        EXPECT_FALSE(all_finite(list.buffers.data(), 3)) << bad << " in " << b;
        list.storage[b][i] = kept;
      }
    }
    list.storage[0][0] = std::numeric_limits<float>::max();
    EXPECT_TRUE(all_finite(list.buffers.data(), 3));
  });
}

TEST(Reduce, MatchesTheReference) {
  everywhere([] {
    for (const ReduceParams& p :
         {ReduceParams{1, 1, 1}, ReduceParams{1, 1000, 1}, ReduceParams{1, 300000, 1},
          ReduceParams{7, 65, 1}, ReduceParams{1, 4096, 33}, ReduceParams{3, 17, 65},
          ReduceParams{2, 3, 1030}, ReduceParams{5, 1, 17}, ReduceParams{40, 129, 3}}) {
      const Floats x = random_floats(p.outer * p.n * p.inner, 3);
      for (Reduction r : {Reduction::kSum, Reduction::kMean, Reduction::kMax}) {
        for (bool accumulate : {false, true}) {
          Doubles expected(static_cast<std::size_t>(p.outer * p.inner));
          reference::reduce<double>(r, p, widen(x).data(), expected.data());
          if (accumulate && r != Reduction::kMax) {
            for (double& v : expected) v += 2.0;
          }
          Floats out(expected.size(), 2.0f);
          Workspace workspace(reduce_workspace(p));
          reduce(r, p, x.data(), out.data(), accumulate, workspace.data());
          // Rounding grows with the terms summed (here of magnitude about 1), not with their sum.
          const double tolerance = 3e-6 + 2e-8 * static_cast<double>(p.n);
          expect_close(
              out, expected, tolerance,
              std::to_string(p.outer) + "," + std::to_string(p.n) + "," + std::to_string(p.inner));
        }
      }
    }
  });
}

TEST(Reduce, DoesNotDependOnTheThreadCount) {
  const ReduceParams p{1, 5000, 30};
  const Floats x = random_floats(150000, 3);
  std::vector<Floats> seen;
  with_thread_counts([&] {
    Floats out(30);
    Workspace workspace(reduce_workspace(p));
    reduce(Reduction::kSum, p, x.data(), out.data(), false, workspace.data());
    seen.push_back(out);
  });
  EXPECT_EQ(seen[0], seen[1]);
}

TEST(Reduce, OfNothingIsTheIdentity) {
  const ReduceParams p{2, 0, 3};
  Workspace workspace(reduce_workspace(p));
  Floats out(6, 9.0f);
  reduce(Reduction::kSum, p, nullptr, out.data(), false, workspace.data());
  EXPECT_EQ(out, Floats(6, 0.0f));
  reduce(Reduction::kMax, p, nullptr, out.data(), false, workspace.data());
  EXPECT_EQ(out, Floats(6, -kInf));
}

TEST(Reduce, MaximumKeepsNan) {
  for (const ReduceParams& p : {ReduceParams{1, 100, 1}, ReduceParams{1, 100, 5}}) {
    for (std::size_t at : {std::size_t{0}, std::size_t{50}, std::size_t{99}}) {
      Floats x = random_floats(p.n * p.inner, 1), out(static_cast<std::size_t>(p.inner));
      x[at * static_cast<std::size_t>(p.inner)] = kNan;
      Workspace workspace(reduce_workspace(p));
      reduce(Reduction::kMax, p, x.data(), out.data(), false, workspace.data());
      EXPECT_TRUE(std::isnan(out[0])) << p.inner << " " << at;
    }
  }
}

}  // namespace
}  // namespace capstan::cpu
