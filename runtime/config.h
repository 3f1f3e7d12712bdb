// One TOML file is a complete run: this is what it says, checked.
//
// The host owns few keys (RunConfig); the rest of each table belongs to the component its `plugin`
// key names and is checked against what that component declares. Every mistake is reported at once,
// each with its place and remedy.
#ifndef CAPSTAN_RUNTIME_CONFIG_H_
#define CAPSTAN_RUNTIME_CONFIG_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "plugin_api/plugin.h"
#include "runtime/config/document.h"
#include "runtime/config/options.h"
#include "runtime/config/value.h"

namespace capstan {

// ---- what the host owns ----------------------------------------------------------------------

struct MeshAxis {
  std::string name;
  int64_t size = 1;  // 0: "auto", what the other axes leave of the world
};

// Learning rate over steps; base rates are the groups'. After `warmup_steps` of a linear rise from
// 0:
//   constant: flat; linear, cosine: down to min_lr at the last step;
//   wsd: flat, then linear down to min_lr over the last decay_steps.
struct Schedule {
  std::string kind = "constant";
  int64_t warmup_steps = 0;
  int64_t decay_steps = 0;  // wsd; 0: a tenth of the steps
  double min_lr = 0;
};

struct RunConfig {
  // [run]; exactly one of steps, tokens and epochs is set
  std::string name;
  std::string dir;  // absolute
  std::optional<int64_t> steps;
  std::optional<int64_t> tokens;
  std::optional<double> epochs;
  uint64_t seed = 0;
  // [mesh], innermost (fastest link) first; axes nobody named are left out
  std::vector<MeshAxis> mesh;
  // [batch], in sequences
  int64_t micro_batch = 1;   // a rank holds at once
  int64_t global_batch = 1;  // in a step; a multiple of micro_batch
  // [data]
  int64_t sequence_length = 0;     // positions
  int64_t validation_every = 0;    // steps; 0: never
  int64_t validation_batches = 0;  // global batches
  // [comm]
  double comm_timeout_s = 0;
  // [model]
  std::string weights;                 // absolute folder, "": start from init
  std::vector<std::string> trainable;  // patterns of parameter names
  // [optimizer]
  double clip_norm = 0;  // 0: off
  Schedule schedule;
  // [checkpoint]
  int64_t checkpoint_every = 0;  // steps; 0: only when the run ends
  int64_t checkpoint_keep = 0;   // newest ones; 0: all
};

// ---- what components own ---------------------------------------------------------------------

struct ComponentConfig {
  std::string table;  // "optimizer", "strategy.tp": for messages, as --set spells it
  std::string id;     // the table's `id`, else the component's own
  Position position;  // where the table was written
  const capstan_component* component = nullptr;  // the finder's
  OptionSet options;                             // pass options.c() to `create`
};

// Parameters whose name matches, and how they are updated. A parameter belongs to the first group
// that matches it.
struct OptimizerGroup {
  std::vector<std::string> match;  // patterns; "*" and "?" as in file names
  ComponentConfig optimizer;
  double lr = 0;
  double weight_decay = 0;
  // The group itself sets weight_decay: it then applies to parameters of any rank. Otherwise it
  // applies to those with two or more dims.
  bool weight_decay_set = false;
};

struct Config {
  RunConfig run;
  ComponentConfig device, model, objective, data, optimizer, precision, checkpoint;
  // Absent when [comm] is not written and no shm plugin is installed: one rank needs none.
  std::optional<ComponentConfig> comm;
  std::optional<ComponentConfig> driver;    // absent: the host's own, "train"
  std::vector<ComponentConfig> strategies;  // in the order of the file
  std::vector<ComponentConfig> trackers;
  std::vector<OptimizerGroup> optimizer_groups;  // [[optimizer.group]], then one that matches "*"
  // The whole configuration, defaults included and secrets as their reference, as TOML that loads
  // to the same configuration.
  std::string resolved_toml;
};

// Finds the component a table names. `path` is a plugin file when the table gives one, else ""
// (search by id); `id` is "" when only a file was given. The component must outlive the Config.
using ComponentFinder = std::function<absl::StatusOr<const capstan_component*>(
    std::string_view kind, std::string_view id, const std::string& path)>;

// Reads a file, what it includes, and `overrides` (the arguments of --set).
absl::StatusOr<Config> LoadConfig(const std::string& path,
                                  const std::vector<std::string>& overrides,
                                  const ComponentFinder& find,
                                  const FileReader& read = ReadConfigFile);

}  // namespace capstan

#endif  // CAPSTAN_RUNTIME_CONFIG_H_
