// Random fills: any slice equals that part of the whole, and values match the reference.
#include "kernels/cpu/random_fill.h"

#include "kernels/cpu/reference/layout.h"
#include "kernels/cpu/reference/random_fill.h"
#include "tests/kernels/memory_bound_util.h"

namespace capstan::cpu {
namespace {

using namespace capstan::testing;  // NOLINT: the tests' vocabulary

RandomFillParams params(std::vector<std::int64_t> global, std::vector<std::int64_t> start,
                        std::vector<std::int64_t> shape) {
  RandomFillParams p;
  p.rank = static_cast<int>(global.size());
  std::copy(global.begin(), global.end(), p.global_shape);
  std::copy(start.begin(), start.end(), p.start);
  std::copy(shape.begin(), shape.end(), p.shape);
  p.key = derive_key(42, purpose_hash("init/wte"));
  return p;
}

RandomFillParams whole_of(std::vector<std::int64_t> global) {
  return params(global, std::vector<std::int64_t>(global.size(), 0), global);
}

TEST(RandomFill, MatchesTheReference) {
  everywhere([] {
    for (std::int64_t n : {1, 3, 4, 17, 65, 20001}) {
      const RandomFillParams p = whole_of({n});
      Floats uniform(static_cast<std::size_t>(n)), normal(uniform.size());
      random_uniform(p, -1.0f, 3.0f, uniform.data());
      random_normal(p, 0.5f, 2.0f, normal.data());
      Doubles uniform64(uniform.size()), normal64(uniform.size());
      for (std::size_t i = 0; i < uniform.size(); ++i) {
        uniform64[i] = reference::random_uniform<double>(p.key, i, -1.0, 3.0);
        normal64[i] = reference::random_normal<double>(p.key, i, 0.5, 2.0);
      }
      expect_close(uniform, uniform64, 1e-7, "uniform");
      expect_close(normal, normal64, 1e-6, "normal");
    }
  });
}

TEST(RandomFill, AnySliceEqualsThatPartOfTheWhole) {
  const std::vector<std::int64_t> global = {7, 30, 13};
  Floats all(7 * 30 * 13);
  random_normal(whole_of(global), 0.0f, 1.0f, all.data());
  for (const auto& [start, shape] :
       {std::pair<std::vector<std::int64_t>, std::vector<std::int64_t>>{{0, 0, 0}, {7, 30, 13}},
        {{2, 0, 0}, {3, 30, 13}},
        {{0, 5, 0}, {7, 11, 13}},
        {{1, 3, 2}, {4, 20, 9}},
        {{6, 29, 12}, {1, 1, 1}}}) {
    RandomFillParams p = params(global, start, shape);
    Floats part(static_cast<std::size_t>(shape[0] * shape[1] * shape[2])), expected(part.size());
    with_thread_counts([&] {
      random_normal(p, 0.0f, 1.0f, part.data());
      SliceParams s;
      s.rank = 3;
      std::copy(global.begin(), global.end(), s.shape);
      std::copy(start.begin(), start.end(), s.start);
      std::copy(shape.begin(), shape.end(), s.size);
      reference::slice(s, all.data(), expected.data());
      EXPECT_EQ(part, expected);
    });
  }
}

TEST(RandomFill, IsBitIdenticalOnEverySimdTarget) {
  const RandomFillParams p = whole_of({5000});
  std::vector<Floats> seen;
  everywhere([&] {
    Floats x(10000);
    random_normal(p, 0.0f, 0.02f, x.data());
    random_uniform(p, -3.0f, 3.0f, x.data() + 5000);
    seen.push_back(x);
  });
  for (const Floats& x : seen) EXPECT_EQ(x, seen[0]);
}

TEST(RandomFill, NormalsHaveTheRightMoments) {
  Floats x(1 << 18);
  random_normal(whole_of({1 << 18}), 0.0f, 1.0f, x.data());
  double sum = 0, square = 0, fourth = 0;
  for (double v : x) sum += v, square += v * v, fourth += v * v * v * v;
  const double n = static_cast<double>(x.size());
  EXPECT_NEAR(sum / n, 0.0, 0.01);
  EXPECT_NEAR(square / n, 1.0, 0.01);
  EXPECT_NEAR(fourth / n, 3.0, 0.06);
}

TEST(RandomFill, IndicesPastThirtyTwoBitsDiffer) {
  const std::int64_t huge = std::int64_t{1} << 36;
  Floats near(64), far(64);
  random_uniform(params({huge}, {0}, {64}), 0.0f, 1.0f, near.data());
  random_uniform(params({huge}, {std::int64_t{1} << 34}, {64}), 0.0f, 1.0f, far.data());
  EXPECT_NE(near, far);
  EXPECT_EQ(far[5], static_cast<float>(reference::random_uniform<double>(
                        params({1}, {0}, {1}).key, (std::uint64_t{1} << 34) + 5, 0.0, 1.0)));
}

}  // namespace
}  // namespace capstan::cpu
