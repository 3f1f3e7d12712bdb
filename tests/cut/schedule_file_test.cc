// Schedules read from a file: what they say, and what is refused with file, line and word.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "sdk/error.h"
#include "tests/cut/played.h"

namespace capstan::cut_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class ScheduleFile : public testing::Test {
 protected:
  ~ScheduleFile() override { std::filesystem::remove(path_); }

  std::unique_ptr<pp::Schedule> Read(const std::string& text) {
    std::ofstream(path_) << text;
    return std::make_unique<pp::FromFile>(path_);
  }

  // What reading the text, or asking it for all stages' steps, throws; "" when nothing.
  std::string Refusal(const std::string& text, const pp::Pipeline& pipeline) {
    try {
      const std::unique_ptr<pp::Schedule> schedule = Read(text);
      for (int64_t s = 0; s < pipeline.stages; ++s) schedule->steps(pipeline, s);
    } catch (const sdk::Error& error) {
      EXPECT_EQ(error.code(), CAPSTAN_USAGE);
      return error.what();
    }
    return "";
  }

  const std::string path_ = testing::TempDir() +
                            testing::UnitTest::GetInstance()->current_test_info()->name() +
                            ".schedule";
};

const pp::Pipeline kTwoByTwo{.stages = 2, .microbatches = 2};

TEST_F(ScheduleFile, IsOneLineAStage) {
  const auto schedule = Read(
      "# two stages, two microbatches\n"
      "F0 F1  B0 B1   # the first\n"
      "\n"
      "\tF0 B0 F1 B1\n");
  EXPECT_FALSE(schedule->splits_backward());
  for (int64_t s = 0; s < 2; ++s) {
    EXPECT_EQ(schedule->steps(kTwoByTwo, s), pp::OneForwardOneBackward().steps(kTwoByTwo, s));
  }
}

TEST_F(ScheduleFile, NumbersChunksOfTheStage) {
  const auto schedule =
      Read("F0 F1 F0.1 F1.1 B0.1 B1.1 B0 B1\nF0 F1 F0.1 B0.1 F1.1 B1.1 B0.0 B1\n");
  const pp::Pipeline pipeline{.stages = 2, .chunks = 2, .microbatches = 2};
  for (int64_t s = 0; s < 2; ++s) {
    EXPECT_EQ(schedule->steps(pipeline, s), pp::Interleaved().steps(pipeline, s));
  }
}

TEST_F(ScheduleFile, SplitsTheBackwardPassWhereItHasWeightSteps) {
  const auto schedule = Read("F0 F1 B0 W0 B1 W1\nF0 B0 F1 B1 W0 W1\n");
  EXPECT_TRUE(schedule->splits_backward());
  EXPECT_EQ(Text(schedule->steps(kTwoByTwo, 1), 2), "F0 B0 F1 B1 W0 W1");
}

// What every built-in schedule writes, the file reads as the same.
TEST_F(ScheduleFile, SaysWhatTheBuiltInSchedulesSay) {
  for (const char* name : {"gpipe", "1f1b", "interleaved", "zb_h1"}) {
    const auto built_in = pp::make_schedule(name);
    const pp::Pipeline pipeline{4, std::string(name) == "interleaved" ? 3 : 1, 8};
    std::string text;
    for (int64_t s = 0; s < 4; ++s) text += Text(built_in->steps(pipeline, s), 4) + "\n";
    const auto read = Read(text);
    EXPECT_EQ(read->splits_backward(), built_in->splits_backward());
    for (int64_t s = 0; s < 4; ++s) {
      EXPECT_EQ(read->steps(pipeline, s), built_in->steps(pipeline, s)) << name << " " << s;
    }
  }
}

TEST_F(ScheduleFile, AWordThatIsNoStepIsNamedWithFileAndLine) {
  for (const char* word : {"G0", "F", "F-1", "Fx", "F0.", "F.1", "F0.x", "F0x", "f0", "0",
                           "F99999999999999999999", "F0.1.2", ".1"}) {
    EXPECT_THAT(Refusal(std::string("F0 B0\n\nF0 ") + word + " B0\n", kTwoByTwo),
                AllOf(HasSubstr(path_ + ":3: \"" + word + "\""), HasSubstr("F3 or B3.1")))
        << word;
  }
}

TEST_F(ScheduleFile, AMissingStepIsNamedWithItsLine) {
  EXPECT_THAT(Refusal("F0 F1 B0 B1\n# the last\nF0 B0 F1\n", kTwoByTwo),
              AllOf(HasSubstr(path_ + ":3: "), HasSubstr("stage 1 lacks B1")));
  EXPECT_THAT(Refusal("F0 F1 B0 B1\nF0 B0 B1\n", kTwoByTwo), HasSubstr("stage 1 lacks F1"));
  EXPECT_THAT(Refusal("F0 F1 B0 W0 B1 W1\nF0 B0 F1 B1 W1\n", kTwoByTwo),
              HasSubstr("stage 1 lacks W0"));
  EXPECT_THAT(Refusal("F0 F0.1 B0.1\nF0 F0.1 B0.1 B0\n", {2, 2, 1}),
              HasSubstr("stage 0 lacks B0.0"));
}

