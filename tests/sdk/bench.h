// Components of built plugins, loaded as the host loads them, and Programs composed of them.
#ifndef CAPSTAN_TESTS_SDK_BENCH_H_
#define CAPSTAN_TESTS_SDK_BENCH_H_

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "plugin_api/ops.h"
#include "runtime/config/options.h"
#include "runtime/config/toml_reader.h"
#include "runtime/program/program_service.h"
#include "runtime/run/compose.h"
#include "runtime/run/host.h"
#include "runtime/status.h"

namespace capstan {

class Bench {
 public:
  Bench() {
    setenv("CAPSTAN_PLUGIN_PATH", CAPSTAN_TEST_PLUGIN_PATH, 1);
    absl::StatusOr<std::unique_ptr<HostEnvironment>> host = HostEnvironment::Create();
    EXPECT_TRUE(host.ok()) << host.status();
    host_ = *std::move(host);
    EXPECT_TRUE(RegisterStandardOps(ops_).ok());
    in_.ops = &ops_;
  }
  ~Bench() {
    for (const auto& destroy : destroy_) destroy();
  }

  const capstan_host* host() const { return host_->c_host(); }
  Ingredients& ingredients() { return in_; }
  OpRegistry& ops() { return ops_; }

  const capstan_component& definition(const std::string& kind, const std::string& id) {
    absl::StatusOr<const Component*> found = host_->registry().Find(kind, id);
    EXPECT_TRUE(found.ok()) << found.status();
    return *(*found)->definition;
  }

  // Options as the host reads them, from the TOML inside the component's table.
  OptionSet options(const capstan_component& component, const std::string& toml) {
    auto source = std::make_shared<const Source>(Source{"test.toml", ".", false});
    absl::StatusOr<Value> table = ParseToml(toml, source);
    EXPECT_TRUE(table.ok()) << table.status();
    Problems problems;
    TableContext context;
    context.path = component.kind;
    context.directory = ".";
    OptionSet set = ReadOptions(OptionTable(component), &*table, context, &problems);
    EXPECT_TRUE(problems.empty()) << problems.ToStatus();
    return set;
  }

  template <class Vtable>
  absl::StatusOr<Instance<Vtable>> make(const std::string& kind, const std::string& id,
                                        const std::string& toml) {
    const capstan_component& component = definition(kind, id);
    const auto* vtable = static_cast<const Vtable*>(component.vtable);
    const OptionSet set = options(component, toml);
    void* self = nullptr;
    if (absl::Status s = FromC(vtable->create(host(), &set.c(), &self)); !s.ok()) return s;
    destroy_.push_back([vtable, self] { vtable->destroy(self); });
    return Instance<Vtable>{id, vtable, self};
  }

  absl::StatusOr<Instance<capstan_model_v1>> model(const std::string& id, const std::string& toml,
                                                   const char* config_json = nullptr) {
    const capstan_component& component = definition("model", id);
    const auto* vtable = static_cast<const capstan_model_v1*>(component.vtable);
    const OptionSet set = options(component, toml);
    void* self = nullptr;
    if (absl::Status s = FromC(vtable->create(host(), &set.c(), config_json, &self)); !s.ok())
      return s;
    destroy_.push_back([vtable, self] { vtable->destroy(self); });
    return Instance<capstan_model_v1>{id, vtable, self};
  }

  // The ops a plugin brings.
  void register_ops(const std::string& id) {
    const auto* table = static_cast<const capstan_ops_v1*>(definition("ops", id).vtable);
    ASSERT_EQ(table->bind(host()), nullptr);
    for (size_t i = 0; const capstan_op_def* def = table->get(i); ++i) {
      ASSERT_TRUE(RegisterPluginOp(ops_, def).ok());
    }
  }

  // A small training composition: model, causal_lm, adamw.
  void compose(const std::string& model_id, const std::string& model_toml,
               const std::string& precision = "") {
    in_.model = model(model_id, model_toml).value();
    in_.objective = make<capstan_objective_v1>("objective", "causal_lm", "").value();
    in_.precision = make<capstan_precision_v1>("precision", "fp32", precision).value();
    UpdateGroup group;
    group.optimizer = make<capstan_optimizer_v1>("optimizer", "adamw", "").value();
    group.weight_decay = 0.1;
    group.lr_input = "lr";
    in_.optimizers.push_back(std::move(group));
    in_.clip_norm = 1.0;
    in_.micro_batch = 2;
    in_.microbatches = 2;
    in_.sequence = 8;
  }
  void add_strategy(const std::string& id, const std::string& toml) {
    in_.strategies.push_back(make<capstan_strategy_v1>("strategy", id, toml).value());
  }

 private:
  std::unique_ptr<HostEnvironment> host_;
  OpRegistry ops_;
  Ingredients in_;
  std::vector<std::function<void()>> destroy_;
};

inline const std::vector<OpId>& OpsOf(const Program& program, const std::string& segment) {
  const int index = program.FindSegment(segment);
  EXPECT_GE(index, 0) << segment;
  return program.segments()[static_cast<size_t>(index)].ops;
}

// "rms_norm linear gelu", of the ops of one layer (-2: all).
inline std::string KindsOf(const Program& program, const std::string& segment, int layer = -2) {
  std::string out;
  for (OpId o : OpsOf(program, segment)) {
    if (layer != -2 && program.op(o).layer != layer) continue;
    out += (out.empty() ? "" : " ") + program.op(o).kind();
  }
  return out;
}

}  // namespace capstan

#endif  // CAPSTAN_TESTS_SDK_BENCH_H_
