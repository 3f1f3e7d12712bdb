#include "runtime/config/value.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <utility>

#include "absl/strings/str_format.h"
#include "runtime/strings.h"

namespace capstan {
namespace {

constexpr size_t kLongestDescribed = 60;  // bytes of a string shown in a message

std::string InlineText(const Value& value) {
  switch (value.kind) {
    case Value::Kind::kBool:
      return value.boolean ? "true" : "false";
    case Value::Kind::kInt:
      return StrCat(value.integer);
    case Value::Kind::kFloat:
      return FloatText(value.real);
    case Value::Kind::kString:
      return QuotedText(value.text);
    case Value::Kind::kDate:
      return value.text;
    case Value::Kind::kArray: {
      std::string text = "[";
      for (size_t i = 0; i < value.items.size(); ++i) {
        StrAppend(&text, i == 0 ? "" : ", ", InlineText(value.items[i]));
      }
      return text + "]";
    }
    case Value::Kind::kTable: {
      std::string text = "{";
      for (size_t i = 0; i < value.members.size(); ++i) {
        StrAppend(&text, i == 0 ? "" : ", ", KeyText(value.members[i].key), " = ",
                  InlineText(value.members[i].value));
      }
      return text + "}";
    }
  }
  return "";
}

// Tables of one or two plain members that are references ({env = "X"}) read better inline.
bool IsReference(const Value& value) {
  return value.is_table() && value.members.size() == 1 && value.members[0].value.is_string() &&
         (value.members[0].key == "env" || value.members[0].key == "file");
}

bool HasOwnHeader(const Value& value) {
  return (value.is_table() && !IsReference(value)) || value.IsArrayOfTables();
}

void PrintTable(const Value& table, const std::string& path, std::string* out);

void PrintMemberWithHeader(const Member& member, const std::string& path, std::string* out) {
  const std::string inner =
      path.empty() ? KeyText(member.key) : StrCat(path, ".", KeyText(member.key));
  if (member.value.is_table()) {
    const bool only_headers = !member.value.members.empty() &&
                              std::all_of(member.value.members.begin(), member.value.members.end(),
                                          [](const Member& m) { return HasOwnHeader(m.value); });
    if (!only_headers) StrAppend(out, out->empty() ? "" : "\n", "[", inner, "]\n");
    PrintTable(member.value, inner, out);
    return;
  }
  for (const Value& item : member.value.items) {
    StrAppend(out, out->empty() ? "" : "\n", "[[", inner, "]]\n");
    PrintTable(item, inner, out);
  }
}

void PrintTable(const Value& table, const std::string& path, std::string* out) {
  for (const Member& member : table.members) {
    if (HasOwnHeader(member.value)) continue;
    StrAppend(out, KeyText(member.key), " = ", InlineText(member.value), "\n");
  }
  for (const Member& member : table.members) {
    if (HasOwnHeader(member.value)) PrintMemberWithHeader(member, path, out);
  }
}

Value OfKind(Value::Kind kind) {
  Value value;
  value.kind = kind;
  return value;
}

}  // namespace

std::string Position::ToString() const {
  if (source == nullptr) return "(default)";
  return line > 0 ? StrCat(source->name, ":", line) : source->name;
}

bool Value::IsArrayOfTables() const {
  return is_array() && !items.empty() &&
         std::all_of(items.begin(), items.end(), [](const Value& v) { return v.is_table(); });
}

const Value* Value::Find(std::string_view key) const {
  if (!is_table()) return nullptr;
  for (const Member& member : members) {
    if (member.key == key) return &member.value;
  }
  return nullptr;
}

Value* Value::Find(std::string_view key) {
  return const_cast<Value*>(std::as_const(*this).Find(key));
}

const Value* Value::FindPath(std::string_view path) const {
  const Value* at = this;
  while (at != nullptr) {
    const size_t dot = path.find('.');
    at = at->Find(path.substr(0, dot));
    if (dot == std::string_view::npos) return at;
    path.remove_prefix(dot + 1);
  }
  return nullptr;
}

Value& Value::Set(std::string_view key, Value value) {
  if (Value* existing = Find(key)) {
    *existing = std::move(value);
    return *existing;
  }
  members.push_back({std::string(key), std::move(value)});
  return members.back().value;
}

Value& Value::SetPath(std::string_view path, Value value) {
  Value* at = this;
  for (size_t dot = path.find('.'); dot != std::string_view::npos; dot = path.find('.')) {
    const std::string_view key = path.substr(0, dot);
    Value* next = at->Find(key);
    if (next == nullptr || !next->is_table()) next = &at->Set(key, Table());
    at = next;
    path.remove_prefix(dot + 1);
  }
  return at->Set(path, std::move(value));
}

std::string Value::Describe() const {
  switch (kind) {
    case Kind::kBool:
      return boolean ? "true" : "false";
    case Kind::kInt:
      return StrCat("the integer ", integer);
    case Kind::kFloat:
      return StrCat("the number ", FloatText(real));
    case Kind::kString: {
      if (text.size() <= kLongestDescribed) return StrCat("the string ", QuotedText(text));
      size_t cut = kLongestDescribed;
      while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) --cut;
      return StrCat("the string ", QuotedText(text.substr(0, cut)), "...");
    }
    case Kind::kDate:
      return StrCat("the date ", text);
    case Kind::kArray:
      return IsArrayOfTables() ? "a list of tables" : "a list";
    case Kind::kTable:
      return "a table";
  }
  return "a value";
}

Value Value::Bool(bool value) {
  Value result = OfKind(Kind::kBool);
  result.boolean = value;
  return result;
}

Value Value::Int(int64_t value) {
  Value result = OfKind(Kind::kInt);
  result.integer = value;
  return result;
}

Value Value::Float(double value) {
  Value result = OfKind(Kind::kFloat);
  result.real = value;
  return result;
}

Value Value::String(std::string value) {
  Value result = OfKind(Kind::kString);
  result.text = std::move(value);
  return result;
}

Value Value::Strings(const std::vector<std::string>& values) {
  Value result = Array();
  for (const std::string& value : values) result.items.push_back(String(value));
  return result;
}

Value Value::Array() { return OfKind(Kind::kArray); }
Value Value::Table() { return OfKind(Kind::kTable); }

void MergeOver(Value over, Value* base) {
  if (!over.is_table() || !base->is_table()) {
    *base = std::move(over);
    return;
  }
  base->position = over.position;
  for (Member& member : over.members) {
    if (Value* existing = base->Find(member.key)) {
      MergeOver(std::move(member.value), existing);
    } else {
      base->members.push_back(std::move(member));
    }
  }
}

std::string FloatText(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto [end, error] = std::to_chars(buffer, buffer + sizeof(buffer), value);
  std::string text(buffer, error == std::errc() ? end : buffer);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string QuotedText(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
          absl::StrAppendFormat(&out, "\\u%04X", static_cast<unsigned>(c));
        } else {
          out += c;
        }
    }
  }
  return out + "\"";
}

std::string KeyText(std::string_view key) {
  const bool bare = !key.empty() && std::all_of(key.begin(), key.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-';
  });
  return bare ? std::string(key) : QuotedText(key);
}

std::string ToToml(const Value& table) {
  std::string out;
  PrintTable(table, "", &out);
  return out;
}

}  // namespace capstan
