// Checkpoints that several ranks write together: they move between meshes, survive the death of a
// rank at any moment, and are what `generate` and `export` read.
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <random>

#include "runtime/strings.h"
#include "tests/strategies/ranks_fixture.h"

namespace capstan::strategies_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class RanksCheckpoint : public ManyRanks {
 protected:
  // Of lines in metrics.jsonl, while the run goes on.
  size_t StepsSoFar(const std::string& name) {
    const std::string text = ReadAll(folder_ / (name + "/metrics.jsonl"));
    return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
  }
};

// Mistakes that every rank finds are printed once.
int Times(const std::string& text, const std::string& part) {
  int times = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++times;
  return times;
}

// ---- from mesh to mesh -------------------------------------------------------------------------

TEST_F(RanksCheckpoint, ARunMovesFromMeshToMesh) {
  const std::vector<std::string> dropout = {"model.dropout=0.2"};
  const auto until = [&](int step) {
    std::vector<std::string> set = dropout;
    set.push_back(StrCat("run.steps=", step));
    return set;
  };
  Run(Config(kGpt2Uneven, ""), "alone", 1, 3, until(10));
  Run(Config(kGpt2Uneven, Strategy("dp")), "moved", 4, 3, until(2));
  Run(Config(kGpt2Uneven, ""), "moved", 1, 1, until(4));
  Run(Config(kGpt2Uneven, Strategy("zero3")), "moved", 3, 1, until(6));
  Run(Config(kGpt2Uneven, Strategy("fsdp", "unit_layers = 2\n")), "moved", 2, 3, until(8));
  Run(Config(kGpt2Uneven, Strategy("zero1")), "moved", 4, 1, until(10));
  ASSERT_FALSE(HasFatalFailure());
  ExpectSameTraining("alone", "moved", 10);
}

TEST_F(RanksCheckpoint, AMeshResumesItsOwnBitIdentically) {
  for (const char* strategy : {"zero1", "zero3"}) {
    const std::string config = Config(kLlamaUneven, Strategy(strategy));
    const std::string whole = StrCat(strategy, "_whole"), parts = StrCat(strategy, "_parts");
    Run(config, whole, 3, 3, {"run.steps=4"});
    Run(config, parts, 3, 3, {"run.steps=2"});
    const Outcome second = Train(config, parts, 3, 3, {"run.steps=4"});
    ASSERT_EQ(second.exit_code, 0) << second.err;
    EXPECT_THAT(second.out, HasSubstr("resumed from"));
    EXPECT_EQ(Steps(whole), Steps(parts));
    EXPECT_TRUE(SavedBytes(whole, 4) == SavedBytes(parts, 4)) << strategy;
  }
}

// The number of ranks that wrote a checkpoint leaves no trace in it.
TEST_F(RanksCheckpoint, TheFilesAreThoseOfOneRank) {
  Run(Config(kLlamaUneven, ""), "alone", 1, 1, {"run.steps=1"});
  Run(Config(kLlamaUneven, Strategy("zero3")), "cut", 4, 1, {"run.steps=1"});
  EXPECT_EQ(folder_.List("alone/checkpoints/step-00000001"),
            folder_.List("cut/checkpoints/step-00000001"));
  const auto size = [&](const std::string& run, const char* file) {
    return std::filesystem::file_size(CheckpointPath(run, 1) + "/" + file);
  };
  for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {
    EXPECT_EQ(size("alone", file), size("cut", file)) << file;
  }
}

