// A plugin written in C99 against plugin_api/ alone.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "plugin_api/tracker.h"
#include "tests/sdk/bench.h"

namespace capstan {
namespace {

class C99Tracker : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = std::filesystem::path(testing::TempDir()) /
                 ("c99_tracker_" +
                  std::string(testing::UnitTest::GetInstance()->current_test_info()->name()));
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  const capstan_tracker_v1& table() {
    return *static_cast<const capstan_tracker_v1*>(bench_.definition("tracker", "c99").vtable);
  }
  // Logs the loss of steps first to last.
  void log(int64_t resume_step, int64_t first, int64_t last) {
    const OptionSet options = bench_.options(bench_.definition("tracker", "c99"), "");
    void* self = nullptr;
    ASSERT_EQ(table().create(bench_.host(), &options.c(), directory_.c_str(), resume_step, &self),
              nullptr);
    for (int64_t step = first; step <= last; ++step) {
      capstan_metric metric{};
      metric.struct_size = sizeof metric;
      metric.name = "loss";
      metric.value = 0.5;
      ASSERT_EQ(table().metrics(self, "train", step, &metric, 1), nullptr);
    }
    ASSERT_EQ(table().event(self, "checkpoint", last, "saved"), nullptr);
    ASSERT_EQ(table().flush(self), nullptr);
    table().destroy(self);
  }
  std::string text() {
    std::ostringstream out;
    out << std::ifstream(directory_ / "c99_tracker.txt").rdbuf();
    return out.str();
  }

  std::filesystem::path directory_;
  Bench bench_;
};

TEST_F(C99Tracker, WritesMetricsAndEvents) {
  log(-1, 1, 2);
  EXPECT_EQ(text(), "metric train 1 loss 0.5\nmetric train 2 loss 0.5\nevent checkpoint 2 saved\n");
}

TEST_F(C99Tracker, DropsStepsAfterTheResumedOne) {
  log(-1, 1, 3);
  log(1, 2, 2);
  EXPECT_EQ(text(), "metric train 1 loss 0.5\nmetric train 2 loss 0.5\nevent checkpoint 2 saved\n");
}

TEST_F(C99Tracker, SaysWhichFileItCannotOpen) {
  const OptionSet options = bench_.options(bench_.definition("tracker", "c99"), "");
  void* self = nullptr;
  const std::string missing = (directory_ / "absent").string();
  const absl::Status status =
      FromC(table().create(bench_.host(), &options.c(), missing.c_str(), -1, &self));
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find(missing), std::string::npos) << status;
  EXPECT_EQ(self, nullptr) << "outputs stay untouched on error";
}

}  // namespace
}  // namespace capstan
