#include "runtime/config/resolver.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <utility>

#include "runtime/status.h"
#include "runtime/suggest.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;

constexpr char kResolvedTable[] = "resolved";

bool LooksLikePath(const std::string& plugin) {
  return plugin.find('/') != std::string::npos ||
         (plugin.size() > 3 && plugin.compare(plugin.size() - 3, 3, ".so") == 0);
}

void AddNames(const OptionTable& table, std::vector<std::string>* names) {
  for (size_t i = 0; i < table.size(); ++i) names->push_back(table[i].name);
}

// The host's keys that the component does not declare itself: a component that declares `lr`
// decides its default and range.
std::vector<capstan_option> NotDeclaredBy(const capstan_component* component,
                                          const OptionTable& host) {
  const OptionTable declared = component == nullptr ? OptionTable() : OptionTable(*component);
  std::vector<capstan_option> left;
  for (size_t i = 0; i < host.size(); ++i) {
    if (declared.Find(host[i].name) == nullptr) left.push_back(host[i]);
  }
  return left;
}

OptionTable AsTable(const std::vector<capstan_option>& options) {
  return OptionTable(options.data(), options.size());
}

// A host key's value, from whoever declared it.
const OptionEntry* FindIn(const OptionSet& host, const OptionSet& component, std::string_view key) {
  const OptionEntry* entry = host.Find(key);
  return entry != nullptr ? entry : component.Find(key);
}

double FloatIn(const OptionSet& host, const OptionSet& component, std::string_view key) {
  const OptionEntry* entry = FindIn(host, component, key);
  return entry == nullptr ? 0 : entry->f;
}

}  // namespace

ConfigResolver::ConfigResolver(Value document, const std::string& path, const ComponentFinder& find)
    : document_(std::move(document)), path_(path), find_(find) {
  file_ = {
      std::make_shared<const Source>(Source{path, fs::path(path).parent_path().string(), false}),
      0};
}

absl::StatusOr<Config> ConfigResolver::Resolve() {
  Config config;
  TakeListedDefaults();
  CheckTables();
  for (const Section& section : Sections()) {
    // Reserve the order of the printed tables.
    resolved_.Set(section.table, section.many ? Value::Array() : Value::Table());
  }
  ReadRun(&config.run);
  config.device = ReadSingle("device", &config.run);
  ReadComm(&config);
  ReadMesh(&config.run);
  config.model = ReadSingle("model", &config.run);
  config.objective = ReadSingle("objective", &config.run);
  config.data = ReadSingle("data", &config.run);
  ReadBatch(&config.run);
  ReadOptimizer(&config);
  config.precision = ReadSingle("precision", &config.run);
  config.strategies = ReadMany("strategy");
  config.checkpoint = ReadSingle("checkpoint", &config.run);
  config.trackers = ReadMany("tracker");
  ReadDriver(&config);
  CheckSchedule(config);
  CAPSTAN_RETURN_IF_ERROR(problems_.ToStatus());
  config.resolved_toml = ResolvedText();
  return config;
}

// ---- tables ------------------------------------------------------------------------------------

void ConfigResolver::TakeListedDefaults() {
  const auto found =
      std::find_if(document_.members.begin(), document_.members.end(),
                   [](const Member& member) { return member.key == kResolvedTable; });
  if (found == document_.members.end()) return;
  const Value* list = found->value.Find("defaults");
  const bool good = list != nullptr && list->is_array() && found->value.members.size() == 1 &&
                    std::all_of(list->items.begin(), list->items.end(),
                                [](const Value& item) { return item.is_string(); });
  if (good) {
    listed_in_ = list->position;
    for (const Value& item : list->items) listed_defaults_.insert(item.text);
  } else {
    problems_.Add(
        found->value.position,
        "[resolved] is written by capstan and holds one list of keys, defaults; remove it "
        "from files written by hand.");
  }
  document_.members.erase(found);
}

void ConfigResolver::CheckTables() {
  std::vector<std::string> names;
  for (const Section& section : Sections()) names.push_back(section.table);
  for (const Member& member : document_.members) {
    if (std::find(names.begin(), names.end(), member.key) != names.end()) continue;
    problems_.Add(member.value.position,
                  StrCat("there is no table [", member.key, "]", DidYouMean(member.key, names)));
  }
}

