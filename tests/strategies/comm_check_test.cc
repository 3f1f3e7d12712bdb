// Communication of all ranks played through before the first step: what is refused, and how it is
// said.
#include "runtime/exec/comm_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/status.h"
#include "tests/strategies/comm_script.h"

namespace capstan::strategies_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Mesh Lay(std::vector<MeshAxis> axes) {
  absl::StatusOr<Mesh> mesh = Mesh::Layout(std::move(axes), 0);
  EXPECT_TRUE(mesh.ok()) << mesh.status();
  return *std::move(mesh);
}

absl::Status Check(const Mesh& mesh, const std::vector<Script>& scripts) {
  std::vector<std::string> texts;
  for (const Script& s : scripts) texts.push_back(s.text());
  return CheckCommunication(mesh, texts);
}

std::string Refusal(const Mesh& mesh, const std::vector<Script>& scripts) {
  const absl::Status status = Check(mesh, scripts);
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(StatusClass(status), CAPSTAN_BUG) << status;
  return std::string(status.message());
}

// Two collectives, each waited for at once: what two ranks of a step may look like.
Script TwoSums(const std::string& first, const std::string& second) {
  Script s;
  s.Wait(s.Start("dp", first, "first op"));
  s.Wait(s.Start("dp", second, "second op"));
  return s;
}

TEST(CommunicationCheck, EqualListsPass) {
  const Mesh mesh = Lay({{"dp", 3}});
  const Script s = TwoSums("all_reduce:f32[4]:sum", "all_reduce:f32[8]:sum");
  EXPECT_EQ(Check(mesh, {s, s, s}), absl::OkStatus());
}

// As the lead gets them: each different list once.
TEST(CommunicationCheck, RanksMayShareAList) {
  const Mesh mesh = Lay({{"dp", 2}, {"pp", 2}});
  const auto stage = [](bool sends, const std::string& what) {
    Script s;
    s.Wait(sends ? s.Send("pp", 1, 0, "f32[4]", "send(%1)")
                 : s.Recv("pp", 0, 0, "f32[4]", "recv()"));
    s.Wait(s.Start("dp", what, StrCat("all_reduce ", what)));
    return s.text();
  };
  const std::vector<std::string> scripts = {stage(true, "sum"), stage(false, "sum"),
                                            stage(false, "max")};
  EXPECT_EQ(CheckCommunication(mesh, scripts, {0, 0, 1, 1}), absl::OkStatus());
  const absl::Status mixed = CheckCommunication(mesh, scripts, {0, 0, 1, 2});
  EXPECT_EQ(StatusClass(mixed), CAPSTAN_BUG);
  EXPECT_THAT(std::string(mixed.message()), AllOf(HasSubstr("rank 2 runs all_reduce sum"),
                                                  HasSubstr("rank 3 runs all_reduce max")));
}

TEST(CommunicationCheck, NothingToSayPasses) {
  EXPECT_EQ(Check(Lay({{"dp", 2}}), {Script(), Script()}), absl::OkStatus());
  EXPECT_EQ(Check(Lay({}), {Script()}), absl::OkStatus());
}

TEST(CommunicationCheck, EveryRankMustHaveTold) {
  EXPECT_THAT(Refusal(Lay({{"dp", 3}}), {Script(), Script()}),
              AllOf(HasSubstr("3 ranks"), HasSubstr("2 told")));
}

// What a wait blocks on is the group's arrival, not its order beside other groups' collectives.
TEST(CommunicationCheck, GroupsMayBeStartedInDifferentOrders) {
  const Mesh mesh = Lay({{"tp", 2}, {"dp", 2}});
  Script a, b;
  const int a_tp = a.Start("tp", "x", "tp op"), a_dp = a.Start("dp", "y", "dp op");
  a.Wait(a_tp);
  a.Wait(a_dp);
  const int b_dp = b.Start("dp", "y", "dp op"), b_tp = b.Start("tp", "x", "tp op");
  b.Wait(b_tp);
  b.Wait(b_dp);
  EXPECT_EQ(Check(mesh, {a, b, b, a}), absl::OkStatus());
}

