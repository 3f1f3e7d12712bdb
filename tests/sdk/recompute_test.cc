// The recompute strategy on composed Programs.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "tests/sdk/bench.h"

namespace capstan {
namespace {

constexpr const char* kGpt2 =
    "layers = 4\nwidth = 8\nheads = 2\nvocabulary = 11\nmax_sequence = 8\n";
constexpr const char* kLlama =
    "layers = 2\nwidth = 8\nheads = 2\nkv_heads = 1\nmlp_width = 12\nvocabulary = 11\nmax_sequence "
    "= 8\n";

// A Program with what it was composed of, which it points into.
struct Composed {
  std::unique_ptr<Bench> bench = std::make_unique<Bench>();
  std::unique_ptr<Program> program;

  const Program& operator*() const { return *program; }
  const Program* operator->() const { return program.get(); }
};

Composed train(const char* model, const std::string& toml, const char* recompute) {
  Composed out;
  out.bench->compose(model, toml);
  if (recompute != nullptr) out.bench->add_strategy("recompute", recompute);
  auto program = ComposeTrain(out.bench->ingredients());
  EXPECT_TRUE(program.ok()) << program.status();
  out.program = *std::move(program);
  return out;
}

// Forward activations of a layer that the backward pass reads: what must be kept in between.
std::set<TensorId> kept(const Program& program) {
  std::set<TensorId> out;
  for (OpId o : OpsOf(program, "backward/0")) {
    for (TensorId t : program.op(o).inputs) {
      if (t == kNone || program.tensor(t).kind != CAPSTAN_ACTIVATION) continue;
      const OpId producer = program.Producer(t);
      if (producer == kNone || program.op(producer).layer < 0) continue;
      if (program.segments()[program.op(producer).segment].name == "forward/0") out.insert(t);
    }
  }
  return out;
}

std::map<std::string, int> kept_kinds(const Program& program) {
  std::map<std::string, int> out;
  for (TensorId t : kept(program)) ++out[program.op(program.Producer(t)).kind()];
  return out;
}

int64_t kept_bytes(const Program& program) {
  int64_t bytes = 0;
  for (TensorId t : kept(program)) {
    bytes += program.tensor(t).bytes();
  }
  return bytes;
}

TEST(Recompute, FullKeepsOnlyWhatEntersALayer) {
  const auto program = train("gpt2", kGpt2, "policy = \"full\"\n");
  // Inputs of layers 1 to 3 and of the last norm; layer 0's comes from the embedding.
  EXPECT_EQ(kept_kinds(*program), (std::map<std::string, int>{{"add", 4}}));
}

TEST(Recompute, FullByGroupsKeepsOneInputAGroup) {
  const auto program = train("gpt2", kGpt2, "policy = \"full\"\nevery = 2\n");
  EXPECT_EQ(kept_kinds(*program), (std::map<std::string, int>{{"add", 2}}));
}

TEST(Recompute, SelectiveKeepsLinearsAndAttention) {
  const Composed gpt2_program = train("gpt2", kGpt2, "");
  const std::map<std::string, int> gpt2 = kept_kinds(*gpt2_program);
  EXPECT_EQ(gpt2.count("layer_norm") + gpt2.count("gelu"), 0u);
  EXPECT_EQ(gpt2.at("attention"), 2 * 4) << "o and lse of four layers";
  const std::map<std::string, int> llama =
      kept_kinds(*train("llama", kLlama, "policy = \"selective\"\n"));
  EXPECT_EQ(llama.count("rms_norm") + llama.count("swiglu"), 0u);
  EXPECT_GT(llama.at("linear"), 0);
}

TEST(Recompute, FreesBytesInTheOrderThePolicySays) {
  const int64_t none = kept_bytes(*train("gpt2", kGpt2, nullptr));
  const int64_t selective = kept_bytes(*train("gpt2", kGpt2, ""));
  const int64_t full = kept_bytes(*train("gpt2", kGpt2, "policy = \"full\"\n"));
  EXPECT_LT(selective, none);
  EXPECT_LT(full, selective);
  EXPECT_EQ(full, 4 * (2 * 8 * 8 * 4)) << "four inputs [2,8,8] in f32";
}

TEST(Recompute, LeavesForwardAndUpdateAlone) {
  const auto plain = train("llama", kLlama, nullptr);
  for (const char* options : {"policy = \"selective\"\n", "policy = \"full\"\n"}) {
    const auto program = train("llama", kLlama, options);
    EXPECT_EQ(KindsOf(*program, "forward/0"), KindsOf(*plain, "forward/0"));
    EXPECT_EQ(KindsOf(*program, "update"), KindsOf(*plain, "update"));
  }
}

TEST(Recompute, FullRemakesALayerBeforeItsFirstUse) {
  const auto program = train("llama", kLlama, "policy = \"full\"\n");
  // The last projection and the sum that leaves the layer are not needed again.
  EXPECT_TRUE(
      KindsOf(*program, "backward/0", 0)
          .starts_with("linear_dx rms_norm linear rotary linear rotary linear attention linear add "
                       "rms_norm linear linear swiglu linear_dw"))
      << KindsOf(*program, "backward/0", 0);
}

TEST(Recompute, SelectiveRemakesEachValueOnceRightBeforeItsUse) {
  const auto program = train("llama", kLlama, "policy = \"selective\"\n");
  const std::string kinds = KindsOf(*program, "backward/0", 0);
  EXPECT_TRUE(kinds.starts_with("linear_dx swiglu linear_dw")) << kinds;
  int norms = 0;
  for (OpId o : OpsOf(*program, "backward/0")) {
    norms += program->op(o).layer == 0 && program->op(o).kind() == "rms_norm" ? 1 : 0;
  }
  EXPECT_EQ(norms, 2) << "one for each norm of the layer";
}

TEST(Recompute, KeepsTheKeyOfRandomOps) {
  const auto program = train("gpt2", std::string(kGpt2) + "dropout = 0.1\n", "policy = \"full\"\n");
  std::multiset<int64_t> forward, backward;
  for (OpId o : OpsOf(*program, "forward/0")) {
    if (program->op(o).kind() == "attention") forward.insert(program->op(o).attrs.Int("key", 0));
  }
  for (OpId o : OpsOf(*program, "backward/0")) {
    if (program->op(o).kind() == "attention") backward.insert(program->op(o).attrs.Int("key", 0));
  }
  EXPECT_EQ(forward.size(), 4u);
  EXPECT_EQ(forward, backward);
}

TEST(Recompute, DoesNothingWithoutABackwardPass) {
  Bench bench;
  bench.compose("gpt2", kGpt2);
  const auto plain = ComposeEval(bench.ingredients());
  bench.add_strategy("recompute", "policy = \"full\"\n");
  const auto program = ComposeEval(bench.ingredients());
  ASSERT_TRUE(plain.ok() && program.ok()) << program.status();
  EXPECT_EQ(DumpProgram(**program), DumpProgram(**plain));
}

TEST(Recompute, RefusesGroupsUnderSelective) {
  Bench bench;
  const auto made = bench.make<capstan_strategy_v1>("strategy", "recompute", "every = 2\n");
  ASSERT_FALSE(made.ok());
  EXPECT_NE(made.status().message().find("every"), std::string::npos);
}

}  // namespace
}  // namespace capstan