const Value* ConfigResolver::TableOf(const Section& section) {
  const Value* value = document_.Find(section.table);
  if (value == nullptr || value->is_table()) return value;
  problems_.Add(value->position, StrCat(section.table, " must be a table, but is ",
                                        value->Describe(), "; write [", section.table, "]."));
  return nullptr;
}

std::vector<Value> ConfigResolver::ListOf(const Section& section) {
  const Value* value = document_.Find(section.table);
  if (value == nullptr) return {};
  if (value->IsArrayOfTables() || (value->is_array() && value->items.empty())) return value->items;
  problems_.Add(value->position, StrCat(section.table, " must be a list of tables, but is ",
                                        value->Describe(), "; write [[", section.table, "]]."));
  return {};
}

TableContext ConfigResolver::Context(const std::string& label, const std::string& printed,
                                     const Value* table) {
  TableContext context;
  context.path = label;
  context.position = table == nullptr ? file_ : table->position;
  context.directory = file_.source->directory;
  context.was_default = [this, printed](const std::string& key, const Value& value) {
    return value.position.source == listed_in_.source &&
           listed_defaults_.count(StrCat(printed, ".", key)) > 0;
  };
  context.on_default = [this, printed](const std::string& key) {
    defaults_.push_back(StrCat(printed, ".", key));
  };
  return context;
}

OptionSet ConfigResolver::ReadHostTable(const char* table) {
  const Section& section = FindSection(table);
  const Value* value = TableOf(section);
  const TableContext context = Context(table, table, value);
  const OptionSet options = ReadOptions(section.host_keys, value, context, &problems_);
  std::vector<std::string> known;
  AddNames(section.host_keys, &known);
  if (value != nullptr) ReportUnknownKeys(known, *value, context, &problems_);
  options.AppendTo(resolved_.Find(table));
  return options;
}

// ---- components --------------------------------------------------------------------------------

ConfigResolver::Choice ConfigResolver::Choose(const Section& section, const Value* table,
                                              const TableContext& context) {
  const OptionSet selectors = ReadOptions(SelectorKeys(section.many), table, context, &problems_);
  Choice choice;
  choice.position = context.position;
  choice.path = selectors.String("plugin_path");
  if (const OptionEntry* plugin = selectors.Find("plugin")) {
    choice.position = plugin->position;
    choice.id = plugin->s;
  } else if (table != nullptr && table->Find("plugin") != nullptr) {
    return choice;  // of the wrong type, and reported
  } else if (choice.path.empty() && section.fallback != nullptr && !section.many) {
    choice.id = section.fallback;
  }
  if (LooksLikePath(choice.id)) {
    const std::string& base = choice.position.source->directory;
    choice.path = fs::absolute(fs::path(base) / choice.id).lexically_normal().string();
    choice.id.clear();
  }
  if (choice.id.empty() && choice.path.empty()) {
    problems_.Add(context.position,
                  StrCat(context.path, ".plugin is missing; add plugin = \"NAME\" to [",
                         context.path, "] (capstan plugins list shows what there is)."));
    return choice;
  }
  absl::StatusOr<const capstan_component*> found = find_(section.kind, choice.id, choice.path);
  if (found.ok()) {
    choice.component = *found;
  } else {
    problems_.Add(choice.position, StrCat(context.path, ": ", found.status().message()));
  }
  return choice;
}

