// A TOML value with the place it was written at: what configuration files are read into, merged as,
// and printed from. Tables keep the order of the file.
#ifndef CAPSTAN_RUNTIME_CONFIG_VALUE_H_
#define CAPSTAN_RUNTIME_CONFIG_VALUE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace capstan {

// Where text came from: a file, or one --set argument.
struct Source {
  std::string name;       // as the user spells it: "configs/a.toml", "--set run.steps=2"
  std::string directory;  // relative paths in it start here
  bool command_line = false;
};

struct Position {
  std::shared_ptr<const Source> source;
  int line = 0;  // from 1; 0: the whole source

  std::string ToString() const;  // "configs/a.toml:12"
};

struct Member;

struct Value {
  enum class Kind { kBool, kInt, kFloat, kString, kDate, kArray, kTable };

  Kind kind = Kind::kTable;
  bool boolean = false;
  int64_t integer = 0;
  double real = 0;
  std::string text;             // strings, and the spelling of dates
  std::vector<Value> items;     // arrays
  std::vector<Member> members;  // tables
  Position position;
  // The unquoted text after `=` of a --set argument, so that `--set run.name=7` can be a string.
  std::optional<std::string> raw;

  bool is_table() const { return kind == Kind::kTable; }
  bool is_array() const { return kind == Kind::kArray; }
  bool is_string() const { return kind == Kind::kString; }
  bool IsArrayOfTables() const;  // at least one item, all tables

  // Members of a table; NULL when absent or when this is not a table.
  const Value* Find(std::string_view key) const;
  Value* Find(std::string_view key);
  // The member at a dotted path through tables.
  const Value* FindPath(std::string_view path) const;
  // Replaces or appends a member.
  Value& Set(std::string_view key, Value value);
  // As Set at a dotted path, making the tables on the way.
  Value& SetPath(std::string_view path, Value value);

  // "the string \"abc\"", "the integer 3", "a table": for messages. Long texts are cut.
  std::string Describe() const;

  static Value Bool(bool value);
  static Value Int(int64_t value);
  static Value Float(double value);
  static Value String(std::string value);
  static Value Strings(const std::vector<std::string>& values);
  static Value Array();
  static Value Table();
};

struct Member {
  std::string key;
  Value value;
};

// Puts `over` on top of `base`: tables merge key by key, anything else is replaced.
void MergeOver(Value over, Value* base);

// A double in the fewest digits that read back as the same double, always as a TOML float.
std::string FloatText(double value);
// A basic TOML string, quotes included.
std::string QuotedText(std::string_view text);
// A key of a table: bare where TOML allows, else quoted.
std::string KeyText(std::string_view key);

// The table as a TOML document: plain values first, then sub-tables, in the order of the members.
std::string ToToml(const Value& table);

}  // namespace capstan

#endif  // CAPSTAN_RUNTIME_CONFIG_VALUE_H_
