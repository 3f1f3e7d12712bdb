#include "runtime/config/document.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <system_error>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "runtime/config/toml_reader.h"
#include "runtime/status.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;

constexpr uintmax_t kLargestFile = 16u << 20;
constexpr size_t kDeepestInclude = 32;
constexpr size_t kDeepestKey = 64;

std::string Canonical(const std::string& path) {
  std::error_code error;
  const fs::path canonical = fs::weakly_canonical(path, error);
  return error ? fs::path(path).lexically_normal().string() : canonical.string();
}

absl::StatusOr<std::vector<std::string>> TakeIncludes(Value* file) {
  std::vector<std::string> includes;
  const auto found = std::find_if(file->members.begin(), file->members.end(),
                                  [](const Member& member) { return member.key == "include"; });
  if (found == file->members.end()) return includes;
  const Value& value = found->value;
  bool good = value.is_array();
  for (const Value& item : value.items) {
    good = good && item.is_string() && !item.text.empty();
    includes.push_back(item.text);
  }
  if (!good) {
    return UsageError(value.position.ToString(), ": include must be a list of file names, but is ",
                      value.Describe(), R"(; write include = ["base.toml"].)");
  }
  file->members.erase(found);
  return includes;
}

// Who names one length of the run takes the place of another from an included file.
void ReplaceRunLength(const Value& over, Value* base) {
  constexpr std::string_view kLengths[] = {"steps", "tokens", "epochs"};
  const Value* now = over.Find("run");
  const auto run = std::find_if(base->members.begin(), base->members.end(),
                                [](const Member& m) { return m.key == "run"; });
  if (now == nullptr || run == base->members.end()) return;
  const auto is_length = [&](std::string_view key) {
    return std::find(std::begin(kLengths), std::end(kLengths), key) != std::end(kLengths);
  };
  if (std::none_of(now->members.begin(), now->members.end(),
                   [&](const Member& m) { return is_length(m.key); }))
    return;
  std::erase_if(run->value.members,
                [&](const Member& m) { return is_length(m.key) && now->Find(m.key) == nullptr; });
}

absl::StatusOr<Value> LoadFile(const std::string& path, const Position& from,
                               const FileReader& read, std::vector<std::string>* open) {
  const std::string canonical = Canonical(path);
  if (std::find(open->begin(), open->end(), canonical) != open->end()) {
    return UsageError(from.ToString(), ": ", path, " includes itself (",
                      absl::StrJoin(*open, " -> "), " -> ", canonical, "); remove one include.");
  }
  if (open->size() >= kDeepestInclude) {
    return UsageError(from.ToString(), ": includes are nested more than ", kDeepestInclude,
                      " deep at ", path, ".");
  }
  absl::StatusOr<std::string> text = read(path);
  if (!text.ok()) {
    return from.source == nullptr ? text.status() : Annotate(text.status(), from.ToString());
  }
  const std::string directory = fs::path(path).parent_path().string();
  const auto source = std::make_shared<const Source>(Source{path, directory, false});
  CAPSTAN_ASSIGN_OR_RETURN(Value file, ParseToml(*text, source));

  const Value* include = file.Find("include");
  const Position include_position = include == nullptr ? Position{source, 0} : include->position;
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<std::string> includes, TakeIncludes(&file));
  open->push_back(canonical);
  Value merged = Value::Table();
  for (const std::string& name : includes) {
    const std::string included = (fs::path(directory) / name).lexically_normal().string();
    CAPSTAN_ASSIGN_OR_RETURN(Value part, LoadFile(included, include_position, read, open));
    ReplaceRunLength(part, &merged);
    MergeOver(std::move(part), &merged);
  }
  open->pop_back();
  ReplaceRunLength(file, &merged);
  MergeOver(std::move(file), &merged);
  return merged;
}

// "a.b.\"c.d\"" into its keys.
absl::StatusOr<std::vector<std::string>> SplitKeyPath(std::string_view path,
                                                      const std::string& source) {
  const auto bad = [&source] {
    return UsageError(source, ": write --set table.key=value, with non-empty keys between dots.");
  };
  std::vector<std::string> keys;
  size_t at = 0;
  while (true) {
    std::string key;
    if (at < path.size() && path[at] == '"') {
      const size_t end = path.find('"', at + 1);
      if (end == std::string_view::npos) return bad();
      key = path.substr(at + 1, end - at - 1);
      at = end + 1;
    } else {
      const size_t end = std::min(path.find('.', at), path.size());
      key = path.substr(at, end - at);
      at = end;
    }
    if (key.empty() || (at < path.size() && path[at] != '.')) return bad();
    keys.push_back(std::move(key));
    if (keys.size() > kDeepestKey) {
      return UsageError(source.substr(0, 60), "...: a key has at most ", kDeepestKey, " parts.");
    }
    if (at == path.size()) return keys;
    ++at;
  }
}

