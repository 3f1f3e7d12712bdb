// Training under faults: a rank is killed or suspended at a random moment of a run, from its start on.
// The command ends in time and names that rank, and the same command after it goes on from the newest
// complete checkpoint as if nothing had happened.
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <random>
#include <thread>

#include "runtime/strings.h"
#include "tests/strategies/ranks_fixture.h"

namespace capstan::strategies_test {
namespace {

using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

constexpr int kSteps = 12;         // of the run in the end
constexpr int kEvery = 3;          // checkpoint.every
constexpr int kTrials = 6;         // of each case
constexpr double kTimeout = 5;     // comm.timeout_s of the run with the fault
constexpr double kGrace = 10 + 5;  // the launcher's, and the machine's

struct Case {
  const char* strategy;
  int ranks;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.strategy << "_" << c.ranks; }

// What a trial's seed decides.
struct Fault {
  explicit Fault(int seed, int ranks) {
    std::mt19937 random(static_cast<unsigned>(seed));
    victim = static_cast<int>(random() % static_cast<unsigned>(ranks));
    signal = random() % 3 == 0 ? SIGSTOP : SIGKILL;
    steps = random() % 4 == 0 ? 0 : static_cast<int>(1 + random() % (kSteps - 1));
    delay_us = static_cast<useconds_t>(random() % (steps == 0 ? 300000 : 8000));
  }
  int victim, signal;
  int steps;            // of the run before it; 0: it may still be starting
  useconds_t delay_us;  // and so much later
};

class RanksFault : public ManyRanks, public testing::WithParamInterface<Case> {
 protected:
  std::vector<std::string> Settings(int steps) {
    return {StrCat("run.steps=", steps), StrCat("checkpoint.every=", kEvery), "checkpoint.keep=0"};
  }

  // The run, to its fault and its end.
  void Break(const std::string& config, const std::string& name, const Fault& fault) {
    std::vector<std::string> set = Settings(1000000);
    set.push_back(StrCat("comm.timeout_s=", kTimeout));
    const std::string output = folder_ / (name + ".txt"), records = name + "/metrics.jsonl";
    Background run(Arguments(config, name, GetParam().ranks, 1, set), output);
    pid_t victim = 0;
    ASSERT_TRUE(run.Until([&] {
      if (victim == 0) victim = run.RankProcess(fault.victim);
      if (victim == 0 || fault.steps == 0) return victim != 0;
      const std::string text = ReadAll(folder_ / records);
      return std::count(text.begin(), text.end(), '\n') >= fault.steps;
    })) << ReadAll(output);
    ::usleep(fault.delay_us);  // the random moment
    ASSERT_EQ(::kill(victim, fault.signal), 0);
    const auto begin = Clock::now();
    EXPECT_EQ(run.Wait(), 4) << ReadAll(output);
    const std::chrono::duration<double> took = Clock::now() - begin;
    EXPECT_LT(took.count(), (fault.signal == SIGSTOP ? kTimeout : 0) + kGrace);
    EXPECT_THAT(
        ReadAll(output),
        HasSubstr(StrCat("capstan: rank ", fault.victim, " (pid ", victim,
                         fault.signal == SIGSTOP ? ") was stopped" : ") was killed by signal 9")));
  }

  // Forgets what is past the steps of the run, and gives the newest checkpoint that is left.
  std::string Newest(const std::string& name) {
    std::string newest;
    std::error_code error;
    const std::string directory = folder_ / (name + "/checkpoints");
    for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
      const std::string file = entry.path().filename();
      if (!file.starts_with("step-")) continue;
      if (std::stoi(file.substr(5)) >= kSteps) {
        std::filesystem::remove_all(entry.path(), error);
      } else {
        newest = std::max(newest, entry.path().string());
      }
    }
    return newest;
  }

  void Trial(const std::string& config, int trial) {
    const auto [strategy, ranks] = GetParam();
    const Fault fault(1000 * ranks + 100 * (strategy[0] == 'z') + trial, ranks);
    SCOPED_TRACE(StrCat("trial ", trial, ": signal ", fault.signal, " to rank ", fault.victim,
                        " at step ", fault.steps, " and ", fault.delay_us, " us"));
    const std::string name = StrCat("trial", trial);
    Break(config, name, fault);
    const std::string newest = Newest(name);
    const Outcome again = Train(config, name, ranks, 1, Settings(kSteps));
    ASSERT_EQ(again.exit_code, 0) << again.err;
    EXPECT_THAT(again.out, newest.empty() ? testing::Not(HasSubstr("resumed from"))
                                          : testing::Matcher<const std::string&>(
                                                HasSubstr("resumed from " + newest + " ")));
    EXPECT_EQ(Steps("whole"), Steps(name));
    EXPECT_TRUE(SavedBytes("whole", kSteps) == SavedBytes(name, kSteps));
  }
};

TEST_P(RanksFault, IsNamedAndTheRunGoesOn) {
  const auto [strategy, ranks] = GetParam();
  const std::string config = Config(kGpt2Uneven, Strategy(strategy));
  Run(config, "whole", ranks, 1, Settings(kSteps));
  ASSERT_FALSE(HasFatalFailure());
  // Several at a time: where a rank is suspended, a trial is mostly waiting.
  constexpr int kAtOnce = 3;
  std::vector<std::thread> threads;
  for (int first = 0; first < kAtOnce; ++first) {
    threads.emplace_back([&, first] {
      for (int trial = first; trial < kTrials; trial += kAtOnce) Trial(config, trial);
    });
  }
  for (std::thread& t : threads) t.join();
}

INSTANTIATE_TEST_SUITE_P(Cases, RanksFault,
                         testing::Values(Case{"dp", 2}, Case{"dp", 3}, Case{"zero3", 2},
                                         Case{"zero3", 3}),
                         [](const auto& info) {
                           return StrCat(info.param.strategy, "_", info.param.ranks);
                         });

}  // namespace
}  // namespace capstan::strategies_test
