// Matrices cut by columns, as one of the ranks brings them together: the other is played by the backend.
#include "runtime/run/row_exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "runtime/status.h"
#include "tests/exec/fake_comm.h"
#include "tests/ops/gradient_world.h"

namespace capstan {
namespace {

using ::testing::ElementsAre;

float Value(int64_t row, int64_t column) { return static_cast<float>(1000 * row + column); }

// A rank of two, told by the test what the other says and sends.
class OtherRank {
 public:
  OtherRank() {
    comm_.capabilities.dtype_count = 0;  // all
    comm_.while_preparing = [this](const capstan_comm_request& request) { Answer(request); };
  }
  const capstan_comm_v1* vtable() { return comm_.vtable(); }

  std::vector<int64_t> says;  // its turn, and boxes
  std::vector<float> sends;
  std::vector<float> received;  // from the rank that is tested
  int exchanges = 0;

 private:
  void Answer(const capstan_comm_request& request) {
    const capstan_comm_item& item = request.items[0];
    auto* to = static_cast<char*>(item.recv);
    const auto* from = static_cast<const char*>(item.send);
    if (request.operation == CAPSTAN_COMM_ALL_GATHER) {
      const size_t part = item.count * sizeof(int64_t) / 2;
      ASSERT_EQ(part, says.size() * sizeof(int64_t));
      std::memcpy(to, from, part);
      std::memcpy(to + part, says.data(), part);
      return;
    }
    ASSERT_EQ(request.operation, CAPSTAN_COMM_ALL_TO_ALL);
    ASSERT_EQ(item.recv_counts[1], sends.size() * sizeof(float));
    ASSERT_EQ(item.recv_counts[0], item.send_counts[0]);
    ++exchanges;
    std::memcpy(to, from, item.send_counts[0]);
    std::copy(sends.begin(), sends.end(), reinterpret_cast<float*>(to + item.recv_counts[0]));
    received.resize(item.send_counts[1] / sizeof(float));
    std::memcpy(received.data(), from + item.send_counts[0], item.send_counts[1]);
  }

  FakeComm comm_;
};

// Rank 0 of two that hold a stored matrix of 131 rows and 300 columns: 0 the first 160 columns.
class RowExchangeTest : public ::testing::Test {
 protected:
  static constexpr int64_t kRows = 131, kColumns = 300, kMine = 160;

  void Hold(bool transposed) {
    const Dims shape = transposed ? Dims{kMine, kRows} : Dims{kRows, kMine};
    const TensorId t = world_.Parameter("w", shape, transposed ? "{tp:S(0)}" : "{tp:S(1)}");
    world_.program().SetDefaultSchedule();
    ASSERT_TRUE(plan_.Add(world_.program(), TestDevice(), 0).ok());
    auto communicator = Communicator::Create(other_.vtable(), nullptr, nullptr, &mesh_, 0, 10);
    ASSERT_TRUE(communicator.ok()) << communicator.status();
    communicator_ = *std::move(communicator);
    auto storage = Storage::Allocate(TestDevice(), &plan_, communicator_.get());
    ASSERT_TRUE(storage.ok()) << storage.status();
    storage_ = *std::move(storage);
    auto* data = reinterpret_cast<float*>(storage_->Data(world_.program(), t));
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t c = 0; c < kMine; ++c) {
        data[transposed ? c * kRows + r : r * kMine + c] = Value(r, c);
      }
    }
    StoredSlice slice{"w", "model", {kRows, kColumns}, {0, 0}, {kRows, kMine}, transposed};
    list_ = {{t, slice}};
  }
  // One of `count` ranks that hold the same slice.
  void Turn(int64_t index, int64_t count) {
    shares_.by_slice[Shares::SliceKey(list_[0].slice)] = {index, count};
  }

  OtherRank other_;
  Mesh mesh_{*Mesh::Layout({{"tp", 2}}, 0)};
  PaperWorld world_{{{"tp", 2}}};
  MemoryPlan plan_;
  std::unique_ptr<Communicator> communicator_;
  std::unique_ptr<Storage> storage_;
  std::vector<Placed> list_;
  Shares shares_;
};