// Large enough that ranks exchange parts of matrices which they hold by columns, and write some of them
// past the page cache. Nothing is learnt, so that the weights are the same on every mesh to the bit.
TEST_F(RanksCheckpoint, AnyMeshWritesTheSameWeights) {
  const ModelCase model = {"gpt2_wide",
                           "plugin = \"gpt2\"\nlayers = 2\nwidth = 252\nheads = 6\n"
                           "vocabulary = 259\nmax_sequence = 9\n"};
  const auto weights = [&](const std::string& name, const std::string& strategies, int ranks,
                           const std::vector<std::string>& mesh) {
    std::vector<std::string> set = {"run.steps=1", "optimizer.lr=0"};
    set.insert(set.end(), mesh.begin(), mesh.end());
    Run(Config(model, strategies), name, ranks, 1, set);
    return ReadAll(CheckpointPath(name, 1) + "/model.safetensors");
  };
  const std::string alone = weights("alone", "", 1, {});
  ASSERT_GT(alone.size(), 6000000u);
  const std::string both = Strategy("tp") + Strategy("fsdp"),
                    twice = Strategy("tp") + Strategy("dp");
  EXPECT_TRUE(alone == weights("fsdp2", Strategy("fsdp"), 2, {}));
  EXPECT_TRUE(alone == weights("fsdp3", Strategy("fsdp"), 3, {}));
  EXPECT_TRUE(alone == weights("tp2", Strategy("tp"), 2, {"mesh.tp=2"}));
  EXPECT_TRUE(alone == weights("tp2_fsdp2", both, 4, {"mesh.tp=2", "mesh.dp=2"}));
  EXPECT_TRUE(alone == weights("tp2_dp2", twice, 4, {"mesh.tp=2", "mesh.dp=2"}));
}

// ---- deaths ------------------------------------------------------------------------------------

TEST_F(RanksCheckpoint, AKilledRankEndsTheRunWhichGoesOnWhereItWas) {
  const std::string config = Config(kGpt2Uneven, Strategy("zero2"));
  const std::vector<std::string> set = {"run.steps=24", "checkpoint.every=4", "checkpoint.keep=0"};
  Run(config, "whole", 3, 1, set);
  {
    std::vector<std::string> endless = set;
    endless[0] = "run.steps=1000000";
    Background run(Arguments(config, "killed", 3, 1, endless), folder_ / "output.txt");
    pid_t victim = 0;
    ASSERT_TRUE(run.Until([&] {
      if (victim == 0) victim = run.RankProcess(1);
      return victim != 0 && StepsSoFar("killed") >= 9;
    }));
    ::kill(victim, SIGKILL);
    EXPECT_EQ(run.Wait(), 4) << ReadAll(folder_ / "output.txt");
    EXPECT_THAT(ReadAll(folder_ / "output.txt"), AllOf(HasSubstr("rank 1"), HasSubstr("SIGKILL")));
  }
  // Steps that were made past the twenty-fourth are forgotten with their checkpoints.
  std::vector<std::string> kept;
  for (const std::string& name : Checkpoints("killed")) {
    const bool late = name > "step-00000020";
    if (late) std::filesystem::remove_all(folder_ / ("killed/checkpoints/" + name));
    if (!late && name.starts_with("step-")) kept.push_back(name);
  }
  ASSERT_GE(kept.size(), 2u);
  const Outcome again = Train(config, "killed", 3, 1, set);
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.out,
              HasSubstr("resumed from " + folder_ / ("killed/checkpoints/" + kept.back())));
  EXPECT_EQ(Steps("whole"), Steps("killed"));
  EXPECT_TRUE(SavedBytes("whole", 24) == SavedBytes("killed", 24));
}

