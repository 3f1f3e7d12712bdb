// The command line: parses arguments, runs one command, turns its status into an exit code.
//
//   0 done, 1 failed, 2 usage or configuration, 3 stopped on request, 4 a fault worth retrying
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace capstan {

int RunCommandLine(int argc, char** argv);

// ---- one function a command; each returns its exit code or says why it failed
// ---------------------

struct TrainArguments {
  std::string config;
  std::vector<std::string> set;
  int64_t ranks = 0;  // to start here; 0: none
  int64_t max_restarts = 0;
  bool fresh = false, trace = false;
  // What verify asks of the runs it compares: as TrainOptions.
  int64_t stop_after = 0;
  std::string snapshot;
  bool alone = false;
};
absl::StatusOr<int> TrainCommand(const TrainArguments& arguments);

struct VerifyArguments {
  std::string config;
  std::vector<std::string> set;
  int64_t steps = 5;
  int64_t ranks = 0;      // where [mesh] leaves it open
  double tolerance = -1;  // negative: what the components declare
  bool json = false;
};
absl::StatusOr<int> VerifyCommand(const VerifyArguments& arguments);

struct TimelineArguments {
  std::string config;
  std::vector<std::string> set;
  int64_t world = 0;  // where [mesh] leaves it open
  double hop_ms = 0;  // from a stage to the next
  double flops = 0;   // of a rank, per second; 0: measure this device's
  std::string svg;    // a file to draw into
  bool json = false;
};
absl::StatusOr<int> TimelineCommand(const TimelineArguments& arguments);

struct DumpArguments {
  std::string config;
  std::vector<std::string> set;
  std::string before, after;      // a phase; both empty: the finished Program
  std::string program = "train";  // train, eval, prefill, decode
  int64_t rank = 0, world = 0;    // whose Program; world 0: as many ranks as the mesh has
};
absl::StatusOr<int> DumpCommand(const DumpArguments& arguments);

struct PlanArguments {
  std::string config;  // empty: the arithmetic of `parameters`
  std::vector<std::string> set;
  double parameters = 0;
  std::string precision = "mixed";  // mixed | fp32 | bf16
  int64_t ranks = 1;
  std::string strategy;  // of `parameters`: zero1 | zero2 | zero3; empty: every rank holds all
  std::string gpu;
  int64_t rank = 0, world = 0;  // of a config: whose bill; world 0: as many ranks as the mesh has
  bool json = false;
};
absl::StatusOr<int> PlanCommand(const PlanArguments& arguments);

struct GenerateArguments {
  std::string run;  // a run directory, a checkpoint or a folder of weights
  std::string prompt;
  std::vector<std::string> set;
  int64_t tokens = 200;
  double temperature = 0.8;
  int64_t top_k = 0;
  double top_p = 1.0;
  int64_t seed = 0;
  std::string tokenizer = "bytes";
};
absl::StatusOr<int> GenerateCommand(const GenerateArguments& arguments);

struct TokenizeArguments {
  std::vector<std::string> inputs;
  std::string output;
  std::string tokenizer = "bytes";
  int64_t shard_tokens = 100'000'000;
  double validation_fraction = 0;
};
absl::StatusOr<int> TokenizeCommand(const TokenizeArguments& arguments);

absl::StatusOr<int> PluginsListCommand(bool json);
absl::StatusOr<int> PluginsShowCommand(const std::string& name, bool json);

struct ExportArguments {
  std::string run, output;
};
absl::StatusOr<int> ExportCommand(const ExportArguments& arguments);

}  // namespace capstan
