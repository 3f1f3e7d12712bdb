// The device "cpu".
#ifndef CAPSTAN_PLUGINS_DEVICE_CPU_DEVICE_H_
#define CAPSTAN_PLUGINS_DEVICE_CPU_DEVICE_H_

#include <cstdint>
#include <string>
#include <utility>

#include "plugins/device/cpu/memory.h"
#include "plugins/device/cpu/settings.h"
#include "sdk/device.h"

namespace capstan::cpu_device {

// One synchronous queue: a launch is complete when it returns. Kernels may be prepared and run on
// any one thread at a time; memory calls are safe on any thread.
class CpuDevice {
 public:
  static int32_t probe(const sdk::Host& host);

  CpuDevice(const sdk::Host& host, const sdk::Options& options);

  capstan_device_id id() const noexcept { return {CAPSTAN_DEVICE_CPU, 0}; }
  const char* description() const noexcept { return description_.c_str(); }
  void memory(capstan_memory_info* out) const;

  void* allocate(const char* region, uint64_t bytes);
  void* allocate_shared(const char* region, uint64_t bytes);
  void free(void* memory) noexcept;
  // A descriptor of memory of allocate_shared, the caller's, and the offset in it.
  std::pair<int32_t, uint64_t> export_memory(void* memory) const;
  void copy(void* to, const void* from, uint64_t bytes) const;

  void* queue_create() noexcept { return this; }  // stands for the one queue; has no state
  void queue_destroy(void*) noexcept {}
  void queue_wait(void*) noexcept {}
  void* queue_native(void*) noexcept { return nullptr; }

  // Whether prepare would find a kernel for the op and its dtypes.
  bool supports(const capstan_kernel_request& request) const noexcept;
  void prepare(const capstan_kernel_request& request, capstan_kernel* out) const;

  void measure(capstan_dtype dtype, capstan_roofline* out) const;
  const char* const* fusions() const noexcept;

 private:
  sdk::Host host_;
  Settings settings_;
  std::string description_;
  Regions regions_;
};

}  // namespace capstan::cpu_device

#endif  // CAPSTAN_PLUGINS_DEVICE_CPU_DEVICE_H_
