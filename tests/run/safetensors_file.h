// A plain reader of safetensors files, independent of the store under test.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace capstan::run_test {

struct FileTensor {
  std::vector<int64_t> shape;
  std::vector<float> values;  // F32 only
};

// Fails the test when the file cannot be read.
std::map<std::string, FileTensor> ReadSafetensors(const std::string& path);

}  // namespace capstan::run_test
