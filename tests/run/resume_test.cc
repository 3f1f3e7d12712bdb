// Stopping, dying and going on: the steps after a resume are those of a run that never stopped.
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <random>

#include "tests/run/run_fixture.h"

namespace capstan::run_test {
namespace {

// Starts `capstan train` and gives its process.
pid_t Start(const std::vector<std::string>& arguments) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  const int null = ::open("/dev/null", O_RDWR);
  ::dup2(null, STDOUT_FILENO);
  ::dup2(null, STDERR_FILENO);
  std::vector<char*> argv{const_cast<char*>(CAPSTAN_BINARY)};
  for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  ::execv(CAPSTAN_BINARY, argv.data());
  ::_exit(127);
}

TEST_F(TinyRun, SameConfigTwiceIsBitIdentical) {
  ASSERT_EQ(Train("a").exit_code, 0);
  ASSERT_EQ(Train("b").exit_code, 0);
  EXPECT_EQ(State("a", 8), State("b", 8));
  EXPECT_EQ(Losses("a"), Losses("b"));
}

TEST_F(TinyRun, ResumesFromACheckpointBitIdentically) {
  ASSERT_EQ(Train("whole").exit_code, 0);
  ASSERT_EQ(Train("parts").exit_code, 0);
  // Forget everything after step 4, as if the process had died there.
  for (int step : {6, 8}) {
    std::filesystem::remove_all(folder_ /
                                ("parts/checkpoints/step-0000000" + std::to_string(step)));
  }
  const Outcome again = Train("parts");
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_NE(again.out.find("resumed from"), std::string::npos) << again.out;
  EXPECT_EQ(State("whole", 8), State("parts", 8));
  EXPECT_EQ(Losses("whole"), Losses("parts"));
}

TEST_F(TinyRun, SurvivesBeingKilledAtAnyMoment) {
  ASSERT_EQ(Train("whole", {"run.steps=60"}).exit_code, 0);
  const std::vector<std::string> arguments = {
      "train", config_, "--set", "run.dir=" + (folder_ / "killed"), "--set", "run.steps=60"};
  std::mt19937 random(11);
  int kills = 0;
  for (int attempt = 0; attempt < 200; ++attempt) {
    const pid_t child = Start(arguments);
    ::usleep(20000 + random() % 180000);
    int status = 0;
    if (::waitpid(child, &status, WNOHANG) == child) {
      ASSERT_TRUE(WIFEXITED(status));
      ASSERT_EQ(WEXITSTATUS(status), 0);
      break;
    }
    ::kill(child, SIGKILL);
    ::waitpid(child, &status, 0);
    ++kills;
    if (kills == 12) break;
  }
  const Outcome last = Capstan(arguments);
  ASSERT_EQ(last.exit_code, 0) << last.err;
  EXPECT_GT(kills, 0);
  EXPECT_EQ(Losses("whole"), Losses("killed"));
  const auto end = [&](const std::string& run) {
    return ReadAll(folder_ / (run + "/checkpoints/step-00000060/model.safetensors"));
  };
  EXPECT_GT(end("whole").size(), 1000u);
  EXPECT_TRUE(end("whole") == end("killed")) << "the last checkpoints differ";
  for (const std::string& name : folder_.List("killed/checkpoints")) {
    EXPECT_TRUE(name.starts_with("step-")) << "left behind: " << name;
  }
}

TEST_F(TinyRun, StopsOnRequestWithACheckpoint) {
  const pid_t child = Start({"train", config_, "--set", "run.dir=" + (folder_ / "run"), "--set",
                             "run.steps=1000000", "--set", "checkpoint.every=0"});
  while (ReadAll(folder_ / "run/config.toml").empty()) ::usleep(2000);
  ::usleep(100000);
  ::kill(child, SIGTERM);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 3);
  EXPECT_EQ(folder_.List("run/checkpoints").size(), 1u);
}

TEST_F(TinyRun, StopsOnRequestWhereTheStepsCheckpointIsThereAlready) {
  const pid_t child = Start({"train", config_, "--set", "run.dir=" + (folder_ / "run"), "--set",
                             "run.steps=1000000", "--set", "checkpoint.every=1"});
  while (ReadAll(folder_ / "run/checkpoints/step-00000001/capstan.json").empty()) ::usleep(2000);
  ::kill(child, SIGTERM);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 3);
}

// Shards are memory-mapped, so this is met as SIGBUS.
TEST_F(TinyRun, DataCutShortWhileItIsReadEndsTheRunAsFailed) {
  const pid_t child = Start({"train", config_, "--set", "run.dir=" + (folder_ / "run"), "--set",
                             "run.steps=1000000", "--set", "checkpoint.every=1"});
  while (ReadAll(folder_ / "run/checkpoints/step-00000001/capstan.json").empty()) ::usleep(2000);
  std::filesystem::resize_file(folder_ / "data/train-00000.ctok", 300);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 1);
}

// A reader of standard output that goes away, as `| head` does, is no reason to lose a run.
TEST_F(TinyRun, OutlivesTheReaderOfItsOutput) {
  const std::string command = std::string("\"") + CAPSTAN_BINARY + "\" train " + config_ +
                              " --set run.steps=40 --set run.dir=" + (folder_ / "run") +
                              " | head -n 1 >/dev/null";
  ASSERT_EQ(std::system(command.c_str()), 0);
  EXPECT_NE(ReadAll(folder_ / "run/checkpoints/step-00000040/capstan.json"), "");
}

TEST_F(TinyRun, FreshRefusesToContinueARunAndSaysHowToMoveIt) {
  ASSERT_EQ(Train("run").exit_code, 0);
  const Outcome outcome =
      Capstan({"train", config_, "--fresh", "--set", "run.dir=" + (folder_ / "run")});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_NE(outcome.err.find("mv "), std::string::npos) << outcome.err;
}

TEST_F(TinyRun, AFinishedRunHasNothingLeftToDo) {
  ASSERT_EQ(Train("run").exit_code, 0);
  const std::string before = State("run", 8);
  EXPECT_EQ(Train("run").exit_code, 0);
  EXPECT_EQ(State("run", 8), before);
  EXPECT_EQ(Losses("run").size(), 8u);
}

TEST_F(TinyRun, TwoProcessesCannotShareARunDirectory) {
  const pid_t child = Start(
      {"train", config_, "--set", "run.dir=" + (folder_ / "run"), "--set", "run.steps=1000000"});
  while (ReadAll(folder_ / "run/lock").empty()) ::usleep(2000);
  const Outcome second = Train("run");
  EXPECT_EQ(second.exit_code, 2);
  EXPECT_NE(second.err.find("another process"), std::string::npos) << second.err;
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

TEST_F(TinyRun, KeepRemovesOlderCheckpoints) {
  ASSERT_EQ(Train("run", {"checkpoint.keep=2"}).exit_code, 0);
  EXPECT_EQ(folder_.List("run/checkpoints"),
            (std::vector<std::string>{"step-00000006", "step-00000008"}));
}

}  // namespace
}  // namespace capstan::run_test
