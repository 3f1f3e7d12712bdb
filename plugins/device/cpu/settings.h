// What the options of a device come to.
#ifndef CAPSTAN_PLUGINS_DEVICE_CPU_SETTINGS_H_
#define CAPSTAN_PLUGINS_DEVICE_CPU_SETTINGS_H_

#include <cstdint>
#include <vector>

#include "sdk/plugin.h"

namespace capstan::cpu_device {

struct Settings {
  uint64_t instance = 0;  // tells the devices of one process apart, never 0
  int threads = 1;
  bool reference = false;  // plain loops even where a fast kernel exists
  bool huge_pages = true;
  bool bind = false;
  bool flush_subnormals = true;
  std::vector<int> cores;  // this rank's part of the cores the process may use, in order
};

// Throws a USAGE error for a thread count beyond what the machine can hold.
Settings read_settings(const sdk::Host& host, const sdk::Options& options);

// This rank's block of `cores` when local_ranks ranks share them: equal blocks, so that every rank
// has as many threads, and at least one core each (shared when there are more ranks than cores).
std::vector<int> share_of_cores(const std::vector<int>& cores, int64_t local_rank,
                                int64_t local_ranks);

}  // namespace capstan::cpu_device

#endif  // CAPSTAN_PLUGINS_DEVICE_CPU_SETTINGS_H_
