// TOML text into Value. The only place that sees the TOML library.
#ifndef CAPSTAN_RUNTIME_CONFIG_TOML_READER_H_
#define CAPSTAN_RUNTIME_CONFIG_TOML_READER_H_

#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "runtime/config/value.h"

namespace capstan {

// Parses a whole document. Errors name the source and line.
absl::StatusOr<Value> ParseToml(std::string_view text, std::shared_ptr<const Source> source);

// Parses one value, as it may stand after `=`: `[0.9, 0.95]`.
absl::StatusOr<Value> ParseTomlValue(std::string_view text, std::shared_ptr<const Source> source);

}  // namespace capstan

#endif  // CAPSTAN_RUNTIME_CONFIG_TOML_READER_H_
