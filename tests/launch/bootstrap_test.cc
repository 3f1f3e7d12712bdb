// Ranks that meet: what each puts, all can get; who fails to come is named, and who does not belong stays
// out.
#include "runtime/launch/bootstrap.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <condition_variable>
#include <mutex>

#include "runtime/launch/bootstrap_server.h"
#include "runtime/launch/wire.h"
#include "runtime/status.h"
#include "tests/launch/harness.h"

namespace capstan {
namespace {

using launch_test::Folder;
using launch_test::OnEveryRank;
using launch_test::RankOf;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr double kLong = 60;  // never reached

std::string Message(const absl::Status& status) { return std::string(status.message()); }

// Ranks of a job whose store the test holds, as a launcher does.
class HeldJob {
 public:
  explicit HeldJob(int size, int epoch = 0) : size_(size), epoch_(epoch), secret_(64, 's') {
    BootstrapServer::Options options;
    options.size = size;
    options.epoch = epoch;
    options.secret = secret_;
    options.handshake_s = 1;
    absl::StatusOr<std::unique_ptr<BootstrapServer>> server = BootstrapServer::Start(options);
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  World Rank(int rank) const {
    World world = RankOf(rank, size_);
    world.launcher = Launcher::kEmbedded;
    world.address = "127.0.0.1";
    world.port = server_->port();
    world.secret = secret_;
    world.epoch = epoch_;
    return world;
  }
  std::unique_ptr<Bootstrap> Join(int rank, double timeout_s = kLong) const {
    absl::StatusOr<std::unique_ptr<Bootstrap>> joined =
        Bootstrap::Join(Rank(rank), {timeout_s, ""});
    EXPECT_TRUE(joined.ok()) << joined.status();
    return joined.ok() ? *std::move(joined) : nullptr;
  }
  BootstrapServer& server() { return *server_; }
  void EndServer() { server_.reset(); }

 private:
  const int size_, epoch_;
  const std::string secret_;
  std::unique_ptr<BootstrapServer> server_;
};

// A callback that can be waited for.
class Told {
 public:
  std::function<void(const absl::Status&)> callback() {
    return [this](const absl::Status& status) {
      std::lock_guard lock(mutex_);
      ++times_;
      status_ = status;
      changed_.notify_all();
    };
  }
  absl::Status Wait() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(30), [this] { return times_ > 0; });
    return status_;
  }
  int times() {
    std::lock_guard lock(mutex_);
    return times_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int times_ = 0;
  absl::Status status_;
};

TEST(BootstrapTest, RanksThatMeetThroughAFile) {
  constexpr int kSize = 4;
  const Folder folder;
  std::string jobs[kSize];
  OnEveryRank(kSize, [&](int r) {
    absl::StatusOr<std::unique_ptr<Bootstrap>> joined =
        Bootstrap::Join(RankOf(r, kSize), {kLong, folder.path()});
    ASSERT_TRUE(joined.ok()) << joined.status();
    Bootstrap& b = **joined;
    EXPECT_EQ(b.rank(), r);
    EXPECT_EQ(b.size(), kSize);
    jobs[r] = b.job();
    ASSERT_TRUE(b.Put(StrCat("key/", r), StrCat("value ", r)).ok());
    for (int other = 0; other < kSize; ++other) {
      const absl::StatusOr<std::string> got = b.Get(StrCat("key/", other));
      ASSERT_TRUE(got.ok()) << got.status();
      EXPECT_EQ(*got, StrCat("value ", other));
    }
    for (int round = 0; round < 50; ++round) {
      const absl::StatusOr<std::vector<std::string>> all =
          b.ExchangeStrings("round", StrCat(round, ".", r));
      ASSERT_TRUE(all.ok()) << all.status();
      for (int other = 0; other < kSize; ++other)
        EXPECT_EQ((*all)[other], StrCat(round, ".", other));
    }
    ASSERT_TRUE(b.Barrier("end").ok());
    EXPECT_TRUE(b.Finish().ok());
  });
  for (const std::string& job : jobs) EXPECT_EQ(job, jobs[0]);
  EXPECT_EQ(jobs[0].size(), 64u);
  EXPECT_TRUE(folder.List().empty()) << "nothing is left behind";
}

TEST(BootstrapTest, RanksThatShareASecretMeetAtAPort) {
  // A port nobody has: taken by a listener, then let go.
  int port = 0;
  {
    absl::StatusOr<Listener> listener = Listen("", 0, false);
    ASSERT_TRUE(listener.ok());
    port = listener->port;
  }
  OnEveryRank(3, [&](int r) {
    World world = RankOf(r, 3);
    world.address = "localhost";
    world.port = port;
    world.secret = std::string(32, 'k');
    absl::StatusOr<std::unique_ptr<Bootstrap>> joined = Bootstrap::Join(world, {kLong, ""});
    ASSERT_TRUE(joined.ok()) << joined.status();
    EXPECT_TRUE((*joined)->Barrier("b").ok());
    EXPECT_TRUE((*joined)->Finish().ok());
  });
}

TEST(BootstrapTest, AWorldOfOneNeedsNobody) {
  absl::StatusOr<std::unique_ptr<Bootstrap>> alone = Bootstrap::Join(World{}, {kLong, "/nowhere"});
  ASSERT_TRUE(alone.ok()) << alone.status();
  Bootstrap& b = **alone;
  ASSERT_TRUE(b.Put("k", "v").ok());
  EXPECT_EQ(*b.Get("k"), "v");
  EXPECT_TRUE(b.Barrier("b").ok());
  EXPECT_EQ(*b.ExchangeStrings("x", "mine"), std::vector<std::string>{"mine"});
  const absl::StatusOr<std::string> missing = b.Get("missing", 0.05);
  EXPECT_EQ(StatusClass(missing.status()), CAPSTAN_TIMEOUT);
  EXPECT_THAT(Message(missing.status()), HasSubstr("'missing'"));
  EXPECT_TRUE(b.Finish().ok());
}

TEST(BootstrapTest, LargeAndEmptyAndBinaryValues) {
  HeldJob job(2);
  OnEveryRank(2, [&](int r) {
    const std::unique_ptr<Bootstrap> b = job.Join(r);
    ASSERT_NE(b, nullptr);
    std::string large(5'000'000, '\0');
    for (size_t i = 0; i < large.size(); ++i) large[i] = static_cast<char>(i * 7 + r);
    ASSERT_TRUE(b->Put(StrCat("large/", r), large).ok());
    ASSERT_TRUE(b->Put(StrCat("empty/", r), "").ok());
    const absl::StatusOr<std::string> got = b->Get(StrCat("large/", 1 - r));
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_EQ(got->size(), large.size());
    EXPECT_EQ((*got)[1000], static_cast<char>(7000 + 1 - r));
    EXPECT_EQ(*b->Get(StrCat("empty/", 1 - r)), "");
    EXPECT_EQ(StatusClass(b->Put("huge", std::string((32u << 20) + 1, 'x'))), CAPSTAN_USAGE);
    EXPECT_TRUE(b->Finish().ok());
  });
}

TEST(BootstrapTest, ThreadsOfARankMayWaitAtOnce) {
  HeldJob job(2);
  const std::unique_ptr<Bootstrap> a = job.Join(0), b = job.Join(1);
  ASSERT_TRUE(a != nullptr && b != nullptr);
  OnEveryRank(16, [&](int thread) {
    const int t = thread % 8;
    if (thread >= 8) {
      ASSERT_TRUE(b->Put(StrCat("t", t), StrCat(t)).ok());
      return;
    }
    const absl::StatusOr<std::string> got = a->Get(StrCat("t", t));
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_EQ(*got, StrCat(t));
  });
}

// ---- deadlines ---------------------------------------------------------------------------------

TEST(BootstrapTest, ADeadlineNamesTheRankThatDidNotCome) {
  HeldJob job(3);
  OnEveryRank(3, [&](int r) {
    const std::unique_ptr<Bootstrap> b = job.Join(r, r == 2 ? kLong : 1);
    ASSERT_NE(b, nullptr);
    if (r == 2) {  // has joined, and does something else until the others gave up
      EXPECT_TRUE(b->Get("gave up/0").ok() && b->Get("gave up/1").ok());
      EXPECT_TRUE(b->Put("seen", "").ok() && b->Finish().ok());
      return;
    }
    const absl::Status late = b->Barrier("start");
    EXPECT_EQ(StatusClass(late), CAPSTAN_TIMEOUT);
    EXPECT_TRUE(IsRetryable(late));
    EXPECT_THAT(Message(late), HasSubstr("2 did not come to 'start' within 1 s"));
    ASSERT_TRUE(b->Put(StrCat("gave up/", r), "").ok());
    ASSERT_TRUE(b->Get("seen").ok());
    EXPECT_TRUE(b->Finish().ok());
  });
}

TEST(BootstrapTest, ADeadlineNamesTheRankThatNeverJoined) {
  HeldJob job(3);
  const std::unique_ptr<Bootstrap> a = job.Join(0, 0.2), b = job.Join(1);
  const absl::Status late = a->Barrier("start");
  EXPECT_EQ(CulpritRank(late), 2);
  EXPECT_THAT(Message(late), HasSubstr("rank 2 never joined"));
  const absl::StatusOr<std::string> got = a->Get("key", 0.1);
  EXPECT_EQ(CulpritRank(got.status()), 2);
  EXPECT_THAT(Message(got.status()), AllOf(HasSubstr("'key'"), HasSubstr("never joined: rank 2")));
}

TEST(BootstrapTest, WithoutRank0TheOthersSayWhatTheyLookedFor) {
  const Folder folder;
  const absl::StatusOr<std::unique_ptr<Bootstrap>> joined =
      Bootstrap::Join(RankOf(1, 2), {0.2, folder.path()});
  ASSERT_FALSE(joined.ok());
  EXPECT_EQ(StatusClass(joined.status()), CAPSTAN_TIMEOUT);
  EXPECT_EQ(CulpritRank(joined.status()), 0);
  EXPECT_THAT(Message(joined.status()),
              AllOf(HasSubstr("rank 1 could not join"), HasSubstr(folder.path()),
                    HasSubstr("was rank 0 started"), HasSubstr("CAPSTAN_JOB_SECRET")));
}

// ---- ends --------------------------------------------------------------------------------------

TEST(BootstrapTest, ARankThatIsGoneIsToldToAll) {
  HeldJob job(3);
  const std::unique_ptr<Bootstrap> a = job.Join(0), b = job.Join(1);
  std::unique_ptr<Bootstrap> c = job.Join(2);
  Told told;
  b->OnAbort(told.callback());
  c.reset();
  const absl::Status waited = a->Barrier("b");
  EXPECT_EQ(StatusClass(waited), CAPSTAN_PEER_LOST);
  EXPECT_EQ(CulpritRank(waited), 2);
  EXPECT_THAT(Message(waited), HasSubstr("rank 2 is gone"));
  EXPECT_EQ(CulpritRank(told.Wait()), 2) << "also one that does not wait here";
  EXPECT_EQ(StatusClass(b->Put("k", "v")), CAPSTAN_PEER_LOST);
  EXPECT_EQ(CulpritRank(b->state()), 2);
  EXPECT_EQ(told.times(), 1);
}

TEST(BootstrapTest, AbortTellsTheOthersWhy) {
  HeldJob job(3);
  const std::unique_ptr<Bootstrap> a = job.Join(0), b = job.Join(1), c = job.Join(2);
  Told told, own;
  a->OnAbort(told.callback());
  b->OnAbort(own.callback());
  b->Abort(DataError("shard 7 is cut short"));
  const absl::Status heard = told.Wait();
  EXPECT_EQ(StatusClass(heard), CAPSTAN_PEER_LOST);
  EXPECT_EQ(CulpritRank(heard), 1);
  EXPECT_EQ(Message(heard), "rank 1 failed: shard 7 is cut short");
  EXPECT_EQ(StatusClass(b->state()), CAPSTAN_DATA) << "its own words";
  // A rank that only reports another blames that one.
  EXPECT_EQ(CulpritRank(c->Barrier("b")), 1);
  EXPECT_EQ(own.times(), 0);
}

TEST(BootstrapTest, AReportOfAnotherRankKeepsThatCulprit) {
  HeldJob job(3);
  const std::unique_ptr<Bootstrap> a = job.Join(0), b = job.Join(1);
  b->Abort(MakeStatus(CAPSTAN_TIMEOUT, "rank 2 did not answer", true, 2));
  const absl::Status heard = a->Barrier("b");
  EXPECT_EQ(CulpritRank(heard), 2);
  EXPECT_EQ(Message(heard), "rank 1 reports: rank 2 did not answer");
}

TEST(BootstrapTest, OnAbortAfterTheFactIsCalledAtOnce) {
  HeldJob job(2);
  const std::unique_ptr<Bootstrap> a = job.Join(0);
  job.server().Abort(MakeStatus(CAPSTAN_PEER_LOST, "rank 1 was killed", true, 1));
  EXPECT_EQ(CulpritRank(a->Barrier("b")), 1);
  Told told;
  a->OnAbort(told.callback());
  EXPECT_EQ(told.times(), 1);
  a->OnAbort(nullptr);
  EXPECT_EQ(told.times(), 1);
}

TEST(BootstrapTest, AnOrderlyEndIsNoFailure) {
  HeldJob job(2);
  const std::unique_ptr<Bootstrap> a = job.Join(0);
  std::unique_ptr<Bootstrap> b = job.Join(1);
  ASSERT_TRUE(b->Finish().ok());
  b.reset();
  EXPECT_TRUE(a->Put("k", "v").ok());
  EXPECT_TRUE(a->state().ok());
  const absl::Status waited = a->Barrier("more");
  EXPECT_EQ(CulpritRank(waited), 1);
  EXPECT_THAT(Message(waited), HasSubstr("ended without coming to 'more'"));
}

TEST(BootstrapTest, TheHolderOfTheStoreWaitsForTheOthersToFinish) {
  const Folder folder;
  OnEveryRank(2, [&](int r) {
    absl::StatusOr<std::unique_ptr<Bootstrap>> b =
        Bootstrap::Join(RankOf(r, 2), {r == 0 ? 0.3 : kLong, folder.path()});
    ASSERT_TRUE(b.ok()) << b.status();
    if (r == 0) {
      const absl::Status waited = (*b)->Finish();
      EXPECT_EQ(StatusClass(waited), CAPSTAN_TIMEOUT);
      EXPECT_EQ(CulpritRank(waited), 1);
      EXPECT_THAT(Message(waited), HasSubstr("rank 1 did not finish"));
      b->reset();
    } else {
      const absl::StatusOr<std::string> got = (*b)->Get("never");
      EXPECT_EQ(StatusClass(got.status()), CAPSTAN_PEER_LOST);
      EXPECT_EQ(CulpritRank(got.status()), 0);
    }
  });
}

TEST(BootstrapTest, TheEndOfTheLauncherIsNoticed) {
  HeldJob job(2);
  const std::unique_ptr<Bootstrap> a = job.Join(0);
  Told told;
  a->OnAbort(told.callback());
  job.EndServer();
  EXPECT_THAT(Message(told.Wait()), HasSubstr("the rendezvous in the launcher is gone"));
}

// ---- who does not belong ------------------------------------------------------------------------

TEST(BootstrapTest, AProcessWithAnotherSecretStaysOut) {
  HeldJob job(2);
  World stranger = job.Rank(1);
  stranger.secret = std::string(64, 'x');
  const absl::StatusOr<std::unique_ptr<Bootstrap>> refused = Bootstrap::Join(stranger, {kLong, ""});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(StatusClass(refused.status()), CAPSTAN_USAGE);
  EXPECT_THAT(Message(refused.status()), HasSubstr("does not know this job's secret"));
  OnEveryRank(2, [&](int r) {
    const std::unique_ptr<Bootstrap> b = job.Join(r);
    EXPECT_TRUE(b->Barrier("the job goes on").ok());
    EXPECT_TRUE(b->Finish().ok());
  });
}

// Speaks the protocol but has no secret: repeats the server's own proof, or sends nothing of worth.
TEST(BootstrapTest, AForgedProofStaysOut) {
  HeldJob job(2);
  for (int forgery = 0; forgery < 3; ++forgery) {
    absl::StatusOr<Fd> fd = Connect("", job.Rank(0).port, InSeconds(10));
    ASSERT_TRUE(fd.ok()) << fd.status();
    const Digest nonce{};
    ASSERT_TRUE(SendAll(fd->get(),
                        Frame(MessageType::kHello)
                            .U32(Introduction::kMagic)
                            .U32(Introduction::kVersion)
                            .I32(1)
                            .I32(2)
                            .I32(0)
                            .Bytes(nonce)
                            .Done(),
                        InSeconds(10))
                    .ok());
    std::string buffer;
    std::optional<std::string> body;
    while (!body.has_value()) {
      ASSERT_TRUE(ReceiveSome(fd->get(), buffer, InSeconds(10)).ok());
      body = *TakeFrame(buffer, kHandshakeFrame);
    }
    Fields challenge(*body);
    challenge.U8();
    const Digest server_nonce = challenge.Bytes(), servers_proof = challenge.Bytes();
    ASSERT_TRUE(challenge.ok());
    const Digest forged = forgery == 0 ? servers_proof : (forgery == 1 ? server_nonce : Digest{});
    ASSERT_TRUE(
        SendAll(fd->get(), Frame(MessageType::kProof).Bytes(forged).Done(), InSeconds(10)).ok());
    EXPECT_EQ(StatusClass(ReceiveSome(fd->get(), buffer, InSeconds(10))), CAPSTAN_PEER_LOST)
        << "not a word of answer";
    EXPECT_TRUE(buffer.empty());
  }
  const std::unique_ptr<Bootstrap> a = job.Join(0), b = job.Join(1);
  EXPECT_TRUE(a != nullptr && b != nullptr) << "its place was not taken";
}

TEST(BootstrapTest, StrangersThatSayNothingOrNonsenseAreLetGo) {
  HeldJob job(2);
  std::vector<Fd> silent;
  for (int i = 0; i < 100; ++i) {  // more than the server has places for
    absl::StatusOr<Fd> fd = Connect("", job.Rank(0).port, InSeconds(10));
    ASSERT_TRUE(fd.ok()) << fd.status();
    if (i % 2 == 0) {
      SendAll(fd->get(), "GET / HTTP/1.1\r\n\r\n", InSeconds(10)).IgnoreError();
    }
    silent.push_back(*std::move(fd));
  }
  OnEveryRank(2, [&](int r) {
    const std::unique_ptr<Bootstrap> b = job.Join(r);
    ASSERT_NE(b, nullptr);
    EXPECT_TRUE(b->Barrier("in spite of them").ok());
    EXPECT_TRUE(b->Finish().ok());
  });
}

TEST(BootstrapTest, AListenerThatIsNotTheJobsIsNotTrusted) {
  HeldJob other(2);  // holds the port, and another secret
  World rank = other.Rank(1);
  rank.launcher = Launcher::kTorchrun;
  rank.secret = std::string(64, 'x');
  const absl::StatusOr<std::unique_ptr<Bootstrap>> joined = Bootstrap::Join(rank, {kLong, ""});
  EXPECT_THAT(Message(joined.status()), HasSubstr("another job has the port"));
}

TEST(BootstrapTest, RefusesWhatContradictsTheJob) {
  HeldJob job(2, /*epoch=*/1);
  World larger = job.Rank(1);
  larger.size = 4;
  EXPECT_THAT(Message(Bootstrap::Join(larger, {kLong, ""}).status()),
              AllOf(HasSubstr("rank 1 of 4"), HasSubstr("has 2 ranks")));
  World old = job.Rank(1);
  old.epoch = 0;
  EXPECT_THAT(Message(Bootstrap::Join(old, {kLong, ""}).status()),
              HasSubstr("left over from before a restart"));
  const std::unique_ptr<Bootstrap> a = job.Join(1);
  EXPECT_THAT(Message(Bootstrap::Join(job.Rank(1), {kLong, ""}).status()),
              HasSubstr("already has a rank 1"));
}

TEST(BootstrapTest, SeveralMachinesNeedAnAddress) {
  const Folder folder;
  for (const char* address : {"", "localhost", "127.0.0.1"}) {
    World world = RankOf(0, 4);
    world.local_size = 2;
    world.address = address;
    const absl::StatusOr<std::unique_ptr<Bootstrap>> joined =
        Bootstrap::Join(world, {kLong, folder.path()});
    ASSERT_FALSE(joined.ok());
    EXPECT_EQ(StatusClass(joined.status()), CAPSTAN_USAGE);
    EXPECT_THAT(Message(joined.status()),
                AllOf(HasSubstr("several machines"), HasSubstr("MASTER_ADDR")));
  }
}

TEST(BootstrapTest, TheJobIdTellsNothingOfTheSecretAndChangesWithTheEpoch) {
  const std::string secret(64, 's');
  EXPECT_NE(JobId(secret, 0), JobId(secret, 1));
  EXPECT_EQ(JobId(secret, 0).find(secret.substr(0, 8)), std::string::npos);
}

// ---- the plugins' view -------------------------------------------------------------------------

TEST(BootstrapServiceTest, PutsAndGets) {
  absl::StatusOr<std::unique_ptr<Bootstrap>> alone = Bootstrap::Join(World{}, {0.05, ""});
  ASSERT_TRUE(alone.ok());
  EXPECT_EQ(BootstrapPut(alone->get(), "k", "value", 5), nullptr);
  const void* value = nullptr;
  size_t size = 0;
  EXPECT_EQ(BootstrapGet(alone->get(), "k", &value, &size), nullptr);
  EXPECT_EQ(std::string(static_cast<const char*>(value), size), "value");
  EXPECT_EQ(StatusClass(FromC(BootstrapGet(alone->get(), "none", &value, &size))), CAPSTAN_TIMEOUT);
  EXPECT_EQ(StatusClass(FromC(BootstrapPut(nullptr, "k", "", 0))), CAPSTAN_UNSUPPORTED);
  EXPECT_EQ(StatusClass(FromC(BootstrapGet(nullptr, "k", &value, &size))), CAPSTAN_UNSUPPORTED);
}

}  // namespace
}  // namespace capstan
