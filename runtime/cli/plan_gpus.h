// Memory of GPUs by name, for "does it fit?".
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace capstan {

struct Gpu {
  std::string name;       // "A100 80GB": the product's name and the size on its data sheet
  int64_t mebibytes = 0;  // what the driver reports as its total
  double bytes() const { return static_cast<double>(mebibytes) * 1048576.0; }
};

// Ascending by memory, then by name.
const std::vector<Gpu>& KnownGpus();

// "A100 80GB", "a100-80gb", "nvidia h200" and "4090" all work. A name that fits several GPUs, or
// none, is an error that lists them.
absl::StatusOr<Gpu> FindGpu(const std::string& name);

}  // namespace capstan
