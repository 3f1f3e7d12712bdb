// What the host asks of a communication backend, and when: against one that does nothing but note it.
#include "runtime/exec/communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <thread>

#include "runtime/exec/executor.h"
#include "runtime/launch/rank_status.h"
#include "runtime/status.h"
#include "tests/exec/fake_comm.h"
#include "tests/ops/gradient_world.h"

namespace capstan {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr double kTimeout = 0.5;  // the watch looks every 0.05 s

class CommunicatorTest : public ::testing::Test {
 protected:
  CommunicatorTest() : mesh_(*Mesh::Layout({{"tp", 2}}, 0)) {}

  absl::StatusOr<std::unique_ptr<Communicator>> Make() {
    return Communicator::Create(fake_.vtable(), nullptr, nullptr, &mesh_, 0, kTimeout);
  }
  // One all-reduce over tp, prepared.
  absl::StatusOr<std::unique_ptr<CommOperation>> Prepare(Communicator& communicator,
                                                         const std::string& dtype,
                                                         const std::string& reduce) {
    const bool max = reduce == "max";
    const TensorId in =
        world_.Input(StrCat("p", inputs_++), {4}, max ? "{tp:P(max)}" : "{tp:P}", dtype);
    const absl::StatusOr<OpId> op =
        world_.TryOp("all_reduce", {in}, {{"axis", std::string("tp")}, {"reduce", reduce}});
    if (!op.ok()) return op.status();
    void* const memory[1] = {this};
    return communicator.Prepare(world_.program(), world_.program().op(*op), memory, memory, 0);
  }
  std::string Refusal(Communicator& communicator, const std::string& dtype,
                      const std::string& reduce) {
    const auto prepared = Prepare(communicator, dtype, reduce);
    EXPECT_EQ(StatusClass(prepared.status()), CAPSTAN_UNSUPPORTED) << prepared.status();
    return std::string(prepared.status().message());
  }