// The item of a list that `key` picks: by index, or by the `id` or `plugin` of its tables.
absl::StatusOr<Value*> PickItem(const std::string& key, const std::string& list,
                                const Position& position, Value* array) {
  uint64_t index = 0;
  if (absl::SimpleAtoi(key, &index)) {
    if (index > array->items.size()) {
      return UsageError(position.ToString(), ": ", list, " has ", array->items.size(),
                        " entries; the next index is ", array->items.size(), ", not ", key, ".");
    }
    if (index == array->items.size()) {
      array->items.push_back(Value::Table());
      array->items.back().position = position;
    }
    return &array->items[index];
  }
  std::vector<std::string> known;
  Value* found = nullptr;
  for (Value& item : array->items) {
    for (const char* field : {"id", "plugin"}) {
      const Value* name = item.Find(field);
      if (name == nullptr || !name->is_string()) continue;
      known.push_back(name->text);
      if (name->text != key || found == &item) continue;
      if (found != nullptr) {
        return UsageError(position.ToString(), ": several entries of ", list, " are called \"", key,
                          "\"; give each an id, or use its index: ", list, ".0.");
      }
      found = &item;
    }
  }
  if (found != nullptr) return found;
  return UsageError(position.ToString(), ": no entry of ", list, " has the plugin or id \"", key,
                    "\"; there is ", known.empty() ? "none" : absl::StrJoin(known, ", "), ".");
}

absl::StatusOr<Value> ReadOverrideValue(const std::string& text,
                                        const std::shared_ptr<const Source>& source) {
  absl::StatusOr<Value> value = ParseTomlValue(text, source);
  // Not TOML: the text itself is the string. Quoting it checks that it is UTF-8.
  if (!value.ok()) value = ParseTomlValue(QuotedText(text), source);
  if (!value.ok()) return UsageError(source->name, ": the value is not valid UTF-8.");
  if (!value->is_string()) value->raw = text;
  return value;
}

// Puts `value` at keys[depth...] below `at`; `path` is how `at` was reached.
absl::Status SetAt(const std::vector<std::string>& keys, size_t depth, const std::string& path,
                   Value value, Value* at) {
  const std::string& key = keys[depth];
  const Position position = value.position;
  Value* child = nullptr;
  if (at->is_array()) {
    CAPSTAN_ASSIGN_OR_RETURN(child, PickItem(key, path, position, at));
  } else if (at->is_table()) {
    child = at->Find(key);
    if (child == nullptr) {
      // `--set strategy.0.plugin=dp` begins a list.
      const bool list = depth + 1 < keys.size() && keys[depth + 1] == "0";
      child = &at->Set(key, list ? Value::Array() : Value::Table());
      child->position = position;
    }
  } else {
    return UsageError(position.ToString(), ": ", path, " is ", at->Describe(),
                      ", so it has no key \"", key, "\".");
  }
  if (depth + 1 == keys.size()) {
    *child = std::move(value);
    return absl::OkStatus();
  }
  return SetAt(keys, depth + 1, path.empty() ? key : StrCat(path, ".", key), std::move(value),
               child);
}

}  // namespace

absl::StatusOr<std::string> ReadConfigFile(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) {
    return UsageError("no file ", path, "; give the path of a TOML configuration.");
  }
  if (!fs::is_regular_file(status)) return UsageError(path, " is not a regular file.");
  const uintmax_t size = fs::file_size(path, error);
  if (error) return UsageError("cannot read ", path, ": ", error.message(), ".");
  if (size > kLargestFile) {
    return UsageError(path, " has ", size, " bytes; a configuration has at most ", kLargestFile,
                      ".");
  }
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  if (!stream || (size > 0 && !text)) {
    return UsageError("cannot read ", path, "; check its permissions.");
  }
  return text.str();
}

absl::StatusOr<Value> LoadDocument(const std::string& path, const FileReader& read) {
  std::vector<std::string> open;
  return LoadFile(path, Position{}, read, &open);
}

absl::Status ApplyOverride(std::string_view argument, Value* document) {
  // The value is left out of what messages show: it may be a secret.
  const size_t equals = argument.find('=');
  const std::string shown = StrCat("--set ", argument.substr(0, equals));
  const auto source = std::make_shared<const Source>(Source{shown, "", true});
  if (equals == std::string_view::npos || equals == 0) {
    return UsageError(shown, ": write --set table.key=value.");
  }
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<std::string> keys,
                           SplitKeyPath(argument.substr(0, equals), shown));
  if (keys.front() == "include") {
    return UsageError(shown, ": include works only inside a file.");
  }
  CAPSTAN_ASSIGN_OR_RETURN(Value value,
                           ReadOverrideValue(std::string(argument.substr(equals + 1)), source));
  if (keys.size() == 2 && keys[0] == "run") {
    Value over = Value::Table(), run = Value::Table();
    run.members.push_back({keys[1], value});
    over.members.push_back({"run", std::move(run)});
    ReplaceRunLength(over, document);
  }
  return SetAt(keys, 0, "", std::move(value), document);
}

}  // namespace capstan
