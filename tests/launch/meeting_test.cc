// The rules of the rendezvous, without sockets or time: who gets which answer, and whom errors name.
#include "runtime/launch/meeting.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "runtime/status.h"

namespace capstan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Answered {
  int rank = -1;
  MessageType type{};
  uint64_t id = 0;
  absl::Status status;
  std::string value;
};

class MeetingTest : public ::testing::Test {
 protected:
  void JoinAll(Meeting& meeting) {
    for (int r = 0; r < meeting.size(); ++r) ASSERT_TRUE(meeting.Join(r).ok());
  }

  static void Send(Meeting& meeting, int rank, Frame frame) {
    const absl::Status status = meeting.Handle(rank, frame.Done().substr(4));
    ASSERT_TRUE(status.ok()) << status;
  }
  static void Put(Meeting& m, int rank, uint64_t id, std::string_view key, std::string_view value) {
    Send(m, rank, Frame(MessageType::kPut).U64(id).Text(key).Text(value));
  }
  static void Get(Meeting& m, int rank, uint64_t id, std::string_view key, double seconds) {
    Send(m, rank, Frame(MessageType::kGet).U64(id).Text(key).F64(seconds));
  }
  static void Come(Meeting& m, int rank, uint64_t id, std::string_view name, double seconds,
                   std::string_view value = "") {
    Send(m, rank, Frame(MessageType::kExchange).U64(id).Text(name).F64(seconds).Text(value));
  }

  static std::vector<Answered> Answers(Meeting& meeting) {
    std::vector<Answered> answers;
    for (const Meeting::Answer& a : meeting.TakeAnswers()) {
      const std::string body = a.head.substr(4) + (a.end == nullptr ? "" : *a.end);
      Fields fields(body);
      Answered answer;
      answer.rank = a.rank;
      answer.type = static_cast<MessageType>(fields.U8());
      if (answer.type == MessageType::kReply) answer.id = fields.U64();
      answer.status = fields.Status();
      if (answer.type == MessageType::kReply) answer.value = std::string(fields.Text());
      EXPECT_TRUE(fields.ok());
      answers.push_back(answer);
    }
    return answers;
  }
  static Answered Only(Meeting& meeting) {
    const std::vector<Answered> answers = Answers(meeting);
    EXPECT_EQ(answers.size(), 1u);
    return answers.empty() ? Answered() : answers[0];
  }
  static std::string Message(const Answered& a) { return std::string(a.status.message()); }
};

TEST_F(MeetingTest, AGetWaitsForThePut) {
  Meeting meeting(2);
  JoinAll(meeting);
  Get(meeting, 1, 7, "k", 10);
  EXPECT_TRUE(Answers(meeting).empty());
  Put(meeting, 0, 1, "k", "v");
  const std::vector<Answered> answers = Answers(meeting);
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_EQ(answers[0].rank, 1);
  EXPECT_EQ(answers[0].id, 7u);
  EXPECT_EQ(answers[0].value, "v");
  EXPECT_EQ(answers[1].rank, 0) << "the writer is told as well";
  Get(meeting, 0, 2, "k", 10);
  EXPECT_EQ(Only(meeting).value, "v");
}

TEST_F(MeetingTest, AnExchangeEndsWithTheLastRank) {
  Meeting meeting(3);
  JoinAll(meeting);
  Come(meeting, 2, 1, "x", 10, "c");
  Come(meeting, 0, 1, "x", 10, "a");
  EXPECT_TRUE(Answers(meeting).empty());
  Come(meeting, 1, 1, "x", 10, "b");
  const std::vector<Answered> answers = Answers(meeting);
  ASSERT_EQ(answers.size(), 3u);
  for (const Answered& a : answers) {
    Fields fields(a.value);
    EXPECT_EQ(fields.Text(), "a");
    EXPECT_EQ(fields.Text(), "b");
    EXPECT_EQ(fields.Text(), "c");
  }
  Come(meeting, 0, 2, "x", 10);
  EXPECT_TRUE(Answers(meeting).empty()) << "the name begins anew";
}

// However many ranks there are, one that speaks alone may say as much as all of them together.
TEST_F(MeetingTest, AnExchangeIsLimitedByWhatAllRanksSayTogether) {
  Meeting meeting(8);
  JoinAll(meeting);
  const std::string large(kLongestValue, 'x');
  for (int r = 0; r < 8; ++r) Come(meeting, r, 1, "lead", 10, r == 0 ? large : "");
  const std::vector<Answered> answers = Answers(meeting);
  ASSERT_EQ(answers.size(), 8u);
  for (const Answered& a : answers) {
    EXPECT_TRUE(a.status.ok()) << a.status;
    EXPECT_EQ(a.value.size(), kLongestValue + 8 * sizeof(uint32_t));
  }
  Come(meeting, 3, 2, "all", 10, large);
  EXPECT_TRUE(Answers(meeting).empty());
  Come(meeting, 5, 2, "all", 10, "y");
  const std::vector<Answered> refused = Answers(meeting);
  ASSERT_EQ(refused.size(), 2u);
  for (const Answered& a : refused) {
    EXPECT_EQ(StatusClass(a.status), CAPSTAN_USAGE);
    EXPECT_THAT(Message(a), AllOf(HasSubstr("'all'"), HasSubstr("33554433 bytes")));
  }
}

