// One value against one declaration: type, range, choices, paths and secrets.
#ifndef CAPSTAN_RUNTIME_CONFIG_OPTION_READER_H_
#define CAPSTAN_RUNTIME_CONFIG_OPTION_READER_H_

#include <string>

#include "plugin_api/base.h"
#include "runtime/config/options.h"
#include "runtime/config/problems.h"
#include "runtime/config/value.h"

namespace capstan {

// Fills the value fields of `entry`; false after reporting what is wrong. `shown` is the full key.
bool ReadOption(const capstan_option& option, const Value& value, const std::string& shown,
                OptionEntry* entry, Problems* problems);

// The same from the declared default. A default that breaks its own declaration is reported as a
// mistake of `owner`.
bool ReadDefault(const capstan_option& option, const std::string& shown, const std::string& owner,
                 const std::string& directory, OptionEntry* entry, Problems* problems);

// "data.sequence_length is missing (positions of a sample); add sequence_length = 1 to [data]."
std::string MissingSentence(const capstan_option& option, const std::string& shown,
                            const std::string& table);

}  // namespace capstan

#endif  // CAPSTAN_RUNTIME_CONFIG_OPTION_READER_H_
