// The plugin's face: options and the exported descriptor.
#include "sdk/plugin.h"

#include "plugins/comm/shm/comm.h"

namespace {

namespace sdk = capstan::sdk;

constexpr capstan_option kOptions[] = {
    sdk::int_option("eager_bytes", "16384",
                    "Collectives to which each rank gives at most this many bytes complete in the "
                    "caller, through a slot in shared memory (registered memory: at most 2048).")
        .range(0, 1 << 20),
    sdk::int_option("spin_us", "20",
                    "Microseconds a waiter looks before it sleeps, where each rank has a core.")
        .range(0, 1000000),
    sdk::int_option(
        "stream_mib", "24",
        "Collectives that read and write more than this many MiB store past the caches.")
        .range(0, 1 << 20),
    sdk::string_option("far_memory", "\"auto\"",
                       "How memory that is not registered reaches other ranks: auto reads it with "
                       "process_vm_readv where that is permitted; staged copies it through shared "
                       "memory.")
        .choices("auto|staged"),
};

}  // namespace

CAPSTAN_PLUGIN_ENTRY(
    "shm", "1.0.0", "Apache-2.0", "Communication between the processes of one machine.",
    sdk::comm_component<capstan::shm::ShmComm>(
        "shm", "1.0.0",
        "Collectives over shared memory: peers read and write each other's buffers directly.",
        kOptions));
