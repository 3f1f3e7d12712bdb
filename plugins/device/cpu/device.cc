#include "plugins/device/cpu/device.h"

#include <dnnl.h>

#include <algorithm>
#include <cstring>

#include "hwy/targets.h"
#include "plugins/device/cpu/kernel.h"
#include "plugins/device/cpu/launch_scope.h"
#include "plugins/device/cpu/measure.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace capstan::cpu_device {
namespace {

constexpr int32_t kScore = 10;  // an accelerator's device scores higher

// Vectors that the kernels find on this processor, for the description.
const char* vector_unit() {
  [[maybe_unused]] const int64_t targets = hwy::SupportedTargets();
#if defined(__x86_64__)
  if ((targets & HWY_AVX3) != 0) return "avx512";
  if ((targets & HWY_AVX2) != 0) return "avx2";
  return "sse2";
#elif defined(__aarch64__)
  return "neon";
#else
  return "scalar";
#endif
}

std::string describe(const Settings& s) {
  const dnnl_version_t* dnnl = dnnl_version();
  return sdk::text(s.threads, s.threads == 1 ? " thread, " : " threads, ", vector_unit(),
                   ", oneDNN ", dnnl->major, '.', dnnl->minor, '.', dnnl->patch,
                   s.reference ? ", plain kernels" : "");
}

}  // namespace

int32_t CpuDevice::probe(const sdk::Host&) {
#if defined(__x86_64__)
  // Asked of the processor itself: the compiler's built-ins bring a static constructor with them.
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & bit_SSE4_1) == 0) {
    throw sdk::unsupported_error(
        "device cpu: this processor lacks SSE4.1, which oneDNN's matrix products need");
  }
#endif
  return kScore;
}

CpuDevice::CpuDevice(const sdk::Host& host, const sdk::Options& options)
    : host_(host),
      settings_(read_settings(host, options)),
      description_(describe(settings_)),
      regions_(settings_.threads, settings_.huge_pages) {}

void CpuDevice::memory(capstan_memory_info* out) const {
  const SystemMemory system = system_memory();
  out->total_bytes = system.total;
  out->free_bytes = system.free;
  out->allocated_bytes = regions_.allocated_bytes();
  out->external_bytes = library_bytes(settings_);
}

void* CpuDevice::allocate(const char* region, uint64_t bytes) {
  // The pool's own threads touch the pages they will work on.
  const LaunchScope scope(settings_);
  return regions_.allocate(region, bytes, Sharing::kPrivate);
}

void* CpuDevice::allocate_shared(const char* region, uint64_t bytes) {
  const LaunchScope scope(settings_);
  return regions_.allocate(region, bytes, Sharing::kShared);
}

std::pair<int32_t, uint64_t> CpuDevice::export_memory(void* memory) const {
  return {regions_.share(memory), 0};
}

void CpuDevice::free(void* memory) noexcept {
  if (memory == nullptr || regions_.free(memory)) return;
  try {
    host_.log(sdk::LogLevel::kError, "device cpu",
              "free of memory that this device did not allocate");
  } catch (...) {  // without memory for the message there is nobody to tell
  }
}

void CpuDevice::copy(void* to, const void* from, uint64_t bytes) const {
  constexpr uint64_t kPiece = uint64_t{1} << 20;
  if (bytes <= kPiece) {
    if (bytes > 0) std::memcpy(to, from, bytes);
    return;
  }
  const LaunchScope scope(settings_);
  const int64_t pieces = static_cast<int64_t>((bytes + kPiece - 1) / kPiece);
#pragma omp parallel for schedule(static) num_threads(settings_.threads)
  for (int64_t i = 0; i < pieces; ++i) {
    const uint64_t at = static_cast<uint64_t>(i) * kPiece;
    std::memcpy(static_cast<char*>(to) + at, static_cast<const char*>(from) + at,
                std::min(kPiece, bytes - at));
  }
}

bool CpuDevice::supports(const capstan_kernel_request& request) const noexcept {
  // Preparing only reads shapes and attributes, so it is its own best test. A malformed request is
  // supported as far as this question goes: prepare then says what is wrong with it.
  capstan_kernel kernel = sdk::sized<capstan_kernel>();
  capstan_status* status = sdk::guard([&] { prepare(request, &kernel); });
  if (status == nullptr) {
    kernel.release(kernel.state);
    return true;
  }
  const bool supported = status->code != CAPSTAN_UNSUPPORTED;
  status->release(status);
  return supported;
}

void CpuDevice::prepare(const capstan_kernel_request& request, capstan_kernel* out) const {
  const Adapter* adapter = find_adapter(request.op);
  if (adapter == nullptr) {
    throw sdk::unsupported_error(
        sdk::text("device cpu has no kernel for the op '", request.op, "'"));
  }
  // Sizes of workspaces follow the thread count.
  const LaunchScope scope(settings_);
  adapter->prepare(Request(request, settings_), out);
}

void CpuDevice::measure(capstan_dtype dtype, capstan_roofline* out) const {
  const double flops = measure_matmul(settings_, dtype);
  const double bytes = measure_triad(settings_);
  out->matmul_flops = flops;
  out->memory_bytes = bytes;
}

const char* const* CpuDevice::fusions() const noexcept {
  static constexpr const char* kFusions[] = {"linear_gelu", nullptr};
  return kFusions;
}

}  // namespace capstan::cpu_device
