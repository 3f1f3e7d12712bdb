// Cuts that cannot be made: a sentence with the key, the numbers and the remedy, before anything runs.
#include <utility>

#include "nlohmann/json.hpp"
#include "runtime/program/program.h"
#include "tests/cut/cut_fixture.h"

namespace capstan::cut_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class CutRefusal : public Cut {
 protected:
  // What composing rank 0 says; fails the test if it works, or is no error of usage.
  std::string Message(const Composition& composition) {
    const Outcome outcome = Command("dump", composition);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.err << outcome.out;
    return outcome.err;
  }
};

TEST_F(CutRefusal, MoreStagesThanLayers) {
  EXPECT_THAT(Message({kGpt2, "pp=5", "pp", ""}),
              AllOf(HasSubstr("4 layers"), HasSubstr("5 chunks"), HasSubstr("mesh.pp")));
  EXPECT_THAT(Message({kGpt2, "pp=2", "pp:schedule=interleaved,chunks=3", ""}),
              AllOf(HasSubstr("4 layers"), HasSubstr("6 chunks"), HasSubstr("chunks smaller")));
}

TEST_F(CutRefusal, InterleavingThatDoesNotDivide) {
  EXPECT_THAT(Message({kGpt2, "pp=2", "pp:schedule=interleaved,chunks=2", "batch.global=5"}),
              AllOf(HasSubstr("groups of 2"), HasSubstr("5 microbatches"),
                    HasSubstr("batch.global"), HasSubstr("1f1b")));
}

TEST_F(CutRefusal, ChunksOfAScheduleThatHasOne) {
  for (const char* schedule : {"1f1b", "zb_h1", "gpipe"}) {
    EXPECT_THAT(
        Message({kGpt2, "pp=2", std::string("pp:chunks=2,schedule=\"") + schedule + "\"", ""}),
        AllOf(HasSubstr(schedule), HasSubstr("chunks = 2"), HasSubstr("interleaved")));
  }
}

TEST_F(CutRefusal, ASplitThatIsNotOne) {
  const auto message = [&](const char* split) {
    return Message({kGpt2, "pp=2", std::string("pp:split=") + split, ""});
  };
  EXPECT_THAT(message("[1,2]"),
              AllOf(HasSubstr("split"), HasSubstr("add up to 3"), HasSubstr("4 layers")));
  EXPECT_THAT(message("[1,1,2]"), AllOf(HasSubstr("3 numbers"), HasSubstr("give 2")));
  EXPECT_THAT(message("[0,4]"), HasSubstr("each 1 or more"));
  EXPECT_THAT(message("[5,-1]"), HasSubstr("each 1 or more"));
}

TEST_F(CutRefusal, AScheduleFileThatIsWrong) {
  const auto message = [&](const std::string& text) {
    const std::string path = folder_.Write("steps.txt", text);
    return Message({kGpt2, "pp=2", "pp:schedule_file=" + path, "batch.global=2"});
  };
  EXPECT_THAT(message("F0 F1 B0\nF0 B0 F1 B1\n"),
              AllOf(HasSubstr("steps.txt:1"), HasSubstr("stage 0 lacks B1")));
  EXPECT_THAT(message("F0 F1 B0 B1 B0\nF0 B0 F1 B1\n"),
              AllOf(HasSubstr("steps.txt:1"), HasSubstr("stage 0 has B0 twice")));
  EXPECT_THAT(message("F0 F1 B0 C1\nF0 B0 F1 B1\n"),
              AllOf(HasSubstr("steps.txt:1"), HasSubstr("\"C1\"")));
  EXPECT_THAT(message("F0 F1 B0 B1\n"), HasSubstr("2 stages"));
}

TEST_F(CutRefusal, AScheduleThatIsNone) {
  EXPECT_THAT(Message({kGpt2, "pp=2", "pp:schedule=zb_h3", ""}),
              AllOf(HasSubstr("zb_h3"), HasSubstr("zb_h1")));
  EXPECT_THAT(
      Message({kGpt2, "pp=2", "pp:schedule_file=steps.txt", ""}),
      AllOf(HasSubstr("schedule_file"), HasSubstr("steps.txt"), HasSubstr("cannot be read")));
}

TEST_F(CutRefusal, AScheduleAndAScheduleFile) {
  folder_.Write("steps.txt", "F0 F1 B0 B1\nF0 B0 F1 B1\n");
  EXPECT_THAT(Message({kGpt2, "pp=2", "pp:schedule=gpipe,schedule_file=steps.txt", ""}),
              AllOf(HasSubstr("\"gpipe\""), HasSubstr("steps.txt"), HasSubstr("leave one out")));
}

