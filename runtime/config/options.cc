#include "runtime/config/options.h"

#include <algorithm>
#include <utility>

#include "runtime/config/option_reader.h"
#include "runtime/suggest.h"
#include "sdk/error.h"

namespace capstan {

const capstan_option& OptionTable::operator[](size_t index) const {
  return sdk::item_of(first_, index);
}

const capstan_option* OptionTable::Find(std::string_view name) const {
  for (size_t i = 0; i < size(); ++i) {
    if ((*this)[i].name == name) return &(*this)[i];
  }
  return nullptr;
}

std::string_view OptionTypeName(int32_t type) {
  switch (type) {
    case CAPSTAN_OPTION_BOOL:
      return "true or false";
    case CAPSTAN_OPTION_INT:
      return "an integer";
    case CAPSTAN_OPTION_FLOAT:
      return "a number";
    case CAPSTAN_OPTION_STRING:
      return "a string";
    case CAPSTAN_OPTION_INTS:
      return "a list of integers";
    case CAPSTAN_OPTION_FLOATS:
      return "a list of numbers";
    case CAPSTAN_OPTION_STRINGS:
      return "a list of strings";
    case CAPSTAN_OPTION_PATH:
      return "a path (a string)";
    case CAPSTAN_OPTION_SECRET:
      return R"(a reference, {env = "NAME"} or {file = "path"})";
    default:
      return "of a type this host does not know";
  }
}

// ---- OptionSet ---------------------------------------------------------------------------------

struct OptionSet::Storage {
  std::vector<OptionEntry> entries;
  std::vector<std::vector<const char*>> string_lists;  // one per entry
  std::vector<capstan_option_value> values;
  capstan_options options;
};

OptionSet::OptionSet() : OptionSet(std::vector<OptionEntry>{}) {}

OptionSet::OptionSet(std::vector<OptionEntry> entries) {
  auto storage = std::make_shared<Storage>();
  storage->entries = std::move(entries);
  storage->string_lists.reserve(storage->entries.size());
  for (const OptionEntry& entry : storage->entries) {
    std::vector<const char*>& list = storage->string_lists.emplace_back();
    for (const std::string& text : entry.strings) list.push_back(text.c_str());
    capstan_option_value value = {};
    value.struct_size = sizeof(value);
    value.key = entry.key.c_str();
    value.type = entry.type;
    value.from_user = entry.from_user ? 1 : 0;
    value.i = entry.i;
    value.f = entry.f;
    value.s = entry.s.c_str();
    value.count = std::max({entry.ints.size(), entry.floats.size(), entry.strings.size()});
    value.ints = entry.ints.data();
    value.floats = entry.floats.data();
    value.strings = list.data();
    storage->values.push_back(value);
  }
  storage->options = {sizeof(capstan_options), storage->values.size(), storage->values.data()};
  storage_ = std::move(storage);
}

const capstan_options& OptionSet::c() const { return storage_->options; }
const std::vector<OptionEntry>& OptionSet::entries() const { return storage_->entries; }

const OptionEntry* OptionSet::Find(std::string_view key) const {
  for (const OptionEntry& entry : entries()) {
    if (entry.key == key) return &entry;
  }
  return nullptr;
}

bool OptionSet::Bool(std::string_view key, bool fallback) const {
  const OptionEntry* entry = Find(key);
  return entry == nullptr ? fallback : entry->i != 0;
}

int64_t OptionSet::Int(std::string_view key, int64_t fallback) const {
  const OptionEntry* entry = Find(key);
  return entry == nullptr ? fallback : entry->i;
}

double OptionSet::Float(std::string_view key, double fallback) const {
  const OptionEntry* entry = Find(key);
  return entry == nullptr ? fallback : entry->f;
}

std::string OptionSet::String(std::string_view key, std::string fallback) const {
  const OptionEntry* entry = Find(key);
  return entry == nullptr ? fallback : entry->s;
}

std::vector<std::string> OptionSet::Strings(std::string_view key) const {
  const OptionEntry* entry = Find(key);
  return entry == nullptr ? std::vector<std::string>{} : entry->strings;
}

namespace {

Value ToValue(const OptionEntry& entry) {
  Value list = Value::Array();
  switch (entry.type) {
    case CAPSTAN_OPTION_BOOL:
      return Value::Bool(entry.i != 0);
    case CAPSTAN_OPTION_INT:
      return Value::Int(entry.i);
    case CAPSTAN_OPTION_FLOAT:
      return Value::Float(entry.f);
    case CAPSTAN_OPTION_SECRET:
      return entry.reference;
    case CAPSTAN_OPTION_INTS:
      for (const int64_t i : entry.ints) list.items.push_back(Value::Int(i));
      return list;
    case CAPSTAN_OPTION_FLOATS:
      for (const double f : entry.floats) list.items.push_back(Value::Float(f));
      return list;
    case CAPSTAN_OPTION_STRINGS:
      return Value::Strings(entry.strings);
    default:
      return Value::String(entry.s);
  }
}

// The table inside `table` that an entry of a list of tables belongs to; `rest` becomes its key
// there.
Value* EnterLists(const OptionEntry& entry, Value* table, std::string_view* rest) {
  for (const size_t index : entry.indexes) {
    const size_t mark = rest->find("[].");
    const std::string_view path = rest->substr(0, mark);
    Value* list = const_cast<Value*>(table->FindPath(path));
    if (list == nullptr) list = &table->SetPath(path, Value::Array());
    if (list->items.size() <= index) list->items.resize(index + 1, Value::Table());
    table = &list->items[index];
    rest->remove_prefix(mark + 3);
  }
  return table;
}

}  // namespace

void OptionSet::AppendTo(Value* table, const std::function<bool(const OptionEntry&)>& keep) const {
  for (const OptionEntry& entry : entries()) {
    if (keep && !keep(entry)) continue;
    std::string_view rest = entry.name;
    Value* inner = EnterLists(entry, table, &rest);
    inner->SetPath(rest, ToValue(entry));
  }
}

// ---- reading -----------------------------------------------------------------------------------

namespace {

class TableReader {
 public:
  TableReader(const TableContext& context, Problems* problems)
      : context_(context), problems_(problems) {}