TEST_F(RowExchangeTest, WholeRowsComeOfTwoColumnRanges) {
  for (const bool transposed : {false, true}) {
    SCOPED_TRACE(transposed);
    world_.program() = PaperWorld({{"tp", 2}}).program();
    plan_ = MemoryPlan();
    storage_.reset();
    Hold(transposed);
    ASSERT_FALSE(HasFatalFailure());
    other_.says = {0, 1, 0, kRows, kMine, kColumns - kMine};
    constexpr int64_t kFirst = kRows / 2;  // rows of rank 0
    other_.sends.clear();
    for (int64_t r = 0; r < kFirst; ++r) {
      for (int64_t c = kMine; c < kColumns; ++c) other_.sends.push_back(Value(r, c));
    }
    RowExchange exchange(world_.program(), *storage_, list_, shares_);
    const absl::Status met = exchange.Meet();
    ASSERT_TRUE(met.ok()) << met;
    ASSERT_EQ(exchange.size(), 1u);
    EXPECT_TRUE(exchange.Has(0));
    const auto rows = exchange.Take(0);
    ASSERT_TRUE(rows.ok()) << rows.status();
    EXPECT_THAT(rows->slice.start, ElementsAre(0, 0));
    EXPECT_THAT(rows->slice.extent, ElementsAre(kFirst, kColumns));
    EXPECT_FALSE(rows->slice.transposed);
    ASSERT_NE(rows->data, nullptr);
    std::vector<float> got(kFirst * kColumns), expected;
    std::memcpy(got.data(), rows->data, got.size() * sizeof(float));
    for (int64_t r = 0; r < kFirst; ++r) {
      for (int64_t c = 0; c < kColumns; ++c) expected.push_back(Value(r, c));
    }
    EXPECT_TRUE(got == expected);
    expected.clear();
    for (int64_t r = kFirst; r < kRows; ++r) {
      for (int64_t c = 0; c < kMine; ++c) expected.push_back(Value(r, c));
    }
    EXPECT_TRUE(other_.received == expected) << "what the other rank is to write";
  }
}

TEST_F(RowExchangeTest, WhoeverHoldsTheSameWritesInTurns) {
  Hold(true);
  ASSERT_FALSE(HasFatalFailure());
  int writers = 0;
  for (int64_t index = 0; index < 3; ++index) {
    Turn(index, 3);
    other_.says = {index, 3, 0, kRows, kMine, kColumns - kMine};
    other_.sends.assign(static_cast<size_t>(kRows / 2 * (kColumns - kMine)), 0.0f);
    RowExchange exchange(world_.program(), *storage_, list_, shares_);
    ASSERT_TRUE(exchange.Meet().ok());
    ASSERT_TRUE(exchange.Has(0));
    const auto rows = exchange.Take(0);
    ASSERT_TRUE(rows.ok()) << rows.status();
    writers += rows->data != nullptr ? 1 : 0;
  }
  EXPECT_EQ(writers, 1);
  EXPECT_EQ(other_.exchanges, 1);
}

// Every rank then writes its columns as they are.
TEST_F(RowExchangeTest, WhatDoesNotFitTogetherIsLeftOut) {
  Hold(true);
  ASSERT_FALSE(HasFatalFailure());
  const std::vector<std::vector<int64_t>> others = {
      {0, 1, 0, kRows, kMine + 1, kColumns - kMine - 1},  // a hole
      {0, 1, 0, kRows, kMine - 1, kColumns - kMine + 1},  // a column of both
      {0, 1, 1, kRows - 1, kMine, kColumns - kMine},      // fewer rows
      {1, 2, 0, kRows, kMine, kColumns - kMine},          // one of two that hold the same
      {0, 2, 0, kRows, kMine, kColumns - kMine},
  };
  int left_out = 0;
  for (const std::vector<int64_t>& says : others) {
    other_.says = says;
    RowExchange exchange(world_.program(), *storage_, list_, shares_);
    ASSERT_TRUE(exchange.Meet().ok());
    EXPECT_EQ(exchange.size(), exchange.Has(0) ? 1u : 0u);
    left_out += exchange.Has(0) ? 0 : 1;
  }
  // Of the last two, one has the turn that rank 0 has, alone.
  EXPECT_EQ(left_out, 4);
}

TEST_F(RowExchangeTest, RanksWithoutColumnsTakeRowsToo) {
  Hold(true);
  ASSERT_FALSE(HasFatalFailure());
  list_[0].slice.shape = {kRows, kMine};
  other_.says = {0, 1, 0, kRows, kMine, 0};
  other_.sends.clear();
  RowExchange exchange(world_.program(), *storage_, list_, shares_);
  ASSERT_TRUE(exchange.Meet().ok());
  ASSERT_EQ(exchange.size(), 1u);
  const auto rows = exchange.Take(0);
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_THAT(rows->slice.extent, ElementsAre(kRows / 2, kMine));
}

}  // namespace
}  // namespace capstan
