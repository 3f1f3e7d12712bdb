#include "runtime/config/option_reader.h"

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "runtime/config/document.h"
#include "runtime/config/toml_reader.h"
#include "runtime/suggest.h"

namespace capstan {
namespace {

// Beyond this a declared limit means "no limit".
constexpr double kUnbounded = 1e18;

std::string NumberText(double value) {
  if (std::abs(value) < 1e15 && value == std::trunc(value)) {
    return StrCat(static_cast<int64_t>(value));
  }
  return FloatText(value);
}

std::string RangeText(const capstan_option& option) {
  if (option.maximum >= kUnbounded) return StrCat("at least ", NumberText(option.minimum));
  if (option.minimum <= -kUnbounded) return StrCat("at most ", NumberText(option.maximum));
  return StrCat("between ", NumberText(option.minimum), " and ", NumberText(option.maximum));
}

std::string ExampleText(const capstan_option& option) {
  if (option.default_value != nullptr) return option.default_value;
  if (option.choices != nullptr) {
    const std::string first = option.choices;
    return QuotedText(first.substr(0, first.find('|')));
  }
  const std::string number = option.has_range != 0 && option.minimum > -kUnbounded
                                 ? NumberText(std::max(option.minimum, 1.0))
                                 : "1";
  switch (option.type) {
    case CAPSTAN_OPTION_BOOL:
      return "true";
    case CAPSTAN_OPTION_INT:
    case CAPSTAN_OPTION_FLOAT:
      return number;
    case CAPSTAN_OPTION_INTS:
    case CAPSTAN_OPTION_FLOATS:
      return StrCat("[", number, "]");
    case CAPSTAN_OPTION_STRINGS:
      return R"(["..."])";
    case CAPSTAN_OPTION_SECRET:
      return R"({env = "NAME"})";
    default:
      return R"("...")";
  }
}

std::string LastKey(std::string_view key) {
  const size_t dot = key.rfind('.');
  return std::string(dot == std::string_view::npos ? key : key.substr(dot + 1));
}

class Reader {
 public:
  Reader(const capstan_option& option, const Value& value, const std::string& shown,
         OptionEntry* entry, Problems* problems)
      : option_(option), value_(value), shown_(shown), entry_(entry), problems_(problems) {}

  bool Read() {
    entry_->type = option_.type;
    switch (option_.type) {
      case CAPSTAN_OPTION_BOOL:
        if (value_.kind != Value::Kind::kBool) return WrongType();
        entry_->i = value_.boolean ? 1 : 0;
        return true;
      case CAPSTAN_OPTION_INT:
        if (value_.kind != Value::Kind::kInt) return WrongType();
        entry_->i = value_.integer;
        entry_->f = static_cast<double>(value_.integer);
        return InRange(entry_->f);
      case CAPSTAN_OPTION_FLOAT:
        return ReadNumber(value_, &entry_->f) && InRange(entry_->f);
      case CAPSTAN_OPTION_STRING:
        return ReadText(value_, &entry_->s) && IsChoice(entry_->s);
      case CAPSTAN_OPTION_PATH:
        return ReadPath();
      case CAPSTAN_OPTION_SECRET:
        return ReadSecret();
      case CAPSTAN_OPTION_INTS:
      case CAPSTAN_OPTION_FLOATS:
      case CAPSTAN_OPTION_STRINGS:
        return ReadList();
      default:
        return Wrong(StrCat("has the option type ", option_.type,
                            ", which this host does not know; use a newer capstan."));
    }
  }

 private:
  bool Wrong(const std::string& predicate) {
    problems_->Add(value_.position, StrCat(shown_, " ", predicate));
    return false;
  }

  bool WrongType() {
    return Wrong(StrCat("must be ", OptionTypeName(option_.type), ", but is ", value_.Describe(),
                        "; for example ", LastKey(shown_), " = ", ExampleText(option_), "."));
  }

  bool InRange(double number) {
    if (option_.has_range == 0 || (number >= option_.minimum && number <= option_.maximum)) {
      return true;
    }
    return Wrong(StrCat("is ", NumberText(number), ", but must be ", RangeText(option_), "."));
  }

  bool IsChoice(const std::string& text) {
    if (option_.choices == nullptr) return true;
    const std::vector<std::string> choices = absl::StrSplit(option_.choices, '|');
    if (std::find(choices.begin(), choices.end(), text) != choices.end()) return true;
    return Wrong(StrCat("is ", QuotedText(text), ", but must be one of ",
                        absl::StrJoin(choices, ", "), DidYouMean(text, choices)));
  }

  bool ReadNumber(const Value& value, double* out) {
    if (value.kind != Value::Kind::kFloat && value.kind != Value::Kind::kInt) return WrongType();
    *out = value.kind == Value::Kind::kInt ? static_cast<double>(value.integer) : value.real;
    return true;
  }

