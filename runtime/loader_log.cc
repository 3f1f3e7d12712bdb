#include "runtime/loader_log.h"

#include <algorithm>
#include <memory>

#include "runtime/strings.h"
#include "spdlog/sinks/ansicolor_sink.h"
#include "spdlog/spdlog.h"

namespace capstan {
namespace {

constexpr int32_t kErrorLevel = 3;

spdlog::level::level_enum SpdlogLevel(int32_t level) {
  switch (level) {
    case 0:
      return spdlog::level::debug;
    case 1:
      return spdlog::level::info;
    case 2:
      return spdlog::level::warn;
    default:
      return spdlog::level::err;
  }
}

}  // namespace

void LogLimiter::Log(int32_t level, std::string_view component, std::string_view message) {
  std::string line = StrCat(component, component.empty() ? "" : ": ", message);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const Clock::time_point now = now_();
    auto found = buckets_.find(component);
    if (found == buckets_.end()) {
      found = buckets_.emplace(std::string(component), Bucket{}).first;
      found->second.last = now;
    }
    Bucket& bucket = found->second;
    const double passed = std::chrono::duration<double>(now - bucket.last).count();
    bucket.tokens = std::min(kBurst, bucket.tokens + passed * kPerSecond);
    bucket.last = now;
    if (level < kErrorLevel && bucket.tokens < 1) {
      ++bucket.held_back;
      return;
    }
    bucket.tokens = std::max(0.0, bucket.tokens - 1);
    if (bucket.held_back > 0) {
      StrAppend(&line, " (", bucket.held_back, " messages before this one were held back)");
      bucket.held_back = 0;
    }
  }
  write_(level, line);
}

LogLimiter::Writer SpdlogWriter() {
  // To standard error: standard output is a command's answer, JSON among others.
  const auto logger = std::make_shared<spdlog::logger>(
      "", std::make_shared<spdlog::sinks::ansicolor_stderr_sink_mt>());
  return [logger](int32_t level, const std::string& line) {
    logger->log(SpdlogLevel(level), "{}", line);
  };
}

}  // namespace capstan
