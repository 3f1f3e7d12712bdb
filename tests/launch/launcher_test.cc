// A launcher and its ranks as processes: they start, meet and end together, and leave nothing behind.
#include "runtime/launch/launcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "runtime/status.h"
#include "tests/launch/harness.h"

namespace capstan::launch_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::string Fault(int signal) { return "raise=" + std::to_string(signal); }

// The launcher's lines about a failure.
int Summaries(const Job& job) { return Count(job.err(), "capstan: "); }

TEST(LauncherTest, AllRanksDone) {
  Job job({"*:join", "*:barrier=a", "*:steps=20", "*:finish"});
  EXPECT_EQ(job.Wait(), kExitDone);
  EXPECT_EQ(job.err(), "");
}

TEST(LauncherTest, RanksKnowTheirPlace) {
  Job job({"*:env=CAPSTAN_RANK", "*:env=CAPSTAN_LOCAL_RANK", "*:env=CAPSTAN_WORLD_SIZE"},
          {.ranks = 3});
  EXPECT_EQ(job.Wait(), kExitDone);
  EXPECT_THAT(job.out(), AllOf(HasSubstr("[rank 2] CAPSTAN_RANK=2\n"),
                               HasSubstr("[rank 2] CAPSTAN_LOCAL_RANK=2\n"),
                               HasSubstr("[rank 2] CAPSTAN_WORLD_SIZE=3\n")));
}

TEST(LauncherTest, OneRankIsAJobToo) {
  Job job({"*:join", "*:barrier=a", "*:print=alone"}, {.ranks = 1});
  EXPECT_EQ(job.Wait(), kExitDone);
  EXPECT_EQ(job.out(), "alone\n");
}

// ---- output ------------------------------------------------------------------------------------

TEST(LauncherOutputTest, Rank0PassesThroughTheOthersByLine) {
  Job job({"0:part=no newline", "1:part=one ", "1:print=line", "1:error=oops", "2:part=cut off"},
          {.ranks = 3});
  EXPECT_EQ(job.Wait(), kExitDone);
  EXPECT_THAT(job.out(), AllOf(HasSubstr("no newline"), Not(HasSubstr("[rank 0]")),
                               HasSubstr("[rank 1] one line\n"), HasSubstr("[rank 2] cut off\n")));
  EXPECT_EQ(job.err(), "[rank 1] oops\n");
}

TEST(LauncherOutputTest, NothingIsLostOrTornWhenMuchIsWritten) {
  Job job({"1:lines=5000", "2:lines=5000"}, {.ranks = 3});
  EXPECT_EQ(job.Wait(), kExitDone);
  EXPECT_EQ(Count(job.out(), "[rank 1] line "), 5000);
  EXPECT_EQ(Count(job.out(), "[rank 2] line "), 5000);
  EXPECT_EQ(Count(job.out(), "\n[rank "), 9999);
}

TEST(LauncherOutputTest, EndlessLinesAreCut) {
  Job job({"1:long=200000"}, {.ranks = 2});
  EXPECT_EQ(job.Wait(), kExitDone);
  EXPECT_EQ(Count(job.out(), "[rank 1] x"), 4);
  EXPECT_EQ(Count(job.out(), "x"), 200000);
}

TEST(LauncherOutputTest, AReaderThatWentAwayEndsNothing) {
  Job job({"1:lines=100000", "*:print=end", "0:error=rank 0 got to its end"}, {.ranks = 2});
  job.launcher().UntilOut("line 10");
  // Closing would need another handle on the pipe; reading on slowly is what `less` does.
  EXPECT_EQ(job.Wait(), kExitDone);
  EXPECT_THAT(job.err(), HasSubstr("rank 0 got to its end"));
}

// ---- exit codes --------------------------------------------------------------------------------

TEST(LauncherTest, AnExitCodeIsTheCulpritsOwn) {
  for (const int code : {1, 2, 4}) {
    Job job({"*:join", "2:exit=" + std::to_string(code), "*:barrier=never"});
    EXPECT_EQ(job.Wait(), code);
    EXPECT_EQ(Summaries(job), 1) << job.err();
    EXPECT_THAT(job.err(), AllOf(HasSubstr("rank 2 (pid "),
                                 HasSubstr("ended with exit code " + std::to_string(code))));
  }
}