// Each stage alone could run it; together they would wait for each other.
TEST_F(CutRefusal, StagesThatWouldWaitForEachOther) {
  const std::string path = folder_.Write("steps.txt", "F0 B0 F1 B1\nF0 F1 B0 B1\n");
  EXPECT_THAT(Message({kGpt2, "pp=2", "pp:schedule_file=" + path, "batch.global=2"}),
              AllOf(HasSubstr("steps.txt:1: stage 0 waits in B0 for B0 of stage 1"),
                    HasSubstr("steps.txt:2), which waits in F1 for F1 of stage 0"),
                    HasSubstr("put B0 before F1 in line 2")));
}

TEST_F(CutRefusal, MoreRanksThanHeads) {
  EXPECT_THAT(
      Message({kGpt2, "tp=8", "tp", ""}),
      AllOf(HasSubstr("mesh.tp = 8"), HasSubstr("4 attention heads"), HasSubstr("4 or less")));
}

TEST_F(CutRefusal, FewerChannelsThanRanks) {
  EXPECT_THAT(Message({kLlama, "tp=4", "tp", "model.mlp_width=3"}),
              AllOf(HasSubstr("mesh.tp = 4"), HasSubstr("3 elements"), HasSubstr("mlp")));
}

TEST_F(CutRefusal, SequenceParallelismAlone) {
  EXPECT_THAT(Message({kGpt2, "tp=2", "sp", ""}), AllOf(HasSubstr("'sp'"), HasSubstr("'tp'")));
}

TEST_F(CutRefusal, SequenceParallelismOverAnotherAxisThanTensorParallelism) {
  EXPECT_THAT(Message({kGpt2, "model=2", "tp:axis=model sp", ""}),
              AllOf(HasSubstr("sp: axis = \"tp\""), HasSubstr("tp cuts the layers over \"model\""),
                    HasSubstr("set axis = \"model\"")));
  EXPECT_THAT(Message({kGpt2, "model=2 dp=2", "tp:axis=model sp:axis=dp dp", ""}),
              AllOf(HasSubstr("sp: axis = \"dp\""), HasSubstr("set axis = \"model\"")));
}

TEST_F(CutRefusal, ASequenceShorterThanTheRanks) {
  EXPECT_THAT(Message({kGpt2, "tp=4", "tp sp", "data.sequence_length=3"}),
              AllOf(HasSubstr("data.sequence_length = 3"), HasSubstr("4 ranks"), HasSubstr("sp")));
}

TEST_F(CutRefusal, AxesThatNoStrategyCuts) {
  EXPECT_THAT(Message({kGpt2, "tp=2 pp=2", "tp", ""}), HasSubstr("pp"));
  EXPECT_THAT(Message({kGpt2, "tp=2 pp=2", "pp", ""}), HasSubstr("tp"));
}

// ---- what works all the same -------------------------------------------------------------------

TEST_F(CutRefusal, FewerMicrobatchesThanStagesWorkAndSayWhatItCosts) {
  MakeData();
  const Outcome outcome =
      Command("verify", {kGpt2, "pp=4", "pp", "batch.global=2"}, {"--steps", "2"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("4 stages"), HasSubstr("microbatches = 2"),
                                 HasSubstr("60%"), HasSubstr("batch.global")));
  // What it says does not get into what other commands print.
  const Outcome plan = Command("plan", {kGpt2, "pp=4", "pp", "batch.global=2"}, {"--json"});
  EXPECT_THAT(plan.err, HasSubstr("60%"));
  EXPECT_TRUE(nlohmann::json::accept(plan.out)) << plan.out;
}

TEST_F(CutRefusal, AScheduleFileIsFoundBesideTheConfiguration) {
  folder_.Write("steps.txt", "F0 F1 B0 B1\nF0 B0 F1 B1\n");
  const auto read = Compose({kGpt2, "pp=2", "pp:schedule_file=steps.txt", "batch.global=2"}, 0, 0);
  const auto built_in = Compose({kGpt2, "pp=2", "pp", "batch.global=2"}, 0, 0);
  ASSERT_NE(read, nullptr);
  ASSERT_NE(built_in, nullptr);
  EXPECT_EQ(read->program().schedule(), built_in->program().schedule());
}

TEST_F(CutRefusal, AxesOfOneRankAreOneRank) {
  const auto one = Compose({kGpt2, "", "", ""}, 0, 1);
  const auto cut = Compose({kGpt2, "tp=1 pp=1", "tp sp pp", ""}, 0, 0);
  ASSERT_NE(one, nullptr);
  ASSERT_NE(cut, nullptr);
  const auto body = [](const Rank& rank) {  // without the line that names the mesh
    const std::string text = DumpProgram(rank.program());
    return text.substr(text.find('\n'));
  };
  EXPECT_EQ(body(*one), body(*cut));
}

}  // namespace
}  // namespace capstan::cut_test
