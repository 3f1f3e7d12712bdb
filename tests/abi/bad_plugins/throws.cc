// C++ plugins that let exceptions out of init or, with THROW_IN_CREATE, out of a component's
// constructor under the SDK, which must turn it into a status.
#include <stdexcept>

#include "sdk/tracker.h"

#if defined(THROW_IN_CREATE)

namespace {

class Thrower {
 public:
  Thrower(const capstan::sdk::Host&, const capstan::sdk::Options&, const char*, int64_t) {
    throw std::runtime_error("the flux capacitor melted");
  }
  void metrics(const char*, int64_t, std::span<const capstan_metric>) {}
  void event(const char*, int64_t, const char*) {}
  void flush() {}
};

}  // namespace

CAPSTAN_PLUGIN_ENTRY("throws_in_create", "1.0.0", "Apache-2.0", "Throws in its constructor.",
                     capstan::sdk::tracker_component<Thrower>("thrower", "1.0.0", "Throws."));

#else

namespace {

capstan_status* Init(const capstan_host*) { throw std::runtime_error("init threw"); }
const capstan_component* GetComponent(size_t) { return nullptr; }

}  // namespace

extern "C" {
extern CAPSTAN_EXPORT const capstan_plugin capstan_plugin_entry;
const capstan_plugin capstan_plugin_entry = {CAPSTAN_PLUGIN_MAGIC,
                                             0,
                                             sizeof(capstan_plugin),
                                             CAPSTAN_ABI_MAJOR,
                                             CAPSTAN_ABI_MINOR,
                                             "throws_in_init",
                                             "1.0.0",
                                             "Apache-2.0",
                                             "Throws in init.",
                                             &Init,
                                             nullptr,
                                             &GetComponent};
}

#endif
