// The keys the host owns, declared as a plugin declares its options, and the tables they stand in.
#ifndef CAPSTAN_RUNTIME_CONFIG_HOST_KEYS_H_
#define CAPSTAN_RUNTIME_CONFIG_HOST_KEYS_H_

#include <string_view>
#include <vector>

#include "runtime/config/options.h"

namespace capstan {

// A table of the configuration.
struct Section {
  const char* table;
  const char* kind;      // of the component it names; NULL: the host's alone
  const char* fallback;  // the plugin when none is named; NULL: it must be named
  bool many;             // a list of tables: [[strategy]]
  OptionTable host_keys;
};

// Every table, in the order a resolved configuration prints them.
const std::vector<Section>& Sections();
const Section& FindSection(std::string_view table);

// Keys that pick the component itself: plugin, plugin_path and, in lists, id.
const OptionTable& SelectorKeys(bool many);
// Keys of an [[optimizer.group]].
const OptionTable& OptimizerGroupKeys();

}  // namespace capstan

#endif  // CAPSTAN_RUNTIME_CONFIG_HOST_KEYS_H_
