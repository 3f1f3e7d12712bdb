// What goes wrong in a run: a sentence, an exit code, nothing lost.
#include <filesystem>
#include <fstream>

#include "tests/run/run_fixture.h"

namespace capstan::run_test {
namespace {

void Truncate(const std::string& path, uintmax_t to) { std::filesystem::resize_file(path, to); }

TEST_F(TinyRun, ANonFiniteLossEndsTheRunAndKeepsTheCheckpoint) {
  ASSERT_EQ(Train("run", {"run.steps=4"}).exit_code, 0);
  const std::string before = State("run", 4);
  const Outcome outcome = Train(
      "run", {"optimizer.lr=1e6", "optimizer.clip_norm=0.0", "run.steps=30", "checkpoint.every=0"});
  EXPECT_EQ(outcome.exit_code, 1) << outcome.out;
  EXPECT_NE(outcome.err.find("optimizer.lr"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("step-00000004 is intact"), std::string::npos) << outcome.err;
  EXPECT_EQ(State("run", 4), before);
  EXPECT_EQ(folder_.List("run/checkpoints"),
            (std::vector<std::string>{"step-00000002", "step-00000004"}));
}

TEST_F(TinyRun, ATruncatedCheckpointIsNamed) {
  ASSERT_EQ(Train("run", {"run.steps=4"}).exit_code, 0);
  const std::string file = folder_ / "run/checkpoints/step-00000004/model.safetensors";
  Truncate(file, std::filesystem::file_size(file) - 100);
  const Outcome outcome = Train("run");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_NE(outcome.err.find("model.safetensors"), std::string::npos) << outcome.err;
}

TEST_F(TinyRun, AForgedManifestIsRefused) {
  ASSERT_EQ(Train("run", {"run.steps=4"}).exit_code, 0);
  std::ofstream(folder_ / "run/checkpoints/step-00000004/capstan.json")
      << R"({"format":1,"step":-3,"samples":0,"seed":7})";
  const Outcome outcome = Train("run");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_NE(outcome.err.find("capstan.json"), std::string::npos) << outcome.err;
}

TEST_F(TinyRun, ACheckpointOfAnotherMeaningOfAnOpIsRefused) {
  ASSERT_EQ(Train("run", {"run.steps=4"}).exit_code, 0);
  const std::string path = folder_ / "run/checkpoints/step-00000004/capstan.json";
  auto manifest = nlohmann::json::parse(ReadAll(path));
  manifest["ops"]["adamw"] = 99;
  std::ofstream(path) << manifest.dump();
  const Outcome outcome = Train("run");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_NE(outcome.err.find("version 99 of op 'adamw'"), std::string::npos) << outcome.err;
}

TEST_F(TinyRun, ACheckpointOfAnotherModelIsRefused) {
  ASSERT_EQ(Train("run", {"run.steps=4"}).exit_code, 0);
  const Outcome outcome = Train("run", {"model.width=64"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_NE(outcome.err.find("has shape"), std::string::npos) << outcome.err;
}

TEST_F(TinyRun, AManifestOfAnotherStepIsRefused) {
  ASSERT_EQ(Train("run", {"run.steps=4"}).exit_code, 0);
  const std::string path = folder_ / "run/checkpoints/step-00000004/capstan.json";
  auto manifest = nlohmann::json::parse(ReadAll(path));
  manifest["step"] = 1000000;
  std::ofstream(path) << manifest.dump();
  const Outcome outcome = Train("run");
  EXPECT_EQ(outcome.exit_code, 1) << outcome.out;
  EXPECT_NE(outcome.err.find("is of step 1000000"), std::string::npos) << outcome.err;
}

// Same tensors, another function of them.
TEST_F(TinyRun, ACheckpointOfAModelWithOtherHeadsIsRefused) {
  ASSERT_EQ(Train("run", {"run.steps=4"}).exit_code, 0);
  const Outcome outcome = Train("run", {"model.heads=4"});
  EXPECT_EQ(outcome.exit_code, 2) << outcome.out;
  EXPECT_NE(outcome.err.find("n_head = 2"), std::string::npos) << outcome.err;
}

TEST_F(TinyRun, DropoutMayChangeOnTheWay) {
  ASSERT_EQ(Train("run", {"run.steps=4"}).exit_code, 0);
  const Outcome outcome = Train("run", {"model.dropout=0.2"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
}

// The next checkpoint would be without what this configuration does not read.
TEST_F(TinyRun, ACheckpointThatHoldsMoreThanTheRunUsesIsRefused) {
  ASSERT_EQ(Train("run", {"run.steps=4"}).exit_code, 0);
  const std::string before = State("run", 4);
  for (const char* change :
       {"model.layers=2", "optimizer.plugin=sgd", "model.trainable=[\"*.bias\"]"}) {
    const Outcome outcome = Train("run", {change});
    EXPECT_EQ(outcome.exit_code, 1) << change << outcome.out;
    EXPECT_NE(outcome.err.find("no use for"), std::string::npos) << change << outcome.err;
  }
  EXPECT_EQ(State("run", 4), before);
}

TEST_F(TinyRun, AMissingOptimizerStateIsCalledThat) {
  ASSERT_EQ(Train("run", {"run.steps=4", "optimizer.plugin=sgd"}).exit_code, 0);
  const Outcome outcome = Train("run");
  EXPECT_EQ(outcome.exit_code, 1) << outcome.out;
  EXPECT_NE(outcome.err.find("optimizer state"), std::string::npos) << outcome.err;
}

TEST_F(TinyRun, TwoTrackersDoNotShareAFile) {
  const std::string text = ReadAll(config_);
  config_ = folder_.Write("two.toml", text +
                                          "[[tracker]]\nplugin = \"jsonl\"\n"
                                          "[[tracker]]\nplugin = \"jsonl\"\nid = \"again\"\n");
  const Outcome shared = Train("run");
  EXPECT_EQ(shared.exit_code, 2) << shared.out;
  EXPECT_NE(shared.err.find("another tracker"), std::string::npos) << shared.err;
  const Outcome apart = Train("run", {"tracker.again.file=again.jsonl"});
  EXPECT_EQ(apart.exit_code, 0) << apart.err;
  EXPECT_EQ(ReadAll(folder_ / "run/again.jsonl"), ReadAll(folder_ / "run/metrics.jsonl"));
}

TEST_F(TinyRun, ATrackerDoesNotTakeTheRunsOwnFiles) {
  for (const char* name : {"checkpoints", "lock", "config.toml", "..", "a/b.jsonl"}) {
    config_ =
        folder_.Write("own.toml", ReadAll(folder_ / "tiny.toml") +
                                      "[[tracker]]\nplugin = \"jsonl\"\nfile = \"" + name + "\"\n");
    const Outcome outcome = Train("run");
    EXPECT_EQ(outcome.exit_code, 2) << name << outcome.out;
    EXPECT_NE(outcome.err.find(".jsonl"), std::string::npos) << name << outcome.err;
  }
}

TEST_F(TinyRun, AnEmptyModelDescriptionIsNotAnAbsentOne) {
  ASSERT_EQ(Train("run", {"run.steps=4"}).exit_code, 0);
  ASSERT_EQ(Capstan({"export", folder_ / "run", folder_ / "weights"}).exit_code, 0);
  folder_.Write("weights/config.json", "");
  const Outcome outcome = Train("other", {"model.weights=" + (folder_ / "weights")});
  EXPECT_EQ(outcome.exit_code, 1) << outcome.out;
  EXPECT_NE(outcome.err.find("config.json is not a JSON object"), std::string::npos) << outcome.err;
}

TEST_F(TinyRun, ForgedSizesOfAModelAreRefused) {
  ASSERT_EQ(Train("run", {"run.steps=4"}).exit_code, 0);
  ASSERT_EQ(Capstan({"export", folder_ / "run", folder_ / "weights"}).exit_code, 0);
  const auto good = nlohmann::json::parse(ReadAll(folder_ / "weights/config.json"));
  const std::vector<std::pair<std::string, nlohmann::json>> forged = {
      {"n_layer", 2147483648},
      {"n_layer", -1},
      {"eos_token_id", 18446744073709551615u},
      {"layer_norm_epsilon", -1.0},
      {"n_positions", 1.5},
      {"layer_norm_epsilon", 1e300},
      {"n_embd", "many"}};
  for (const auto& [key, value] : forged) {
    auto config = good;
    config[key] = value;
    folder_.Write("weights/config.json", config.dump());
    const Outcome outcome = Train("other", {"model.weights=" + (folder_ / "weights")});
    EXPECT_NE(outcome.exit_code, 0) << key << value;
    EXPECT_EQ(outcome.signal, 0) << key << value;
    EXPECT_NE(outcome.err.find("[model]"), std::string::npos) << key << value << outcome.err;
  }
}

TEST_F(TinyRun, AVocabularySmallerThanATokenIsNamed) {
  const Outcome outcome = Train("run", {"model.vocabulary=64"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_NE(outcome.err.find("64"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find(".ctok"), std::string::npos) << outcome.err;
}

TEST_F(TinyRun, HeadsThatDoNotDivideAreNamed) {
  const Outcome outcome = Train("run", {"model.heads=5"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_NE(outcome.err.find("heads"), std::string::npos) << outcome.err;
}

TEST_F(TinyRun, ASequenceLongerThanTheModelIsNamed) {
  const Outcome outcome = Train("run", {"data.sequence_length=48"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_NE(outcome.err.find("sequence_length"), std::string::npos) << outcome.err;
}

TEST_F(TinyRun, AnImpossibleSizeIsRefusedBeforeItIsTouched) {
  const Outcome outcome = Train("run", {"model.width=65536", "model.heads=64", "model.layers=64"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_EQ(outcome.signal, 0);
  EXPECT_NE(outcome.err.find("bytes"), std::string::npos) << outcome.err;
}

TEST_F(TinyRun, GeneratesTheSameTextForTheSameSeed) {
  ASSERT_EQ(Train("run", {"run.steps=4"}).exit_code, 0);
  const std::vector<std::string> arguments = {
      "generate", folder_ / "run", "--prompt", "the ", "--tokens", "60", "--seed", "3"};
  const Outcome a = Capstan(arguments), b = Capstan(arguments);
  ASSERT_EQ(a.exit_code, 0) << a.err;
  EXPECT_GE(a.out.size(), 60u);  // past the context of 24: the newer half is read again
  EXPECT_EQ(a.out, b.out);
}

TEST_F(TinyRun, GenerateTakesNoNan) {
  ASSERT_EQ(Train("run", {"run.steps=2"}).exit_code, 0);
  for (const char* option : {"--temperature", "--top-p"}) {
    const Outcome outcome = Capstan({"generate", folder_ / "run", "--prompt", "a", option, "nan"});
    EXPECT_EQ(outcome.exit_code, 2) << outcome.out;
    EXPECT_NE(outcome.err.find(option), std::string::npos) << outcome.err;
  }
}

TEST_F(TinyRun, GenerateWithoutACheckpointSaysSo) {
  const Outcome outcome = Capstan({"generate", folder_ / "nowhere", "--prompt", "a"});
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_NE(outcome.err.find("nowhere"), std::string::npos) << outcome.err;
}

TEST_F(TinyRun, TracesOpenAsJson) {
  const Outcome outcome = Capstan({"train", config_, "--trace", "--set", "run.steps=2", "--set",
                                   "run.dir=" + (folder_ / "run")});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto trace = nlohmann::json::parse(ReadAll(folder_ / "run/trace/step-00000002.json"));
  EXPECT_GT(trace["traceEvents"].size(), 50u);
}

}  // namespace
}  // namespace capstan::run_test
