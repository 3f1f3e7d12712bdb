// `capstan plugins list` and `capstan plugins show`.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"
#include "plugin_api/ops.h"
#include "plugin_api/strategy.h"
#include "runtime/cli/cli.h"
#include "runtime/cli/default_options.h"
#include "runtime/config/host_keys.h"
#include "runtime/run/host.h"
#include "runtime/run/owned.h"
#include "runtime/status.h"
#include "runtime/suggest.h"

namespace capstan {
namespace {

using Json = nlohmann::ordered_json;

// Strings of plugins may be NULL.
std::string Text(const char* s) { return s == nullptr ? "" : s; }

std::string FileName(const Plugin& plugin) {
  return std::filesystem::path(plugin.path).filename().string();
}

// ---- list

void PrintFailures(const std::vector<LoadFailure>& failures) {
  for (const LoadFailure& failure : failures) {
    std::fprintf(stderr, "capstan: cannot load: %s\n", failure.reason.c_str());
  }
}

std::string ListText(const std::vector<const Component*>& components) {
  const auto width = [&](const char* title, auto&& of) {
    size_t widest = std::string(title).size();
    for (const Component* c : components) widest = std::max(widest, of(*c).size());
    return static_cast<int>(widest);
  };
  const auto kind = [](const Component& c) { return Text(c.definition->kind); };
  const auto id = [](const Component& c) { return Text(c.definition->id); };
  const auto version = [](const Component& c) { return Text(c.definition->version); };
  const auto file = [](const Component& c) { return FileName(*c.plugin); };
  const int kinds = width("KIND", kind), ids = width("ID", id);
  const int versions = width("VERSION", version), files = width("FILE", file);
  std::string text = absl::StrFormat("%-*s  %-*s  %-*s  %-*s  %s\n", kinds, "KIND", ids, "ID",
                                     versions, "VERSION", files, "FILE", "DESCRIPTION");
  for (const Component* c : components) {
    text += absl::StrFormat("%-*s  %-*s  %-*s  %-*s  %s\n", kinds, kind(*c), ids, id(*c), versions,
                            version(*c), files, file(*c), Text(c->definition->doc));
  }
  return text;
}

std::string ListJson(const std::vector<const Component*>& components,
                     const std::vector<LoadFailure>& failures) {
  Json list = Json::array(), failed = Json::array();
  for (const Component* c : components) {
    list.push_back({{"kind", Text(c->definition->kind)},
                    {"id", Text(c->definition->id)},
                    {"version", Text(c->definition->version)},
                    {"path", c->plugin->path},
                    {"doc", Text(c->definition->doc)}});
  }
  for (const LoadFailure& failure : failures) {
    failed.push_back({{"path", failure.path}, {"reason", failure.reason}});
  }
  return Json{{"components", list}, {"failures", failed}}.dump(2) + "\n";
}

// ---- show: which components a name means

bool IsFile(const std::string& name) {
  std::error_code error;
  return name.ends_with(".so") || std::filesystem::is_regular_file(name, error);
}

// The components a name means: an id (perhaps of several kinds), kind/id, or all of one file.
absl::StatusOr<std::vector<const Component*>> Matching(PluginRegistry& registry,
                                                       const std::string& name) {
  if (IsFile(name)) {
    CAPSTAN_ASSIGN_OR_RETURN(const Plugin* plugin, registry.Load(name));
    return registry.ComponentsOf(*plugin);
  }
  std::vector<LoadFailure> failures;
  const std::vector<const Component*> all = registry.ListAll(&failures);
  std::vector<const Component*> matches;
  std::vector<std::string> known;
  for (const Component* c : all) {
    const std::string id = Text(c->definition->id);
    const std::string full = StrCat(Text(c->definition->kind), "/", id);
    if (name == id || name == full) matches.push_back(c);
    known.push_back(id);
    known.push_back(full);
  }
  if (!matches.empty()) return matches;
  PrintFailures(failures);
  return UsageError("no plugin is called '", name, "'",
                    Nearest(name, known).empty() ? "; `capstan plugins list` shows what there is"
                                                 : DidYouMean(name, known));
}

// ---- show: what a component says of itself

// What can be asked of a strategy once it is made.
struct StrategyFacts {
  std::vector<std::string> phases, axes, conflicts, needs;
  std::string unknown;  // why it could not be made
};

std::vector<std::string> Names(const char* const* list) {
  std::vector<std::string> names;
  for (; list != nullptr && *list != nullptr; ++list) names.emplace_back(*list);
  return names;
}

StrategyFacts FactsOf(const Component& c, const capstan_host* host) {
  StrategyFacts facts;
  const auto* vtable = c.vtable<capstan_strategy_v1>();
  absl::StatusOr<OptionSet> options = DefaultOptions(*c.definition);
  void* self = nullptr;
  const absl::Status made =
      options.ok() ? FromC(vtable->create(host, &options->c(), &self)) : options.status();
  if (!made.ok()) {
    facts.unknown = ToStd(made.message());
    return facts;
  }
  const Owned<capstan_strategy_v1> strategy(vtable, self);
  for (size_t i = 0; const capstan_phase* phase = vtable->phase(self, i); ++i) {
    facts.phases.push_back(Text(phase->id));
  }
  for (size_t i = 0; vtable->axis != nullptr; ++i) {
    const capstan_axis_use* use = vtable->axis(self, i);
    if (use == nullptr) break;
    facts.axes.push_back(Text(use->axis));
  }
  if (vtable->conflicts != nullptr) facts.conflicts = Names(vtable->conflicts(self));
  if (vtable->needs != nullptr) facts.needs = Names(vtable->needs(self));
  return facts;
}

// The ops of a component of kind "ops", by name.
std::vector<const capstan_op_def*> OpsOf(const Component& c) {
  std::vector<const capstan_op_def*> ops;
  if (Text(c.definition->kind) != "ops") return ops;
  const auto* table = c.vtable<capstan_ops_v1>();
  for (size_t i = 0; const capstan_op_def* def = table->get(i); ++i) ops.push_back(def);
  return ops;
}

std::string RangeText(const capstan_option& option) {
  if (option.choices != nullptr) {
    std::string choices = option.choices;
    std::replace(choices.begin(), choices.end(), '|', ' ');
    return StrCat("one of ", choices);
  }
  if (option.has_range == 0) return "";
  return absl::StrFormat("%.10g to %.10g", option.minimum, option.maximum);
}

std::string DefaultText(const capstan_option& option) {
  if (option.required != 0) return "required";
  return option.default_value == nullptr ? "absent" : option.default_value;
}

std::string TableText(const OptionTable& table) {
  std::string text;
  for (size_t i = 0; i < table.size(); ++i) {
    const capstan_option& option = table[i];
    const std::string range = RangeText(option);
    StrAppend(&text, "    ", Text(option.name), "  (", OptionTypeName(option.type), ", ",
              option.required != 0 ? "" : "default ", DefaultText(option),
              range.empty() ? "" : ", ", range, ")\n        ", Text(option.doc), "\n");
  }
  return text;
}

std::string OptionsText(const capstan_component& component) {
  const OptionTable table(component);
  return table.size() == 0 ? "  options: none\n" : StrCat("  options:\n", TableText(table));
}

// The keys of the host itself, by table.
std::string HostText() {
  std::string text = "the host's own keys; a table's plugin adds its options to them\n";
  for (const Section& section : Sections()) {
    StrAppend(&text, "\n", section.many ? "[[" : "[", section.table, section.many ? "]]" : "]");
    if (section.kind != nullptr) {
      StrAppend(&text, "  plugin of kind ", section.kind,
                section.fallback == nullptr ? "" : StrCat(", by default ", section.fallback));
    }
    StrAppend(&text, "\n");
    if (section.kind != nullptr) StrAppend(&text, TableText(SelectorKeys(section.many)));
    StrAppend(&text, TableText(section.host_keys));
    if (std::string_view(section.table) == "mesh") {
      text +=
          "    AXIS  (int or \"auto\")\n        Ranks along an axis; one may be what the others "
          "leave.\n"
          "    order  (list of strings, default tp, cp, ep, dp, pp, then others)\n"
          "        Axes from the innermost, whose ranks are neighbours, to the outermost.\n";
    }
    if (std::string_view(section.table) == "optimizer") {
      StrAppend(
          &text,
          "\n[[optimizer.group]]  parameters with values of their own; the first match wins\n",
          TableText(OptimizerGroupKeys()));
    }
  }
  return text;
}

std::string StrategyText(const StrategyFacts& facts) {
  if (!facts.unknown.empty()) {
    return StrCat("  phases: known once its options are given (", facts.unknown, ")\n");
  }
  std::string text;
  const auto line = [&](const char* name, const std::vector<std::string>& items) {
    if (!items.empty()) StrAppend(&text, "  ", name, ": ", absl::StrJoin(items, ", "), "\n");
  };
  line("phases", facts.phases);
  line("mesh axes", facts.axes);
  line("conflicts with", facts.conflicts);
  line("needs", facts.needs);
  return text;
}

std::string ComponentText(const Component& c, const capstan_host* host) {
  const capstan_component& d = *c.definition;
  std::string text = StrCat(Text(d.kind), "/", Text(d.id), " ", Text(d.version), " (interface ",
                            Text(d.interface_id), ")\n  ", Text(d.doc), "\n");
  if (Text(d.kind) == "strategy") text += StrategyText(FactsOf(c, host));
  const std::vector<const capstan_op_def*> ops = OpsOf(c);
  if (!ops.empty()) text += "  ops:\n";
  for (const capstan_op_def* op : ops) {
    StrAppend(&text, "    ", Text(op->kind), "  (version ", op->semantics_version, ")\n        ",
              Text(op->doc), "\n");
  }
  return text + OptionsText(d);
}

std::string PluginText(const Plugin& plugin) {
  const capstan_plugin& d = *plugin.descriptor;
  return StrCat("plugin ", Text(d.name), " ", Text(d.version), ": ", Text(d.description),
                "\n  file: ", plugin.path, "\n  licence: ", Text(d.licence),
                "\n  ABI: ", d.abi_major, ".", d.abi_minor, "\n");
}

std::string ShowText(const std::vector<const Component*>& components, const capstan_host* host) {
  std::string text;
  const Plugin* last = nullptr;
  for (const Component* c : components) {
    if (c->plugin != last) {
      StrAppend(&text, text.empty() ? "" : "\n", PluginText(*c->plugin));
      last = c->plugin;
    }
    StrAppend(&text, "\n", ComponentText(*c, host));
  }
  return text;
}

Json OptionJson(const capstan_option& option) {
  Json json = {{"name", Text(option.name)},
               {"type", std::string(OptionTypeName(option.type))},
               {"required", option.required != 0},
               {"default", nullptr},
               {"doc", Text(option.doc)}};
  if (option.default_value != nullptr) json["default"] = option.default_value;
  if (option.has_range != 0) {
    // JSON has no infinity: an open end is null.
    const auto bound = [](double x) { return std::isfinite(x) ? Json(x) : Json(nullptr); };
    json["range"] = Json::array({bound(option.minimum), bound(option.maximum)});
  }
  if (option.choices != nullptr) {
    const std::string choices = option.choices;
    Json list = Json::array();
    for (size_t begin = 0; begin <= choices.size();) {
      const size_t end = std::min(choices.find('|', begin), choices.size());
      list.push_back(choices.substr(begin, end - begin));
      begin = end + 1;
    }
    json["choices"] = list;
  }
  return json;
}

Json ComponentJson(const Component& c, const capstan_host* host) {
  const capstan_component& d = *c.definition;
  Json json = {{"kind", Text(d.kind)},       {"id", Text(d.id)},
               {"version", Text(d.version)}, {"interface", Text(d.interface_id)},
               {"doc", Text(d.doc)},         {"options", Json::array()}};
  const OptionTable table(d);
  for (size_t i = 0; i < table.size(); ++i) json["options"].push_back(OptionJson(table[i]));
  if (Text(d.kind) == "strategy") {
    const StrategyFacts facts = FactsOf(c, host);
    if (facts.unknown.empty()) {
      json["phases"] = facts.phases;
      json["axes"] = facts.axes;
      json["conflicts"] = facts.conflicts;
      json["needs"] = facts.needs;
    }
  }
  if (Text(d.kind) == "ops") json["ops"] = Json::array();
  for (const capstan_op_def* op : OpsOf(c)) {
    json["ops"].push_back({{"kind", Text(op->kind)},
                           {"semantics_version", op->semantics_version},
                           {"doc", Text(op->doc)}});
  }
  const capstan_plugin& p = *c.plugin->descriptor;
  json["plugin"] = {{"name", Text(p.name)},
                    {"version", Text(p.version)},
                    {"path", c.plugin->path},
                    {"licence", Text(p.licence)},
                    {"description", Text(p.description)},
                    {"abi", StrCat(p.abi_major, ".", p.abi_minor)}};
  return json;
}

}  // namespace

absl::StatusOr<int> PluginsListCommand(bool json) {
  CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<HostEnvironment> host, HostEnvironment::Create());
  std::vector<LoadFailure> failures;
  const std::vector<const Component*> components = host->registry().ListAll(&failures);
  if (components.empty() && failures.empty()) {
    return UsageError("no plugin was found in ",
                      absl::StrJoin(PluginRegistry::DefaultSearchPath(), ", "),
                      "; set CAPSTAN_PLUGIN_PATH to the folder that holds them");
  }
  const std::string text = json ? ListJson(components, failures) : ListText(components);
  std::fputs(text.c_str(), stdout);
  PrintFailures(failures);
  return kExitDone;
}

absl::StatusOr<int> PluginsShowCommand(const std::string& name, bool json) {
  if (name == "host" && !json) {
    std::fputs(HostText().c_str(), stdout);
    return kExitDone;
  }
  CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<HostEnvironment> host, HostEnvironment::Create());
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<const Component*> components,
                           Matching(host->registry(), name));
  if (json) {
    Json list = Json::array();
    for (const Component* c : components) list.push_back(ComponentJson(*c, host->c_host()));
    std::fputs((list.dump(2) + "\n").c_str(), stdout);
  } else {
    std::fputs(ShowText(components, host->c_host()).c_str(), stdout);
  }
  return kExitDone;
}

}  // namespace capstan
