// Cache writes and position selection.
#include "kernels/cpu/cache.h"

#include "kernels/cpu/reference/cache.h"
#include "tests/kernels/memory_bound_util.h"

namespace capstan::cpu {
namespace {

using namespace capstan::testing;  // NOLINT: the tests' vocabulary

TEST(CacheWrite, MatchesTheReference) {
  everywhere([] {
    for (std::int64_t seq : {1, 3, 9}) {
      for (std::int64_t channels : {1, 17, 600}) {
        const CacheParams p{4, seq, 12, channels, 4};
        const std::vector<std::int32_t> position = {0, 3, 1, 2};
        const Floats src = random_floats(4 * seq * channels, 1);
        Floats cache = random_floats(4 * 12 * channels, 2), expected = cache;
        EXPECT_EQ(cache_write(p, src.data(), position.data(), cache.data()), -1);
        reference::cache_write(p, src.data(), position.data(), expected.data());
        EXPECT_EQ(cache, expected);
      }
    }
  });
}

TEST(CacheWrite, ReportsASequenceThatDoesNotFitAndLeavesIt) {
  const CacheParams p{3, 2, 4, 3, 4};
  const std::vector<std::int32_t> position = {2, 3, -1};
  const Floats src(18, 1.0f);
  Floats cache(36, 0.0f), expected = cache;
  EXPECT_EQ(cache_write(p, src.data(), position.data(), cache.data()), 1);
  reference::cache_write(p, src.data(), position.data(), expected.data());
  EXPECT_EQ(cache, expected);
  EXPECT_EQ(std::count(cache.begin(), cache.end(), 1.0f), 6);
}

TEST(SelectPosition, PicksOneRowOfEachSequence) {
  const CacheParams p{3, 4, 0, 5, 4};
  const Floats x = random_floats(60, 1);
  Floats out(15, 9.0f);
  const std::vector<std::int32_t> index = {3, 0, 4};
  EXPECT_EQ(select_position(p, x.data(), index.data(), out.data()), 2);
  for (std::size_t c = 0; c < 5; ++c) {
    EXPECT_EQ(out[c], x[15 + c]);
    EXPECT_EQ(out[5 + c], x[20 + c]);
    EXPECT_EQ(out[10 + c], 0.0f);
  }
}

}  // namespace
}  // namespace capstan::cpu
