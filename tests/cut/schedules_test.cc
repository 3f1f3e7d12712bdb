// Pipeline schedules of a few stages, written out by hand.
#include <gmock/gmock.h>

#include "sdk/error.h"
#include "tests/cut/played.h"

namespace capstan::cut_test {
namespace {

using testing::HasSubstr;

// What a schedule refuses, "" when it does not.
std::string Refusal(const pp::Schedule& schedule, const pp::Pipeline& pipeline) {
  try {
    schedule.steps(pipeline, 0);
  } catch (const sdk::Error& error) {
    EXPECT_EQ(error.code(), CAPSTAN_USAGE);
    return error.what();
  }
  return "";
}

void ExpectStages(const pp::Schedule& schedule, const pp::Pipeline& pipeline,
                  const std::vector<std::string>& stages) {
  ASSERT_EQ(static_cast<int64_t>(stages.size()), pipeline.stages);
  for (int64_t s = 0; s < pipeline.stages; ++s) {
    EXPECT_EQ(Text(schedule.steps(pipeline, s), pipeline.stages), stages[static_cast<size_t>(s)])
        << "stage " << s;
  }
}

TEST(Schedules, GPipeRunsAllForwardPassesFirst) {
  ExpectStages(pp::GPipe(), {.stages = 2, .microbatches = 3},
               {"F0 F1 F2 B0 B1 B2", "F0 F1 F2 B0 B1 B2"});
}

TEST(Schedules, OneForwardOneBackwardAlternatesAfterWarmUp) {
  ExpectStages(pp::OneForwardOneBackward(), {.stages = 3, .microbatches = 4},
               {"F0 F1 F2 B0 F3 B1 B2 B3", "F0 F1 B0 F2 B1 F3 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3"});
}

TEST(Schedules, OneForwardOneBackwardWithFewerMicrobatchesThanStages) {
  ExpectStages(pp::OneForwardOneBackward(), {.stages = 4, .microbatches = 2},
               {"F0 F1 B0 B1", "F0 F1 B0 B1", "F0 F1 B0 B1", "F0 B0 F1 B1"});
}

TEST(Schedules, ZeroBubbleH1DelaysWeightGradientsByTheStage) {
  ExpectStages(pp::ZeroBubbleH1(), {.stages = 3, .microbatches = 4},
               {"F0 F1 F2 B0 W0 F3 B1 W1 B2 W2 B3 W3", "F0 F1 B0 F2 B1 W0 F3 B2 W1 B3 W2 W3",
                "F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3"});
}

TEST(Schedules, InterleavedSendsGroupsOfMicrobatchesThroughItsChunks) {
  ExpectStages(pp::Interleaved(), {.stages = 2, .chunks = 2, .microbatches = 4},
               {"F0 F1 F0.1 F1.1 F2 B0.1 F3 B1.1 F2.1 B0 F3.1 B1 B2.1 B3.1 B2 B3",
                "F0 F1 F0.1 B0.1 F1.1 B1.1 F2 B0 F3 B1 F2.1 B2.1 F3.1 B3.1 B2 B3"});
}

TEST(Schedules, InterleavedWithOneChunkIsOneForwardOneBackward) {
  const pp::Pipeline pipeline{.stages = 3, .microbatches = 5};
  for (int64_t s = 0; s < pipeline.stages; ++s) {
    EXPECT_EQ(pp::Interleaved().steps(pipeline, s), pp::OneForwardOneBackward().steps(pipeline, s));
  }
}

TEST(Schedules, ChunksAreNumberedOverAllStages) {
  for (const pp::Step& s :
       pp::Interleaved().steps({.stages = 3, .chunks = 4, .microbatches = 6}, 2)) {
    EXPECT_EQ(s.chunk % 3, 2);
    EXPECT_LT(s.chunk, 12);
  }
}

TEST(Schedules, OnlyZeroBubbleSplitsTheBackwardPass) {
  EXPECT_TRUE(pp::make_schedule("zb_h1")->splits_backward());
  for (const char* name : {"gpipe", "1f1b", "interleaved"}) {
    EXPECT_FALSE(pp::make_schedule(name)->splits_backward()) << name;
  }
}

TEST(Schedules, InterleavedRefusesMicrobatchesItCannotGroup) {
  const std::string refusal =
      Refusal(pp::Interleaved(), {.stages = 4, .chunks = 2, .microbatches = 6});
  EXPECT_THAT(refusal, HasSubstr("groups of 4"));
  EXPECT_THAT(refusal, HasSubstr("6 microbatches"));
  EXPECT_THAT(refusal, HasSubstr("batch.global"));
}

TEST(Schedules, SchedulesOfOneChunkRefuseMore) {
  for (const char* name : {"gpipe", "1f1b", "zb_h1"}) {
    const std::string refusal =
        Refusal(*pp::make_schedule(name), {.stages = 2, .chunks = 3, .microbatches = 6});
    EXPECT_THAT(refusal, HasSubstr(name));
    EXPECT_THAT(refusal, HasSubstr("chunks = 3"));
    EXPECT_THAT(refusal, HasSubstr("interleaved"));
  }
}

}  // namespace
}  // namespace capstan::cut_test
