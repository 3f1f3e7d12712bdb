// The host's own tables: [run], [batch], [mesh], and the checks that span several keys.
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <utility>

#include "absl/strings/str_join.h"
#include "runtime/config/resolver.h"

namespace capstan {
namespace {

constexpr const char* kStandardAxes[] = {"tp", "cp", "ep", "dp", "pp"};
constexpr char kOrderKey[] = "order";
constexpr int64_t kMostMicrobatches = 1 << 16;  // each is in the schedule

bool IsAxisName(const std::string& name) {
  return !name.empty() && std::isalpha(static_cast<unsigned char>(name[0])) != 0 &&
         std::all_of(name.begin(), name.end(),
                     [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
}

bool Contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

template <typename T>
void Assign(const OptionEntry* entry, T OptionEntry::*field, std::optional<T>* out) {
  if (entry != nullptr) *out = entry->*field;
}

}  // namespace

void ConfigResolver::ReadRun(RunConfig* run) {
  const OptionSet host = ReadHostTable("run");
  namespace fs = std::filesystem;
  run->name = host.String("name", fs::path(path_).stem().string());
  run->dir = host.String("dir");
  if (run->dir.empty()) {
    std::error_code error;
    const fs::path relative = fs::path("runs") / run->name;
    const fs::path absolute = fs::absolute(relative, error);
    run->dir = (error ? relative : absolute).lexically_normal().string();
  }
  Value* out = resolved_.Find("run");
  Value ordered = Value::Table();
  ordered.Set("name", Value::String(run->name));
  ordered.Set("dir", Value::String(run->dir));
  for (Member& member : out->members) {
    if (ordered.Find(member.key) == nullptr) ordered.members.push_back(std::move(member));
  }
  *out = std::move(ordered);

  Assign(host.Find("steps"), &OptionEntry::i, &run->steps);
  Assign(host.Find("tokens"), &OptionEntry::i, &run->tokens);
  Assign(host.Find("epochs"), &OptionEntry::f, &run->epochs);
  run->seed = static_cast<uint64_t>(host.Int("seed"));
  const Value* table = document_.Find("run");
  const auto written = [table](const char* key) {
    return table != nullptr && table->Find(key) != nullptr;
  };
  const int lengths = written("steps") + written("tokens") + written("epochs");
  const Position position = table == nullptr ? file_ : table->position;
  if (lengths == 0) {
    problems_.Add(position,
                  "the length of the run is missing; add steps, tokens or epochs to [run].");
  } else if (lengths > 1) {
    problems_.Add(position,
                  "run.steps, run.tokens and run.epochs exclude each other; keep one of them.");
  }
}

void ConfigResolver::ReadBatch(RunConfig* run) {
  const OptionSet host = ReadHostTable("batch");
  const OptionEntry* micro = host.Find("micro");
  const OptionEntry* global = host.Find("global");
  if (micro == nullptr || global == nullptr) return;
  run->micro_batch = micro->i;
  run->global_batch = global->i;
  if (global->i % micro->i != 0) {
    problems_.Add(global->position,
                  StrCat("batch.global is ", global->i, ", but must be a multiple of batch.micro (",
                         micro->i, "); for example ", (global->i / micro->i + 1) * micro->i, "."));
  } else if (global->i / micro->i > kMostMicrobatches) {
    problems_.Add(global->position,
                  StrCat("batch.global (", global->i, ") is ", global->i / micro->i,
                         " times batch.micro (", micro->i, "), and a step has at most ",
                         kMostMicrobatches, " microbatches; lower global or raise micro."));
  }
}

void ConfigResolver::FillRun(const std::string& table, const OptionSet& host, RunConfig* run) {
  if (table == "comm") {
    run->comm_timeout_s = host.Float("timeout_s");
  } else if (table == "model") {
    run->weights = host.String("weights");
    run->trainable = host.Strings("trainable");
    if (const OptionEntry* given = host.Find("trainable");
        given != nullptr && given->from_user && run->trainable.empty()) {
      problems_.Add(
          given->position,
          R"(model.trainable is empty, so nothing would be trained; name some parameters, )"
          R"(or write ["*"] for all.)");
    }
  } else if (table == "data") {
    run->sequence_length = host.Int("sequence_length");
    run->validation_every = host.Int("validation.every");
    run->validation_batches = host.Int("validation.batches");
  } else if (table == "optimizer") {
    run->clip_norm = host.Float("clip_norm");
    run->schedule.kind = host.String("schedule.kind");
    run->schedule.warmup_steps = host.Int("schedule.warmup_steps");
    run->schedule.decay_steps = host.Int("schedule.decay_steps");
    run->schedule.min_lr = host.Float("schedule.min_lr");
  } else if (table == "checkpoint") {
    run->checkpoint_every = host.Int("every");
    run->checkpoint_keep = host.Int("keep");
  }
}

void ConfigResolver::CheckSchedule(const Config& config) {
  const Schedule& schedule = config.run.schedule;
  const Value* table = document_.Find("optimizer");
  const Position position = table == nullptr ? file_ : table->position;
  if (config.run.steps.has_value() &&
      schedule.warmup_steps + schedule.decay_steps > *config.run.steps) {
    problems_.Add(position,
                  StrCat("optimizer.schedule warms up for ", schedule.warmup_steps,
                         " steps and decays for ", schedule.decay_steps, ", more than run.steps (",
                         *config.run.steps, "); shorten one of them."));
  }
  const double lr = config.optimizer_groups.back().lr;
  if (lr > 0 && schedule.min_lr > lr) {
    problems_.Add(position,
                  StrCat("optimizer.schedule.min_lr (", FloatText(schedule.min_lr),
                         ") is above optimizer.lr (", FloatText(lr), "); lower it, or raise lr."));
  }
}

// ---- [mesh] ------------------------------------------------------------------------------------

void ConfigResolver::ReadMesh(RunConfig* run) {
  const Value* table = TableOf(FindSection("mesh"));
  std::vector<std::string> order(std::begin(kStandardAxes), std::end(kStandardAxes));
  Value out = Value::Table();
  std::vector<MeshAxis> axes;
  const Value* order_value = table == nullptr ? nullptr : table->Find(kOrderKey);
  if (order_value != nullptr) {
    const capstan_option key = {sizeof(capstan_option),
                                "order",
                                CAPSTAN_OPTION_STRINGS,
                                0,
                                R"(["tp", "cp", "ep", "dp", "pp"])",
                                0,
                                0,
                                0,
                                0,
                                nullptr,
                                ""};
    const OptionSet read =
        ReadOptions(OptionTable(&key, 1), table, Context("mesh", "mesh", table), &problems_);
    order = read.Strings("order");
    for (size_t i = 0; i < order.size(); ++i) {
      if (std::find(order.begin(), order.begin() + i, order[i]) != order.begin() + i) {
        problems_.Add(order_value->position,
                      StrCat("mesh.order names \"", order[i], "\" twice; keep one of them."));
      }
    }
  }
  const size_t members = table == nullptr ? 0 : table->members.size();
  std::string automatic;
  for (size_t i = 0; i < members; ++i) {
    const Member& member = table->members[i];
    if (member.key == kOrderKey) continue;
    const Value& size = member.value;
    const bool is_auto = size.is_string() && size.text == "auto";
    if (!IsAxisName(member.key)) {
      problems_.Add(size.position, StrCat("mesh.", KeyText(member.key),
                                          " is not an axis name; use letters, digits and _."));
    } else if (!is_auto && (size.kind != Value::Kind::kInt || size.integer < 1)) {
      problems_.Add(size.position, StrCat("mesh.", member.key,
                                          " must be a number of ranks from 1, or \"auto\", but is ",
                                          size.Describe(), "."));
    } else if (is_auto && !automatic.empty()) {
      problems_.Add(size.position, StrCat("mesh.", automatic, " and mesh.", member.key,
                                          " are both \"auto\"; give one of them a size."));
    } else {
      if (is_auto) automatic = member.key;
      axes.push_back({member.key, is_auto ? 0 : size.integer});
      out.Set(member.key, is_auto ? Value::String("auto") : Value::Int(size.integer));
      if (order_value == nullptr && !Contains(order, member.key)) order.push_back(member.key);
      if (!Contains(order, member.key)) {
        problems_.Add(order_value->position,
                      StrCat("mesh.order leaves out the axis \"", member.key,
                             "\"; add it where its link speed belongs, innermost first."));
      }
    }
  }
  for (const std::string& name : order) {
    for (const MeshAxis& axis : axes) {
      if (axis.name == name) run->mesh.push_back(axis);
    }
  }
  out.Set(kOrderKey, Value::Strings(order));
  resolved_.Set("mesh", std::move(out));
}

// ---- printing ----------------------------------------------------------------------------------

std::string ConfigResolver::ResolvedText() const {
  Value printed = Value::Table();
  for (const Member& member : resolved_.members) {
    const bool empty_table = member.value.is_table() && member.value.members.empty();
    if (!empty_table) printed.members.push_back(member);
  }
  std::string text = "# The whole configuration of this run, defaults included.\n";
  text += ToToml(printed);
  if (!defaults_.empty()) {
    Value listed = Value::Table();
    listed.SetPath("resolved.defaults", Value::Strings(defaults_));
    text += "\n# Keys above that nobody set: their values are the declared defaults.\n";
    text += ToToml(listed);
  }
  return text;
}

}  // namespace capstan
