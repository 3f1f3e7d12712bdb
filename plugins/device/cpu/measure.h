// Short measurements of this device's peaks.
#ifndef CAPSTAN_PLUGINS_DEVICE_CPU_MEASURE_H_
#define CAPSTAN_PLUGINS_DEVICE_CPU_MEASURE_H_

#include "plugins/device/cpu/settings.h"
#include "sdk/device.h"

namespace capstan::cpu_device {

// FLOP/s of matrix products of a transformer layer's shapes, by the kernel that would run them: the
// best of a few, within about 0.1 s. UNSUPPORTED for dtypes this device has no kernels for.
double measure_matmul(const Settings& settings, capstan_dtype dtype);

// Bytes/s of a triad, a = b + s * c, over arrays too large for the caches: best of a few.
double measure_triad(const Settings& settings);

// An upper bound on what oneDNN and OpenMP take for themselves, in bytes.
uint64_t library_bytes(const Settings& settings);

}  // namespace capstan::cpu_device

#endif  // CAPSTAN_PLUGINS_DEVICE_CPU_MEASURE_H_