TEST_F(MeetingTest, ALateExchangeNamesTheMissingToEveryWaiter) {
  Meeting meeting(4);
  for (const int r : {0, 1, 2}) ASSERT_TRUE(meeting.Join(r).ok());
  Come(meeting, 0, 1, "start", 3);
  Come(meeting, 1, 1, "start", 1000);
  meeting.Expire(InSeconds(5));
  const std::vector<Answered> answers = Answers(meeting);
  ASSERT_EQ(answers.size(), 2u);
  for (const Answered& a : answers) {
    EXPECT_EQ(StatusClass(a.status), CAPSTAN_TIMEOUT);
    EXPECT_EQ(CulpritRank(a.status), 3) << "the one that never joined";
    EXPECT_THAT(Message(a), AllOf(HasSubstr("ranks 2 and 3 did not come to 'start' within 3 s"),
                                  HasSubstr("rank 3 never joined")));
  }
  Come(meeting, 2, 1, "start", 1000);
  EXPECT_EQ(StatusClass(Only(meeting).status), CAPSTAN_TIMEOUT) << "no use waiting for the others";
}

TEST_F(MeetingTest, ARankThatWaitsElsewhereIsNotBlamedForBeingLate) {
  Meeting meeting(3);
  JoinAll(meeting);
  Come(meeting, 1, 1, "step", 3);
  Get(meeting, 2, 1, "s3/0", 1000);
  meeting.Expire(InSeconds(5));
  const Answered a = Only(meeting);
  EXPECT_EQ(CulpritRank(a.status), 0);
  EXPECT_THAT(Message(a), AllOf(HasSubstr("ranks 0 and 2 did not come to 'step'"),
                                HasSubstr("rank 2 waits for the key 's3/0' instead")));
}

TEST_F(MeetingTest, ALateKeyNamesWhoIsBusyElsewhere) {
  Meeting meeting(3);
  JoinAll(meeting);
  Get(meeting, 0, 1, "k", 2);
  Get(meeting, 1, 1, "other", 1000);
  meeting.Expire(InSeconds(3));
  const Answered a = Only(meeting);
  EXPECT_EQ(a.rank, 0);
  EXPECT_EQ(StatusClass(a.status), CAPSTAN_TIMEOUT);
  EXPECT_EQ(CulpritRank(a.status), 2);
  EXPECT_THAT(Message(a), AllOf(HasSubstr("rank 0 waited 2 s for the key 'k'"),
                                HasSubstr("busy elsewhere: rank 2")));
}

TEST_F(MeetingTest, KeysThatAllWaitForAreCalledSo) {
  Meeting meeting(2);
  JoinAll(meeting);
  Get(meeting, 0, 1, "a", 2);
  Get(meeting, 1, 1, "b", 1000);
  meeting.Expire(InSeconds(3));
  EXPECT_THAT(Message(Only(meeting)), HasSubstr("every rank waits here"));
}

TEST_F(MeetingTest, TheNextDeadlineIsTheEarliest) {
  Meeting meeting(2);
  JoinAll(meeting);
  EXPECT_EQ(meeting.NextDeadline(), SteadyTime::max());
  Get(meeting, 0, 1, "a", 100);
  Come(meeting, 1, 1, "x", 50);
  EXPECT_GT(meeting.NextDeadline(), InSeconds(40));
  EXPECT_LT(meeting.NextDeadline(), InSeconds(60));
}

TEST_F(MeetingTest, WeirdTimeoutsAreBounded) {
  Meeting meeting(2);
  JoinAll(meeting);
  for (const double seconds : {-1.0, 1e300, std::numeric_limits<double>::quiet_NaN()}) {
    Get(meeting, 0, 1, "a", seconds);
  }
  meeting.Expire(InSeconds(1));
  EXPECT_EQ(Answers(meeting).size(), 1u) << "the negative one";
}

