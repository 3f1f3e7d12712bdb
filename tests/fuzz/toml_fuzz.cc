// Any bytes as a configuration: either refused in a sentence of class USAGE, or resolved to text
// that loads again to the same text.
//
// Lines `#set a.b=c` are --set arguments. `#file name` begins another file that the ones before it
// may include. What comes before the first such line is run.toml.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "plugin_api/base.h"
#include "tests/config/fake_components.h"

namespace {

using capstan::testing_config::FakeComponents;
using capstan::testing_config::FakeFiles;

constexpr std::string_view kSetMark = "#set ";
constexpr std::string_view kFileMark = "#file ";
constexpr char kMainFile[] = "/cfg/run.toml";

struct Input {
  FakeFiles files;
  std::vector<std::string> overrides;
};

Input Split(std::string_view data) {
  Input input;
  std::string path = kMainFile;
  std::string text;
  while (!data.empty()) {
    const size_t end = std::min(data.find('\n'), data.size() - 1);
    const std::string_view line = data.substr(0, end + 1);
    data.remove_prefix(end + 1);
    const std::string_view bare = line.back() == '\n' ? line.substr(0, line.size() - 1) : line;
    if (bare.substr(0, kSetMark.size()) == kSetMark) {
      input.overrides.emplace_back(bare.substr(kSetMark.size()));
    } else if (bare.substr(0, kFileMark.size()) == kFileMark) {
      input.files.Add(path, text);
      path = "/cfg/" + std::string(bare.substr(kFileMark.size()));
      text.clear();
    } else {
      text += line;
    }
  }
  input.files.Add(path, text);
  return input;
}

void Require(bool condition, const char* promise, const std::string& shown) {
  if (condition) return;
  std::fprintf(stderr, "broken promise: %s\n%s\n", promise, shown.c_str());
  std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const FakeComponents components;
  const Input input = Split({reinterpret_cast<const char*>(data), size});
  const auto config =
      capstan::LoadConfig(kMainFile, input.overrides, components.Finder(), input.files.Reader());
  components.paths.clear();
  if (!config.ok()) {
    const std::string message(config.status().message());
    Require(!message.empty(), "an error has a sentence", message);
    Require(capstan::StatusClass(config.status()) == CAPSTAN_USAGE, "it is a usage error", message);
    return 0;
  }
  const std::string& resolved = config->resolved_toml;
  const auto again = capstan::testing_config::Load(components, resolved);
  Require(again.ok(), "a resolved configuration loads",
          std::string(again.status().message()) + "\n" + resolved);
  Require(again->resolved_toml == resolved, "it resolves to itself",
          resolved + "\n---- again:\n" + again->resolved_toml);
  return 0;
}