TEST(LauncherTest, AFailureThatARankExplainsIsPrintedOnce) {
  Job job({"*:join", "*:step=3", "*:op=linear", "1:data=shard 7 is cut short", "*:barrier=never"});
  EXPECT_EQ(job.Wait(), kExitFailed);
  EXPECT_THAT(job.err(), HasSubstr("rank 1 (pid "));
  EXPECT_THAT(job.err(),
              HasSubstr("failed in step 4, op linear, microbatch 0: shard 7 is cut short"));
  EXPECT_EQ(Summaries(job), 1) << job.err();
  EXPECT_EQ(Count(job.err(), "shard 7"), 1) << job.err();
}

TEST(LauncherTest, AMistakeThatAllRanksFindIsPrintedOnce) {
  Job job({"*:usage=run.steps is missing"});
  EXPECT_EQ(job.Wait(), kExitUsage);
  EXPECT_EQ(job.err(), "capstan: run.steps is missing\n");
}

TEST(LauncherTest, StoppedOnRequestIsNoFailure) {
  Job job({"*:listen", "*:join", "*:barrier=all listen", "*:exit=3"});
  EXPECT_EQ(job.Wait(), kExitStopped);
  EXPECT_EQ(job.err(), "");
}

TEST(LauncherTest, ARankThatStopsTakesTheOthersAlong) {
  Job job({"*:listen", "*:join", "*:barrier=all listen", "2:exit=3", "*:until_told", "*:exit=3"});
  EXPECT_EQ(job.Wait(), kExitStopped);
  EXPECT_EQ(Count(job.out(), "told 15"), 3);
}

// ---- deaths ------------------------------------------------------------------------------------

TEST(LauncherTest, AKilledRankIsNamedWithItsLastOp) {
  Job job({"*:join", "*:barrier=a", "2:step=16", "2:op=all_reduce(@wte.grad)",
           "2:" + Fault(SIGKILL), "*:waits_for=2", "*:barrier=b"});
  EXPECT_EQ(job.Wait(), kExitRetry);
  EXPECT_THAT(job.err(), StartsWith("capstan: rank 2 (pid "));
  EXPECT_THAT(job.err(), HasSubstr("was killed by signal 9 (SIGKILL) in step 17, op "
                                   "all_reduce(@wte.grad), microbatch 0"));
  EXPECT_EQ(Summaries(job), 1) << job.err();
}

TEST(LauncherTest, ARankThatIgnoresTheEndIsKilledAfterTheGrace) {
  Job job({"*:ignore=15", "*:join", "*:barrier=all ignore", "0:exit=1", "*:spin"},
          {.ranks = 2, .grace_s = 0.2});
  EXPECT_EQ(job.Wait(), kExitFailed);
  EXPECT_THAT(job.err(), HasSubstr("rank 1 had to be killed"));
}

TEST(LauncherTest, ASuspendedRankIsNamedByThoseThatWaitForIt) {
  Job job({"*:deadline=1", "*:join", "*:barrier=a", "1:step=4", "1:op=attention",
           "1:" + Fault(SIGSTOP), "*:barrier=b"},
          {.ranks = 3});
  EXPECT_EQ(job.Wait(), kExitRetry);
  EXPECT_THAT(job.err(), AllOf(HasSubstr("rank 1 (pid "), HasSubstr("was stopped (suspended"),
                               HasSubstr("in step 5, op attention"),
                               HasSubstr("did not come to 'b' within 1 s")));
  EXPECT_EQ(Summaries(job), 1) << job.err();
}

TEST(LauncherTest, RanksThatAreAllSuspendedEndAtTheDeadline) {
  Job job({"*:deadline=0.5", "*:" + Fault(SIGSTOP)});
  EXPECT_EQ(job.Wait(), kExitRetry);
  EXPECT_THAT(job.err(),
              AllOf(HasSubstr("was stopped"), HasSubstr("it stayed so for more than 0.5 s")));
}

TEST(LauncherTest, ARankThatNeverAnswersIsNamed) {
  Job job({"*:deadline=1", "*:join", "*:barrier=a", "2:spin", "*:get=key"});
  EXPECT_EQ(job.Wait(), kExitRetry);
  EXPECT_THAT(job.err(), AllOf(HasSubstr("rank 2 (pid "), HasSubstr("did not get on")));
  EXPECT_THAT(job.err(), HasSubstr("says: rank "));
  EXPECT_EQ(Summaries(job), 1) << job.err();
}