TEST_F(ScheduleFile, AStepWrittenTwiceIsNamedWithItsLine) {
  EXPECT_THAT(Refusal("F0 F1 B0 B1\nF0 B0 F1 F1 B1\n", kTwoByTwo),
              AllOf(HasSubstr(path_ + ":2: "), HasSubstr("stage 1 has F1 twice")));
}

TEST_F(ScheduleFile, AStepTheRunDoesNotHaveIsNamedWithWhatItHas) {
  EXPECT_THAT(Refusal("F0 F1 F2 B0 B1 B2\nF0 B0 F1 B1\n", kTwoByTwo),
              AllOf(HasSubstr(path_ + ":1: "), HasSubstr("F2"), HasSubstr("2 microbatches")));
  EXPECT_THAT(Refusal("F0 F1 F0.1 B0 B1\nF0 B0 F1 B1\n", kTwoByTwo),
              AllOf(HasSubstr("F0.1"), HasSubstr("1 chunk")));
}

TEST_F(ScheduleFile, AStepBeforeWhatItNeedsIsNamed) {
  EXPECT_THAT(Refusal("F0 F1 B0 B1\nF0 B0 B1 F1\n", kTwoByTwo),
              AllOf(HasSubstr(path_ + ":2: "), HasSubstr("B1 before F1")));
  EXPECT_THAT(Refusal("W0 F0 B0 F1 B1 W1\nF0 B0 W0 F1 B1 W1\n", kTwoByTwo),
              AllOf(HasSubstr(path_ + ":1: "), HasSubstr("W0 before B0")));
}

// Whichever stage asks, both lines are named, with what to put where.
TEST_F(ScheduleFile, StagesThatWaitForEachOtherAreNamedWithTheirLines) {
  const auto schedule = Read("F0 B0 F1 B1\n# the last\nF0 F1 B0 B1\n");
  for (int64_t s = 0; s < 2; ++s) {
    try {
      schedule->steps(kTwoByTwo, s);
      FAIL() << "stage " << s << " got its steps";
    } catch (const sdk::Error& error) {
      EXPECT_THAT(error.what(),
                  AllOf(HasSubstr(path_ + ":1: stage 0 waits in B0 for B0 of stage 1 (" + path_ +
                                  ":3), which waits in F1 for F1 of stage 0, and so for ever"),
                        HasSubstr("put B0 before F1 in line 3")));
    }
  }
}

// One message of a border is in flight. All forward passes of a chunk before those of the next: with a
// fourth microbatch the first stage would still be sending when the second waits for it to take some.
TEST_F(ScheduleFile, AMessageInFlightHoldsUpTheNext) {
  const auto refusal = [&](int64_t microbatches) {
    std::string line;
    for (const char* step : {"F", "B"}) {
      for (const char* chunk : {step[0] == 'F' ? "" : ".1", step[0] == 'F' ? ".1" : ""}) {
        for (int64_t m = 0; m < microbatches; ++m) line += step + std::to_string(m) + chunk + " ";
      }
    }
    return Refusal(line + "\n" + line + "\n", {2, 2, microbatches});
  };
  EXPECT_EQ(refusal(3), "");
  EXPECT_THAT(refusal(4), AllOf(HasSubstr("stage 1 waits in F1.0 for F0.1 of stage 0"),
                                HasSubstr("which waits in F3.0 for F2.0 of stage 1"),
                                HasSubstr("put F0.1 before F3.0 in line 1")));
}

TEST_F(ScheduleFile, OneOrderOfMicrobatchesOnBothSidesOfABorder) {
  EXPECT_THAT(Refusal("F0 F1 B0 B1\nF1 F0 B1 B0\n", kTwoByTwo),
              AllOf(HasSubstr(path_ + ":2: stage 1 runs F1 where F0 of stage 0 (" + path_ + ":1)"),
                    HasSubstr("one order")));
  EXPECT_THAT(Refusal("F0 F1 B0 B1\nF0 F1 B1 B0\n", kTwoByTwo), HasSubstr("stage 0 runs B0"));
  EXPECT_EQ(Refusal("F1 F0 B0 B1\nF1 F0 B0 B1\n", kTwoByTwo), "");
}

TEST_F(ScheduleFile, OtherThanOneLineAStageIsRefused) {
  EXPECT_THAT(Refusal("F0 F1 B0 B1\n", kTwoByTwo),
              AllOf(HasSubstr(path_), HasSubstr("1 line"), HasSubstr("2 stages")));
  EXPECT_THAT(Refusal("", kTwoByTwo), HasSubstr("0 lines"));
}

TEST_F(ScheduleFile, AFileThatIsNotThereIsNamed) {
  try {
    pp::FromFile("/no/such/steps.txt");
    FAIL() << "it was read";
  } catch (const sdk::Error& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("/no/such/steps.txt"), HasSubstr("schedule_file")));
  }
}

TEST(Schedules, AnUnknownNameIsRefusedWithTheKnownOnes) {
  try {
    pp::make_schedule("1f2b");
    FAIL() << "1f2b was taken";
  } catch (const sdk::Error& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("1f2b"), HasSubstr("zb_h1")));
  }
}

}  // namespace
}  // namespace capstan::cut_test
