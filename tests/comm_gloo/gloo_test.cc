// comm/gloo against the plain reference, and what it says when ranks fail each other.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <functional>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "sdk/error.h"
#include "sdk/program.h"
#include "tests/comm/conformance.h"
#include "tests/comm/ranks.h"

namespace capstan::test {
namespace {

OptionValue IntOption(const char* key, int64_t value) {
  return {key, CAPSTAN_OPTION_INT, value, ""};
}

RunOptions Options(int world, std::vector<OptionValue> options = {}) {
  RunOptions out;
  out.world = world;
  out.plugin = CAPSTAN_TEST_COMM_PLUGIN;
  out.options = std::move(options);
  return out;
}

using Check = ConformanceReport (*)(const capstan_comm_v1&, void*, int, int,
                                    const ConformanceOptions&);

void RunCheck(const RunOptions& options, Check check, bool quick) {
  const RunResult result = RunRanks(options, [&](Rank& rank) {
    const Comm comm(rank);
    ConformanceOptions chosen;
    chosen.quick = quick;
    const ConformanceReport report =
        check(comm.vtable(), comm.self(), rank.rank(), rank.world(), chosen);
    for (const std::string& failure : report.failures) rank.fail(failure);
    rank.expect(report.operations > 0, "checked nothing");
  });
  EXPECT_EQ(result.text(), "");
}

class GlooConformance : public testing::TestWithParam<int> {};

TEST_P(GlooConformance, EveryCollectiveGivesWhatTheReferenceGives) {
  RunCheck(Options(GetParam()), &RunConformance, GetParam() > 2);
}

TEST_P(GlooConformance, RanksThatDisagreeAreToldOnEveryRank) {
  if (GetParam() == 1) GTEST_SKIP() << "one rank agrees with itself";
  RunCheck(Options(GetParam()), &RunMismatches, false);
}

INSTANTIATE_TEST_SUITE_P(Worlds, GlooConformance, testing::Values(1, 2, 3));

TEST(GlooPieces, SmallOnesGiveTheSame) {
  RunCheck(Options(2, {IntOption("piece_bytes", 8192), IntOption("gathered_bytes", 0)}),
           &RunConformance, true);
}

TEST(GlooRequests, WrongOnesAreRefusedAtPrepare) {
  for (const int world : {1, 3}) RunCheck(Options(world), &RunBadRequests, true);
}

// A group of all ranks, and operations on one int64 of it.
class Party {
 public:
  explicit Party(Rank& rank) : rank_(rank), comm_(rank) {
    std::vector<int32_t> ranks(static_cast<size_t>(rank.world()));
    std::iota(ranks.begin(), ranks.end(), 0);
    sdk::check(comm_.vtable().group_create(comm_.self(), ranks.data(), ranks.size(), 0, &group_));
  }
  ~Party() { leave(); }

  void leave() {
    if (group_ != nullptr) comm_.vtable().group_destroy(comm_.self(), group_);
    group_ = nullptr;
  }
  void abort(const char* reason) { comm_.vtable().abort(comm_.self(), group_, reason); }

  void run(int32_t operation, const char* label, double seconds = 20, int32_t peer = 0,
           int32_t tag = 0) {
    int64_t value = 1;
    auto item = sdk::sized<capstan_comm_item>();
    item.send = operation == CAPSTAN_COMM_RECV ? nullptr : &value;
    item.recv = operation == CAPSTAN_COMM_SEND ? nullptr : &value;
    item.count = 1;
    auto request = sdk::sized<capstan_comm_request>();
    request.operation = operation;
    request.dtype = sdk::kI64;
    request.peer = peer;
    request.tag = tag;
    request.item_count = operation == CAPSTAN_COMM_BARRIER ? 0 : 1;
    request.items = &item;
    request.label = label;
    void* raw = nullptr;
    sdk::check(comm_.vtable().prepare(comm_.self(), group_, &request, &raw));
    struct Release {
      const Comm& comm;
      void* raw;
      ~Release() { comm.vtable().release(comm.self(), raw); }
    } release{comm_, raw};
    sdk::check(comm_.vtable().start(comm_.self(), raw, nullptr));
    sdk::check(comm_.vtable().wait(comm_.self(), raw, seconds));
  }
  void meet() { run(CAPSTAN_COMM_BARRIER, "meet"); }

  // The body ends with this class, culprit and part of the message, in a few seconds.
  void expect(int32_t code, int32_t culprit, const std::string& part,
              const std::function<void()>& body) {
    const auto begin = std::chrono::steady_clock::now();
    try {
      body();
      rank_.fail("no status");
    } catch (const sdk::Error& error) {
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      rank_.expect(error.code() == code && error.culprit_rank() == culprit &&
                       error.message().find(part) != std::string::npos && took.count() < 8,
                   sdk::text("class ", error.code(), ", culprit ", error.culprit_rank(), ", after ",
                             took.count(), " s: ", error.message()));
    }
  }

