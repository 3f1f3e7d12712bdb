// Hangs do not exist: a rank is killed, suspended or delayed at a random point, from inside and from
// outside, and every time the job ends in time, blames that rank, and leaves nothing behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <random>
#include <thread>

#include "runtime/status.h"
#include "tests/launch/harness.h"

namespace capstan::launch_test {
namespace {

// Runs `trial` 0 to count - 1, several at a time: most of a trial is waiting.
void Trials(int count, const std::function<void(int trial)>& trial) {
  constexpr int kAtOnce = 16;
  std::atomic<int> next{0};
  OnEveryRank(kAtOnce, [&](int) {
    for (int i = next++; i < count && !::testing::Test::HasFatalFailure(); i = next++) trial(i);
  });
}

struct Draw {
  explicit Draw(int seed) : generator(static_cast<unsigned>(seed)) {}
  int Below(int n) { return static_cast<int>(generator() % static_cast<unsigned>(n)); }
  std::mt19937 generator;
};

constexpr double kDeadline = 1.5;

std::string Deadline(double deadline) { return "*:deadline=" + std::to_string(deadline); }

// `rank`'s steps with a fault at a random one, and everybody else's.
std::vector<std::string> FaultAt(Draw& draw, int ranks, int victim, int fault, int steps,
                                 double deadline = kDeadline) {
  std::vector<std::string> words = {Deadline(deadline), "*:join"};
  for (int r = 0; r < ranks; ++r) {
    std::string word = std::to_string(r) + ":steps=" + std::to_string(steps);
    if (r == victim) {
      word += "," + std::to_string(draw.Below(steps)) + "," + std::to_string(draw.Below(4)) + "," +
              std::to_string(fault);
    }
    words.push_back(word);
  }
  words.push_back("*:finish");
  return words;
}

void ExpectBlamed(Job& job, int victim, const std::string& what) {
  const std::string start = "capstan: rank " + std::to_string(victim) + " (pid ";
  EXPECT_THAT(job.err(), ::testing::StartsWith(start));
  EXPECT_THAT(job.err(), ::testing::HasSubstr(what));
  EXPECT_EQ(Count(job.err(), "capstan: "), 1) << job.err();
}

TEST(TrialsTest, KilledFromWithin) {
  Trials(60, [](int trial) {
    Draw draw(trial);
    const int ranks = 2 + draw.Below(3), victim = draw.Below(ranks);
    const int signals[] = {SIGKILL, SIGSEGV, SIGABRT, SIGBUS};
    const int signal = signals[draw.Below(4)];
    Job job(FaultAt(draw, ranks, victim, signal, 20), {.ranks = ranks});
    EXPECT_EQ(job.Wait(), kExitRetry);
    ExpectBlamed(job, victim, "was killed by signal " + std::to_string(signal));
  });
}

TEST(TrialsTest, SuspendedFromWithin) {
  Trials(40, [](int trial) {
    Draw draw(1000 + trial);
    const int ranks = 2 + draw.Below(3), victim = draw.Below(ranks);
    Job job(FaultAt(draw, ranks, victim, SIGSTOP, 20), {.ranks = ranks});
    EXPECT_EQ(job.Wait(), kExitRetry);
    ExpectBlamed(job, victim, "was stopped");
  });
}

TEST(TrialsTest, DelayedLessThanTheDeadline) {
  Trials(20, [](int trial) {
    Draw draw(2000 + trial);
    const int ranks = 2 + draw.Below(3), victim = draw.Below(ranks);
    Job job(FaultAt(draw, ranks, victim, -100, 20, /*deadline=*/30), {.ranks = ranks});
    EXPECT_EQ(job.Wait(), kExitDone) << job.err();
    EXPECT_EQ(job.err(), "");
  });
}

TEST(TrialsTest, DelayedBeyondTheDeadline) {
  Trials(24, [](int trial) {
    Draw draw(3000 + trial);
    const int ranks = 2 + draw.Below(3), victim = draw.Below(ranks);
    Job job(FaultAt(draw, ranks, victim, -30000, 20), {.ranks = ranks});
    EXPECT_EQ(job.Wait(), kExitRetry);
    ExpectBlamed(job, victim, "did not get on");
  });
}

// At any moment of a job's life, its start included.
class FromOutside : public ::testing::TestWithParam<int> {};

TEST_P(FromOutside, IsNamed) {
  const int signal = GetParam();
  Trials(30, [signal](int trial) {
    Draw draw(4000 + 100 * signal + trial);
    const int ranks = 2 + draw.Below(3), victim = draw.Below(ranks);
    Job job({Deadline(kDeadline), "*:join", "*:steps=1000000"}, {.ranks = ranks});
    const std::vector<pid_t> pids = job.Ranks();
    ASSERT_EQ(pids.size(), static_cast<size_t>(ranks));
    ::usleep(static_cast<useconds_t>(draw.Below(30000)));  // the random moment
    ::kill(pids[victim], signal);
    EXPECT_EQ(job.Wait(), kExitRetry);
    ExpectBlamed(job, victim, signal == SIGSTOP ? "was stopped" : "was killed by signal");
  });
}

INSTANTIATE_TEST_SUITE_P(Signals, FromOutside, ::testing::Values(SIGKILL, SIGSTOP));

TEST(TrialsTest, RestartsUntilItGetsThrough) {
  Trials(10, [](int trial) {
    Draw draw(5000 + trial);
    const int ranks = 2 + draw.Below(3);
    std::vector<std::string> words = {Deadline(30), "*:join"};
    for (int epoch = 0; epoch < 3; ++epoch) {
      const std::string victim = std::to_string(draw.Below(ranks)) + "@" + std::to_string(epoch);
      words.push_back("*@" + std::to_string(epoch) + ":steps=" + std::to_string(draw.Below(5)));
      words.push_back(victim + ":raise=9");
    }
    words.insert(words.end(), {"*:steps=5", "*:finish"});
    Job job(words, {.ranks = ranks, .max_restarts = 3});
    EXPECT_EQ(job.Wait(), kExitDone) << job.err();
    EXPECT_EQ(Count(job.err(), "restart "), 3) << job.err();
  });
}

// The launcher is killed at a random moment: no rank outlives it.
TEST(TrialsTest, TheLauncherItselfIsKilled) {
  Trials(20, [](int trial) {
    Draw draw(6000 + trial);
    Job job({"*:join", "*:steps=1000000"}, {.ranks = 3});
    const std::vector<pid_t> pids = job.Ranks();
    ASSERT_EQ(pids.size(), 3u);
    ::usleep(static_cast<useconds_t>(draw.Below(20000)));
    ::kill(job.launcher().pid(), SIGKILL);
    EXPECT_EQ(job.launcher().Wait(), -SIGKILL);
    for (const pid_t pid : pids) EXPECT_TRUE(Ends(pid));
  });
}

}  // namespace
}  // namespace capstan::launch_test