ConfigResolver::Reading ConfigResolver::ReadComponent(const Section& section, const Value* table,
                                                      const std::string& printed) {
  Reading reading;
  TableContext context = Context(printed, printed, table);
  const Choice choice = Choose(section, table, context);
  const Value* given_id = table == nullptr || !section.many ? nullptr : table->Find("id");
  reading.config.component = choice.component;
  reading.config.position = context.position;
  reading.config.table = printed;
  if (choice.component != nullptr) {
    reading.config.id =
        given_id != nullptr && given_id->is_string() ? given_id->text : choice.component->id;
    if (section.many) reading.config.table = StrCat(section.table, ".", reading.config.id);
    context.path = reading.config.table;
    context.owner = StrCat("plugin \"", choice.component->id, "\"");
  }

  if (table != nullptr) {
    for (const Member& member : table->members) {
      const bool selector = SelectorKeys(section.many).Find(member.key) != nullptr;
      if (!selector) reading.plain.members.push_back(member);
    }
  }
  const Value* plain = table == nullptr ? nullptr : &reading.plain;
  const std::vector<capstan_option> host = NotDeclaredBy(choice.component, section.host_keys);
  reading.host = ReadOptions(AsTable(host), plain, context, &problems_);
  if (choice.component == nullptr) return reading;
  const OptionTable declared(*choice.component);
  reading.config.options = ReadOptions(declared, plain, context, &problems_);

  std::vector<std::string> known;
  AddNames(SelectorKeys(section.many), &known);
  AddNames(AsTable(host), &known);
  AddNames(declared, &known);
  Value checked = reading.plain;
  if (std::string_view(section.table) == "optimizer") {
    known.push_back("group[].match");
    checked.members.erase(
        std::remove_if(checked.members.begin(), checked.members.end(),
                       [](const Member& member) { return member.key == "group"; }),
        checked.members.end());
  }
  ReportUnknownKeys(known, checked, context, &problems_);

  Value out = Value::Table();
  out.Set("plugin", Value::String(choice.component->id));
  if (!choice.path.empty()) out.Set("plugin_path", Value::String(choice.path));
  if (given_id != nullptr) out.Set("id", Value::String(reading.config.id));
  reading.host.AppendTo(&out);
  reading.config.options.AppendTo(&out);
  if (section.many) {
    resolved_.Find(section.table)->items.push_back(std::move(out));
  } else {
    resolved_.Set(section.table, std::move(out));
  }
  return reading;
}

ComponentConfig ConfigResolver::ReadSingle(const char* table, RunConfig* run) {
  const Section& section = FindSection(table);
  Reading reading = ReadComponent(section, TableOf(section), table);
  std::vector<OptionEntry> entries = reading.host.entries();
  for (const OptionEntry& entry : reading.config.options.entries()) entries.push_back(entry);
  FillRun(table, OptionSet(std::move(entries)), run);
  return std::move(reading.config);
}

std::vector<ComponentConfig> ConfigResolver::ReadMany(const char* table) {
  const Section& section = FindSection(table);
  std::vector<Value> items = ListOf(section);
  // An empty list says "none"; only an absent one gets the default.
  if (section.fallback != nullptr && document_.Find(table) == nullptr) {
    Value item = Value::Table();
    item.position = file_;
    item.Set("plugin", Value::String(section.fallback)).position = file_;
    items.push_back(std::move(item));
  }
  std::vector<ComponentConfig> result;
  for (size_t i = 0; i < items.size(); ++i) {
    const std::string printed = StrCat(table, ".", i);
    ComponentConfig config = ReadComponent(section, &items[i], printed).config;
    for (const ComponentConfig& other : result) {
      if (config.component == nullptr || other.id != config.id) continue;
      problems_.Add(config.position, StrCat("two entries of ", table, " are called \"", config.id,
                                            "\"; give one of them an id = \"...\"."));
    }
    result.push_back(std::move(config));
  }
  return result;
}

void ConfigResolver::ReadComm(Config* config) {
  const Section& section = FindSection("comm");
  if (TableOf(section) == nullptr && !find_(section.kind, section.fallback, "").ok()) {
    const TableContext context = Context("comm", "comm", nullptr);
    const OptionSet host = ReadOptions(section.host_keys, nullptr, context, &problems_);
    FillRun("comm", host, &config->run);
    return;
  }
  ComponentConfig comm = ReadSingle("comm", &config->run);
  if (comm.component != nullptr) config->comm = std::move(comm);
}

void ConfigResolver::ReadDriver(Config* config) {
  const Section& section = FindSection("driver");
  const Value* table = TableOf(section);
  if (table == nullptr) return;
  const Value* plugin = table->Find("plugin");
  if (plugin != nullptr && plugin->is_string() && plugin->text == section.fallback &&
      table->members.size() == 1) {
    return;  // the host's own driver
  }
  ComponentConfig driver = ReadComponent(section, table, "driver").config;
  if (driver.component != nullptr) config->driver = std::move(driver);
}

// ---- the optimizer and its groups --------------------------------------------------------------