TEST(LauncherTest, RanksThatGoOnAfterOneHasEndedAreOverdue) {
  Job job({"*:deadline=0.5", "0:exit=0", "*:spin"}, {.ranks = 2});
  EXPECT_EQ(job.Wait(), kExitRetry);
  EXPECT_THAT(job.err(), HasSubstr("rank 1 (pid "));
  EXPECT_THAT(job.err(), HasSubstr("it went on for more than 0.5 s after another rank had ended"));
}

TEST(LauncherTest, ARankThatWaitsPastItsOwnDeadlineIsNotWaitedForEver) {
  Job job({"*:deadline=0.2", "*:op=recv", "*:waits_for=1", "*:spin"}, {.ranks = 2, .grace_s = 0.2});
  EXPECT_EQ(job.Wait(), kExitRetry);
  EXPECT_THAT(job.err(), HasSubstr("far past its deadline of 0.2 s"));
}

// A checkpoint or slow data may take longer than any deadline: whoever waits for nobody is left alone.
TEST(LauncherTest, ARankThatTakesItsTimeAfterAWaitIsLeftAlone) {
  Job job({"*:deadline=0.1", "*:op=recv", "*:waits_for=1", "*:op=", "*:nap=1200"},
          {.ranks = 2, .grace_s = 0.1});
  EXPECT_EQ(job.Wait(), kExitDone) << job.err();
  EXPECT_EQ(job.err(), "");
}

TEST(LauncherTest, ARankThatLeavesAJobOthersStillNeedIsNamed) {
  Job job({"1:ignore=15", "*:join", "*:barrier=a", "1:finish", "1:exit=0", "*:barrier=b"},
          {.ranks = 3});
  EXPECT_EQ(job.Wait(), kExitRetry);
  EXPECT_THAT(job.err(), AllOf(HasSubstr("rank 1 (pid "), HasSubstr("had ended (exit code 0)"),
                               HasSubstr("rank 1 ended without coming to 'b'")));
}

// ---- nothing is left behind ---------------------------------------------------------------------

TEST(LauncherTest, RanksDieWithAKilledLauncher) {
  Job job({"*:ignore=15", "*:ignore=1", "*:join", "*:barrier=a", "0:print=ready", "*:spin"});
  ASSERT_TRUE(job.launcher().UntilOut("ready"));
  const std::vector<pid_t> ranks = job.Ranks();
  ASSERT_EQ(ranks.size(), 4u);
  ::kill(job.launcher().pid(), SIGKILL);
  EXPECT_EQ(job.launcher().Wait(), -SIGKILL);
  for (const pid_t rank : ranks) EXPECT_TRUE(Ends(rank)) << "an orphan";
}

TEST(LauncherTest, AProcessThatARankLeftBehindGoesWithIt) {
  Job job({"1:leave_child"}, {.ranks = 2});
  EXPECT_EQ(job.Wait(), kExitDone);
  const size_t at = job.out().find("child ");
  ASSERT_NE(at, std::string::npos) << job.out();
  EXPECT_TRUE(Ends(std::stoi(job.out().substr(at + 6))));
}

TEST(LauncherTest, AProgramThatCannotStartIsASentence) {
  Job job({"*:spin"}, {.ranks = 100, .descriptors = 40});
  EXPECT_EQ(job.Wait(), kExitFailed);
  EXPECT_THAT(job.err(), AllOf(HasSubstr("launcher: rank "), HasSubstr("fewer ranks")));
}

TEST(LauncherTest, ANumberOfRanksThatMustBeATypingErrorIsRefused) {
  Job job({"*:spin"}, {.ranks = 1 << 20});
  EXPECT_EQ(job.Wait(), kExitUsage);
  EXPECT_THAT(job.err(), AllOf(HasSubstr("1048576 ranks"), HasSubstr("cores")));
}

// ---- signals -----------------------------------------------------------------------------------

class LauncherSignalTest : public ::testing::TestWithParam<int> {};

