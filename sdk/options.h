// Options of a component: declared as a constant table, read through typed getters.
//
//   constexpr capstan_option kOptions[] = {
//       sdk::int_option("layers", "12", "Number of transformer blocks.").range(1, 1e6),
//       sdk::string_option("policy", "\"selective\"", "What to drop.").choices("full|selective"),
//   };
//   MyModel(const sdk::Host&, const sdk::Options& o) : layers_(o.get_int("layers")) {}
#ifndef CAPSTAN_SDK_OPTIONS_H_
#define CAPSTAN_SDK_OPTIONS_H_

#include <cstdlib>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "plugin_api/base.h"
#include "sdk/error.h"

namespace capstan::sdk {

// ---- declaration -----------------------------------------------------------------------------

// A capstan_option under construction; converts to capstan_option by slicing.
struct Option : capstan_option {
  // Closed range of a number, or of each number in a list.
  constexpr Option range(double low, double high) const {
    Option out = *this;
    out.minimum = low;
    out.maximum = high;
    out.has_range = 1;
    return out;
  }
  constexpr Option at_least(double low) const {
    return range(low, std::numeric_limits<double>::infinity());
  }
  // Allowed strings, separated by '|'.
  constexpr Option choices(const char* allowed) const {
    Option out = *this;
    out.capstan_option::choices = allowed;
    return out;
  }
  // No default: the user must set it.
  constexpr Option need() const {
    Option out = *this;
    out.required = 1;
    out.default_value = nullptr;
    return out;
  }
};

// `fallback` is TOML text; nullptr: absent unless the user sets it (ask with Options::has).
constexpr Option make_option(int32_t type, const char* name, const char* fallback,
                             const char* doc) {
  Option out{};
  out.struct_size = sizeof(capstan_option);
  out.name = name;
  out.type = type;
  out.default_value = fallback;
  out.doc = doc;
  return out;
}
constexpr Option bool_option(const char* name, const char* fallback, const char* doc) {
  return make_option(CAPSTAN_OPTION_BOOL, name, fallback, doc);
}
constexpr Option int_option(const char* name, const char* fallback, const char* doc) {
  return make_option(CAPSTAN_OPTION_INT, name, fallback, doc);
}
constexpr Option float_option(const char* name, const char* fallback, const char* doc) {
  return make_option(CAPSTAN_OPTION_FLOAT, name, fallback, doc);
}
constexpr Option string_option(const char* name, const char* fallback, const char* doc) {
  return make_option(CAPSTAN_OPTION_STRING, name, fallback, doc);
}
constexpr Option ints_option(const char* name, const char* fallback, const char* doc) {
  return make_option(CAPSTAN_OPTION_INTS, name, fallback, doc);
}
constexpr Option floats_option(const char* name, const char* fallback, const char* doc) {
  return make_option(CAPSTAN_OPTION_FLOATS, name, fallback, doc);
}
constexpr Option strings_option(const char* name, const char* fallback, const char* doc) {
  return make_option(CAPSTAN_OPTION_STRINGS, name, fallback, doc);
}
constexpr Option path_option(const char* name, const char* fallback, const char* doc) {
  return make_option(CAPSTAN_OPTION_PATH, name, fallback, doc);
}
constexpr Option secret_option(const char* name, const char* doc) {
  return make_option(CAPSTAN_OPTION_SECRET, name, nullptr, doc);
}

// ---- reading ---------------------------------------------------------------------------------

// The validated values given to `create`. A view: copy what must outlive the constructor.
// A getter of a key that is absent, or of another type, throws: the host has already validated the
// user's part, so that is a mistake of the component.
class Options {
 public:
  explicit Options(const capstan_options* raw) : raw_(raw) {}

  bool has(std::string_view key) const { return find(key) != nullptr; }
  // True when the user wrote the key; false for the declared default or an absent key.
  bool from_user(std::string_view key) const {
    const capstan_option_value* value = find(key);
    return value != nullptr && value->from_user != 0;
  }

  bool get_bool(std::string_view key) const { return need(key, CAPSTAN_OPTION_BOOL).i != 0; }
  int64_t get_int(std::string_view key) const { return need(key, CAPSTAN_OPTION_INT).i; }
  double get_float(std::string_view key) const {
    const capstan_option_value& value = need(key);
    if (value.type == CAPSTAN_OPTION_INT) return static_cast<double>(value.i);
    return typed(value, CAPSTAN_OPTION_FLOAT).f;
  }
  // Strings, paths and secrets.
  std::string get_string(std::string_view key) const {
    const capstan_option_value& value = need(key);
    if (value.s == nullptr) throw wrong_type(value);
    return value.s;
  }
  std::vector<int64_t> get_ints(std::string_view key) const {
    const capstan_option_value& value = need(key, CAPSTAN_OPTION_INTS);
    return {value.ints, value.ints + value.count};
  }
  std::vector<double> get_floats(std::string_view key) const {
    const capstan_option_value& value = need(key, CAPSTAN_OPTION_FLOATS);
    return {value.floats, value.floats + value.count};
  }
  std::vector<std::string> get_strings(std::string_view key) const {
    const capstan_option_value& value = need(key, CAPSTAN_OPTION_STRINGS);
    return {value.strings, value.strings + value.count};
  }

  // Tables in the list of tables `name`: size("source") is 2 when "source.0.path" and
  // "source.1.path" exist.
  size_t size(std::string_view name) const {
    size_t tables = 0;
    for (size_t i = 0; i < count(); ++i) {
      const std::string_view key = at(i).key;
      if (key.size() <= name.size() + 1 || key.substr(0, name.size()) != name ||
          key[name.size()] != '.') {
        continue;
      }
      const char* digits = at(i).key + name.size() + 1;
      char* end = nullptr;
      const unsigned long index = std::strtoul(digits, &end, 10);
      if (end == digits || *end != '.') continue;
      if (index + 1 > tables) tables = index + 1;
    }
    return tables;
  }
  // "source", 1, "path" -> "source.1.path"
  static std::string key(std::string_view list, size_t index, std::string_view name) {
    return text(list, '.', index, '.', name);
  }

 private:
  size_t count() const { return raw_ == nullptr ? 0 : raw_->count; }
  // Elements by the maker's size, so that a host with a larger value struct is read rightly.
  const capstan_option_value& at(size_t i) const { return item_of(raw_->values, i); }
  const capstan_option_value* find(std::string_view key) const {
    for (size_t i = 0; i < count(); ++i) {
      if (key == at(i).key) return &at(i);
    }
    return nullptr;
  }
  const capstan_option_value& need(std::string_view key) const {
    const capstan_option_value* value = find(key);
    if (value == nullptr) {
      throw bug_error(
          text("option '", key, "' was read but has no value; declare it with a default"));
    }
    return *value;
  }
  const capstan_option_value& need(std::string_view key, int32_t type) const {
    return typed(need(key), type);
  }
  static const capstan_option_value& typed(const capstan_option_value& value, int32_t type) {
    if (value.type != type) throw wrong_type(value);
    return value;
  }
  static Error wrong_type(const capstan_option_value& value) {
    return bug_error(
        text("option '", value.key, "' was read as another type than it is declared with"));
  }

  const capstan_options* raw_;
};

}  // namespace capstan::sdk

#endif  // CAPSTAN_SDK_OPTIONS_H_
