// Runs a fuzz target over its seeds and kept findings: what once broke it is a test ever after,
// with any compiler.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

std::vector<std::filesystem::path> kept_inputs() {
  std::vector<std::filesystem::path> paths;
  for (const auto& file : std::filesystem::recursive_directory_iterator(CAPSTAN_FUZZ_CORPUS)) {
    if (file.is_regular_file()) paths.push_back(file.path());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

TEST(Replay, EveryKeptInputIsHandled) {
  const std::vector<std::filesystem::path> paths = kept_inputs();
  ASSERT_FALSE(paths.empty()) << "no input under " << CAPSTAN_FUZZ_CORPUS;
  for (const std::filesystem::path& path : paths) {
    SCOPED_TRACE(path.string());
    std::ifstream stream(path, std::ios::binary);
    ASSERT_TRUE(stream.is_open());
    const std::string bytes{std::istreambuf_iterator<char>(stream),
                            std::istreambuf_iterator<char>()};
    // A broken promise aborts the process, which names the input through the trace above.
    EXPECT_EQ(
        LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()),
        0);
  }
}

}  // namespace
