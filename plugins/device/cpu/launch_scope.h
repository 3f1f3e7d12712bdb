// The state of the calling thread while a kernel runs.
#ifndef CAPSTAN_PLUGINS_DEVICE_CPU_LAUNCH_SCOPE_H_
#define CAPSTAN_PLUGINS_DEVICE_CPU_LAUNCH_SCOPE_H_

#include <cstdint>

#include "plugins/device/cpu/settings.h"

namespace capstan::cpu_device {

// Gives the calling thread the device's OpenMP thread count and float mode, and back its own float
// mode at the end. The first launch on a thread also readies its pool: float mode and, with `bind`,
// one core a worker. The calling thread is never bound: it is the host's, and threads that the host
// starts later would inherit the mask.
class LaunchScope {
 public:
  explicit LaunchScope(const Settings& settings);
  ~LaunchScope();
  LaunchScope(const LaunchScope&) = delete;
  LaunchScope& operator=(const LaunchScope&) = delete;

 private:
  uint64_t saved_;
};

}  // namespace capstan::cpu_device

#endif  // CAPSTAN_PLUGINS_DEVICE_CPU_LAUNCH_SCOPE_H_
