#include <algorithm>
#include <array>
#include <string_view>

#include "plugins/device/cpu/kernel.h"

namespace capstan::cpu_device {

// Linear: asked once an op when a Program is compiled, never in the step loop.
const Adapter* find_adapter(std::string_view op) {
  const std::array sections = {dense_adapters(),     norm_adapters(),   activation_adapters(),
                               attention_adapters(), loss_adapters(),   arithmetic_adapters(),
                               layout_adapters(),    random_adapters(), update_adapters()};
  for (const std::span<const Adapter> section : sections) {
    const auto it =
        std::find_if(section.begin(), section.end(), [&](const Adapter& a) { return op == a.op; });
    if (it != section.end()) return &*it;
  }
  return nullptr;
}

}  // namespace capstan::cpu_device
