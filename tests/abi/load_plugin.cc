// Loads one plugin as the host would and prints what it offers, one `kind id` a line.
#include <cstdio>
#include <memory>

#include "runtime/loader.h"
#include "runtime/status.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: load_plugin PLUGIN\n");
    return capstan::kExitUsage;
  }
  auto registry = capstan::PluginRegistry::Create({});
  if (!registry.ok()) return capstan::ExitCode(registry.status());
  const auto plugin = (*registry)->Load(argv[1]);
  if (!plugin.ok()) {
    std::fprintf(stderr, "%s\n", plugin.status().ToString().c_str());
    return capstan::ExitCode(plugin.status());
  }
  for (const capstan::Component* component : (*registry)->ComponentsOf(**plugin)) {
    std::printf("%s %s\n", component->definition->kind, component->definition->id);
  }
  return 0;
}
