// The plugin's face: options and the exported descriptor.
#include "sdk/plugin.h"

#include "plugins/device/cpu/device.h"

namespace {

namespace sdk = capstan::sdk;

constexpr capstan_option kOptions[] = {
    sdk::int_option("threads", "0",
                    "OpenMP threads of kernels; 0: the cores this process may use, divided by the "
                    "ranks on this machine.")
        .range(0, 4096),
    sdk::string_option("kernels", "\"fast\"",
                       "fast: vectorised f32 kernels; reference: plain loops for everything, slow, "
                       "to check against.")
        .choices("fast|reference"),
    sdk::bool_option("huge_pages", "true", "Ask for 2 MiB pages (madvise)."),
    sdk::bool_option("bind", "false", "Bind each worker thread to a core of this rank's share."),
    sdk::bool_option(
        "flush_subnormals", "true",
        "Kernels treat floats below 1.2e-38 as zero, which some processors are slow at."),
};

}  // namespace

CAPSTAN_PLUGIN_ENTRY(
    "cpu", "1.0.0", "Apache-2.0", "Memory and kernels of the machine's own processors.",
    sdk::device_component<capstan::cpu_device::CpuDevice>(
        "cpu", "1.0.0",
        "The machine's processors: f32 kernels by oneDNN and Highway, f64 by plain "
        "loops.",
        kOptions));
