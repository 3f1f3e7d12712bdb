// Packing of values into the arena.
#include "runtime/exec/pack.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace capstan {
namespace {

using ::testing::ElementsAre;

bool LiveTogether(const Span& a, const Span& b) { return a.first <= b.last && b.first <= a.last; }

// Values that live together do not overlap.
void ExpectDisjoint(const std::vector<Span>& spans, const std::vector<int64_t>& offsets) {
  ASSERT_EQ(offsets.size(), spans.size());
  for (size_t i = 0; i < spans.size(); ++i) {
    EXPECT_GE(offsets[i], 0);
    for (size_t j = 0; j < i; ++j) {
      if (!LiveTogether(spans[i], spans[j])) continue;
      EXPECT_TRUE(offsets[i] + spans[i].bytes <= offsets[j] ||
                  offsets[j] + spans[j].bytes <= offsets[i])
          << i << " and " << j;
    }
  }
}

int64_t Peak(const std::vector<Span>& spans, const std::vector<int64_t>& offsets) {
  int64_t peak = 0;
  for (size_t i = 0; i < spans.size(); ++i) peak = std::max(peak, offsets[i] + spans[i].bytes);
  return peak;
}

std::vector<Span> Random(unsigned seed, int count, int launches) {
  std::mt19937 random(seed);
  std::vector<Span> spans;
  for (int i = 0; i < count; ++i) {
    const int first = static_cast<int>(random() % launches);
    const int last = std::min<int>(launches - 1, first + static_cast<int>(random() % 200));
    spans.push_back({64 * static_cast<int64_t>(random() % 100), first, last});
  }
  return spans;
}

TEST(PackSpans, OfNothingIsNothing) { EXPECT_THAT(PackSpans({}, 0), ElementsAre()); }

TEST(PackSpans, ValuesThatNeverMeetShareAPlace) {
  EXPECT_THAT(PackSpans({{128, 0, 1}, {64, 2, 3}, {256, 4, 4}}, 5), ElementsAre(0, 0, 0));
}

TEST(PackSpans, ValuesThatMeetAtOneLaunchDoNot) {
  EXPECT_THAT(PackSpans({{128, 0, 1}, {64, 1, 2}}, 3), ElementsAre(0, 128));
}

TEST(PackSpans, ASmallValueFillsAGap) {
  // The third outlives the second and fits where the second was.
  EXPECT_THAT(PackSpans({{256, 0, 5}, {128, 0, 2}, {64, 3, 5}}, 6), ElementsAre(0, 256, 256));
}

TEST(PackSpans, KeepsLiveValuesApart) {
  for (unsigned seed = 1; seed <= 8; ++seed) {
    const std::vector<Span> spans = Random(seed, 400, 1000);
    ExpectDisjoint(spans, PackSpans(spans, 1000));
  }
}

TEST(PackSpans, AStretchThatRepeatsIsPackedAlikeAndNeedsNoMore) {
  const int launches = 300, times = 5;
  const std::vector<Span> once = Random(9, 150, launches);
  std::vector<Span> repeated;
  for (int t = 0; t < times; ++t) {
    for (const Span& s : once) {
      repeated.push_back({s.bytes, s.first + t * launches, s.last + t * launches});
    }
  }
  const std::vector<int64_t> alone = PackSpans(once, launches);
  const std::vector<int64_t> all = PackSpans(repeated, launches * times);
  ExpectDisjoint(repeated, all);
  EXPECT_EQ(Peak(repeated, all), Peak(once, alone));
  for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i], alone[i % alone.size()]) << i;
}

TEST(PackSpans, AValueThatCrossesAllStretchesKeepsItsPlaceInEach) {
  std::vector<Span> spans = {{64, 0, 99}};
  for (int i = 0; i < 100; ++i) spans.push_back({128, i, i});
  const std::vector<int64_t> offsets = PackSpans(spans, 100);
  ExpectDisjoint(spans, offsets);
  EXPECT_EQ(Peak(spans, offsets), 192);
}

}  // namespace
}  // namespace capstan