  FakeComm fake_;
  Mesh mesh_;
  PaperWorld world_{{{"tp", 2}}};
  int inputs_ = 0;
};

TEST_F(CommunicatorTest, OnlyABackendInStreamOrderGetsTheQueue) {
  int queue = 0;
  capstan_kernel_args args{};
  args.queue = &queue;
  for (const int32_t stream_order : {0, 1}) {
    fake_.capabilities.stream_order = stream_order;
    auto communicator = Make();
    ASSERT_TRUE(communicator.ok()) << communicator.status();
    auto operation = Prepare(**communicator, "f32", "sum");
    ASSERT_TRUE(operation.ok()) << operation.status();
    EXPECT_EQ(CommOperation::Start(operation->get(), &args), nullptr);
  }
  EXPECT_THAT(fake_.queues, ElementsAre(nullptr, &queue));
}

TEST_F(CommunicatorTest, EveryReductionHasItsOwnNumber) {
  auto communicator = Make();
  ASSERT_TRUE(communicator.ok()) << communicator.status();
  for (const char* reduce : {"sum", "max"}) {
    EXPECT_TRUE(Prepare(**communicator, "f32", reduce).ok()) << reduce;
  }
  EXPECT_THAT(fake_.reductions, ElementsAre(CAPSTAN_COMM_SUM, CAPSTAN_COMM_MAX));
}

TEST_F(CommunicatorTest, ADTypeTheBackendLacksIsRefused) {
  auto communicator = Make();
  ASSERT_TRUE(communicator.ok()) << communicator.status();
  EXPECT_THAT(Refusal(**communicator, "bf16", "sum"),
              AllOf(HasSubstr("does not move bf16"), HasSubstr("it has f32"), HasSubstr("[comm]")));
}

TEST_F(CommunicatorTest, AnAxisLargerThanTheBackendsGroupsIsRefused) {
  fake_.capabilities.max_group = 1;
  const auto made = Make();
  EXPECT_EQ(StatusClass(made.status()), CAPSTAN_UNSUPPORTED);
  EXPECT_THAT(std::string(made.status().message()),
              AllOf(HasSubstr("axis tp has 2 ranks"), HasSubstr("at most 1")));
  EXPECT_TRUE(fake_.groups.empty());
}

TEST_F(CommunicatorTest, AVolumeThatIsNotThePlannedNamesTheOperation) {
  auto communicator = Make();
  ASSERT_TRUE(communicator.ok()) << communicator.status();
  auto operation = Prepare(**communicator, "f32", "sum");
  ASSERT_TRUE(operation.ok()) << operation.status();
  capstan_kernel_args args{};
  EXPECT_EQ(CommOperation::Start(operation->get(), &args), nullptr);
  fake_.progress.bytes[CAPSTAN_COMM_ALL_REDUCE] = 16;
  EXPECT_TRUE((*communicator)->CheckVolumes().ok());
  fake_.progress.bytes[CAPSTAN_COMM_ALL_REDUCE] = 12;
  EXPECT_THAT(std::string((*communicator)->CheckVolumes().message()),
              HasSubstr("16 bytes of all-reduce were planned, and the backend finished 12"));
}

// Another thread gives up while a group is being made; the group then ends as well.
TEST_F(CommunicatorTest, AGroupMadeDuringAnAbortIsAborted) {
  auto communicator = Make();
  ASSERT_TRUE(communicator.ok()) << communicator.status();
  ASSERT_EQ(fake_.groups.size(), 1u);
  fake_.while_grouping = [&] {
    std::thread([&] { (*communicator)->Abort("rank 1 is gone"); }).join();
  };
  const TensorId in = world_.Input("alone", {4}, "{one:P}");
  const absl::StatusOr<OpId> op = world_.TryOp("all_reduce", {in}, {{"axis", std::string("one")}});
  ASSERT_TRUE(op.ok()) << op.status();
  void* const memory[1] = {this};
  const auto prepared =
      (*communicator)->Prepare(world_.program(), world_.program().op(*op), memory, memory, 0);
  EXPECT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_THAT(fake_.groups, ElementsAre(ElementsAre(0, 1), ElementsAre(0)));
  EXPECT_THAT(fake_.aborts, ElementsAre("rank 1 is gone", "rank 1 is gone"));
}

TEST_F(CommunicatorTest, WhatNoBackendCanRunIsRefusedWhenPlanned) {
  const TensorId in = world_.Input("x", {2, 4}, "{tp:S(1)}");
  const Attrs turn{{"axis", std::string("tp")}, {"from", int64_t{1}}, {"to", int64_t{0}}};
  ASSERT_TRUE(world_.TryOp("all_to_all", {in}, turn).ok());
  world_.program().SetDefaultSchedule();
  MemoryPlan plan;
  const absl::Status planned = plan.Add(world_.program(), nullptr, 0);
  EXPECT_EQ(StatusClass(planned), CAPSTAN_UNSUPPORTED) << planned;
  EXPECT_THAT(std::string(planned.message()),
              AllOf(HasSubstr("all_to_all(@x), segment forward/0"), HasSubstr("cannot run")));
}

// ---- what the launcher sees of it --------------------------------------------------------------

class StepTest : public CommunicatorTest {
 protected:
  void SetUp() override {
    const TensorId in = world_.Input("p", {4}, "{tp:P}");
    ASSERT_TRUE(world_.TryOp("all_reduce", {in}, {{"axis", std::string("tp")}}).ok());
    world_.program().SetDefaultSchedule();
    absl::Status planned = plan_.Add(world_.program(), TestDevice(), 0);
    ASSERT_TRUE(planned.ok()) << planned;
    auto communicator = Make();
    ASSERT_TRUE(communicator.ok()) << communicator.status();
    communicator_ = *std::move(communicator);
    auto storage = Storage::Allocate(TestDevice(), &plan_, communicator_.get());
    ASSERT_TRUE(storage.ok()) << storage.status();
    storage_ = *std::move(storage);
    auto executor = Executor::Compile(&world_.program(), storage_.get());
    ASSERT_TRUE(executor.ok()) << executor.status();
    executor_ = *std::move(executor);
    auto pages = StatusPages::Create(1);
    ASSERT_TRUE(pages.ok()) << pages.status();
    pages_.emplace(*std::move(pages));
    World world;
    world.status_fd = pages_->fd();
    auto status = RankStatus::Open(world);
    ASSERT_TRUE(status.ok()) << status.status();
    status_.emplace(*std::move(status));
    communicator_->Report(&*status_);
    executor_->Report(&*status_);
  }
  void TearDown() override {
    executor_.reset();
    storage_.reset();
    communicator_.reset();  // before the status that it reports to
  }

  MemoryPlan plan_;
  std::unique_ptr<Communicator> communicator_;
  std::unique_ptr<Storage> storage_;
  std::unique_ptr<Executor> executor_;
  std::optional<StatusPages> pages_;
  std::optional<RankStatus> status_;
};

// A step ends with waits; a checkpoint or slow data after it are no wait for another rank.
TEST_F(StepTest, ARankWaitsForNobodyBetweenSteps) {
  RankSnapshot in_wait;
  fake_.while_waiting = [&] { in_wait = pages_->Read(0); };
  ASSERT_TRUE(executor_->Run(6).ok());
  EXPECT_EQ(in_wait.state, RankState::kWaiting);
  EXPECT_EQ(in_wait.op, "all_reduce(@p)");
  const RankSnapshot after = pages_->Read(0);
  EXPECT_EQ(after.state, RankState::kComputing);
  EXPECT_EQ(after.op, "");
  EXPECT_EQ(after.step, 6);
}

TEST_F(StepTest, ALongWaitSaysWhomItIsFor) {
  fake_.progress.waiting_for = 1;
  bool said = false;
  fake_.while_waiting = [&] {  // until the launcher could read it
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!said && std::chrono::steady_clock::now() < end) {
      said = pages_->Read(0).waiting_for == 1;
      std::this_thread::yield();
    }
  };
  ASSERT_TRUE(executor_->Run(0).ok());
  EXPECT_TRUE(said);
  EXPECT_EQ(pages_->Read(0).waiting_for, -1) << "once it is over";
}

}  // namespace
}  // namespace capstan
