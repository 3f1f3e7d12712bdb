// Calls back when a point in time has passed, for waits that have no harmless deadline of their own.
#ifndef CAPSTAN_PLUGINS_COMM_GLOO_ALARM_H_
#define CAPSTAN_PLUGINS_COMM_GLOO_ALARM_H_

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

namespace capstan::gloo_comm {

using Clock = std::chrono::steady_clock;

// One sleeping thread for all alarms. [any thread]
class Alarm {
 public:
  Alarm() : thread_([this](std::stop_token stop) { run(stop); }) {}

  // While it lives, `ring` is called once if `when` passes. Its destructor waits for a call under way.
  class Set {
   public:
    Set(Alarm& alarm, Clock::time_point when, std::function<void()> ring) : alarm_(alarm) {
      const std::lock_guard held(alarm_.lock_);
      at_ = alarm_.rings_.emplace(when, std::move(ring));
      alarm_.changed_.notify_one();
    }
    ~Set() {
      const std::lock_guard held(alarm_.lock_);
      alarm_.rings_.erase(at_);
    }
    Set(const Set&) = delete;
    Set& operator=(const Set&) = delete;

   private:
    Alarm& alarm_;
    std::multimap<Clock::time_point, std::function<void()>>::iterator at_;
  };

 private:
  // The first one that has not rung.
  auto next() {
    return std::find_if(rings_.begin(), rings_.end(),
                        [](const auto& entry) { return entry.second != nullptr; });
  }
  void run(std::stop_token stop) {
    std::unique_lock held(lock_);
    while (!stop.stop_requested()) {
      const auto first = next();
      if (first == rings_.end()) {
        changed_.wait(held, stop, [this] { return next() != rings_.end(); });
      } else if (Clock::now() < first->first) {
        const auto when = first->first;
        changed_.wait_until(held, stop, when, [this, when] {
          const auto now_first = next();
          return now_first == rings_.end() || now_first->first != when;
        });
      } else {
        const auto ring = std::exchange(first->second, nullptr);
        ring();
      }
    }
  }

  std::mutex lock_;
  std::condition_variable_any changed_;
  std::multimap<Clock::time_point, std::function<void()>> rings_;
  std::jthread thread_;
};

}  // namespace capstan::gloo_comm

#endif  // CAPSTAN_PLUGINS_COMM_GLOO_ALARM_H_
