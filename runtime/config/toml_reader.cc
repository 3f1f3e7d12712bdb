#include "runtime/config/toml_reader.h"

#include <algorithm>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "runtime/status.h"

// TOML++ asserts that a key follows "[" where hostile text may have anything: "[= 1" would abort, and
// be undefined behaviour under NDEBUG. With the assertion out of the way its parser reports an error.
#undef NDEBUG
#define TOML_ASSERT(expression) static_cast<void>(0)
#include "toml++/toml.h"

namespace capstan {
namespace {

Value Convert(const toml::node& node, const std::shared_ptr<const Source>& source);

Value ConvertTable(const toml::table& table, const std::shared_ptr<const Source>& source) {
  struct Entry {
    toml::source_position at;
    const toml::key* key;
    const toml::node* node;
  };
  std::vector<Entry> entries;
  for (auto&& [key, node] : table) entries.push_back({key.source().begin, &key, &node});
  // The library sorts by name; people read, and mesh axes are ordered, as the file has them.
  std::stable_sort(entries.begin(), entries.end(),
                   [](const Entry& a, const Entry& b) { return a.at < b.at; });
  Value result = Value::Table();
  for (const Entry& entry : entries) {
    Value value = Convert(*entry.node, source);
    value.position = {source, static_cast<int>(entry.at.line)};
    result.members.push_back({std::string(entry.key->str()), std::move(value)});
  }
  return result;
}

template <typename T>
std::string Spelling(const T& value) {
  std::ostringstream stream;
  stream << value;
  return stream.str();
}

Value Convert(const toml::node& node, const std::shared_ptr<const Source>& source) {
  Value result;
  if (const toml::table* table = node.as_table()) {
    result = ConvertTable(*table, source);
  } else if (const toml::array* array = node.as_array()) {
    result = Value::Array();
    for (const toml::node& item : *array) result.items.push_back(Convert(item, source));
  } else if (const auto* text = node.as_string()) {
    result = Value::String(text->get());
  } else if (const auto* integer = node.as_integer()) {
    result = Value::Int(integer->get());
  } else if (const auto* real = node.as_floating_point()) {
    result = Value::Float(real->get());
  } else if (const auto* boolean = node.as_boolean()) {
    result = Value::Bool(boolean->get());
  } else {
    result.kind = Value::Kind::kDate;
    if (const auto* date = node.as_date()) result.text = Spelling(date->get());
    if (const auto* time = node.as_time()) result.text = Spelling(time->get());
    if (const auto* both = node.as_date_time()) result.text = Spelling(both->get());
  }
  result.position = {source, static_cast<int>(node.source().begin.line)};
  return result;
}

}  // namespace

absl::StatusOr<Value> ParseToml(std::string_view text, std::shared_ptr<const Source> source) {
  const toml::parse_result parsed = toml::parse(text);
  if (parsed.failed()) {
    const Position at{source, static_cast<int>(parsed.error().source().begin.line)};
    return UsageError(at.ToString(), ": not valid TOML: ", parsed.error().description(), ".");
  }
  Value result = ConvertTable(parsed.table(), source);
  result.position = {std::move(source), 0};
  return result;
}

absl::StatusOr<Value> ParseTomlValue(std::string_view text, std::shared_ptr<const Source> source) {
  if (text.find_first_of("\n\r") != std::string_view::npos) {
    return UsageError(source->name, ": a value must be on one line.");
  }
  CAPSTAN_ASSIGN_OR_RETURN(Value table, ParseToml("value = " + std::string(text), source));
  if (table.members.size() != 1 || table.members[0].key != "value") {
    return UsageError(source->name, ": ", QuotedText(text), " is not one TOML value.");
  }
  Value value = std::move(table.members[0].value);
  value.position = {std::move(source), 0};
  return value;
}

}  // namespace capstan