  void Read(const capstan_option& option, const Value* table) {
    Expand(option, option.name, table, "", {});
  }

  std::vector<OptionEntry> Take() { return std::move(entries_); }

 private:
  // Walks the lists of tables in a declared name; `rest` is what follows the lists entered so far.
  void Expand(const capstan_option& option, std::string_view rest, const Value* table,
              const std::string& prefix, const std::vector<size_t>& indexes) {
    const size_t mark = rest.find("[].");
    if (mark == std::string_view::npos) {
      OptionEntry entry;
      entry.key = StrCat(prefix, rest);
      entry.name = option.name;
      entry.indexes = indexes;
      Leaf(option, table == nullptr ? nullptr : table->FindPath(rest), table, std::move(entry));
      return;
    }
    const std::string_view path = rest.substr(0, mark);
    const Value* list = table == nullptr ? nullptr : table->FindPath(path);
    if (list == nullptr || !list->is_array()) return;  // ReportUnknownKeys says so
    for (size_t i = 0; i < list->items.size(); ++i) {
      if (!list->items[i].is_table()) continue;
      std::vector<size_t> inner = indexes;
      inner.push_back(i);
      Expand(option, rest.substr(mark + 3), &list->items[i], StrCat(prefix, path, ".", i, "."),
             inner);
    }
  }

