#include "plugins/device/cpu/settings.h"

#include <sched.h>

#include <algorithm>
#include <atomic>

namespace capstan::cpu_device {
namespace {

// Cores the process may run on. The mask grows until the kernel's fits in it.
std::vector<int> available_cores() {
  for (int limit = CPU_SETSIZE; limit <= 1 << 20; limit *= 2) {
    std::vector<cpu_set_t> mask(CPU_ALLOC_SIZE(limit) / sizeof(cpu_set_t) + 1);
    const size_t bytes = mask.size() * sizeof(cpu_set_t);
    if (sched_getaffinity(0, bytes, mask.data()) != 0) continue;
    std::vector<int> cores;
    for (int core = 0; core < static_cast<int>(bytes * 8); ++core) {
      if (CPU_ISSET_S(core, bytes, mask.data())) cores.push_back(core);
    }
    return cores;
  }
  return {0};
}

// More than this is a slip of the pen, not a machine.
constexpr int64_t kMostThreads = 4096;

uint64_t next_instance() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

}  // namespace

std::vector<int> share_of_cores(const std::vector<int>& cores, int64_t local_rank,
                                int64_t local_ranks) {
  const int64_t count = static_cast<int64_t>(cores.size());
  const int64_t ranks = std::max<int64_t>(local_ranks, 1);
  if (count < ranks) return {cores[static_cast<size_t>(local_rank % count)]};
  const int64_t share = count / ranks;
  const auto begin = cores.begin() + local_rank % ranks * share;
  return {begin, begin + share};
}

Settings read_settings(const sdk::Host& host, const sdk::Options& options) {
  Settings s;
  s.instance = next_instance();
  s.cores = share_of_cores(available_cores(), host.local_rank(), host.local_ranks());
  const int64_t threads = options.get_int("threads");
  if (threads < 0 || threads > kMostThreads) {
    throw sdk::usage_error(sdk::text("device cpu: threads = ", threads, " is not within 0 to ",
                                     kMostThreads, "; 0 takes this rank's share of the cores"));
  }
  s.threads = threads > 0 ? static_cast<int>(threads) : static_cast<int>(s.cores.size());
  const std::string kernels = options.get_string("kernels");
  if (kernels != "fast" && kernels != "reference") {
    throw sdk::usage_error(
        sdk::text("device cpu: kernels = \"", kernels, "\" is not \"fast\" or \"reference\""));
  }
  s.reference = kernels == "reference";
  s.huge_pages = options.get_bool("huge_pages");
  s.bind = options.get_bool("bind");
  s.flush_subnormals = options.get_bool("flush_subnormals");
  return s;
}

}  // namespace capstan::cpu_device
