// A run moves between meshes through its checkpoints: saved on one, resumed on another, with the losses
// of a run that was never interrupted.
#include <algorithm>
#include <sstream>

#include "nlohmann/json.hpp"
#include "runtime/strings.h"
#include "tests/cut/cut_fixture.h"

namespace capstan::cut_test {
namespace {

struct Step {
  double loss = 0, grad_norm = 0;
};

class Move : public Cut {
 protected:
  Move() { MakeData(); }

  // Trains in folder/NAME until `steps` steps are done.
  void Train(const Composition& composition, const std::string& name, int steps) {
    Composition to = composition;
    to.set += StrCat(" run.steps=", steps, " run.dir=", folder_ / name);
    int ranks = 1;
    for (const std::string& axis : Words(to.mesh))
      ranks *= std::stoi(axis.substr(axis.find('=') + 1));
    const Outcome outcome = Command("train", to, {"--ranks", std::to_string(ranks)});
    ASSERT_EQ(outcome.exit_code, 0) << NameOf(composition) << outcome.err << outcome.out;
  }

  std::vector<Step> Steps(const std::string& name) {
    std::vector<Step> steps;
    std::istringstream lines(ReadAll(folder_ / (name + "/metrics.jsonl")));
    for (std::string line; std::getline(lines, line);) {
      const auto row = nlohmann::json::parse(line);
      steps.push_back({row["loss"], row["grad_norm"]});
    }
    return steps;
  }

  void ExpectSame(const std::string& whole, const std::string& moved, size_t steps) {
    const std::vector<Step> expected = Steps(whole), actual = Steps(moved);
    ASSERT_EQ(expected.size(), steps);
    ASSERT_EQ(actual.size(), steps);
    for (size_t i = 0; i < steps; ++i) {
      EXPECT_NEAR(actual[i].loss, expected[i].loss, 1e-5 * expected[i].loss) << "step " << i + 1;
      EXPECT_NEAR(actual[i].grad_norm, expected[i].grad_norm, 1e-5 * expected[i].grad_norm)
          << "step " << i + 1;
    }
  }
};

TEST_F(Move, AcrossMeshesOfAModelWithTiedEmbeddings) {
  const auto on = [](const char* mesh, const char* strategies) {
    return Composition{kGpt2Uneven, mesh, strategies, "model.dropout=0.1"};
  };
  Train(on("", ""), "whole", 12);
  Train(on("tp=2 pp=2", "tp sp pp"), "moved", 2);
  Train(on("pp=3", "pp:schedule=zb_h1"), "moved", 4);
  Train(on("tp=3", "tp sp"), "moved", 6);
  Train(on("tp=2 pp=2 dp=2", "tp sp pp zero1"), "moved", 8);
  Train(on("", ""), "moved", 10);
  Train(on("tp=2 dp=2", "tp fsdp"), "moved", 12);
  ExpectSame("whole", "moved", 12);
}

TEST_F(Move, AcrossMeshesThatShareKeyValueHeads) {
  const auto on = [](const char* mesh, const char* strategies) {
    return Composition{kLlama, mesh, strategies, ""};
  };
  Train(on("", ""), "whole", 10);
  Train(on("tp=4", "tp sp"), "moved", 2);
  Train(on("pp=2 dp=2", "pp:schedule=interleaved,chunks=2 zero3"), "moved", 4);
  Train(on("tp=2 pp=2", "tp pp"), "moved", 6);
  Train(on("tp=2 dp=2", "tp sp zero2"), "moved", 8);
  Train(on("pp=4", "pp:schedule=gpipe"), "moved", 10);
  ExpectSame("whole", "moved", 10);
}

// What validation reports on any mesh is what it reports on one rank.
TEST_F(Move, ValidationIsThatOfOneRank) {
  const auto losses = [&](const Composition& composition, const std::string& name) {
    Composition validated = composition;
    validated.set += " data.validation.path=" + folder_ / "data/train-*.ctok";
    validated.set += " data.validation.every=1 data.validation.batches=2";
    Train(validated, name, 2);
    std::vector<double> out;
    std::istringstream lines(ReadAll(folder_ / (name + "/metrics.jsonl")));
    for (std::string line; std::getline(lines, line);) {
      const auto row = nlohmann::json::parse(line);
      if (row.value("scope", "train") == "validation") out.push_back(row["loss"]);
    }
    return out;
  };
  for (const char* model : {kGpt2, kLlamaUneven}) {
    const std::string name = model == kGpt2 ? "gpt2" : "llama";
    const std::vector<double> expected = losses({model, "", "", ""}, name);
    ASSERT_EQ(expected.size(), 2u);
    const std::vector<double> actual =
        losses({model, "tp=2 pp=2 dp=2", "tp sp pp zero1", ""}, name + "_cut");
    ASSERT_EQ(actual.size(), 2u);
    for (size_t i = 0; i < 2; ++i) EXPECT_NEAR(actual[i], expected[i], 1e-5 * expected[i]) << i;
  }
}

// The number of ranks that wrote a checkpoint leaves no trace in it: same files, same tensors.
TEST_F(Move, WhatACutRunSavesIsWhatOneRankSaves) {
  Train({kGpt2Uneven, "", "", ""}, "one", 2);
  Train({kGpt2Uneven, "tp=2 pp=2", "tp sp pp", ""}, "cut", 2);
  const std::string step = "/checkpoints/step-00000002";
  EXPECT_EQ(folder_.List("one" + step), folder_.List("cut" + step));
  for (const char* file : {"/model.safetensors", "/optimizer.safetensors"}) {
    const std::string one = ReadAll(folder_ / ("one" + step + file));
    const std::string cut = ReadAll(folder_ / ("cut" + step + file));
    ASSERT_GT(one.size(), 10000u);
    EXPECT_EQ(one.size(), cut.size()) << file;
    uint64_t header = 0;  // its length comes first; names, types, shapes and places follow
    std::copy_n(one.data(), sizeof(header), reinterpret_cast<char*>(&header));
    EXPECT_EQ(one.substr(0, 8 + header), cut.substr(0, 8 + header)) << file;
  }
}

}  // namespace
}  // namespace capstan::cut_test
