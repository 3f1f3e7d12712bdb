// A configuration file with everything it includes and every --set applied: one tree of values,
// each with the place it came from.
#ifndef CAPSTAN_RUNTIME_CONFIG_DOCUMENT_H_
#define CAPSTAN_RUNTIME_CONFIG_DOCUMENT_H_

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/config/value.h"

namespace capstan {

// Reads a whole file. Tests and fuzzers bring their own.
using FileReader = std::function<absl::StatusOr<std::string>(const std::string& path)>;

// Reads a regular file of at most 16 MiB.
absl::StatusOr<std::string> ReadConfigFile(const std::string& path);

// Loads `path`. `include = ["base.toml", ...]` at the top of a file is merged in first, in order,
// each relative to the file that names it; the file itself comes last and wins. Tables merge key by
// key; anything else, lists of tables too, is replaced whole, and one of run.steps, run.tokens and
// run.epochs takes the place of the others. A file that includes itself is
// refused.
absl::StatusOr<Value> LoadDocument(const std::string& path, const FileReader& read);

// Applies `a.b.c=value`. The value is TOML, or else a plain string. A name after a list of tables
// picks the entry with that `id` or `plugin`; a number picks by index, and the index just past the
// end appends.
absl::Status ApplyOverride(std::string_view argument, Value* document);

}  // namespace capstan

#endif  // CAPSTAN_RUNTIME_CONFIG_DOCUMENT_H_
