// A strategy from outside the tree: looks at every Program and changes nothing.
#include <string_view>

#include "sdk/strategy.h"

namespace {

namespace sdk = capstan::sdk;

constexpr capstan_phase kPhases[] = {sdk::make_phase(CAPSTAN_PHASE_FUSE)};

class Label {
 public:
  Label(const sdk::Host&, const sdk::Options&) {}
  std::span<const capstan_phase> phases() const noexcept { return kPhases; }
  void rewrite(std::string_view, sdk::Program&) {}
};

}  // namespace

CAPSTAN_PLUGIN_ENTRY("label", "0.1.0", "MIT", "Built against an installed Capstan.",
                     capstan::sdk::strategy_component<Label>("label", "0.1.0", "Changes nothing."));