 private:
  Rank& rank_;
  Comm comm_;
  void* group_ = nullptr;
};

constexpr int kMet = 0;
constexpr int kDone = 1;

TEST(GlooFailures, AKilledRankIsNamedByAll) {
  const RunResult result = RunRanks(
      Options(3),
      [](Rank& rank) {
        Party party(rank);
        party.meet();
        rank.announce(kMet);
        if (rank.rank() == 1) rank.await(kDone, 1, 30);
        party.expect(CAPSTAN_PEER_LOST, 1, "rank 1",
                     [&] { party.run(CAPSTAN_COMM_ALL_REDUCE, "without one"); });
        party.expect(CAPSTAN_PEER_LOST, 1, "rank 1",
                     [&] { party.run(CAPSTAN_COMM_BARRIER, "afterwards"); });
      },
      [](Parent& parent) {
        parent.await(kMet, 3, 30);
        parent.signal(1, SIGKILL);
      });
  EXPECT_EQ(result.text({1}), "");
}

TEST(GlooFailures, ADeadlineNamesTheStoppedRank) {
  const RunResult result = RunRanks(
      Options(3),
      [](Rank& rank) {
        Party party(rank);
        party.meet();
        rank.announce(kMet);
        if (rank.rank() == 1) {
          rank.await(kDone, 1, 30);
          return;
        }
        if (rank.rank() == 2) {
          party.expect(CAPSTAN_PEER_LOST, 1, "not heard from: rank 1",
                       [&] { party.run(CAPSTAN_COMM_ALL_REDUCE, "with a stopped rank"); });
        } else {
          party.expect(CAPSTAN_TIMEOUT, 1, "not heard from: rank 1",
                       [&] { party.run(CAPSTAN_COMM_ALL_REDUCE, "with a stopped rank", 0.3); });
        }
        rank.announce(kDone);
      },
      [](Parent& parent) {
        parent.await(kMet, 3, 30);
        parent.signal(1, SIGSTOP);
        parent.await(kDone, 2, 30);
        parent.signal(1, SIGCONT);
      });
  EXPECT_EQ(result.text(), "");
}

TEST(GlooFailures, AbortWakesEveryRank) {
  const RunResult result = RunRanks(Options(3), [](Rank& rank) {
    Party party(rank);
    party.meet();
    rank.announce(kMet);
    rank.await(kMet, 3, 30);  // none of them still waits for the barrier
    if (rank.rank() == 2) party.abort("tired of waiting");
    party.expect(CAPSTAN_PEER_LOST, 2, "tired of waiting",
                 [&] { party.run(CAPSTAN_COMM_ALL_REDUCE, "never"); });
  });
  EXPECT_EQ(result.text(), "");
}

TEST(GlooFailures, ARankThatLeftIsNamed) {
  const RunResult result = RunRanks(Options(2), [](Rank& rank) {
    Party party(rank);
    party.meet();
    if (rank.rank() == 1) {
      party.leave();
      return;
    }
    party.expect(CAPSTAN_PEER_LOST, 1, "rank 1 has left",
                 [&] { party.run(CAPSTAN_COMM_ALL_REDUCE, "needs both"); });
  });
  EXPECT_EQ(result.text(), "");
}

TEST(GlooFailures, TagsThatDifferAreReported) {
  const RunResult result = RunRanks(Options(2), [](Rank& rank) {
    Party party(rank);
    if (rank.rank() == 0) {
      try {
        party.run(CAPSTAN_COMM_SEND, "tag four", 20, 1, 4);
      } catch (const sdk::Error& told) {  // if the receiver is faster than the sender's wait
        rank.expect(told.code() == CAPSTAN_BUG, told.message());
      }
      rank.await(kDone, 1, 30);
      return;
    }
    party.expect(CAPSTAN_BUG, 0, "'tag four' with tag 4",
                 [&] { party.run(CAPSTAN_COMM_RECV, "tag five", 20, 0, 5); });
    rank.announce(kDone);
  });
  EXPECT_EQ(result.text(), "");
}

TEST(GlooFailures, AMessageThatNeverComesRunsIntoItsDeadline) {
  const RunResult result = RunRanks(Options(2), [](Rank& rank) {
    Party party(rank);
    party.meet();
    if (rank.rank() == 0) {
      party.expect(CAPSTAN_TIMEOUT, 1, "'silence'",
                   [&] { party.run(CAPSTAN_COMM_RECV, "silence", 0.2, 1); });
      rank.announce(kDone);
    } else {
      rank.await(kDone, 1, 30);
      // The other one says why it ended the group.
      party.expect(CAPSTAN_PEER_LOST, 1, "'silence'",
                   [&] { party.run(CAPSTAN_COMM_BARRIER, "afterwards"); });
    }
  });
  EXPECT_EQ(result.text(), "");
}

TEST(GlooFailures, AGroupThatAMemberNeverMakesRunsIntoTheDeadline) {
  RunOptions options = Options(2);
  options.bootstrap_s = 1;
  const RunResult result = RunRanks(options, [](Rank& rank) {
    if (rank.rank() == 1) return;
    Party party(rank);
    party.expect(CAPSTAN_TIMEOUT, -1, "proofs/1",
                 [&] { party.run(CAPSTAN_COMM_BARRIER, "alone"); });
  });
  EXPECT_EQ(result.text(), "");
}

}  // namespace
}  // namespace capstan::test