TEST_P(LauncherSignalTest, IsPassedOnToEveryRankOnce) {
  Job job({"*:listen", "*:join", "*:barrier=all listen", "*:until_told", "*:exit=3"});
  ASSERT_TRUE(job.launcher().Until([&] { return Count(job.out(), "listening") == 4; }));
  ::kill(job.launcher().pid(), GetParam());
  EXPECT_EQ(job.Wait(), kExitStopped);
  EXPECT_EQ(Count(job.out(), "told " + std::to_string(GetParam())), 4) << job.out();
  EXPECT_EQ(job.err(), "");
}

INSTANTIATE_TEST_SUITE_P(Each, LauncherSignalTest,
                         ::testing::Values(SIGINT, SIGTERM, SIGHUP, SIGUSR1));

TEST(LauncherTest, ASecondStopRequestEndsTheJob) {
  Job job({"*:ignore=2", "*:ignore=15", "*:join", "*:barrier=a", "0:print=ready", "*:spin"},
          {.ranks = 2, .max_restarts = 5, .grace_s = 0.2});
  ASSERT_TRUE(job.launcher().UntilOut("ready"));
  ::kill(job.launcher().pid(), SIGINT);
  ::kill(job.launcher().pid(), SIGTERM);
  EXPECT_EQ(job.Wait(), kExitFailed);
  EXPECT_THAT(job.err(), HasSubstr("told to stop a second time"));
  EXPECT_EQ(Count(job.launcher().pids, "\n"), 1) << "not started again";
}

TEST(LauncherTest, SuspendingTheLauncherSuspendsTheRanks) {
  Job job({"*:join", "*:barrier=a", "0:print=ready", "*:spin"}, {.ranks = 2});
  ASSERT_TRUE(job.launcher().UntilOut("ready"));
  const auto state = [](pid_t pid) {
    std::string text(512, '\0');
    std::FILE* file = std::fopen(("/proc/" + std::to_string(pid) + "/stat").c_str(), "r");
    if (file == nullptr) return '?';
    text.resize(std::fread(text.data(), 1, text.size(), file));
    std::fclose(file);
    return text[text.rfind(')') + 2];
  };
  const std::vector<pid_t> ranks = job.Ranks();
  ASSERT_EQ(ranks.size(), 2u);
  const auto all = [&](bool stopped) {
    return (state(ranks[0]) == 'T') == stopped && (state(ranks[1]) == 'T') == stopped &&
           (state(job.launcher().pid()) == 'T') == stopped;
  };
  ::kill(job.launcher().pid(), SIGTSTP);
  EXPECT_TRUE(job.launcher().Until([&] { return all(true); }));
  ::kill(job.launcher().pid(), SIGCONT);
  EXPECT_TRUE(job.launcher().Until([&] { return all(false); }));
  ::kill(job.launcher().pid(), SIGTERM);
  EXPECT_EQ(job.Wait(), kExitFailed);
}

// ---- restarts ----------------------------------------------------------------------------------

TEST(LauncherRestartTest, AKilledRankRestartsTheJobWithAnotherSecret) {
  Job job({"*:env=CAPSTAN_EPOCH", "*:env=CAPSTAN_JOB_SECRET", "*:join", "*:barrier=a",
           "1@0:" + Fault(SIGKILL), "1@1:exit=4", "*:barrier=b", "*:finish"},
          {.ranks = 2, .max_restarts = 5});
  EXPECT_EQ(job.Wait(), kExitDone);
  EXPECT_THAT(job.err(), HasSubstr("was killed by signal 9 (SIGKILL)"));
  EXPECT_THAT(job.err(), HasSubstr("restart 1 of 5"));
  EXPECT_THAT(job.err(), HasSubstr("restart 2 of 5"));
  EXPECT_EQ(Summaries(job), 2) << job.err();
  EXPECT_EQ(Count(job.launcher().pids, "\n"), 3);
  const std::string secret = "\nCAPSTAN_JOB_SECRET=";  // rank 0's lines
  const size_t first = job.out().find(secret), second = job.out().find(secret, first + 1);
  ASSERT_NE(second, std::string::npos);
  EXPECT_NE(job.out().substr(first, 80), job.out().substr(second, 80));
}

