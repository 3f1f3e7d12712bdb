// What a rank writes about itself is what its launcher reads, at any moment.
#include "runtime/launch/rank_status.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "runtime/status.h"

namespace capstan {
namespace {

World RankWithPages(const StatusPages& pages, int rank) {
  World world;
  world.rank = rank;
  world.size = 3;
  world.status_fd = pages.fd();
  return world;
}

TEST(RankStatusTest, AnUntouchedPageSaysSo) {
  absl::StatusOr<StatusPages> pages = StatusPages::Create(3);
  ASSERT_TRUE(pages.ok()) << pages.status();
  const RankSnapshot s = pages->Read(1);
  EXPECT_FALSE(s.attached);
  EXPECT_FALSE(s.failed);
  EXPECT_EQ(s.step, -1);
  EXPECT_EQ(s.waiting_for, -1);
}

TEST(RankStatusTest, TheLauncherReadsWhatTheRankWrites) {
  absl::StatusOr<StatusPages> pages = StatusPages::Create(3);
  ASSERT_TRUE(pages.ok()) << pages.status();
  absl::StatusOr<RankStatus> status = RankStatus::Open(RankWithPages(*pages, 2));
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_TRUE(status->watched());
  EXPECT_TRUE(pages->Read(2).attached);
  EXPECT_EQ(pages->Read(2).state, RankState::kStarting);

  status->SetStep(16);
  status->SetOp(OpLabel("all_reduce(@wte.grad)"), 3, RankState::kCommunicating);
  status->SetDeadline(2.5);
  RankSnapshot s = pages->Read(2);
  EXPECT_EQ(s.step, 16);
  EXPECT_EQ(s.microbatch, 3);
  EXPECT_EQ(s.op, "all_reduce(@wte.grad)");
  EXPECT_EQ(s.state, RankState::kCommunicating);
  EXPECT_EQ(s.deadline_s, 2.5);

  status->SetState(RankState::kWaiting);
  EXPECT_EQ(pages->Read(2).waiting_for, -1);
  status->SetAwaited(status->writes() - 1, 0);
  EXPECT_EQ(pages->Read(2).waiting_for, -1) << "what was found out of an op before";
  status->SetAwaited(status->writes(), 1);
  s = pages->Read(2);
  EXPECT_EQ(s.state, RankState::kWaiting);
  EXPECT_EQ(s.waiting_for, 1);
  EXPECT_EQ(s.op, "all_reduce(@wte.grad)") << "the op stays";
  EXPECT_EQ(s.microbatch, 3);

  status->SetState(RankState::kFinishing);
  EXPECT_EQ(pages->Read(2).state, RankState::kFinishing);
  EXPECT_EQ(pages->Read(2).waiting_for, -1);
  EXPECT_FALSE(pages->Read(0).attached) << "another rank's page";
}

TEST(RankStatusTest, TheFirstFailureIsKept) {
  absl::StatusOr<StatusPages> pages = StatusPages::Create(3);
  ASSERT_TRUE(pages.ok());
  absl::StatusOr<RankStatus> status = RankStatus::Open(RankWithPages(*pages, 0));
  ASSERT_TRUE(status.ok());
  status->Fail(absl::OkStatus());
  EXPECT_FALSE(pages->Read(0).failed);
  status->Fail(MakeStatus(CAPSTAN_PEER_LOST, "rank 1 is gone", true, 1));
  status->Fail(DataError("a consequence"));
  const RankSnapshot s = pages->Read(0);
  EXPECT_TRUE(s.failed);
  EXPECT_EQ(s.status_class, CAPSTAN_PEER_LOST);
  EXPECT_TRUE(s.retryable);
  EXPECT_EQ(s.culprit, 1);
  EXPECT_EQ(s.message, "rank 1 is gone");
}

TEST(RankStatusTest, OpenedAgainThePageKeepsWhatItSays) {
  absl::StatusOr<StatusPages> pages = StatusPages::Create(3);
  ASSERT_TRUE(pages.ok());
  absl::StatusOr<RankStatus> first = RankStatus::Open(RankWithPages(*pages, 0));
  ASSERT_TRUE(first.ok());
  first->SetStep(4);
  first->SetOp(OpLabel("linear"), 1);
  absl::StatusOr<RankStatus> second = RankStatus::Open(RankWithPages(*pages, 0));
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(pages->Read(0).op, "linear");
  second->SetState(RankState::kFinishing);
  EXPECT_EQ(pages->Read(0).step, 4);
  EXPECT_EQ(pages->Read(0).op, "linear");
  EXPECT_EQ(pages->Read(0).state, RankState::kFinishing);
}

TEST(RankStatusTest, LongTextsAreCutBetweenCharacters) {
  EXPECT_EQ(OpLabel(std::string(200, 'x')).Text(), std::string(95, 'x'));
  const std::string accented = std::string(94, 'x') + "\xc3\xa9";  // 2 bytes that do not fit
  EXPECT_EQ(OpLabel(accented).Text(), std::string(94, 'x'));
  EXPECT_EQ(OpLabel("").Text(), "");

  absl::StatusOr<StatusPages> pages = StatusPages::Create(1);
  ASSERT_TRUE(pages.ok());
  World world = RankWithPages(*pages, 0);
  world.size = 1;
  absl::StatusOr<RankStatus> status = RankStatus::Open(world);
  ASSERT_TRUE(status.ok());
  status->Fail(UsageError(std::string(100000, 'm')));
  EXPECT_GT(pages->Read(0).message.size(), 7000u);
  EXPECT_LT(pages->Read(0).message.size(), 8192u);
}

TEST(RankStatusTest, WithoutALauncherItWritesToMemoryOfItsOwn) {
  absl::StatusOr<RankStatus> status = RankStatus::Open(World{});
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_FALSE(status->watched());
  status->SetStep(1);
  status->SetOp(OpLabel("linear"), 0);
  status->Fail(DataError("x"));
}

TEST(RankStatusTest, RefusesADescriptorThatIsNotTheLaunchers) {
  World world;
  world.size = 2;
  world.status_fd = 9999;
  const absl::StatusOr<RankStatus> closed = RankStatus::Open(world);
  ASSERT_FALSE(closed.ok());
  EXPECT_EQ(StatusClass(closed.status()), CAPSTAN_USAGE);
  const int other = ::memfd_create("other", MFD_CLOEXEC);
  ASSERT_EQ(::ftruncate(other, 1 << 20), 0);
  world.status_fd = other;
  EXPECT_FALSE(RankStatus::Open(world).ok());
  ::close(other);
}

TEST(RankStatusTest, NoRankCanCutTheMemoryShort) {
  absl::StatusOr<StatusPages> pages = StatusPages::Create(2);
  ASSERT_TRUE(pages.ok());
  EXPECT_NE(::ftruncate(pages->fd(), 0), 0);
}

// Step, microbatch and op always belong together, though the rank never waits for a reader.
TEST(RankStatusTest, AReaderSeesWholeWrites) {
  absl::StatusOr<StatusPages> pages = StatusPages::Create(1);
  ASSERT_TRUE(pages.ok());
  std::atomic<bool> stop{false};
  std::atomic<int64_t> written{0};
  std::thread rank([&] {
    World world = RankWithPages(*pages, 0);
    absl::StatusOr<RankStatus> status = RankStatus::Open(world);
    OpLabel labels[10];
    for (int i = 0; i < 10; ++i) labels[i] = OpLabel(std::string(95, static_cast<char>('0' + i)));
    for (int64_t n = 0; !stop; ++n) {
      status->SetStep(n);
      status->SetOp(labels[n % 10], static_cast<int32_t>(n % 10));
      written = n;
      if (n % 64 == 0) std::this_thread::yield();
    }
  });
  while (written < 1) std::this_thread::yield();
  int torn = 0;
  for (int i = 0; i < 20000; ++i) {
    const RankSnapshot s = pages->Read(0);
    if (s.step < 0) continue;
    const auto digit = static_cast<int>(s.step % 10);
    torn +=
        s.microbatch != digit || s.op != std::string(95, static_cast<char>('0' + digit)) ? 1 : 0;
  }
  stop = true;
  rank.join();
  EXPECT_EQ(torn, 0);
}

TEST(RankStatusTest, APageOutlivesARankKilledAtAnyMoment) {
  for (int trial = 0; trial < 20; ++trial) {
    absl::StatusOr<StatusPages> pages = StatusPages::Create(1);
    ASSERT_TRUE(pages.ok());
    const pid_t child = ::fork();
    if (child == 0) {
      absl::StatusOr<RankStatus> status = RankStatus::Open(RankWithPages(*pages, 0));
      const OpLabel labels[2] = {OpLabel(std::string(95, 'a')), OpLabel(std::string(95, 'b'))};
      for (int64_t n = 0;; ++n) {
        status->SetStep(n);
        status->SetOp(labels[n % 2], static_cast<int32_t>(n % 2));
      }
    }
    while (pages->Read(0).step < trial * 1000) ::sched_yield();
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    const RankSnapshot s = pages->Read(0);
    EXPECT_EQ(s.microbatch, s.step % 2);
    EXPECT_EQ(s.op, std::string(95, s.step % 2 == 0 ? 'a' : 'b'));
  }
}

}  // namespace
}  // namespace capstan