// A checkpoint is there whole or not at all: ranks die while they write one together.
TEST_F(RanksCheckpoint, ARankKilledWhileItSavesLeavesTheCheckpointBefore) {
  const std::string config = Config(kGpt2Uneven, Strategy("zero3"));
  std::mt19937 random(17);
  int during = 0;
  for (int attempt = 0; attempt < 4; ++attempt) {
    const std::string name = StrCat("run", attempt);
    const std::vector<std::string> set = {"run.steps=1000000", "checkpoint.every=1",
                                          "checkpoint.keep=0"};
    const std::string directory = folder_ / (name + "/checkpoints");
    const auto saving = [&](size_t complete) {
      std::error_code error;
      size_t steps = 0;
      bool temporary = false;
      for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
        const std::string file = entry.path().filename();
        steps += file.starts_with("step-") ? 1 : 0;
        temporary = temporary || file.starts_with(".tmp-");
      }
      return temporary && steps >= complete;
    };
    {
      Background run(Arguments(config, name, 2, 1, set), folder_ / "output.txt");
      const size_t complete = 1 + random() % 3;
      pid_t victim = 0;
      ASSERT_TRUE(run.Until([&] {
        if (victim == 0) victim = run.RankProcess(attempt % 2);
        return victim != 0 && saving(complete);
      }));
      ::kill(victim, SIGKILL);
      EXPECT_EQ(run.Wait(), 4) << ReadAll(folder_ / "output.txt");
    }
    std::vector<std::string> complete;
    for (const std::string& file : Checkpoints(name)) {
      if (file.starts_with("step-")) complete.push_back(file);
      if (file.starts_with(".tmp-")) ++during;
    }
    ASSERT_FALSE(complete.empty());
    const int newest = std::stoi(complete.back().substr(5));
    const Outcome again =
        Train(config, name, 2, 1, {StrCat("run.steps=", newest + 1), "checkpoint.keep=0"});
    ASSERT_EQ(again.exit_code, 0) << again.err;
    EXPECT_THAT(again.out, HasSubstr(StrCat("resumed from ", directory, "/", complete.back())));
    for (const std::string& file : Checkpoints(name)) {
      EXPECT_TRUE(file.starts_with("step-")) << "left behind: " << file;
    }
    EXPECT_EQ(Steps(name).size(), static_cast<size_t>(newest) + 1);
  }
  EXPECT_GT(during, 0) << "no rank died in the middle of a save";
}

TEST_F(RanksCheckpoint, MaxRestartsGoesOnByItself) {
  const std::string config = Config(kGpt2Uneven, Strategy("zero1"));
  const std::vector<std::string> set = {"run.steps=60", "checkpoint.every=4"};
  Run(config, "whole", 2, 1, set);
  std::vector<std::string> arguments = Arguments(config, "killed", 2, 1, set);
  arguments.insert(arguments.end(), {"--max-restarts", "1"});
  Background run(arguments, folder_ / "output.txt");
  pid_t victim = 0;
  ASSERT_TRUE(run.Until([&] {
    if (victim == 0) victim = run.RankProcess(0);
    return victim != 0 && StepsSoFar("killed") >= 6;
  }));
  ::kill(victim, SIGKILL);
  EXPECT_EQ(run.Wait(), 0) << ReadAll(folder_ / "output.txt");
  EXPECT_EQ(Steps("whole"), Steps("killed"));
  EXPECT_TRUE(SavedBytes("whole", 60) == SavedBytes("killed", 60));
}

// ---- what is refused ---------------------------------------------------------------------------

TEST_F(RanksCheckpoint, ATruncatedFileIsNamed) {
  const std::string config = Config(kGpt2Uneven, Strategy("zero3"));
  Run(config, "run", 2, 1, {"run.steps=1"});
  for (const char* group : {"optimizer", "model"}) {
    const std::string file = StrCat(CheckpointPath("run", 1), "/", group, ".safetensors");
    std::filesystem::resize_file(file, std::filesystem::file_size(file) - 100);
    const Outcome outcome = Train(config, "run", 2, 1, {"run.steps=2"});
    EXPECT_EQ(outcome.exit_code, 1) << outcome.out;
    EXPECT_THAT(outcome.err, HasSubstr(StrCat(group, ".safetensors")));
    EXPECT_EQ(Times(outcome.err, "is truncated"), 1) << outcome.err;
  }
}

TEST_F(RanksCheckpoint, AMissingFileIsNamed) {
  const std::string config = Config(kGpt2Uneven, Strategy("zero3"));
  Run(config, "run", 2, 1, {"run.steps=1"});
  std::filesystem::remove(CheckpointPath("run", 1) + "/optimizer.safetensors");
  const Outcome outcome = Train(config, "run", 2, 1, {"run.steps=2"});
  EXPECT_EQ(outcome.exit_code, 1) << outcome.out;
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("step-00000001"), HasSubstr("optimizer")));
}