void ConfigResolver::ReadOptimizer(Config* config) {
  const Section& section = FindSection("optimizer");
  const size_t before = problems_.lines().size();
  Reading reading = ReadComponent(section, TableOf(section), "optimizer");
  std::vector<OptionEntry> entries = reading.host.entries();
  FillRun("optimizer", OptionSet(std::move(entries)), &config->run);

  const Value* groups = reading.plain.Find("group");
  if (groups != nullptr && !groups->IsArrayOfTables() &&
      !(groups->is_array() && groups->items.empty())) {
    problems_.Add(groups->position, StrCat("optimizer.group must be a list of tables, but is ",
                                           groups->Describe(), "; write [[optimizer.group]]."));
  } else if (groups != nullptr && problems_.lines().size() == before) {
    // Groups inherit from the table above; its mistakes would only be said again.
    for (size_t i = 0; i < groups->items.size(); ++i) {
      config->optimizer_groups.push_back(ReadGroup(groups->items[i], reading, i));
    }
  }
  OptimizerGroup rest;
  rest.match = {"*"};
  rest.lr = FloatIn(reading.host, reading.config.options, "lr");
  rest.weight_decay = FloatIn(reading.host, reading.config.options, "weight_decay");
  rest.optimizer = reading.config;
  config->optimizer = std::move(reading.config);
  config->optimizer_groups.push_back(std::move(rest));
}

OptimizerGroup ConfigResolver::ReadGroup(const Value& group, const Reading& base, size_t index) {
  const std::string label = StrCat("optimizer.group.", index);
  TableContext context = Context(label, label, &group);
  context.on_default = {};
  const bool own_plugin = group.Find("plugin") != nullptr || group.Find("plugin_path") != nullptr;
  Choice choice;
  choice.component = base.config.component;
  if (own_plugin) choice = Choose(FindSection("optimizer"), &group, context);
  OptimizerGroup result;
  result.optimizer = base.config;
  result.optimizer.table = label;
  result.optimizer.position = group.position;
  result.optimizer.component = choice.component;
  if (choice.component == nullptr) return result;
  result.optimizer.id = choice.component->id;
  context.owner = StrCat("plugin \"", choice.component->id, "\"");

  // With the same plugin a group starts from what [optimizer] sets.
  Value merged = Value::Table();
  if (!own_plugin) {
    merged = base.plain;
    for (const OptionEntry& entry : base.config.options.entries()) {
      // Listed defaults of a resolved file are not the user's.
      if (!entry.from_user && entry.indexes.empty() && merged.FindPath(entry.name) != nullptr) {
        listed_defaults_.insert(StrCat(label, ".", entry.key));
      }
    }
  }
  MergeOver(group, &merged);

  const OptionTable declared(*choice.component);
  const std::vector<capstan_option> host = NotDeclaredBy(choice.component, OptimizerGroupKeys());
  const OptionSet host_values = ReadOptions(AsTable(host), &merged, context, &problems_);
  result.optimizer.options = ReadOptions(declared, &merged, context, &problems_);
  std::vector<std::string> known;
  AddNames(SelectorKeys(false), &known);
  AddNames(AsTable(host), &known);
  AddNames(declared, &known);
  ReportUnknownKeys(known, group, context, &problems_);

  result.match = host_values.Strings("match");
  result.lr = FloatIn(host_values, result.optimizer.options, "lr");
  result.weight_decay = FloatIn(host_values, result.optimizer.options, "weight_decay");
  result.weight_decay_set = group.Find("weight_decay") != nullptr;

  Value out = Value::Table();
  if (own_plugin) out.Set("plugin", Value::String(choice.component->id));
  if (!choice.path.empty()) out.Set("plugin_path", Value::String(choice.path));
  // What a group does not set itself it gets again, from [optimizer] or from the plugin's defaults.
  const auto own = [&group](const OptionEntry& entry) {
    return group.FindPath(std::string_view(entry.name).substr(0, entry.name.find("[]"))) != nullptr;
  };
  host_values.AppendTo(&out, own);
  result.optimizer.options.AppendTo(&out, own);
  Value* table = resolved_.Find("optimizer");
  if (table->Find("group") == nullptr) table->Set("group", Value::Array());
  table->Find("group")->items.push_back(std::move(out));
  return result;
}

}  // namespace capstan