TEST_F(MeetingTest, ALostRankEndsTheJobForAll) {
  Meeting meeting(3);
  JoinAll(meeting);
  Get(meeting, 0, 1, "k", 100);
  Come(meeting, 2, 5, "x", 100);
  meeting.Lost(1);
  std::set<int> replied, told;
  for (const Answered& a : Answers(meeting)) {
    EXPECT_EQ(StatusClass(a.status), CAPSTAN_PEER_LOST);
    EXPECT_EQ(CulpritRank(a.status), 1);
    EXPECT_THAT(Message(a), HasSubstr("rank 1 is gone"));
    (a.type == MessageType::kReply ? replied : told).insert(a.rank);
  }
  EXPECT_EQ(replied, (std::set<int>{0, 2}));
  EXPECT_EQ(told, (std::set<int>{0, 2}));
  Put(meeting, 0, 2, "k", "v");
  EXPECT_EQ(StatusClass(Only(meeting).status), CAPSTAN_PEER_LOST) << "and stays so";
}

TEST_F(MeetingTest, AGoodbyeIsNoLoss) {
  Meeting meeting(2);
  JoinAll(meeting);
  Send(meeting, 1, Frame(MessageType::kBye));
  meeting.Lost(1);
  EXPECT_TRUE(meeting.aborted().ok());
  EXPECT_FALSE(meeting.AllLeft());
  Send(meeting, 0, Frame(MessageType::kBye));
  EXPECT_TRUE(meeting.AllLeft());
}

TEST_F(MeetingTest, WhoWaitsForARankThatSaidGoodbyeNeedNotWaitOn) {
  Meeting meeting(3);
  JoinAll(meeting);
  Come(meeting, 0, 1, "x", 1000);
  Send(meeting, 2, Frame(MessageType::kBye));
  const Answered a = Only(meeting);
  EXPECT_EQ(CulpritRank(a.status), 2);
  EXPECT_THAT(Message(a), HasSubstr("rank 2 ended without coming to 'x'"));
  Come(meeting, 1, 1, "y", 1000);
  EXPECT_EQ(CulpritRank(Only(meeting).status), 2) << "nor who comes later";
}

TEST_F(MeetingTest, TwoProcessesCannotBeOneRank) {
  Meeting meeting(2);
  ASSERT_TRUE(meeting.Join(1).ok());
  const absl::Status again = meeting.Join(1);
  EXPECT_EQ(StatusClass(again), CAPSTAN_USAGE);
  EXPECT_THAT(std::string(again.message()), HasSubstr("already has a rank 1"));
}

TEST_F(MeetingTest, NobodyJoinsAJobThatHasEnded) {
  Meeting meeting(2);
  ASSERT_TRUE(meeting.Join(0).ok());
  meeting.Abort(MakeStatus(CAPSTAN_PEER_LOST, "over", true, 0));
  EXPECT_EQ(StatusClass(meeting.Join(1)), CAPSTAN_PEER_LOST);
}

TEST_F(MeetingTest, BrokenMessagesAreRefusedNotObeyed) {
  Meeting meeting(2);
  JoinAll(meeting);
  EXPECT_FALSE(meeting.Handle(0, "").ok());
  EXPECT_FALSE(meeting.Handle(0, "\x7f").ok());
  const std::string put = Frame(MessageType::kPut).U64(1).Text("key").Text("value").Done();
  for (size_t n = 5; n < put.size(); ++n) {
    EXPECT_FALSE(meeting.Handle(0, put.substr(4, n - 4)).ok()) << n;
  }
  EXPECT_FALSE(meeting.Handle(0, Frame(MessageType::kAbort).I32(0).Done().substr(4)).ok());
  EXPECT_TRUE(Answers(meeting).empty());
  EXPECT_TRUE(meeting.aborted().ok());
}

TEST(RanksTextTest, ReadsAsASentence) {
  EXPECT_EQ(RanksText({2}), "rank 2");
  EXPECT_EQ(RanksText({0, 3}), "ranks 0 and 3");
  EXPECT_EQ(RanksText({0, 1, 3}), "ranks 0, 1 and 3");
}

// ---- frames ------------------------------------------------------------------------------------

TEST(FrameTest, ComesOutInWholePieces) {
  const std::string one = Frame(MessageType::kBye).Done();
  const std::string two = Frame(MessageType::kGet).U64(3).Text("k").F64(1).Done();
  std::string buffer;
  const std::string both = one + two;
  std::vector<std::string> bodies;
  for (const char c : both) {
    buffer += c;
    absl::StatusOr<std::optional<std::string>> body = TakeFrame(buffer, 100);
    ASSERT_TRUE(body.ok());
    if (body->has_value()) bodies.push_back(**body);
  }
  EXPECT_EQ(bodies, (std::vector<std::string>{one.substr(4), two.substr(4)}));
  EXPECT_TRUE(buffer.empty());
}

TEST(FrameTest, RefusesWhatIsTooLongOrEmpty) {
  std::string http = "GET / HTTP/1.1\r\n";
  EXPECT_FALSE(TakeFrame(http, kLongestFrame).ok());
  std::string empty(4, '\0');
  EXPECT_FALSE(TakeFrame(empty, 100).ok());
}

}  // namespace
}  // namespace capstan