TEST_F(RanksCheckpoint, TwoRunsOfOneDirectoryAreRefused) {
  const std::string config = Config(kGpt2Uneven, Strategy("dp"));
  Background run(Arguments(config, "run", 2, 1, {"run.steps=1000000"}), folder_ / "output.txt");
  ASSERT_TRUE(run.Until([&] { return StepsSoFar("run") >= 1; }));
  const Outcome second = Train(config, "run", 2, 1, {"run.steps=2"});
  EXPECT_EQ(second.exit_code, 2) << second.out << second.err;
  EXPECT_EQ(Times(second.err, "is running in " + (folder_ / "run")), 1) << second.err;
}

TEST_F(RanksCheckpoint, AMeshOfOtherSizeThanTheRunIsToldOnce) {
  const std::string config = Config(kGpt2Uneven, Strategy("dp"));
  const Outcome outcome = Train(config, "run", 3, 1, {"mesh.dp=2"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(Times(outcome.err, "makes 2 ranks, this run has 3"), 1) << outcome.err;
}

// A request to stop reaches every rank, and all stop after the same step with one checkpoint.
TEST_F(RanksCheckpoint, StopsOnRequestTogether) {
  const std::string config = Config(kGpt2Uneven, Strategy("zero2"));
  Background run(Arguments(config, "run", 3, 1, {"run.steps=1000000"}), folder_ / "output.txt");
  ASSERT_TRUE(run.Until([&] { return StepsSoFar("run") >= 2; }));
  ::kill(run.pid(), SIGTERM);
  EXPECT_EQ(run.Wait(), 3) << ReadAll(folder_ / "output.txt");
  const std::vector<std::string> checkpoints = Checkpoints("run");
  ASSERT_EQ(checkpoints.size(), 1u);
  EXPECT_EQ(static_cast<size_t>(std::stoi(checkpoints[0].substr(5))), Steps("run").size());
}

// ---- what reads them ---------------------------------------------------------------------------

TEST_F(RanksCheckpoint, GenerateAndExportReadAShardedRun) {
  const std::vector<std::string> two = {"run.steps=2"};
  Run(Config(kLlamaUneven, ""), "alone", 1, 1, two);
  Run(Config(kLlamaUneven, Strategy("fsdp")), "cut", 3, 1, two);
  const Outcome text =
      Capstan({"generate", folder_ / "cut", "--prompt", "many ", "--tokens", "20", "--seed", "1"});
  ASSERT_EQ(text.exit_code, 0) << text.err;
  EXPECT_GE(text.out.size(), 20u);
  for (const char* run : {"alone", "cut"}) {
    const Outcome exported = Capstan({"export", folder_ / run, folder_ / StrCat(run, "_weights")});
    ASSERT_EQ(exported.exit_code, 0) << exported.err;
  }
  ExpectSameWeights(run_test::ReadSafetensors(folder_ / "alone_weights/model.safetensors"),
                    run_test::ReadSafetensors(folder_ / "cut_weights/model.safetensors"));
  EXPECT_EQ(ReadAll(folder_ / "alone_weights/config.json"),
            ReadAll(folder_ / "cut_weights/config.json"));
}

TEST_F(RanksCheckpoint, ShardedRunsStartFromExportedWeights) {
  Run(Config(kLlamaUneven, ""), "first", 1, 1, {"run.steps=1"});
  const Outcome exported = Capstan({"export", folder_ / "first", folder_ / "weights"});
  ASSERT_EQ(exported.exit_code, 0) << exported.err;
  const std::vector<std::string> set = {"model.weights=" + (folder_ / "weights"), "run.steps=2"};
  Run(Config(kLlamaUneven, ""), "alone", 1, 1, set);
  Run(Config(kLlamaUneven, Strategy("zero3")), "cut", 4, 1, set);
  ExpectSameTraining("alone", "cut", 2);
}

}  // namespace
}  // namespace capstan::strategies_test
