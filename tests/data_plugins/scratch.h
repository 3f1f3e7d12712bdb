// What the tests of the data plugins share: a scratch directory, whole files, and refusals.
#ifndef CAPSTAN_TESTS_DATA_PLUGINS_SCRATCH_H_
#define CAPSTAN_TESTS_DATA_PLUGINS_SCRATCH_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "sdk/error.h"

namespace capstan::data_test {

// A directory of its own, removed with all that is in it.
class Scratch {
 public:
  Scratch() {
    std::string pattern = (std::filesystem::temp_directory_path() / "capstan-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) std::abort();
    path_ = pattern;
  }
  ~Scratch() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline void write_file(const std::string& path, const std::string& content) {
  std::ofstream stream(path, std::ios::binary);
  stream << content;
  ASSERT_TRUE(stream.good()) << path;
}

inline std::string read_file(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  EXPECT_TRUE(stream.is_open()) << path;
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

// Names in a directory, dot files too, ascending.
inline std::vector<std::string> names_in(const std::string& directory) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// The refusal `body` ends in; nothing when it succeeds.
template <class Body>
std::optional<sdk::Error> refusal(Body&& body) {
  try {
    body();
  } catch (const sdk::Error& error) {
    return error;
  }
  return std::nullopt;
}

// Fails unless `body` is refused with this class and a sentence that holds every part.
template <class Body>
void expect_refused(std::int32_t code, const std::vector<std::string>& parts, Body&& body) {
  const std::optional<sdk::Error> error = refusal(body);
  ASSERT_TRUE(error.has_value()) << "was accepted";
  EXPECT_EQ(error->code(), code) << error->message();
  for (const std::string& part : parts) EXPECT_THAT(error->message(), testing::HasSubstr(part));
}

}  // namespace capstan::data_test

#endif  // CAPSTAN_TESTS_DATA_PLUGINS_SCRATCH_H_
