// Components with declared options but no code, and a way to load TOML text against them.
#ifndef CAPSTAN_TESTS_CONFIG_FAKE_COMPONENTS_H_
#define CAPSTAN_TESTS_CONFIG_FAKE_COMPONENTS_H_

#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/config.h"
#include "runtime/status.h"

namespace capstan::testing_config {

inline capstan_option Option(int32_t type, const char* name, const char* fallback) {
  return {sizeof(capstan_option), name, type, 0, fallback, 0, 0, 0, 0, nullptr, "Documented."};
}
inline capstan_option Required(capstan_option option) {
  option.required = 1;
  return option;
}
inline capstan_option Range(double minimum, double maximum, capstan_option option) {
  option.minimum = minimum;
  option.maximum = maximum;
  option.has_range = 1;
  return option;
}
inline capstan_option Choices(const char* choices, capstan_option option) {
  option.choices = choices;
  return option;
}

// What a finder finds. Components have no vtable: configuration never calls them.
class FakeComponents {
 public:
  FakeComponents() {
    Add("device", "cpu", {Range(0, 1024, Option(CAPSTAN_OPTION_INT, "threads", "0"))});
    Add("comm", "shm", {});
    Add("model", "tiny",
        {Range(1, 1000, Option(CAPSTAN_OPTION_INT, "layers", "12")),
         Option(CAPSTAN_OPTION_BOOL, "tied", "true")});
    Add("objective", "causal_lm", {});
    Add("dataset", "tokens",
        {Choices("shuffle|sequential", Option(CAPSTAN_OPTION_STRING, "order", "\"shuffle\"")),
         Required(Option(CAPSTAN_OPTION_PATH, "source[].path", nullptr)),
         Range(0, 1e9, Option(CAPSTAN_OPTION_FLOAT, "source[].weight", "1.0")),
         Option(CAPSTAN_OPTION_PATH, "validation.path", "\"\"")});
    Add("optimizer", "adamw",
        {Range(0, 1, Option(CAPSTAN_OPTION_FLOATS, "betas", "[0.9, 0.95]")),
         Option(CAPSTAN_OPTION_FLOAT, "eps", "1e-8")});
    Add("optimizer", "sgd",
        {Range(0, 10, Option(CAPSTAN_OPTION_FLOAT, "lr", "0.01")),
         Option(CAPSTAN_OPTION_FLOAT, "momentum", "0.0")});
    Add("precision", "fp32", {});
    Add("strategy", "dp", {});
    Add("strategy", "tp", {Option(CAPSTAN_OPTION_BOOL, "overlap", "false")});
    Add("strategy", "pp",
        {Choices("gpipe|1f1b", Option(CAPSTAN_OPTION_STRING, "schedule", "\"1f1b\"")),
         Option(CAPSTAN_OPTION_INTS, "cuts", nullptr)});
    Add("store", "safetensors", {});
    Add("tracker", "jsonl", {});
    Add("tracker", "web",
        {Option(CAPSTAN_OPTION_SECRET, "token", nullptr),
         Option(CAPSTAN_OPTION_STRINGS, "tags", "[]")});
  }

  void Add(const char* kind, const char* id, std::vector<capstan_option> options) {
    Entry& entry = entries_[{kind, id}];
    entry.kind = kind;
    entry.id = id;
    entry.options = std::move(options);
    entry.component = {sizeof(capstan_component),
                       entry.kind.c_str(),
                       entry.id.c_str(),
                       "test/1",
                       "1.0.0",
                       "A component.",
                       entry.options.data(),
                       entry.options.size(),
                       nullptr};
  }
  void Remove(const char* kind, const char* id) { entries_.erase({kind, id}); }

  ComponentFinder Finder() const {
    return [this](std::string_view kind, std::string_view id,
                  const std::string& path) -> absl::StatusOr<const capstan_component*> {
      paths.push_back(path);
      const auto found = entries_.find({std::string(kind), std::string(path.empty() ? id : "tp")});
      if (found == entries_.end()) {
        return UsageError("there is no ", kind, " plugin \"", id, "\".");
      }
      return &found->second.component;
    };
  }

  mutable std::vector<std::string> paths;  // every path the finder was asked for

 private:
  struct Entry {
    std::string kind, id;
    std::vector<capstan_option> options;
    capstan_component component;
  };
  std::map<std::pair<std::string, std::string>, Entry> entries_;
};

// Files by absolute path, in place of a disk.
class FakeFiles {
 public:
  void Add(const std::string& path, const std::string& text) { files_[path] = text; }
  FileReader Reader() const {
    return [this](const std::string& path) -> absl::StatusOr<std::string> {
      const auto found = files_.find(path);
      if (found == files_.end()) return UsageError("no file ", path, ".");
      return found->second;
    };
  }

 private:
  std::map<std::string, std::string> files_;
};

// The least that loads.
inline constexpr char kMinimal[] = R"([run]
steps = 10
[model]
plugin = "tiny"
[data]
plugin = "tokens"
sequence_length = 8
[batch]
global = 4
[optimizer]
plugin = "adamw"
lr = 1e-3
)";

inline absl::StatusOr<Config> Load(const FakeComponents& components, const std::string& text,
                                   const std::vector<std::string>& overrides = {}) {
  FakeFiles files;
  files.Add("/cfg/run.toml", text);
  return LoadConfig("/cfg/run.toml", overrides, components.Finder(), files.Reader());
}

// kMinimal with more text after it.
inline absl::StatusOr<Config> LoadWith(const std::string& more,
                                       const std::vector<std::string>& overrides = {}) {
  static const FakeComponents* components = new FakeComponents;
  return Load(*components, kMinimal + more, overrides);
}

// What is wrong, or "" when it loads.
inline std::string Problem(const absl::StatusOr<Config>& config) {
  return std::string(config.status().message());
}

}  // namespace capstan::testing_config

#endif  // CAPSTAN_TESTS_CONFIG_FAKE_COMPONENTS_H_
