// A device of a plugin, with ownership: memory, queue and prepared kernels release themselves.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "plugin_api/device.h"
#include "runtime/program/program.h"

namespace capstan {

class Device;

// Device memory; freed with it. Not copyable.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(Device* device, void* data, uint64_t bytes)
      : device_(device), data_(data), bytes_(bytes) {}
  ~DeviceMemory();
  DeviceMemory(DeviceMemory&& other) noexcept { *this = std::move(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;
  char* data() const { return static_cast<char*>(data_); }
  uint64_t bytes() const { return bytes_; }

 private:
  Device* device_ = nullptr;
  void* data_ = nullptr;
  uint64_t bytes_ = 0;
};

// A kernel prepared for one op. `run` is what the step loop calls.
class Kernel {
 public:
  Kernel() = default;
  explicit Kernel(const capstan_kernel& kernel) : kernel_(kernel) {}
  ~Kernel();
  Kernel(Kernel&& other) noexcept { *this = std::move(other); }
  Kernel& operator=(Kernel&& other) noexcept;
  const capstan_kernel& get() const { return kernel_; }

 private:
  capstan_kernel kernel_{};
};

// [main thread] unless said otherwise.
class Device {
 public:
  // `name` is the component's id ("cpu"), by which plugins' own kernels are found.
  static absl::StatusOr<std::unique_ptr<Device>> Create(const capstan_device_v1* vtable,
                                                        const capstan_host* host,
                                                        const capstan_options* options,
                                                        std::string name);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const std::string& name() const { return name_; }
  std::string description() const { return vtable_->description(self_); }
  absl::StatusOr<DeviceMemory> Allocate(const std::string& region, uint64_t bytes);
  // Memory that other processes of this machine can map; `fd` is the caller's to close. Without it
  // (fd -1) where the device has none such.
  struct Shared {
    DeviceMemory memory;
    int32_t fd = -1;
    uint64_t offset = 0;
  };
  absl::StatusOr<Shared> AllocateShared(const std::string& region, uint64_t bytes);
  // Its memory is the host's too.
  bool on_host() const { return vtable_->id(self_).type == CAPSTAN_DEVICE_CPU; }
  absl::Status Copy(void* to, const void* from, uint64_t bytes);
  absl::StatusOr<capstan_memory_info> Memory() const;
  absl::StatusOr<capstan_roofline> Measure(DType dtype) const;
  std::vector<std::string> Fusions() const;
  void* queue() const { return queue_; }
  absl::Status Wait();

  // Picks the kernel for an op as it stands in a Program: a plugin's own, else the device's.
  // unwanted[j]: nothing reads output j. A missing kernel gives UNSUPPORTED naming op and dtypes.
  absl::StatusOr<Kernel> Prepare(const Program& program, OpId op, const std::vector<bool>& unwanted,
                                 uint64_t seed);

 private:
  friend class DeviceMemory;
  Device() = default;
  const capstan_device_v1* vtable_ = nullptr;
  void* self_ = nullptr;
  void* queue_ = nullptr;
  std::string name_;
};

}  // namespace capstan
