#include "plugins/device/cpu/launch_scope.h"

#include <omp.h>
#include <sched.h>

#include <vector>

#include "plugins/device/cpu/float_mode.h"

namespace capstan::cpu_device {
namespace {

// The device instance that this thread's OpenMP pool was last readied for.
thread_local uint64_t ready_for = 0;

void bind_to(int core) {
  std::vector<cpu_set_t> mask(static_cast<size_t>(core) / (8 * sizeof(cpu_set_t)) + 1);
  const size_t bytes = mask.size() * sizeof(cpu_set_t);
  CPU_ZERO_S(bytes, mask.data());
  CPU_SET_S(core, bytes, mask.data());
  // A core that has gone offline since leaves the thread where it is: slower, not wrong.
  (void)sched_setaffinity(0, bytes, mask.data());
}

uint64_t mode_for(const Settings& s, uint64_t mode) {
  return s.flush_subnormals ? mode | kFlushBits : mode & ~kFlushBits;
}

void ready_pool(const Settings& s) {
  omp_set_num_threads(s.threads);
#pragma omp parallel num_threads(s.threads)
  {
    const int thread = omp_get_thread_num();
    if (thread != 0) {
      set_float_mode(mode_for(s, float_mode()));
      if (s.bind) bind_to(s.cores[static_cast<size_t>(thread) % s.cores.size()]);
    }
  }
  ready_for = s.instance;
}

}  // namespace

LaunchScope::LaunchScope(const Settings& s) : saved_(float_mode()) {
  // Workers that OpenMP starts during the launch inherit this mode.
  const uint64_t wanted = mode_for(s, saved_);
  if (wanted != saved_) set_float_mode(wanted);
  if (ready_for != s.instance || omp_get_max_threads() != s.threads) ready_pool(s);
}

LaunchScope::~LaunchScope() { set_float_mode(saved_); }

}  // namespace capstan::cpu_device
