// From a merged document to a checked Config.
#ifndef CAPSTAN_RUNTIME_CONFIG_RESOLVER_H_
#define CAPSTAN_RUNTIME_CONFIG_RESOLVER_H_

#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/config.h"
#include "runtime/config/host_keys.h"
#include "runtime/config/problems.h"

namespace capstan {

class ConfigResolver {
 public:
  // `path` is the main file: messages about missing keys point to it.
  ConfigResolver(Value document, const std::string& path, const ComponentFinder& find);

  absl::StatusOr<Config> Resolve();

 private:
  // A component's table: what it and the host read from it.
  struct Reading {
    ComponentConfig config;
    OptionSet host;
    Value plain = Value::Table();  // `table` without the keys that choose the component
  };
  // What the table says about which component it means.
  struct Choice {
    std::string id, path;
    Position position;
    const capstan_component* component = nullptr;
  };

  void TakeListedDefaults();
  void CheckTables();
  const Value* TableOf(const Section& section);
  std::vector<Value> ListOf(const Section& section);
  TableContext Context(const std::string& label, const std::string& printed, const Value* table);

  Choice Choose(const Section& section, const Value* table, const TableContext& context);
  Reading ReadComponent(const Section& section, const Value* table, const std::string& printed);
  ComponentConfig ReadSingle(const char* table, RunConfig* run);
  std::vector<ComponentConfig> ReadMany(const char* table);
  void ReadComm(Config* config);
  void ReadDriver(Config* config);
  void ReadOptimizer(Config* config);
  OptimizerGroup ReadGroup(const Value& group, const Reading& base, size_t index);

  OptionSet ReadHostTable(const char* table);
  void ReadRun(RunConfig* run);
  void ReadBatch(RunConfig* run);
  void ReadMesh(RunConfig* run);
  void FillRun(const std::string& table, const OptionSet& host, RunConfig* run);
  void CheckSchedule(const Config& config);
  std::string ResolvedText() const;

  Value document_;
  std::string path_;
  Position file_;
  const ComponentFinder& find_;
  Problems problems_;
  std::set<std::string> listed_defaults_;  // of a resolved file
  Position listed_in_;
  Value resolved_ = Value::Table();
  std::vector<std::string> defaults_;  // printed keys nobody set
};

}  // namespace capstan

#endif  // CAPSTAN_RUNTIME_CONFIG_RESOLVER_H_
