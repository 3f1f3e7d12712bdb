#include "tests/run/safetensors_file.h"

#include <gtest/gtest.h>

#include <cstring>

#include "nlohmann/json.hpp"
#include "tests/cli/process.h"

namespace capstan::run_test {

std::map<std::string, FileTensor> ReadSafetensors(const std::string& path) {
  std::map<std::string, FileTensor> tensors;
  const std::string bytes = cli_test::ReadAll(path);
  uint64_t header_size = 0;
  if (bytes.size() < sizeof(header_size)) {
    ADD_FAILURE() << path << " is missing or too short";
    return tensors;
  }
  std::memcpy(&header_size, bytes.data(), sizeof(header_size));
  const auto header = nlohmann::json::parse(bytes.substr(8, header_size));
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    EXPECT_EQ(entry["dtype"], "F32") << name;
    FileTensor t;
    t.shape = entry["shape"].get<std::vector<int64_t>>();
    const auto offsets = entry["data_offsets"].get<std::vector<uint64_t>>();
    t.values.resize((offsets[1] - offsets[0]) / sizeof(float));
    std::memcpy(t.values.data(), bytes.data() + 8 + header_size + offsets[0],
                offsets[1] - offsets[0]);
    tensors[name] = std::move(t);
  }
  return tensors;
}

}  // namespace capstan::run_test