  bool ReadText(const Value& value, std::string* out) {
    if (!value.is_string() && !value.raw.has_value()) return WrongType();
    *out = value.is_string() ? value.text : *value.raw;
    // Plugins take C strings: what follows a NUL would be lost in silence.
    if (out->find('\0') != std::string::npos) return Wrong("must not contain a NUL character.");
    return true;
  }

  bool ReadPath() {
    if (!ReadText(value_, &entry_->s) || !IsChoice(entry_->s)) return false;
    entry_->s = AbsolutePath(entry_->s);
    return true;
  }

  // Against the file that has the key; the current directory for --set. "" means none and stays.
  std::string AbsolutePath(const std::string& path) const {
    if (path.empty()) return path;
    const std::filesystem::path base =
        value_.position.source == nullptr ? "" : value_.position.source->directory;
    std::error_code error;
    const std::filesystem::path absolute = std::filesystem::absolute(base / path, error);
    return (error ? base / path : absolute).lexically_normal().string();
  }

  bool ReadSecret() {
    const Value* env = value_.Find("env");
    const Value* file = value_.Find("file");
    const Value* given = env != nullptr ? env : file;
    if (!value_.is_table() || value_.members.size() != 1 || given == nullptr ||
        !given->is_string() || given->text.find('\0') != std::string::npos) {
      // What was written may be the secret itself: it is not repeated.
      return Wrong(R"(is a secret: write {env = "NAME"} or {file = "path"}, never the value.)");
    }
    entry_->reference = value_;
    if (env != nullptr) {
      const char* text = std::getenv(env->text.c_str());
      if (text == nullptr) {
        return Wrong(StrCat("needs the environment variable ", env->text, ", which is not set."));
      }
      entry_->s = text;
      return true;
    }
    const std::string path = AbsolutePath(file->text);
    entry_->reference.Set("file", Value::String(path));
    absl::StatusOr<std::string> text = ReadConfigFile(path);
    if (!text.ok()) return Wrong(StrCat("cannot be read: ", text.status().message()));
    entry_->s = text->substr(0, text->find_last_not_of("\r\n") + 1);
    return true;
  }

  bool ReadList() {
    if (!value_.is_array()) return WrongType();
    for (const Value& item : value_.items) {
      double number = 0;
      std::string text;
      switch (option_.type) {
        case CAPSTAN_OPTION_INTS:
          if (item.kind != Value::Kind::kInt) return WrongItem(item);
          if (!InRange(static_cast<double>(item.integer))) return false;
          entry_->ints.push_back(item.integer);
          break;
        case CAPSTAN_OPTION_FLOATS:
          if (item.kind != Value::Kind::kFloat && item.kind != Value::Kind::kInt) {
            return WrongItem(item);
          }
          if (!ReadNumber(item, &number) || !InRange(number)) return false;
          entry_->floats.push_back(number);
          break;
        default:
          if (!item.is_string()) return WrongItem(item);
          if (!ReadText(item, &text) || !IsChoice(text)) return false;
          entry_->strings.push_back(std::move(text));
      }
    }
    return true;
  }

  bool WrongItem(const Value& item) {
    return Wrong(StrCat("must be ", OptionTypeName(option_.type), ", but holds ", item.Describe(),
                        "; for example ", LastKey(shown_), " = ", ExampleText(option_), "."));
  }

  const capstan_option& option_;
  const Value& value_;
  const std::string& shown_;
  OptionEntry* entry_;
  Problems* problems_;
};

}  // namespace

bool ReadOption(const capstan_option& option, const Value& value, const std::string& shown,
                OptionEntry* entry, Problems* problems) {
  return Reader(option, value, shown, entry, problems).Read();
}

bool ReadDefault(const capstan_option& option, const std::string& shown, const std::string& owner,
                 const std::string& directory, OptionEntry* entry, Problems* problems) {
  const std::string who = owner.empty() ? "the host" : owner;
  const auto source =
      std::make_shared<const Source>(Source{StrCat("default declared by ", who), directory, false});
  absl::StatusOr<Value> value = ParseTomlValue(option.default_value, source);
  if (!value.ok()) {
    problems->Add({source, 0}, StrCat(shown, " has the default ", QuotedText(option.default_value),
                                      ", which is not a TOML value; tell its author."));
    return false;
  }
  return ReadOption(option, *value, shown, entry, problems);
}

std::string MissingSentence(const capstan_option& option, const std::string& shown,
                            const std::string& table) {
  std::string doc = option.doc == nullptr ? "" : option.doc;
  while (!doc.empty() && doc.back() == '.') doc.pop_back();
  return StrCat(shown, " is missing", doc.empty() ? "" : StrCat(" (", doc, ")"), "; add ",
                LastKey(shown), " = ", ExampleText(option), " to [", table, "].");
}

}  // namespace capstan