TEST(CommunicationCheck, ADifferenceNamesBothRanksAndOps) {
  const Mesh mesh = Lay({{"dp", 3}});
  const std::string good = "all_reduce:f32[4]:sum";
  for (const std::string bad : {"all_gather:f32[4]:sum", "all_reduce:f64[4]:sum",
                                "all_reduce:f32[5]:sum", "all_reduce:f32[4]:max"}) {
    Script usual, other;
    usual.Wait(usual.Start("dp", good, "reduce_gradient(@a.grad) in segment backward/0"));
    other.Wait(other.Start("dp", bad, "another(@b.grad) in segment update"));
    EXPECT_THAT(Refusal(mesh, {usual, usual, other}),
                AllOf(HasSubstr("rank 0 runs reduce_gradient(@a.grad) in segment backward/0"),
                      HasSubstr("rank 2 runs another(@b.grad) in segment update"), HasSubstr(good),
                      HasSubstr(bad), HasSubstr("number 1 over axis dp")));
  }
}

TEST(CommunicationCheck, AnotherOrderWithinAGroupIsADifference) {
  const Mesh mesh = Lay({{"dp", 2}});
  EXPECT_THAT(Refusal(mesh, {TwoSums("a", "b"), TwoSums("b", "a")}),
              AllOf(HasSubstr("rank 0 runs first op (a)"), HasSubstr("rank 1 runs first op (b)"),
                    HasSubstr("order that differs between ranks")));
}

TEST(CommunicationCheck, OneCollectiveLessLeavesTheOthersWaiting) {
  const Mesh mesh = Lay({{"dp", 3}});
  Script shorter;
  shorter.Wait(shorter.Start("dp", "a", "first op"));
  EXPECT_THAT(Refusal(mesh, {TwoSums("a", "b"), shorter, TwoSums("a", "b")}),
              AllOf(HasSubstr("would never end"), HasSubstr("rank 0 waits in second op"),
                    HasSubstr("for rank 1, which never comes to it")));
}

// Rank 0 holds the tp group up until dp is done, rank 3 and the others the other way round.
TEST(CommunicationCheck, ACycleAcrossTwoGroupsNamesWhoWaitsForWhom) {
  const Mesh mesh = Lay({{"tp", 2}, {"dp", 2}});
  Script tp_first, dp_first;
  tp_first.Wait(tp_first.Start("tp", "x", "the tp op"));
  tp_first.Wait(tp_first.Start("dp", "y", "the dp op"));
  dp_first.Wait(dp_first.Start("dp", "y", "the dp op"));
  dp_first.Wait(dp_first.Start("tp", "x", "the tp op"));
  // 0 waits for 1 (tp), 1 for 3 (dp), 3 for 2 (tp), 2 for 0 (dp).
  EXPECT_THAT(Refusal(mesh, {tp_first, dp_first, dp_first, tp_first}),
              AllOf(HasSubstr("rank 0 waits in the tp op for rank 1"),
                    HasSubstr("rank 1 waits in the dp op for rank 3"), HasSubstr("in a cycle")));
}

TEST(CommunicationCheck, GroupsOfOneRankMatchThemselves) {
  const Mesh mesh = Lay({{"tp", 1}, {"dp", 2}});
  Script s, other;
  s.Wait(s.Start("tp", "a", "alone"));
  other.Wait(other.Start("tp", "b", "alone too"));
  EXPECT_EQ(Check(mesh, {s, other}), absl::OkStatus());
}

// ---- messages ----------------------------------------------------------------------------------

TEST(MessageCheck, ASendMeetsItsReceive) {
  Script from, to;
  from.Wait(from.Send("pp", 1, 0, "f32[2,8]", "send(%1)"));
  to.Wait(to.Recv("pp", 0, 0, "f32[2,8]", "recv()"));
  EXPECT_EQ(Check(Lay({{"pp", 2}}), {from, to}), absl::OkStatus());
}

