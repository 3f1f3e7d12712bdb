// How a rank gets its connection from a rendezvous that takes its time, or has news for it at once.
#include "runtime/launch/join.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "runtime/launch/bootstrap.h"
#include "runtime/status.h"
#include "tests/launch/harness.h"

namespace capstan {
namespace {

using launch_test::RankOf;
using ::testing::HasSubstr;

// A rendezvous that shakes hands with whoever comes, and says `welcome` when it has seen the proof.
class SlowRendezvous {
 public:
  SlowRendezvous(std::string welcome, int milliseconds)
      : welcome_(std::move(welcome)), milliseconds_(milliseconds) {
    absl::StatusOr<Listener> listener = Listen("", 0, false);
    EXPECT_TRUE(listener.ok()) << listener.status();
    listener_ = *std::move(listener);
    thread_ = std::thread([this] { Serve(); });
  }
  ~SlowRendezvous() {
    ::shutdown(listener_.fd.get(), SHUT_RDWR);
    thread_.join();
  }

  World Rank() const {
    World world = RankOf(1, 2);
    world.launcher = Launcher::kEmbedded;
    world.address = "127.0.0.1";
    world.port = listener_.port;
    world.secret = secret_;
    return world;
  }
  int admitted() const { return admitted_; }

 private:
  static std::string Receive(int fd) {
    std::string buffer;
    for (;;) {
      absl::StatusOr<std::optional<std::string>> body = TakeFrame(buffer, kHandshakeFrame);
      if (!body.ok()) return "";
      if (body->has_value()) return **body;
      if (!ReceiveSome(fd, buffer, InSeconds(10)).ok()) return "";
    }
  }

  void Serve() {
    std::vector<Fd> served;
    for (;;) {
      pollfd waiting{listener_.fd.get(), POLLIN, 0};
      ::poll(&waiting, 1, -1);
      Fd fd(::accept4(listener_.fd.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!fd.open()) return;
      const std::string body = Receive(fd.get());
      Fields hello(body);
      hello.U8();
      hello.U32();
      hello.U32();
      Introduction who;
      who.rank = hello.I32();
      who.size = hello.I32();
      who.epoch = hello.I32();
      who.client_nonce = hello.Bytes();
      EXPECT_TRUE(SendAll(fd.get(),
                          Frame(MessageType::kChallenge)
                              .Bytes(who.server_nonce)
                              .Bytes(ProofOfServer(secret_, who))
                              .Done(),
                          InSeconds(10))
                      .ok());
      const std::string proof = Receive(fd.get());
      EXPECT_EQ(proof.substr(1), AsText(ProofOfClient(secret_, who)));
      ++admitted_;
      ::poll(nullptr, 0, milliseconds_);
      SendAll(fd.get(), welcome_, InSeconds(10)).IgnoreError();
      served.push_back(std::move(fd));
    }
  }

  const std::string welcome_, secret_ = std::string(64, 's');
  const int milliseconds_;
  Listener listener_;
  std::atomic<int> admitted_{0};
  std::thread thread_;
};

// The rendezvous counts the rank as present by then: to come again would be to die.
TEST(JoinTest, AfterItsProofARankWaitsForItsWholeDeadline) {
  const SlowRendezvous slow(Frame(MessageType::kWelcome).Done(), 300);
  const absl::StatusOr<Joined> joined =
      JoinJob(slow.Rank(), "", /*timeout_s=*/30, /*attempt_s=*/0.2);
  ASSERT_TRUE(joined.ok()) << joined.status();
  EXPECT_TRUE(joined->connection.open());
  EXPECT_EQ(slow.admitted(), 1);
}

TEST(JoinTest, WhatFollowsTheWelcomeIsNotLost) {
  const absl::Status news = MakeStatus(CAPSTAN_PEER_LOST, "rank 0 is gone", true, 0);
  const SlowRendezvous slow(
      Frame(MessageType::kWelcome).Done() + Frame(MessageType::kAborted).Status(news).Done(), 0);
  absl::StatusOr<std::unique_ptr<Bootstrap>> joined = Bootstrap::Join(slow.Rank(), {30, ""});
  ASSERT_TRUE(joined.ok()) << joined.status();
  std::mutex mutex;
  std::condition_variable changed;
  absl::Status told;
  (*joined)->OnAbort([&](const absl::Status& status) {
    const std::lock_guard lock(mutex);
    told = status;
    changed.notify_all();
  });
  {
    std::unique_lock lock(mutex);
    changed.wait_for(lock, std::chrono::seconds(20), [&] { return !told.ok(); });
  }
  (*joined)->OnAbort(nullptr);
  EXPECT_EQ(CulpritRank(told), 0);
  EXPECT_THAT(std::string(told.message()), HasSubstr("rank 0 is gone"));
}

}  // namespace
}  // namespace capstan
