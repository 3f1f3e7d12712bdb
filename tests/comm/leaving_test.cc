// Ranks that leave a group in order while others are still at what they did together.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "sdk/program.h"
#include "tests/comm/backend.h"
#include "tests/comm/ranks.h"

namespace capstan::test {
namespace {

// Counters of a run.
constexpr int kMade = 0;
constexpr int kStarted = 1;
constexpr int kReused = 2;
constexpr int kDone = 3;

// An operation of one rank on memory of its own.
class Work {
 public:
  Work(const Group& group, int32_t operation, uint64_t count, int32_t peer = 0)
      : data_(count, 1.0F) {
    auto item = sdk::sized<capstan_comm_item>();
    item.send = item.recv = data_.data();
    item.count = count;
    auto request = sdk::sized<capstan_comm_request>();
    request.operation = operation;
    request.dtype = sdk::kF32;
    request.peer = peer;
    request.item_count = count == 0 ? 0 : 1;
    request.items = &item;
    request.label = "work of a test";
    operation_ = std::make_unique<Prepared>(group, request);
  }
  float first() const { return data_[0]; }
  void start() { operation_->start(); }
  void wait() { operation_->wait(); }
  void run() { operation_->run(); }

 private:
  std::vector<float> data_;
  std::unique_ptr<Prepared> operation_;
};

RunResult RunTwo(const std::function<void(Rank&, const Backend&)>& body,
                 const std::vector<OptionValue>& options = {}) {
  return RunRanks(
      {.world = 2, .plugin = CAPSTAN_TEST_COMM_PLUGIN, .options = options}, [&](Rank& rank) {
        const Comm comm(rank);
        const Backend backend = {comm.vtable(), comm.self(), rank.rank(), rank.world(), {}};
        body(rank, backend);
      });
}

const std::vector<int32_t> kBoth = {0, 1};

// Rank 0 is gone from the group as soon as its part is done; rank 1 is about to look for it.
TEST(Leaving, WhatARankDidBeforeItLeftCounts) {
  const auto body = [](Rank& rank, const Backend& backend) {
    for (uint32_t round = 0; round < 200; ++round) {
      const Group group(backend, kBoth);
      const bool message = round % 2 == 0;
      const int32_t operation = !message           ? CAPSTAN_COMM_BARRIER
                                : rank.rank() == 0 ? CAPSTAN_COMM_SEND
                                                   : CAPSTAN_COMM_RECV;
      Work work(group, operation, message ? 10 : 0, 1 - rank.rank());
      if (rank.rank() == 1) work.start();
      rank.announce(kMade);
      rank.await(kMade, 2 * (round + 1), 20);
      if (rank.rank() == 0) work.start();
      work.wait();
    }
  };
  const OptionValue spin = {"spin_us", CAPSTAN_OPTION_INT, 100000, ""};
  EXPECT_EQ(RunTwo(body, {spin}).text(), "");
  EXPECT_EQ(RunTwo(body).text(), "");
}

// Rank 0 needs no more of an operation that rank 1 has started and not looked at yet, destroys the
// group, and prepares as much again.
TEST(Leaving, WhatOthersHaveStillToReadIsNotReused) {
  const RunResult result = RunTwo([](Rank& rank, const Backend& backend) {
    auto left = std::make_unique<Group>(backend, kBoth);
    const Group kept(backend, kBoth);
    auto sum = std::make_unique<Work>(*left, CAPSTAN_COMM_ALL_REDUCE, 100);
    if (rank.rank() == 1) {
      sum->start();
      rank.announce(kStarted);
      rank.expect(rank.await(kReused, 1, 20), "rank 0 did not finish");
      sum->wait();
      rank.expect(sum->first() == 2, "the sum is wrong");
      rank.announce(kDone);
      return;
    }
    rank.await(kStarted, 1, 20);
    sum->run();
    sum.reset();
    left.reset();
    const Work again(kept, CAPSTAN_COMM_ALL_REDUCE, 100);
    rank.announce(kReused);
    rank.await(kDone, 1, 20);
  });
  EXPECT_EQ(result.text(), "");
}

}  // namespace
}  // namespace capstan::test
