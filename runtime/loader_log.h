// The service "capstan.log/1": plugins' messages through spdlog, rate-limited by component.
#ifndef CAPSTAN_RUNTIME_LOADER_LOG_H_
#define CAPSTAN_RUNTIME_LOADER_LOG_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

namespace capstan {

// Lets a component write a burst, then a steady trickle; counts what it holds back. Errors always
// pass. Thread-safe.
class LogLimiter {
 public:
  using Clock = std::chrono::steady_clock;

  static constexpr double kBurst = 50;      // messages at once
  static constexpr double kPerSecond = 10;  // messages afterwards

  // `write` receives what passes. `now` is replaceable for tests.
  using Writer = std::function<void(int32_t level, const std::string& line)>;
  explicit LogLimiter(Writer write, std::function<Clock::time_point()> now = &Clock::now)
      : write_(std::move(write)), now_(std::move(now)) {}

  void Log(int32_t level, std::string_view component, std::string_view message);

 private:
  struct Bucket {
    double tokens = kBurst;
    Clock::time_point last;
    uint64_t held_back = 0;
  };

  Writer write_;
  std::function<Clock::time_point()> now_;
  std::mutex mutex_;
  std::map<std::string, Bucket, std::less<>> buckets_;
};

// A writer to spdlog's default logger.
LogLimiter::Writer SpdlogWriter();

}  // namespace capstan

#endif  // CAPSTAN_RUNTIME_LOADER_LOG_H_
