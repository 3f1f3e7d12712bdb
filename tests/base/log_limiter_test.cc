// runtime/loader_log.h: one noisy component cannot flood the log, nor silence errors or others.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/loader_log.h"

namespace capstan {
namespace {

class LogLimiterTest : public testing::Test {
 protected:
  void Advance(double seconds) {
    now_ += std::chrono::duration_cast<LogLimiter::Clock::duration>(
        std::chrono::duration<double>(seconds));
  }
  void Flood(int messages) {
    for (int i = 0; i < messages; ++i) limiter_.Log(1, "noisy", "again");
  }

  std::vector<std::string> lines_;
  LogLimiter::Clock::time_point now_;
  LogLimiter limiter_{[this](int32_t, const std::string& line) { lines_.push_back(line); },
                      [this] { return now_; }};
};

TEST_F(LogLimiterTest, NamesTheComponent) {
  limiter_.Log(1, "shm", "ready");
  EXPECT_THAT(lines_, testing::ElementsAre("shm: ready"));
}

TEST_F(LogLimiterTest, HoldsBackBeyondTheBurst) {
  Flood(1000);
  EXPECT_EQ(lines_.size(), static_cast<size_t>(LogLimiter::kBurst));
}

TEST_F(LogLimiterTest, SaysHowManyWereHeldBack) {
  Flood(static_cast<int>(LogLimiter::kBurst) + 7);
  Advance(1);
  limiter_.Log(1, "noisy", "at last");
  EXPECT_EQ(lines_.back(), "noisy: at last (7 messages before this one were held back)");
}

TEST_F(LogLimiterTest, ErrorsAlwaysPass) {
  Flood(1000);
  limiter_.Log(3, "noisy", "disk full");
  EXPECT_THAT(lines_.back(), testing::StartsWith("noisy: disk full"));
}

TEST_F(LogLimiterTest, OtherComponentsAreUnaffected) {
  Flood(1000);
  limiter_.Log(0, "quiet", "hello");
  EXPECT_EQ(lines_.back(), "quiet: hello");
}

}  // namespace
}  // namespace capstan
