// A tiny run over pseudo-random text, with knobs.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/cli/process.h"

namespace capstan::run_test {

using cli_test::Capstan;
using cli_test::Folder;
using cli_test::Outcome;
using cli_test::ReadAll;

class TinyRun : public testing::Test {
 protected:
  TinyRun() {
    std::string text;
    uint32_t state = 12345;
    for (int i = 0; i < 6000; ++i) {
      state = state * 1664525u + 1013904223u;
      text += "the quick brown fox jumps over lazy dogs\n"[(state >> 24) % 41];
    }
    folder_.Write("text.txt", text);
    const Outcome made = Capstan({"data", "tokenize", folder_ / "text.txt", "--out",
                                  folder_ / "data", "--validation-fraction", "0.1"});
    EXPECT_EQ(made.exit_code, 0) << made.err;
    config_ = folder_.Write("tiny.toml", R"(
[run]
name = "tiny"
dir = "run"
steps = 8
seed = 7
[model]
plugin = "gpt2"
layers = 3
width = 32
heads = 2
vocabulary = 256
max_sequence = 24
dropout = 0.1
[data]
plugin = "tokens"
sequence_length = 24
[[data.source]]
path = "data/train-*.ctok"
[data.validation]
path = "data/val-*.ctok"
every = 4
batches = 1
[batch]
micro = 2
global = 8
[optimizer]
plugin = "adamw"
lr = 1e-3
clip_norm = 1.0
[optimizer.schedule]
kind = "cosine"
warmup_steps = 2
min_lr = 1e-4
[checkpoint]
plugin = "safetensors"
every = 2
keep = 0
)");
  }

  // `capstan train` into folder/NAME with overrides.
  Outcome Train(const std::string& name, std::vector<std::string> set = {}) {
    std::vector<std::string> arguments = {"train", config_, "--set", "run.dir=" + (folder_ / name)};
    for (const std::string& s : set) {
      arguments.push_back("--set");
      arguments.push_back(s);
    }
    return Capstan(arguments);
  }

  // Losses of the train records of metrics.jsonl, by step.
  std::vector<double> Losses(const std::string& name) {
    std::vector<double> losses;
    std::istringstream lines(ReadAll(folder_ / (name + "/metrics.jsonl")));
    for (std::string line; std::getline(lines, line);) {
      const auto row = nlohmann::json::parse(line);
      if (row.value("scope", "train") == "train") losses.push_back(row["loss"]);
    }
    return losses;
  }

  // A fingerprint of what a run's checkpoint of `step` trains from.
  std::string State(const std::string& name, int step) {
    const std::string at = folder_ / (name + "/checkpoints/step-0000000" + std::to_string(step));
    const std::string state =
        ReadAll(at + "/model.safetensors") + ReadAll(at + "/optimizer.safetensors");
    EXPECT_GT(state.size(), 10000u) << at;
    return std::to_string(state.size()) + " bytes, hash " +
           std::to_string(std::hash<std::string>()(state));
  }

  Folder folder_;
  std::string config_;
};

}  // namespace capstan::run_test