TEST(MessageCheck, BothMayReceiveFirstIfNeitherWaitsThere) {
  Script s[2];
  for (int r = 0; r < 2; ++r) {
    const int received = s[r].Recv("pp", 1 - r, 0, "f32[4]", "recv()");
    const int sent = s[r].Send("pp", 1 - r, 0, "f32[4]", "send(%1)");
    s[r].Wait(received);
    s[r].Wait(sent);
  }
  EXPECT_EQ(Check(Lay({{"pp", 2}}), {s[0], s[1]}), absl::OkStatus());
}

TEST(MessageCheck, BothWaitingToReceiveBeforeTheySendIsACycle) {
  Script s[2];
  for (int r = 0; r < 2; ++r) {
    s[r].Wait(s[r].Recv("pp", 1 - r, 0, "f32[4]", r == 0 ? "recv of 0" : "recv of 1"));
    s[r].Wait(s[r].Send("pp", 1 - r, 0, "f32[4]", "send(%1)"));
  }
  EXPECT_THAT(Refusal(Lay({{"pp", 2}}), {s[0], s[1]}),
              AllOf(HasSubstr("rank 0 waits in recv of 0 for rank 1"),
                    HasSubstr("rank 1 waits in recv of 1 for rank 0")));
}

TEST(MessageCheck, AMessageThatArrivesAsAnotherNamesBothSides) {
  Script from, to;
  from.Wait(from.Send("pp", 1, 3, "f32[2,8]", "send(%1)"));
  to.Wait(to.Recv("pp", 0, 3, "f32[2,9]", "recv()"));
  EXPECT_THAT(Refusal(Lay({{"pp", 2}}), {from, to}),
              AllOf(HasSubstr("rank 0 runs send(%1) (f32[2,8])"),
                    HasSubstr("rank 1 runs recv() (f32[2,9])"), HasSubstr("channel 3")));
}

TEST(MessageCheck, ChannelsDoNotMeet) {
  Script from, to;
  from.Wait(from.Send("pp", 1, 0, "f32[4]", "send(%1)"));
  to.Wait(to.Recv("pp", 0, 1, "f32[4]", "recv()"));
  EXPECT_THAT(Refusal(Lay({{"pp", 2}}), {from, to}), HasSubstr("rank 0 waits in send(%1)"));
}

TEST(MessageCheck, MessagesOfAChannelArriveInTheOrderTheyWereSent) {
  Script from, right, wrong;
  const int a = from.Send("pp", 1, 0, "a", "send a"), b = from.Send("pp", 1, 0, "b", "send b");
  from.Wait(a);
  from.Wait(b);
  right.Wait(right.Recv("pp", 0, 0, "a", "recv a"));
  right.Wait(right.Recv("pp", 0, 0, "b", "recv b"));
  wrong.Wait(wrong.Recv("pp", 0, 0, "b", "recv b"));
  wrong.Wait(wrong.Recv("pp", 0, 0, "a", "recv a"));
  const Mesh mesh = Lay({{"pp", 2}});
  EXPECT_EQ(Check(mesh, {from, right}), absl::OkStatus());
  EXPECT_THAT(Refusal(mesh, {from, wrong}), AllOf(HasSubstr("send a"), HasSubstr("recv b")));
}

TEST(MessageCheck, APeerOutsideTheGroupIsNamed) {
  Script from;
  from.Wait(from.Send("pp", 2, 0, "a", "send a"));
  EXPECT_THAT(Refusal(Lay({{"pp", 2}}), {from, Script()}),
              AllOf(HasSubstr("rank 0 runs send a with peer 2"), HasSubstr("axis pp has 2 ranks")));
}

TEST(MessageCheck, PeersAreCountedWithinTheGroup) {
  const Mesh mesh = Lay({{"dp", 2}, {"pp", 2}});  // pp groups {0,2} and {1,3}
  Script from, to;
  from.Wait(from.Send("pp", 1, 0, "a", "send a"));
  to.Wait(to.Recv("pp", 0, 0, "a", "recv a"));
  EXPECT_EQ(Check(mesh, {from, from, to, to}), absl::OkStatus());
}

