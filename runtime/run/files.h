// Files of a run directory.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace capstan {

absl::Status MakeDirectories(const std::string& path);
// Whole or not at all: temporary, fsync, rename.
absl::Status WriteFileAtomically(const std::string& path, const std::string& text);
absl::StatusOr<std::string> ReadFile(const std::string& path);

}  // namespace capstan
