// Ranks that die, stop or are late: everyone else is told who, in time, whatever they were doing.
//
// CAPSTAN_COMM_TRIALS sets the number of trials of each kind; the suite runs a few.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <random>

#include "sdk/error.h"
#include "sdk/program.h"
#include "tests/comm/backend.h"
#include "tests/comm/ranks.h"

namespace capstan::test {
namespace {

using Clock = std::chrono::steady_clock;

double Since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

int Trials(int usual) {
  const char* asked = std::getenv("CAPSTAN_COMM_TRIALS");
  return asked != nullptr ? std::atoi(asked) : usual;
}

// Counters of a run: one a rank for its turns, one for the ranks that have been told, one for those
// that have made the group.
constexpr int kTold = 32;
constexpr int kReady = 33;

enum class Where { kBeforeStart, kBetween, kAfterWait, kAnywhere };

struct Trial {
  int world = 2;
  int victim = 0;
  int signal = SIGKILL;
  Where where = Where::kAnywhere;
  uint32_t turn = 0;        // of the victim, at which it happens
  int microseconds = 0;     // after the turn began, kAnywhere
  uint64_t count = 100;     // elements
  bool registered = false;  // the buffers
  bool staged = false;      // unregistered buffers are copied by their owner
  double deadline_s = 10;

  std::string describe() const {
    return sdk::text("world ", world, ", signal ", signal, " for rank ", victim, " at turn ", turn,
                     ", place ", static_cast<int>(where), " + ", microseconds, " us, ", count,
                     " elements, registered ", registered, ", staged ", staged);
  }
};

Trial RandomTrial(std::mt19937& random, int signal) {
  const auto pick = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  Trial trial;
  trial.world = 2 + pick(3);
  trial.victim = pick(trial.world);
  trial.signal = signal;
  trial.where = static_cast<Where>(pick(4));
  trial.turn = static_cast<uint32_t>(pick(20));
  trial.microseconds = pick(400);
  const uint64_t counts[] = {1, 100, 5000, 200000};
  trial.count = counts[pick(4)];
  trial.registered = pick(2) == 0;
  trial.staged = pick(4) == 0;
  return trial;
}

// A collective or a message of a rank, over memory of its own.
class Work {
 public:
  Work(Rank& rank, const Comm& comm, const Trial& trial)
      : comm_(comm), arena_(std::max<size_t>(trial.count * sizeof(float), 4096)) {
    const capstan_comm_v1& v = comm.vtable();
    if (trial.registered) {
      sdk::check(v.memory_register(comm.self(), arena_.data(), arena_.bytes(), arena_.fd(), 0));
    }
    std::vector<int32_t> ranks;
    for (int r = 0; r < rank.world(); ++r) ranks.push_back(r);
    sdk::check(v.group_create(comm.self(), ranks.data(), ranks.size(), 0, &group_));
    auto item = sdk::sized<capstan_comm_item>();
    item.send = item.recv = arena_.data();
    item.count = trial.count;
    auto request = sdk::sized<capstan_comm_request>();
    request.operation = CAPSTAN_COMM_ALL_REDUCE;
    request.dtype = sdk::kF32;
    request.item_count = 1;
    request.items = &item;
    request.label = "gradients of a trial";
    sdk::check(v.prepare(comm.self(), group_, &request, &operation_));
    rank.announce(kReady);
    rank.await(kReady, static_cast<uint32_t>(rank.world()), 20);
  }
  ~Work() {
    comm_.vtable().release(comm_.self(), operation_);
    comm_.vtable().group_destroy(comm_.self(), group_);
  }
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  void* group() const { return group_; }
  capstan_status* start() const { return comm_.vtable().start(comm_.self(), operation_, nullptr); }
  capstan_status* wait(double seconds) const {
    return comm_.vtable().wait(comm_.self(), operation_, seconds);
  }
  capstan_status* poll() const {
    auto progress = sdk::sized<capstan_comm_progress>();
    return comm_.vtable().poll(comm_.self(), group_, &progress);
  }