TEST(MessageCheck, ALineThatCannotBeReadIsShown) {
  EXPECT_THAT(std::string(CheckCommunication(Lay({}), {"wait 0\n"}).message()),
              HasSubstr("wait 0"));
  EXPECT_THAT(std::string(CheckCommunication(Lay({}), {"send pp x 0 a | op\n"}).message()),
              HasSubstr("send pp x 0 a"));
}

// ---- pipelines ---------------------------------------------------------------------------------

constexpr const char *kForward = "f32[2,8]", *kBackward = "f32[2,8]:grad";

// One stage of a pipeline: forward passes from stage to stage on channel 0, backward passes back on
// channel 1. A receive is waited for at once, by the compute that reads it; a send before the next
// one of its channel.
class Stage {
 public:
  Stage(int stage, int stages) : stage_(stage), stages_(stages) {}
  void Forward() {
    if (stage_ > 0) script_.Wait(script_.Recv("pp", stage_ - 1, 0, kForward, "recv"));
    if (stage_ + 1 < stages_) Send(sent_, stage_ + 1, 0, kForward);
  }
  void Backward() {
    if (stage_ + 1 < stages_) script_.Wait(script_.Recv("pp", stage_ + 1, 1, kBackward, "recv"));
    if (stage_ > 0) Send(sent_back_, stage_ - 1, 1, kBackward);
  }
  Script Done() {
    for (const int number : {sent_, sent_back_}) {
      if (number >= 0) script_.Wait(number);
    }
    return script_;
  }

 private:
  void Send(int& before, int peer, int channel, const char* what) {
    if (before >= 0) script_.Wait(before);
    before = script_.Send("pp", peer, channel, what, "send");
  }
  int stage_, stages_;
  int sent_ = -1, sent_back_ = -1;
  Script script_;
};

Script GPipe(int stage, int stages, int microbatches) {
  Stage s(stage, stages);
  for (int m = 0; m < microbatches; ++m) s.Forward();
  for (int m = 0; m < microbatches; ++m) s.Backward();
  return s.Done();
}

// One forward, one backward (Narayanan et al. 2021): a stage runs ahead by its distance to the last.
Script OneForwardOneBackward(int stage, int stages, int microbatches) {
  Stage s(stage, stages);
  const int ahead = std::min(microbatches, stages - 1 - stage);
  for (int m = 0; m < ahead; ++m) s.Forward();
  for (int m = ahead; m < microbatches; ++m) {
    s.Forward();
    s.Backward();
  }
  for (int m = 0; m < ahead; ++m) s.Backward();
  return s.Done();
}

TEST(PipelineCheck, SchedulesOfAnyDepthAndMicrobatchCountPass) {
  for (int stages = 2; stages <= 4; ++stages) {
    const Mesh mesh = Lay({{"pp", stages}});
    for (const int microbatches : {1, 2, 3, 4, 7, 16, 64}) {
      std::vector<Script> gpipe, one;
      for (int s = 0; s < stages; ++s) {
        gpipe.push_back(GPipe(s, stages, microbatches));
        one.push_back(OneForwardOneBackward(s, stages, microbatches));
      }
      EXPECT_EQ(Check(mesh, gpipe), absl::OkStatus()) << stages << " x " << microbatches;
      EXPECT_EQ(Check(mesh, one), absl::OkStatus()) << stages << " x " << microbatches;
    }
  }
}

// The last stage wants every forward first, the one before it a backward in between.
TEST(PipelineCheck, TwoSchedulesMixedAreACycle) {
  std::vector<Script> mixed = {OneForwardOneBackward(0, 2, 4), GPipe(1, 2, 4)};
  EXPECT_THAT(Refusal(Lay({{"pp", 2}}), mixed), HasSubstr("would never end"));
}

TEST(PipelineCheck, AStageWithOneMicrobatchLessIsNamed) {
  std::vector<Script> uneven = {GPipe(0, 3, 4), GPipe(1, 3, 4), GPipe(2, 3, 3)};
  EXPECT_THAT(Refusal(Lay({{"pp", 3}}), uneven),
              AllOf(HasSubstr("would never end"), HasSubstr("rank 2")));
}

}  // namespace
}  // namespace capstan::strategies_test
