// AdamW, SGD and the fp32 policy: the states they ask for and the ops they emit.
#include <gtest/gtest.h>

#include "tests/sdk/bench.h"

namespace capstan {
namespace {

constexpr const char* kTiny =
    "layers = 1\nwidth = 8\nheads = 2\nvocabulary = 11\nmax_sequence = 8\n";

std::unique_ptr<Program> train(Bench& bench) {
  auto program = ComposeTrain(bench.ingredients());
  EXPECT_TRUE(program.ok()) << program.status();
  return *std::move(program);
}

std::vector<std::string> states_of(const Program& program, const std::string& parameter) {
  std::vector<std::string> out;
  const TensorId p = program.FindTensor(parameter);
  for (TensorId t = 0; t < program.tensor_limit(); ++t) {
    if (program.TensorAlive(t) && program.tensor(t).kind == CAPSTAN_STATE &&
        program.tensor(t).of == p) {
      out.push_back(program.tensor(t).name + ":" + DTypeName(program.tensor(t).dtype()));
    }
  }
  return out;
}

const Op& update_of(const Program& program, const std::string& parameter) {
  const TensorId p = program.FindTensor(parameter);
  for (OpId o : OpsOf(program, "update")) {
    const std::vector<TensorId>& outputs = program.op(o).outputs;
    if (!outputs.empty() && outputs[0] == p) return program.op(o);
  }
  ADD_FAILURE() << parameter << " has no update";
  return program.op(0);
}

TEST(AdamW, KeepsTwoMomentsAndDecaysMatricesOnly) {
  Bench bench;
  bench.compose("gpt2", kTiny);
  const std::unique_ptr<Program> program = train(bench);
  EXPECT_EQ(states_of(*program, "wte.weight"),
            (std::vector<std::string>{"wte.weight.exp_avg:f32", "wte.weight.exp_avg_sq:f32"}));
  const Op& matrix = update_of(*program, "wte.weight");
  EXPECT_EQ(matrix.kind(), "adamw");
  EXPECT_EQ(matrix.attrs.Float("beta1", 0), 0.9);
  EXPECT_EQ(matrix.attrs.Float("beta2", 0), 0.95);
  EXPECT_EQ(matrix.attrs.Float("eps", 0), 1e-8);
  EXPECT_EQ(matrix.attrs.Float("weight_decay", 0), 0.1);
  EXPECT_EQ(update_of(*program, "ln_f.weight").attrs.Float("weight_decay", -1), 0.0);
}

TEST(AdamW, RefusesBetasThatAreNotTwoRatesBelowOne) {
  Bench bench;
  EXPECT_FALSE(bench.make<capstan_optimizer_v1>("optimizer", "adamw", "betas = [0.9]").ok());
  EXPECT_FALSE(bench.make<capstan_optimizer_v1>("optimizer", "adamw", "betas = [0.9, 1.0]").ok());
  EXPECT_TRUE(bench.make<capstan_optimizer_v1>("optimizer", "adamw", "betas = [0.0, 0.0]").ok());
}

void use_sgd(Bench& bench, const std::string& toml) {
  bench.ingredients().optimizers.back().optimizer =
      bench.make<capstan_optimizer_v1>("optimizer", "sgd", toml).value();
}

TEST(Sgd, PlainKeepsNoState) {
  Bench bench;
  bench.compose("gpt2", kTiny);
  use_sgd(bench, "");
  const std::unique_ptr<Program> program = train(bench);
  EXPECT_TRUE(states_of(*program, "wte.weight").empty());
  EXPECT_EQ(update_of(*program, "wte.weight").kind(), "sgd_plain");
}

TEST(Sgd, MomentumKeepsOneBuffer) {
  Bench bench;
  bench.compose("gpt2", kTiny);
  use_sgd(bench, "momentum = 0.9\nnesterov = true\n");
  const std::unique_ptr<Program> program = train(bench);
  EXPECT_EQ(states_of(*program, "wte.weight"),
            (std::vector<std::string>{"wte.weight.momentum:f32"}));
  const Op& update = update_of(*program, "wte.weight");
  EXPECT_EQ(update.attrs.Float("momentum", 0), 0.9);
  EXPECT_EQ(update.attrs.Int("nesterov", 0), 1);
}

TEST(Sgd, RefusesNesterovWithoutMomentum) {
  Bench bench;
  EXPECT_FALSE(bench.make<capstan_optimizer_v1>("optimizer", "sgd", "nesterov = true").ok());
}

TEST(Fp32, DoubleReachesActivationsGradientsAndStates) {
  Bench bench;
  bench.compose("gpt2", kTiny, "dtype = \"f64\"\n");
  const std::unique_ptr<Program> program = train(bench);
  EXPECT_EQ(states_of(*program, "wte.weight"),
            (std::vector<std::string>{"wte.weight.exp_avg:f64", "wte.weight.exp_avg_sq:f64"}));
  for (const char* name : {"wte.weight", "wte.weight.grad", "h.0.mlp.up.weight"}) {
    EXPECT_EQ(DTypeName(program->tensor(program->FindTensor(name)).dtype()), "f64") << name;
  }
  for (OpId o : OpsOf(*program, "forward/0")) {
    if (program->op(o).kind() != "add") continue;
    EXPECT_EQ(DTypeName(program->tensor(program->op(o).outputs[0]).dtype()), "f64");
  }
}

}  // namespace
}  // namespace capstan