 private:
  const Comm& comm_;
  SharedArena arena_;
  void* group_ = nullptr;
  void* operation_ = nullptr;
};

// A status says what it should, and is released.
void Examine(Rank& rank, capstan_status* status, int32_t code, int culprit,
             const std::string& part) {
  if (status == nullptr) {
    rank.fail(sdk::text("a call succeeded after the group had ended (", part, ")"));
    return;
  }
  const std::string message = status->message;
  rank.expect(status->code == code,
              sdk::text("class ", status->code, ", not ", code, ": ", message));
  rank.expect(status->culprit_rank == culprit,
              sdk::text("culprit ", status->culprit_rank, ", not ", culprit, ": ", message));
  rank.expect(message.find(part) != std::string::npos,
              sdk::text("the message lacks '", part, "': ", message));
  status->release(status);
}

// Turns until one fails; the victim comes to its end on the way.
void TakeTurns(Rank& rank, const Trial& trial) {
  const Comm comm(rank);
  const Work work(rank, comm, trial);
  const bool victim = rank.rank() == trial.victim;
  const auto strike = [&](Where where, uint32_t turn) {
    if (victim && where == trial.where && turn == trial.turn) raise(trial.signal);
  };
  for (uint32_t turn = 0;; ++turn) {
    rank.announce(rank.rank());
    strike(Where::kBeforeStart, turn);
    const auto begin = Clock::now();
    capstan_status* status = work.start();
    strike(Where::kBetween, turn);
    if (status == nullptr) status = work.wait(trial.deadline_s);
    strike(Where::kAfterWait, turn);
    if (status == nullptr) continue;
    const double took = Since(begin);
    const bool killed = trial.signal == SIGKILL;
    const int32_t code = killed ? CAPSTAN_PEER_LOST : CAPSTAN_TIMEOUT;
    Examine(rank, status, code, trial.victim, "gradients of a trial");
    Examine(rank, work.start(), code, trial.victim, sdk::text("rank ", trial.victim));
    Examine(rank, work.poll(), code, trial.victim, sdk::text("rank ", trial.victim));
    const double limit = killed ? 3.0 : trial.deadline_s + 3.0;
    rank.expect(took < limit, sdk::text("told after ", took, " s"));
    rank.announce(kTold);
    // A stopped rank may wake, and write, until the parent has ended it.
    rank.await(kTold, static_cast<uint32_t>(rank.world()), 20);
    return;
  }
}

void RunTrial(const Trial& trial) {
  SCOPED_TRACE(trial.describe());
  RunOptions options = {.world = trial.world, .plugin = CAPSTAN_TEST_COMM_PLUGIN};
  if (trial.staged) options.options = {{"far_memory", CAPSTAN_OPTION_STRING, 0, "staged"}};
  const RunResult result = RunRanks(
      options, [&](Rank& rank) { TakeTurns(rank, trial); },
      [&](Parent& parent) {
        if (trial.where == Where::kAnywhere) {
          parent.await(trial.victim, trial.turn + 1, 20);
          const auto begin = Clock::now();
          while (Since(begin) < trial.microseconds * 1e-6) continue;
          parent.signal(trial.victim, trial.signal);
        }
        parent.await(kTold, static_cast<uint32_t>(trial.world) - 1, 20);
        parent.signal(trial.victim, SIGKILL);
        parent.announce(kTold);
      });
  ASSERT_EQ(result.text({trial.victim}), "");
  const RankEnd& end = result.ranks[static_cast<size_t>(trial.victim)];
  ASSERT_EQ(end.signal, SIGKILL);
}

TEST(Failure, AKilledRankIsNamedAtOnce) {
  std::mt19937 random(20240611);
  for (int i = 0; i < Trials(120) && !testing::Test::HasFailure(); ++i) {
    RunTrial(RandomTrial(random, SIGKILL));
  }
}

TEST(Failure, AStoppedRankIsNamedAtTheDeadline) {
  std::mt19937 random(7);
  for (int i = 0; i < Trials(10) && !testing::Test::HasFailure(); ++i) {
    Trial trial = RandomTrial(random, SIGSTOP);
    trial.deadline_s = 0.5;
    RunTrial(trial);
  }
}

// A rank that stops for a while within the deadline delays the others and harms nothing.
TEST(Failure, ADelayedRankIsWaitedFor) {
  std::mt19937 random(99);
  for (int i = 0; i < Trials(70) && !testing::Test::HasFailure(); ++i) {
    Trial trial = RandomTrial(random, SIGSTOP);
    SCOPED_TRACE(trial.describe());
    const uint32_t turns = trial.turn + 10;
    const RunResult result = RunRanks(
        {.world = trial.world, .plugin = CAPSTAN_TEST_COMM_PLUGIN},
        [&](Rank& rank) {
          const Comm comm(rank);
          const Work work(rank, comm, trial);
          for (uint32_t turn = 0; turn < turns; ++turn) {
            rank.announce(rank.rank());
            sdk::check(work.start());
            sdk::check(work.wait(20));
          }
        },
        [&](Parent& parent) {
          parent.await(trial.victim, trial.turn + 1, 20);
          parent.signal(trial.victim, SIGSTOP);
          // Until the others cannot go on, or have nothing left to do.
          const int other = trial.victim == 0 ? 1 : 0;
          parent.await(other, std::min(turns, trial.turn + 3), 0.01);
          parent.signal(trial.victim, SIGCONT);
        });
    ASSERT_EQ(result.text(), "");
  }
}

TEST(Failure, AnAbortWakesEveryWaiter) {
  const Trial trial = {.world = 3, .count = 10};
  const RunResult result =
      RunRanks({.world = 3, .plugin = CAPSTAN_TEST_COMM_PLUGIN}, [&](Rank& rank) {
        const Comm comm(rank);
        const Work work(rank, comm, trial);
        if (rank.rank() == 2) {
          rank.await(kTold, 2, 20);  // the others are about to wait
          comm.vtable().abort(comm.self(), work.group(), "the loss is not finite");
          Examine(rank, work.start(), CAPSTAN_PEER_LOST, -1, "the loss is not finite");
          return;
        }
        sdk::check(work.start());
        rank.announce(kTold);
        const auto begin = Clock::now();
        Examine(rank, work.wait(20), CAPSTAN_PEER_LOST, -1,
                "rank 2 ended it: the loss is not finite");
        rank.expect(Since(begin) < 10, "the abort did not wake it");
      });
  EXPECT_EQ(result.text(), "");
}

TEST(Failure, ARankThatLeftTheGroupIsNamed) {
  const Trial trial = {.world = 2, .count = 10};
  const RunResult result =
      RunRanks({.world = 2, .plugin = CAPSTAN_TEST_COMM_PLUGIN}, [&](Rank& rank) {
        const Comm comm(rank);
        auto work = std::make_unique<Work>(rank, comm, trial);
        sdk::check(work->start());
        sdk::check(work->wait(20));
        if (rank.rank() == 1) {
          work.reset();
          rank.await(kTold, 1, 20);
          return;
        }
        sdk::check(work->start());
        Examine(rank, work->wait(20), CAPSTAN_PEER_LOST, 1, "rank 1 has left the group");
        rank.announce(kTold);
      });
  EXPECT_EQ(result.text(), "");
}

// After a failure the survivors make a group of their own, of the next epoch.
TEST(Failure, SurvivorsCanGoOnWithoutTheLostRank) {
  const Trial trial = {.world = 3, .count = 5000, .registered = true};
  const RunResult result =
      RunRanks({.world = 3, .plugin = CAPSTAN_TEST_COMM_PLUGIN}, [&](Rank& rank) {
        const Comm comm(rank);
        const capstan_comm_v1& v = comm.vtable();
        {
          const Work work(rank, comm, trial);
          if (rank.rank() == 2) raise(SIGKILL);
          capstan_status* status = work.start();  // it may have ended by now
          if (status == nullptr) status = work.wait(20);
          Examine(rank, status, CAPSTAN_PEER_LOST, 2, "rank 2");
        }
        const std::vector<int32_t> ranks = {0, 1};
        void* group = nullptr;
        sdk::check(v.group_create(comm.self(), ranks.data(), ranks.size(), 1, &group));
        float data[4] = {1, 2, 3, 4};
        auto item = sdk::sized<capstan_comm_item>();
        item.send = item.recv = data;
        item.count = 4;
        auto request = sdk::sized<capstan_comm_request>();
        request.operation = CAPSTAN_COMM_ALL_REDUCE;
        request.dtype = sdk::kF32;
        request.item_count = 1;
        request.items = &item;
        request.label = "after the failure";
        void* operation = nullptr;
        sdk::check(v.prepare(comm.self(), group, &request, &operation));
        sdk::check(v.start(comm.self(), operation, nullptr));
        sdk::check(v.wait(comm.self(), operation, 20));
        rank.expect(data[3] == 8, "the survivors' sum is wrong");
        v.release(comm.self(), operation);
        v.group_destroy(comm.self(), group);
      });
  EXPECT_EQ(result.text({2}), "");
}

TEST(Failure, PollNamesTheRankWaitedFor) {
  const Trial trial = {.world = 2, .count = 10};
  const RunResult result =
      RunRanks({.world = 2, .plugin = CAPSTAN_TEST_COMM_PLUGIN}, [&](Rank& rank) {
        const Comm comm(rank);
        const Work work(rank, comm, trial);
        if (rank.rank() == 1) rank.await(kTold, 1, 20);
        sdk::check(work.start());
        if (rank.rank() == 0) {
          auto progress = sdk::sized<capstan_comm_progress>();
          sdk::check(comm.vtable().poll(comm.self(), work.group(), &progress));
          rank.expect(progress.waiting_for == 1, sdk::text("waits for ", progress.waiting_for));
          rank.expect(progress.started == 1 && progress.finished == 0, "miscounts");
          rank.announce(kTold);
        }
        sdk::check(work.wait(20));
      });
  EXPECT_EQ(result.text(), "");
}

// Rank 0 waits for data of rank 1, which has stopped, in one group, and in another cannot ask rank 2:
// nobody there is to blame.
TEST(Failure, WaitingForDataOfAnotherGroupIsNoFaultOfThisOne) {
  RunOptions options = {.world = 3, .plugin = CAPSTAN_TEST_COMM_PLUGIN};
  options.options = {{"far_memory", CAPSTAN_OPTION_STRING, 0, "staged"}};
  const auto body = [](Rank& rank) {
    const Comm comm(rank);
    const Backend backend = {comm.vtable(), comm.self(), rank.rank(), rank.world(), {}};
    const auto group_with = [&](int other) {
      const bool member = rank.rank() == 0 || rank.rank() == other;
      return member ? std::make_unique<Group>(backend, std::vector<int32_t>{0, other}) : nullptr;
    };
    const auto stuck = group_with(1), group = group_with(2);
    std::vector<float> data(size_t{2} << 20), more = data;
    const auto sum = [&](const Group& of, std::vector<float>& over) {
      auto item = sdk::sized<capstan_comm_item>();
      item.send = item.recv = over.data();
      item.count = over.size();
      auto request = sdk::sized<capstan_comm_request>();
      request.operation = CAPSTAN_COMM_ALL_REDUCE;
      request.dtype = sdk::kF32;
      request.item_count = 1;
      request.items = &item;
      request.label = "sum of a test";
      return std::make_unique<Prepared>(of, request);
    };
    if (rank.rank() == 1) {
      const auto never = sum(*stuck, data);
      never->start();
      rank.announce(kReady);
      raise(SIGSTOP);
      return;
    }
    std::unique_ptr<Prepared> never;
    if (rank.rank() == 0) {
      never = sum(*stuck, data);
      never->start();
      rank.await(kReady, 1, 20);
      // Until it is the progress thread that asks.
      auto progress = sdk::sized<capstan_comm_progress>();
      while (progress.waiting_for != 1) {
        sdk::check(comm.vtable().poll(comm.self(), stuck->handle(), &progress));
      }
    }
    const auto operation = sum(*group, more);
    operation->start();
    Examine(rank, operation->wait(rank.rank() == 0 ? 0.5 : 20.0), CAPSTAN_TIMEOUT, -1,
            "rank 0 could not ask rank 2");
    rank.announce(kTold);
    rank.await(kTold, 3, 20);
  };
  const RunResult result = RunRanks(options, body, [](Parent& parent) {
    parent.await(kTold, 2, 20);
    parent.signal(1, SIGKILL);
    parent.announce(kTold);
  });
  EXPECT_EQ(result.text({1}), "");
}

TEST(Stranger, ARankOfAnotherJobCannotJoin) {
  const RunResult result =
      RunRanks({.world = 2, .plugin = CAPSTAN_TEST_COMM_PLUGIN, .stranger = 1}, [&](Rank& rank) {
        const Comm comm(rank);
        const std::vector<int32_t> ranks = {0, 1};
        void* group = nullptr;
        capstan_status* status =
            comm.vtable().group_create(comm.self(), ranks.data(), ranks.size(), 0, &group);
        Examine(rank, status, CAPSTAN_DATA, -1, "does not know this job's secret");
        rank.announce(kTold);
        rank.await(kTold, 2, 20);  // its memory stays for the other to examine
      });
  EXPECT_EQ(result.text(), "");
}

// Every rank of a job is killed: nothing with a name is left.
TEST(Stranger, DeadJobsLeaveNothingBehind) {
  const auto names = [] {
    size_t ours = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
      if (entry.path().filename().string().find("capstan") != std::string::npos) ++ours;
    }
    return ours;
  };
  const size_t before = names();
  const Trial trial = {.world = 2, .count = 200000, .registered = true};
  const RunResult result =
      RunRanks({.world = 2, .plugin = CAPSTAN_TEST_COMM_PLUGIN}, [&](Rank& rank) {
        const Comm comm(rank);
        const Work work(rank, comm, trial);
        sdk::check(work.start());
        sdk::check(work.wait(20));
        rank.announce(kTold);
        rank.await(kTold, 2, 20);
        raise(SIGKILL);
      });
  EXPECT_EQ(result.text({0, 1}), "");
  EXPECT_EQ(names(), before);
}

}  // namespace
}  // namespace capstan::test
