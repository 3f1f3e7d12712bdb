// Whom the summary blames, in every way a job can end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "runtime/launch/launch_report.h"
#include "runtime/status.h"

namespace capstan {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

int Exited(int code) { return code << 8; }

// Rank r has pid 100 + r and, until a test says otherwise, was told to end and died of SIGTERM.
JobRecord Ranks(int size) {
  JobRecord job;
  job.deadline_s = 3;
  for (int r = 0; r < size; ++r) {
    RankRecord record;
    record.pid = 100 + r;
    record.order = r;
    record.told_to_end = true;
    record.wait_status = SIGTERM;
    job.ranks.push_back(record);
  }
  return job;
}

RankSnapshot At(int64_t step, const std::string& op, RankState state = RankState::kComputing,
                int waiting_for = -1) {
  RankSnapshot s;
  s.attached = true;
  s.writes = 1;
  s.step = step;
  s.op = op;
  s.state = state;
  s.waiting_for = waiting_for;
  return s;
}

RankSnapshot Failed(RankSnapshot s, int32_t status_class, const std::string& message,
                    int culprit = -1) {
  s.attached = s.failed = true;
  s.status_class = status_class;
  s.culprit = culprit;
  s.message = message;
  return s;
}

void End(RankRecord& rank, int wait_status, int order) {
  rank.wait_status = wait_status;
  rank.told_to_end = false;
  rank.ended_before = true;
  rank.order = order;
}

TEST(ReportTest, AllDone) {
  JobRecord job = Ranks(2);
  for (RankRecord& r : job.ranks) End(r, Exited(0), 0);
  const Verdict v = Judge(job);
  EXPECT_EQ(v.exit_code, kExitDone);
  EXPECT_EQ(v.culprit, -1);
  EXPECT_EQ(v.text, "");
  job.ranks[1].wait_status = Exited(3);
  EXPECT_EQ(Judge(job).exit_code, kExitStopped);
  EXPECT_EQ(Judge(job).text, "");
}

TEST(ReportTest, KilledRankWithItsLastOpAndThoseThatWaited) {
  JobRecord job = Ranks(4);
  for (const int r : {0, 1, 3}) {
    job.ranks[r].then = At(16, "all_reduce(@wte.grad)", RankState::kWaiting, 2);
    job.ranks[r].last = Failed(job.ranks[r].then, CAPSTAN_PEER_LOST, "rank 2 is gone", 2);
    job.ranks[r].wait_status = Exited(4);
  }
  End(job.ranks[2], SIGKILL, 0);
  job.ranks[2].last = At(16, "linear(%8)");
  const Verdict v = Judge(job);
  EXPECT_EQ(v.exit_code, kExitRetry);
  EXPECT_EQ(v.culprit, 2);
  EXPECT_TRUE(v.retry);
  EXPECT_THAT(v.text, StartsWith("rank 2 (pid 102) was killed by signal 9 (SIGKILL) in step 17, op "
                                 "linear(%8)"));
  EXPECT_THAT(v.text, HasSubstr("ranks 0, 1 and 3 were waiting for it"));
}

TEST(ReportTest, APeerThatNoticesFirstIsNotToBlame) {
  // Rank 0 had seen rank 1 go, and ended, before the launcher saw rank 1's end.
  JobRecord job = Ranks(2);
  End(job.ranks[0], Exited(4), 0);
  job.ranks[0].last = Failed(At(3, "barrier"), CAPSTAN_PEER_LOST, "rank 1 is gone", 1);
  job.ranks[1].order = 1;
  job.ranks[1].wait_status = SIGSEGV;
  const Verdict v = Judge(job);
  EXPECT_EQ(v.culprit, 1);
  EXPECT_THAT(v.text, HasSubstr("rank 1 (pid 101) was killed by signal 11 (SIGSEGV)"));
}

TEST(ReportTest, ARanksOwnFailureGivesItsOwnExitCode) {
  JobRecord job = Ranks(3);
  End(job.ranks[1], Exited(1), 0);
  job.ranks[1].last = Failed(At(4, "loss"), CAPSTAN_DATA, "loss is nan");
  const Verdict v = Judge(job);
  EXPECT_EQ(v.exit_code, kExitFailed);
  EXPECT_FALSE(v.retry);
  EXPECT_EQ(v.text, "rank 1 (pid 101) failed in step 5, op loss: loss is nan");
}

TEST(ReportTest, AFailureWrittenDownAfterAnotherReportedItCounts) {
  JobRecord job = Ranks(2);
  End(job.ranks[0], Exited(4), 0);
  job.ranks[0].last = Failed(At(0, "x"), CAPSTAN_PEER_LOST, "rank 1 failed: disk full", 1);
  job.ranks[1].wait_status = Exited(1);
  job.ranks[1].last = Failed(At(0, "save"), CAPSTAN_RESOURCE, "disk full");
  const Verdict v = Judge(job);
  EXPECT_EQ(v.culprit, 1);
  EXPECT_EQ(v.exit_code, kExitFailed);
  EXPECT_THAT(v.text, HasSubstr("disk full"));
}

TEST(ReportTest, AFailureWrittenDownJustBeforeItWasToldToEndCounts) {
  JobRecord job = Ranks(2);
  End(job.ranks[0], Exited(4), 0);
  job.ranks[0].last = Failed(At(0, "x"), CAPSTAN_PEER_LOST, "rank 1 failed: bad key", 1);
  job.ranks[1].last = Failed(At(0, "save"), CAPSTAN_USAGE, "bad key");  // died of SIGTERM
  const Verdict v = Judge(job);
  EXPECT_EQ(v.culprit, 1);
  EXPECT_EQ(v.exit_code, kExitUsage);
  EXPECT_THAT(v.text, HasSubstr("rank 1 (pid 101) failed in step 1, op save: bad key"));
}

TEST(ReportTest, ASuspendedRankIsBlamedThoughNobodyNamesIt) {
  JobRecord job = Ranks(4);
  End(job.ranks[1], Exited(4), 0);
  job.ranks[1].last =
      Failed(At(3, "barrier", RankState::kWaiting), CAPSTAN_TIMEOUT, "ranks 0 and 3 did not come");
  job.ranks[1].then = job.ranks[1].last;
  job.ranks[3].last = Failed(At(3, "get", RankState::kWaiting), CAPSTAN_PEER_LOST, "rank 1 failed");
  job.ranks[0].stopped = job.ranks[0].killed_by_launcher = true;
  job.ranks[0].wait_status = SIGKILL;
  EXPECT_EQ(Judge(job).culprit, 0);
}

TEST(ReportTest, WhatHappensAfterTheEndBeganIsAConsequence) {
  JobRecord job = Ranks(2);
  End(job.ranks[1], Exited(2), 0);
  job.ranks[0].wait_status = Exited(1);
  job.ranks[0].order = 1;
  EXPECT_EQ(Judge(job).culprit, 1);
  EXPECT_EQ(Judge(job).exit_code, kExitUsage);
}

TEST(ReportTest, ASentenceThatAllRanksSayIsSaidOnce) {
  JobRecord job = Ranks(3);
  for (RankRecord& r : job.ranks) {
    End(r, Exited(2), 0);
    r.last = Failed({}, CAPSTAN_USAGE, "run.steps is missing");
  }
  EXPECT_EQ(Judge(job).text, "run.steps is missing");
  EXPECT_EQ(Judge(job).exit_code, kExitUsage);
  job.ranks[2] = Ranks(3).ranks[2];  // was told to end before it got that far
  EXPECT_EQ(Judge(job).text, "run.steps is missing");
  End(job.ranks[1], Exited(2), 1);
  job.ranks[1].last.message = "something else";
  EXPECT_THAT(Judge(job).text, StartsWith("rank 0 (pid 100) failed while starting: run.steps"));
}

TEST(ReportTest, ADeadlineIsNobodysMistakeAndNamesWhoSaysIt) {
  JobRecord job = Ranks(2);
  for (RankRecord& r : job.ranks) {
    End(r, Exited(4), 0);
    r.last = Failed({}, CAPSTAN_TIMEOUT, "nobody came");
  }
  EXPECT_THAT(Judge(job).text, StartsWith("rank 0 (pid 100) failed while starting: nobody came"));
}

TEST(ReportTest, ASuspendedRankIsBlamedByThoseItKeptWaiting) {
  JobRecord job = Ranks(3);
  End(job.ranks[0], Exited(4), 0);
  job.ranks[0].last = Failed(At(7, "get", RankState::kWaiting, 1), CAPSTAN_TIMEOUT,
                             "rank 1 did not come within 3 s", 1);
  job.ranks[0].then = job.ranks[0].last;
  job.ranks[1].stopped = job.ranks[1].killed_by_launcher = true;
  job.ranks[1].wait_status = SIGKILL;
  job.ranks[1].then = At(7, "linear");
  job.ranks[2].then = At(7, "get", RankState::kWaiting, 1);
  const Verdict v = Judge(job);
  EXPECT_EQ(v.culprit, 1);
  EXPECT_EQ(v.exit_code, kExitRetry);
  EXPECT_TRUE(v.retry);
  EXPECT_THAT(v.text, AllOf(StartsWith("rank 1 (pid 101) was stopped (suspended, as by SIGSTOP) in "
                                       "step 8, op linear"),
                            HasSubstr("ranks 0 and 2 were waiting for it"),
                            HasSubstr("rank 0 says: rank 1 did not come within 3 s")));
}

TEST(ReportTest, AChainOfWaitingRanksEndsAtTheCulprit) {
  JobRecord job = Ranks(4);
  End(job.ranks[0], Exited(4), 0);
  job.ranks[0].last = Failed(At(1, "recv", RankState::kWaiting, 1), CAPSTAN_TIMEOUT, "late", 1);
  job.ranks[0].then = job.ranks[0].last;
  job.ranks[1].then = At(1, "recv", RankState::kWaiting, 2);
  job.ranks[2].then = At(1, "recv", RankState::kWaiting, 3);
  job.ranks[3].then = At(1, "attention");
  const Verdict v = Judge(job);
  EXPECT_EQ(v.culprit, 3);
  EXPECT_THAT(v.text, HasSubstr("rank 3 (pid 103) did not get on in step 2, op attention"));
}

TEST(ReportTest, ACircleOfWaitingRanksIsNotFollowedForEver) {
  JobRecord job = Ranks(2);
  End(job.ranks[0], Exited(4), 0);
  job.ranks[0].last = Failed(At(1, "recv", RankState::kWaiting, 1), CAPSTAN_TIMEOUT, "late", 1);
  job.ranks[0].then = job.ranks[0].last;
  job.ranks[1].then = At(1, "recv", RankState::kWaiting, 0);
  EXPECT_GE(Judge(job).culprit, 0);
}

TEST(ReportTest, WithoutANameTheOnlyOneThatDidNotWaitIsBlamed) {
  JobRecord job = Ranks(3);
  End(job.ranks[0], Exited(4), 0);
  job.ranks[0].last = Failed(At(1, "all_reduce", RankState::kWaiting), CAPSTAN_TIMEOUT, "late");
  job.ranks[0].then = job.ranks[0].last;
  job.ranks[1].then = At(1, "attention");
  job.ranks[2].then = At(1, "all_reduce", RankState::kWaiting);
  EXPECT_EQ(Judge(job).culprit, 1);
}

TEST(ReportTest, AnUnexplainedRetryableEndIsItsOwn) {
  JobRecord job = Ranks(2);
  End(job.ranks[1], Exited(4), 0);
  job.ranks[0].then = At(1, "attention");
  const Verdict v = Judge(job);
  EXPECT_EQ(v.culprit, 1);
  EXPECT_THAT(v.text, HasSubstr("rank 1 (pid 101) ended with exit code 4; see what it printed"));
}

TEST(ReportTest, ARankThatLeftEarlyIsBlamedByThoseThatWaitedForIt) {
  JobRecord job = Ranks(2);
  End(job.ranks[1], Exited(0), 0);
  End(job.ranks[0], Exited(4), 1);
  job.ranks[0].last = Failed(At(1, "barrier"), CAPSTAN_PEER_LOST, "rank 1 ended without coming", 1);
  const Verdict v = Judge(job);
  EXPECT_EQ(v.culprit, 1);
  EXPECT_EQ(v.exit_code, kExitRetry);
  EXPECT_THAT(v.text, AllOf(HasSubstr("rank 1 (pid 101) had ended (exit code 0) before the others"),
                            HasSubstr("rank 0 says: rank 1 ended without coming")));
}

TEST(ReportTest, ALongReportIsQuotedByItsEnds) {
  JobRecord job = Ranks(2);
  End(job.ranks[1], Exited(0), 0);
  End(job.ranks[0], Exited(4), 1);
  job.ranks[0].last =
      Failed(At(1, "all_reduce"), CAPSTAN_TIMEOUT,
             "waiting for " + std::string(5000, 't') + ": waited 5 s for rank 1", 1);
  const Verdict v = Judge(job);
  EXPECT_LT(v.text.size(), 700u);
  EXPECT_THAT(v.text, AllOf(HasSubstr("rank 0 says: waiting for ttt"), HasSubstr(" ... "),
                            EndsWith("waited 5 s for rank 1")));
}

TEST(ReportTest, TheLaunchersOwnReasons) {
  for (const auto& [cause, words] :
       {std::pair{LauncherCause::kStopped, "it stayed so for more than 3 s"},
        std::pair{LauncherCause::kSilent, "far past its deadline of 3 s"},
        std::pair{LauncherCause::kOverdue,
                  "went on for more than 3 s after another rank had ended"}}) {
    JobRecord job = Ranks(2);
    job.cause = cause;
    job.cause_rank = 1;
    job.ranks[1].stopped = cause == LauncherCause::kStopped;
    job.ranks[1].killed_by_launcher = true;
    job.ranks[1].wait_status = SIGKILL;
    job.ranks[0].wait_status = Exited(1);  // did not like being told
    const Verdict v = Judge(job);
    EXPECT_EQ(v.culprit, 1);
    EXPECT_EQ(v.exit_code, kExitRetry);
    EXPECT_THAT(v.text, HasSubstr(words));
  }
}

TEST(ReportTest, RanksThatHadToBeKilledAreNamed) {
  JobRecord job = Ranks(3);
  End(job.ranks[0], Exited(1), 0);
  job.ranks[2].killed_by_launcher = true;
  job.ranks[2].wait_status = SIGKILL;
  EXPECT_THAT(Judge(job).text, EndsWith("rank 2 had to be killed, not ending when told"));
}

TEST(ReportTest, AJobThatWasToldToStopIsNotRetried) {
  JobRecord job = Ranks(2);
  job.stop_signal = SIGTERM;
  for (RankRecord& r : job.ranks) End(r, SIGTERM, 0);
  Verdict v = Judge(job);
  EXPECT_EQ(v.exit_code, kExitFailed);
  EXPECT_FALSE(v.retry);
  EXPECT_THAT(v.text, HasSubstr("was killed by signal 15 (SIGTERM), which was passed on to it"));
  job.ranks[0].wait_status = SIGKILL;
  v = Judge(job);
  EXPECT_EQ(v.exit_code, kExitRetry);
  EXPECT_FALSE(v.retry) << "somebody wanted it to stop";
}

TEST(ReportTest, OddExitCodesAreFailures) {
  JobRecord job = Ranks(1);
  End(job.ranks[0], Exited(77), 0);
  EXPECT_EQ(Judge(job).exit_code, kExitFailed);
  EXPECT_THAT(Judge(job).text, HasSubstr("exit code 77"));
}

TEST(SignalNameTest, AsPeopleWriteThem) {
  EXPECT_EQ(SignalName(SIGKILL), "SIGKILL");
  EXPECT_EQ(SignalName(SIGRTMIN + 1), StrCat("signal ", SIGRTMIN + 1));
}

}  // namespace
}  // namespace capstan