  void Leaf(const capstan_option& option, const Value* value, const Value* table,
            OptionEntry entry) {
    const std::string shown = StrCat(context_.path, ".", entry.key);
    if (value != nullptr) {
      entry.from_user = !(context_.was_default && context_.was_default(entry.key, *value));
      entry.position = value->position;
      if (ReadOption(option, *value, shown, &entry, problems_)) {
        Keep(std::move(entry));
      }
      return;
    }
    if (option.required != 0) {
      const bool in_list = !entry.indexes.empty() && table != nullptr;
      problems_->Add(in_list ? table->position : context_.position,
                     MissingSentence(option, shown, context_.path));
      return;
    }
    if (option.default_value == nullptr) return;
    if (ReadDefault(option, shown, context_.owner, context_.directory, &entry, problems_)) {
      Keep(std::move(entry));
    }
  }

  void Keep(OptionEntry entry) {
    if (!entry.from_user && context_.on_default) context_.on_default(entry.key);
    entries_.push_back(std::move(entry));
  }

  const TableContext& context_;
  Problems* problems_;
  std::vector<OptionEntry> entries_;
};

bool StartsWith(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

class UnknownKeys {
 public:
  UnknownKeys(const std::vector<std::string>& known, const TableContext& context,
              Problems* problems)
      : known_(known), context_(context), problems_(problems) {}

  // `pattern` is `table`'s place in declared names ("source[]."), `shown` in messages
  // ("source.0.").
  void Check(const Value& table, const std::string& pattern, const std::string& shown) {
    for (const Member& member : table.members) {
      CheckMember(member, pattern + member.key, shown + member.key, pattern);
    }
  }

 private:
  void CheckMember(const Member& member, const std::string& name, const std::string& shown,
                   const std::string& pattern) {
    if (std::find(known_.begin(), known_.end(), name) != known_.end()) return;
    const Value& value = member.value;
    if (IsPrefix(name + ".")) {
      if (value.is_table()) return Check(value, name + ".", shown + ".");
      problems_->Add(value.position, StrCat(context_.path, ".", shown, " must be a table, but is ",
                                            value.Describe(), "; write its keys under [",
                                            context_.path, ".", shown, "]."));
      return;
    }
    if (IsPrefix(name + "[].")) return CheckList(value, name, shown);
    problems_->Add(value.position,
                   StrCat("[", context_.path, "] has no option \"", shown, "\"",
                          context_.owner.empty() ? "" : StrCat(" (", context_.owner, ")"),
                          DidYouMean(member.key, Siblings(pattern))));
  }

  void CheckList(const Value& value, const std::string& name, const std::string& shown) {
    if (!value.IsArrayOfTables() && !(value.is_array() && value.items.empty())) {
      problems_->Add(value.position,
                     StrCat(context_.path, ".", shown, " must be a list of tables, but is ",
                            value.Describe(), "; write [[", context_.path, ".", shown, "]]."));
      return;
    }
    for (size_t i = 0; i < value.items.size(); ++i) {
      Check(value.items[i], name + "[].", StrCat(shown, ".", i, "."));
    }
  }

  bool IsPrefix(const std::string& prefix) const {
    return std::any_of(known_.begin(), known_.end(),
                       [&](const std::string& name) { return StartsWith(name, prefix); });
  }

  // The keys that may stand where an unknown one was found.
  std::vector<std::string> Siblings(const std::string& pattern) const {
    std::vector<std::string> keys;
    for (const std::string& name : known_) {
      if (!StartsWith(name, pattern)) continue;
      const std::string rest = name.substr(pattern.size());
      keys.push_back(rest.substr(0, rest.find_first_of(".[")));
    }
    return keys;
  }

  const std::vector<std::string>& known_;
  const TableContext& context_;
  Problems* problems_;
};

}  // namespace

OptionSet ReadOptions(const OptionTable& declared, const Value* table, const TableContext& context,
                      Problems* problems) {
  TableReader reader(context, problems);
  for (size_t i = 0; i < declared.size(); ++i) reader.Read(declared[i], table);
  return OptionSet(reader.Take());
}

void ReportUnknownKeys(const std::vector<std::string>& known, const Value& table,
                       const TableContext& context, Problems* problems) {
  UnknownKeys(known, context, problems).Check(table, "", "");
}

}  // namespace capstan
