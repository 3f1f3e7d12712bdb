// Options: the values of one table, checked against what its owner declared (capstan_option), in
// the form a plugin's `create` takes. The host's own keys go the same way.
#ifndef CAPSTAN_RUNTIME_CONFIG_OPTIONS_H_
#define CAPSTAN_RUNTIME_CONFIG_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "plugin_api/base.h"
#include "plugin_api/plugin.h"
#include "runtime/config/problems.h"
#include "runtime/config/value.h"

namespace capstan {

// Declared options. A plugin built against a later minor version has larger structs, so entries are
// found by their own size, not by ours.
class OptionTable {
 public:
  OptionTable() = default;
  OptionTable(const capstan_option* first, size_t count) : first_(first), count_(count) {}
  explicit OptionTable(const capstan_component& component)
      : OptionTable(component.options, component.option_count) {}

  size_t size() const { return first_ == nullptr ? 0 : count_; }
  const capstan_option& operator[](size_t index) const;
  const capstan_option* Find(std::string_view name) const;  // NULL when absent

 private:
  const capstan_option* first_ = nullptr;
  size_t count_ = 0;
};

// "integer", "list of numbers", ...
std::string_view OptionTypeName(int32_t type);

// A checked value. Which of the fields count depends on the type, as in capstan_option_value.
struct OptionEntry {
  std::string key;              // "source.0.path"
  std::string name;             // as declared: "source[].path"
  std::vector<size_t> indexes;  // one per "[]" of name
  int32_t type = 0;
  bool from_user = false;
  int64_t i = 0;
  double f = 0;
  std::string s;
  std::vector<int64_t> ints;
  std::vector<double> floats;
  std::vector<std::string> strings;
  Value reference;  // secrets: {env = "..."}; printed instead of the value
  Position position;
};

// Immutable; copies share. The C arrays live as long as any copy.
class OptionSet {
 public:
  OptionSet();
  explicit OptionSet(std::vector<OptionEntry> entries);

  const capstan_options& c() const;
  const std::vector<OptionEntry>& entries() const;

  const OptionEntry* Find(std::string_view key) const;  // NULL: absent, and without a default
  // Of an absent key: the fallback.
  bool Bool(std::string_view key, bool fallback = false) const;
  int64_t Int(std::string_view key, int64_t fallback = 0) const;
  double Float(std::string_view key, double fallback = 0) const;
  std::string String(std::string_view key, std::string fallback = "") const;
  std::vector<std::string> Strings(std::string_view key) const;

  // Puts every value into a table, defaults too; secrets as their reference. `keep` (may be empty)
  // chooses entries.
  void AppendTo(Value* table, const std::function<bool(const OptionEntry&)>& keep = {}) const;

 private:
  struct Storage;
  std::shared_ptr<const Storage> storage_;
};

// Where a table stands, for messages and for relative paths.
struct TableContext {
  std::string path;       // "optimizer", "strategy.tp": what --set would use
  std::string owner;      // "plugin \"adamw\"", or "" for the host
  Position position;      // of the table
  std::string directory;  // relative paths of defaults start here
  // True for values (key below `path`) that a resolved file lists as defaults. May be empty.
  std::function<bool(const std::string& key, const Value& value)> was_default;
  // Called for every key whose value is a default. May be empty.
  std::function<void(const std::string& key)> on_default;
};

// Reads what `declared` names from `table` (NULL: no table). Mistakes go to `problems`; their
// options are left out. Unknown keys are not looked at.
OptionSet ReadOptions(const OptionTable& declared, const Value* table, const TableContext& context,
                      Problems* problems);

// Reports keys of `table` that are not among `known` names (dots enter tables, "[]" lists of
// tables).
void ReportUnknownKeys(const std::vector<std::string>& known, const Value& table,
                       const TableContext& context, Problems* problems);

}  // namespace capstan

#endif  // CAPSTAN_RUNTIME_CONFIG_OPTIONS_H_
