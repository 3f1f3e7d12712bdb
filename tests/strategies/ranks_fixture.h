// Runs of several ranks on this machine, through the command line, and what they leave behind.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "tests/cli/process.h"
#include "tests/run/safetensors_file.h"
#include "tests/strategies/composed.h"

namespace capstan::strategies_test {

using cli_test::Capstan;
using cli_test::Folder;
using cli_test::Outcome;
using cli_test::ReadAll;

// What a step of a run reported.
struct StepRecord {
  double loss = 0, grad_norm = 0, weight = 0;
  bool operator==(const StepRecord&) const = default;
};

using Weights = std::map<std::string, run_test::FileTensor>;

// Global batch of every run: 1, 2, 3 and 4 ranks share it in one or three microbatches.
inline constexpr int64_t kGlobalBatch = 36;

class ManyRanks : public testing::Test {
 protected:
  // Tokenises some pseudo-random text into data/.
  ManyRanks();

  // A configuration of the model and strategies, in a file of its own.
  std::string Config(const ModelCase& model, const std::string& strategies);
  // `capstan train CONFIG --ranks RANKS` into folder/NAME, with `microbatches` a step on each of the
  // `batch_ranks` (0: all) that share the batch. Steps, batch and an eps that keeps AdamW smooth are
  // set first, then `set`.
  std::vector<std::string> Arguments(const std::string& config, const std::string& name, int ranks,
                                     int64_t microbatches, const std::vector<std::string>& set);
  Outcome Train(const std::string& config, const std::string& name, int ranks,
                int64_t microbatches = 1, const std::vector<std::string>& set = {});
  // The same, and it must succeed.
  void Run(const std::string& config, const std::string& name, int ranks, int64_t microbatches = 1,
           const std::vector<std::string>& set = {});

  // Of metrics.jsonl, by step from 1; `scope` "validation": those alone.
  std::vector<StepRecord> Steps(const std::string& name, const std::string& scope = "train");
  std::string CheckpointPath(const std::string& name, int step);
  // A group ("model", "optimizer") of a checkpoint.
  Weights Saved(const std::string& name, int step, const std::string& group = "model");
  // The bytes of a checkpoint's tensors.
  std::string SavedBytes(const std::string& name, int step);
  std::vector<std::string> Checkpoints(const std::string& name);

  // Losses and gradient norms, step by step, within 1e-5 of each other; weights equal.
  void ExpectSameSteps(const std::vector<StepRecord>& expected,
                       const std::vector<StepRecord>& actual);
  // Same names and shapes, values within 1e-5 of the larger of a tensor's maximum and a thousandth of
  // the norm of all.
  void ExpectSameWeights(const Weights& expected, const Weights& actual);
  // The two runs are the same training: steps, and parameters and optimizer state after the last.
  void ExpectSameTraining(const std::string& expected, const std::string& actual, int steps);

  Folder folder_;

 private:
  int configs_ = 0;
};

// A command running beside the test, with its output in a file. Killed with the test.
class Background {
 public:
  Background(const std::vector<std::string>& arguments, const std::string& output);
  ~Background();
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  pid_t pid() const { return pid_; }
  // The process of a rank the command has started; 0: none yet, or no more.
  pid_t RankProcess(int rank) const;
  // True when `condition` came true before the command ended.
  bool Until(const std::function<bool()>& condition);
  // Waits for its end and gives its exit code, -1 when a signal ended it. Fails the test after a minute,
  // with what it said.
  int Wait();

 private:
  bool Ended();

  const std::string output_;
  pid_t pid_ = 0;
  bool ended_ = false;
  int status_ = 0;
};

}  // namespace capstan::strategies_test