TEST(LauncherRestartTest, GivesUpAfterTheLast) {
  Job job({"1:exit=4", "*:spin"}, {.ranks = 2, .max_restarts = 2});
  EXPECT_EQ(job.Wait(), kExitRetry);
  EXPECT_EQ(Count(job.launcher().pids, "\n"), 3);
  EXPECT_THAT(job.err(), HasSubstr("(after 2 restarts)"));
}

TEST(LauncherRestartTest, AMistakeIsNotTriedAgain) {
  for (const int code : {1, 2, 3}) {
    Job job({"*:ignore=15", "*:join", "*:barrier=a", "*:exit=" + std::to_string(code)},
            {.ranks = 2, .max_restarts = 2});
    EXPECT_EQ(job.Wait(), code);
    EXPECT_EQ(Count(job.launcher().pids, "\n"), 1);
  }
}

TEST(LauncherRestartTest, RestartsMayHaveOtherArguments) {
  Job job({"*:print=fresh", "1:exit=4"},
          {.ranks = 2, .max_restarts = 1, .restart_words = {"*:print=resumed"}});
  EXPECT_EQ(job.Wait(), kExitDone);
  EXPECT_THAT(job.out(), HasSubstr("resumed"));
}

// ---- other launchers ----------------------------------------------------------------------------

std::vector<std::string> Torchrun(int rank, int size) {
  const auto number = [](int n) { return std::to_string(n); };
  return {"RANK=" + number(rank), "WORLD_SIZE=" + number(size), "LOCAL_RANK=" + number(rank),
          "LOCAL_WORLD_SIZE=" + number(size), "MASTER_PORT=29500"};
}

TEST(OtherLauncherTest, RanksStartedByTorchrunMeetInTheRunDirectory) {
  const Folder folder;
  const std::vector<std::string> words = {"*:join=" + folder.path(), "*:steps=5", "*:finish"};
  Program zero(words, Torchrun(0, 3)), one(words, Torchrun(1, 3)), two(words, Torchrun(2, 3));
  for (Program* p : {&two, &one, &zero}) EXPECT_EQ(p->Wait(), kExitDone) << p->err;
  EXPECT_TRUE(folder.List().empty());
}

TEST(OtherLauncherTest, ADeadRankIsNamedByTheOthers) {
  const Folder folder;
  const std::vector<std::string> words = {"*:join=" + folder.path(), "*:barrier=a",
                                          "1:" + Fault(SIGKILL), "*:barrier=b"};
  Program zero(words, Torchrun(0, 3)), one(words, Torchrun(1, 3)), two(words, Torchrun(2, 3));
  EXPECT_EQ(one.Wait(), -SIGKILL);
  for (Program* p : {&zero, &two}) {
    EXPECT_EQ(p->Wait(), kExitRetry);
    EXPECT_THAT(p->err, HasSubstr("rank 1 is gone"));
  }
}

TEST(OtherLauncherTest, ASuspendedRank0IsNamedThoughItHoldsTheRendezvous) {
  const Folder folder;
  const std::vector<std::string> words = {"*:deadline=0.5", "*:join=" + folder.path(),
                                          "*:barrier=a", "0:" + Fault(SIGSTOP), "*:barrier=b"};
  Program zero(words, Torchrun(0, 2)), one(words, Torchrun(1, 2));
  EXPECT_EQ(one.Wait(), kExitRetry);
  EXPECT_THAT(one.err, HasSubstr("the rendezvous in rank 0 has not answered for 0.5 s"));
}

TEST(OtherLauncherTest, ADeadRank0LeavesAFileThatTheNextRunPassesOver) {
  const Folder folder;
  Program dead({"*:join=" + folder.path(), "*:" + Fault(SIGKILL)}, Torchrun(0, 2));
  EXPECT_EQ(dead.Wait(), -SIGKILL);
  ASSERT_EQ(folder.List().size(), 1u) << "it crashed while rank 1 was still awaited";
  const std::vector<std::string> words = {"*:join=" + folder.path(), "*:barrier=a", "*:finish"};
  Program one(words, Torchrun(1, 2)), zero(words, Torchrun(0, 2));
  EXPECT_EQ(zero.Wait(), kExitDone) << zero.err;
  EXPECT_EQ(one.Wait(), kExitDone) << one.err;
  EXPECT_TRUE(folder.List().empty());
}

}  // namespace
}  // namespace capstan::launch_test
