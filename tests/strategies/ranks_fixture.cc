#include "tests/strategies/ranks_fixture.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "nlohmann/json.hpp"
#include "runtime/strings.h"

namespace capstan::strategies_test {
namespace {

constexpr double kRelative = 1e-5;
constexpr auto kDeadline = std::chrono::seconds(60);

}  // namespace

ManyRanks::ManyRanks() {
  std::string text;
  uint32_t state = 2463534242u;
  for (int i = 0; i < 5000; ++i) {
    state = state * 1664525u + 1013904223u;
    text += "many hands turn one drum, each on a bar\n"[(state >> 24) % 40];
  }
  folder_.Write("text.txt", text);
  const Outcome made = Capstan({"data", "tokenize", folder_ / "text.txt", "--out", folder_ / "data",
                                "--validation-fraction", "0.1"});
  EXPECT_EQ(made.exit_code, 0) << made.err;
}

std::string ManyRanks::Config(const ModelCase& model, const std::string& strategies) {
  return folder_.Write(StrCat("config", configs_++, ".toml"), ConfigText(model, strategies));
}

std::vector<std::string> ManyRanks::Arguments(const std::string& config, const std::string& name,
                                              int ranks, int64_t microbatches,
                                              const std::vector<std::string>& set) {
  std::vector<std::string> arguments = {"train", config};
  if (ranks > 1) {
    arguments.insert(arguments.end(),
                     {"--ranks", std::to_string(ranks), "--set", cli_test::kRanksDeadline});
  }
  std::vector<std::string> all = {
      "run.dir=" + (folder_ / name), StrCat("batch.global=", kGlobalBatch),
      StrCat("batch.micro=", kGlobalBatch / ranks / microbatches),
      // Where a gradient is zero but for rounding (key biases under softmax), AdamW with a tiny eps
      // steps by the whole learning rate in whichever direction the rounding fell.
      "optimizer.eps=1e-3"};
  all.insert(all.end(), set.begin(), set.end());
  for (const std::string& s : all) {
    arguments.push_back("--set");
    arguments.push_back(s);
  }
  return arguments;
}

Outcome ManyRanks::Train(const std::string& config, const std::string& name, int ranks,
                         int64_t microbatches, const std::vector<std::string>& set) {
  return Capstan(Arguments(config, name, ranks, microbatches, set));
}

void ManyRanks::Run(const std::string& config, const std::string& name, int ranks,
                    int64_t microbatches, const std::vector<std::string>& set) {
  const Outcome outcome = Train(config, name, ranks, microbatches, set);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err << outcome.out;
}

std::vector<StepRecord> ManyRanks::Steps(const std::string& name, const std::string& scope) {
  std::vector<StepRecord> steps;
  std::istringstream lines(ReadAll(folder_ / (name + "/metrics.jsonl")));
  for (std::string line; std::getline(lines, line);) {
    const auto row = nlohmann::json::parse(line);
    if (row.value("scope", "train") != scope) continue;
    steps.push_back({row["loss"], row.value("grad_norm", 0.0), row.value("weight", 0.0)});
  }
  return steps;
}

std::string ManyRanks::CheckpointPath(const std::string& name, int step) {
  std::string number = std::to_string(step);
  number.insert(0, 8 - number.size(), '0');
  return folder_ / (name + "/checkpoints/step-" + number);
}

Weights ManyRanks::Saved(const std::string& name, int step, const std::string& group) {
  return run_test::ReadSafetensors(StrCat(CheckpointPath(name, step), "/", group, ".safetensors"));
}

std::string ManyRanks::SavedBytes(const std::string& name, int step) {
  const std::string at = CheckpointPath(name, step);
  const std::string bytes =
      ReadAll(at + "/model.safetensors") + ReadAll(at + "/optimizer.safetensors");
  EXPECT_GT(bytes.size(), 10000u) << at;
  return bytes;
}

std::vector<std::string> ManyRanks::Checkpoints(const std::string& name) {
  return folder_.List(name + "/checkpoints");
}

void ManyRanks::ExpectSameSteps(const std::vector<StepRecord>& expected,
                                const std::vector<StepRecord>& actual) {
  ASSERT_EQ(expected.size(), actual.size());
  ASSERT_FALSE(expected.empty());
  for (size_t i = 0; i < expected.size(); ++i) {
    const StepRecord &e = expected[i], &a = actual[i];
    EXPECT_NEAR(a.loss, e.loss, kRelative * e.loss) << "step " << i + 1;
    EXPECT_NEAR(a.grad_norm, e.grad_norm, kRelative * e.grad_norm) << "step " << i + 1;
    EXPECT_EQ(a.weight, e.weight) << "step " << i + 1;
  }
}

void ManyRanks::ExpectSameWeights(const Weights& expected, const Weights& actual) {
  ASSERT_FALSE(expected.empty());
  ASSERT_EQ(expected.size(), actual.size());
  double norm = 0;
  for (const auto& [name, tensor] : expected) {
    for (const float v : tensor.values) norm += double{v} * v;
  }
  norm = std::sqrt(norm);
  for (const auto& [name, e] : expected) {
    const auto found = actual.find(name);
    ASSERT_NE(found, actual.end()) << name;
    const run_test::FileTensor& a = found->second;
    ASSERT_EQ(a.shape, e.shape) << name;
    double largest = 0, difference = 0;
    for (size_t i = 0; i < e.values.size(); ++i) {
      largest = std::max(largest, std::abs(double{e.values[i]}));
      difference = std::max(difference, std::abs(double{e.values[i]} - a.values[i]));
    }
    EXPECT_LE(difference, kRelative * std::max(largest, 1e-3 * norm)) << name;
  }
}

void ManyRanks::ExpectSameTraining(const std::string& expected, const std::string& actual,
                                   int steps) {
  ExpectSameSteps(Steps(expected), Steps(actual));
  ExpectSameWeights(Saved(expected, steps), Saved(actual, steps));
  ExpectSameWeights(Saved(expected, steps, "optimizer"), Saved(actual, steps, "optimizer"));
}

// ---- Background --------------------------------------------------------------------------------

Background::Background(const std::vector<std::string>& arguments, const std::string& output)
    : output_(output) {
  pid_ = ::fork();
  if (pid_ != 0) return;
  const int null = ::open("/dev/null", O_RDONLY);
  const int file = ::open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  ::dup2(null, STDIN_FILENO);
  ::dup2(file, STDOUT_FILENO);
  ::dup2(file, STDERR_FILENO);
  std::vector<char*> argv{const_cast<char*>(CAPSTAN_BINARY)};
  for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  ::execv(CAPSTAN_BINARY, argv.data());
  ::_exit(127);
}

Background::~Background() {
  if (Ended()) return;
  ::kill(pid_, SIGKILL);  // the kernel kills the ranks with it
  ::waitpid(pid_, &status_, 0);
}

pid_t Background::RankProcess(int rank) const {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string stat = ReadAll("/proc/" + name + "/stat");
    const size_t after = stat.rfind(')');  // "pid (name) state parent ..."
    if (after == std::string::npos) continue;
    std::istringstream fields(stat.substr(after + 1));
    std::string state;
    pid_t parent = 0;
    fields >> state >> parent;
    if (parent != pid_ || state == "Z") continue;
    const std::string environment = '\0' + ReadAll("/proc/" + name + "/environ") + '\0';
    const std::string wanted =
        std::string(1, '\0') + "CAPSTAN_RANK=" + std::to_string(rank) + std::string(1, '\0');
    if (environment.find(wanted) != std::string::npos) return std::stoi(name);
  }
  return 0;
}

bool Background::Ended() {
  if (!ended_) ended_ = ::waitpid(pid_, &status_, WNOHANG) == pid_;
  return ended_;
}

bool Background::Until(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + kDeadline;
  while (!condition()) {
    if (Ended()) return condition();
    if (std::chrono::steady_clock::now() > end) {
      status_ = cli_test::EndOverdue(pid_);
      ended_ = true;
      ADD_FAILURE() << "what the test waits for did not come within a minute:\n"
                    << ReadAll(output_);
      return false;
    }
    ::usleep(500);
  }
  return true;
}

int Background::Wait() {
  const auto end = std::chrono::steady_clock::now() + kDeadline;
  while (!Ended()) {
    if (std::chrono::steady_clock::now() > end) {
      status_ = cli_test::EndOverdue(pid_);
      ended_ = true;
      ADD_FAILURE() << "the command did not end within a minute:\n" << ReadAll(output_);
      return -1;
    }
    ::usleep(1000);
  }
  return WIFEXITED(status_) ? WEXITSTATUS(status_) : -1;
}

}  // namespace capstan::strategies_test
