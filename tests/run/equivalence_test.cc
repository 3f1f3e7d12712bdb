// The same training, cut differently: microbatches, recomputation, reference kernels.
#include <cmath>

#include "tests/run/run_fixture.h"
#include "tests/run/safetensors_file.h"

namespace capstan::run_test {
namespace {

void ExpectClose(const std::vector<double>& a, const std::vector<double>& b, double relative) {
  ASSERT_EQ(a.size(), b.size());
  ASSERT_FALSE(a.empty());
  for (size_t i = 0; i < a.size(); ++i)
    EXPECT_NEAR(a[i], b[i], relative * std::abs(a[i])) << "step " << i + 1;
}

// Dropout is a function of the sample, so it does not stand in the way of these comparisons.
TEST_F(TinyRun, MicrobatchesGiveTheSameTraining) {
  ASSERT_EQ(Train("two").exit_code, 0);
  ASSERT_EQ(Train("eight", {"batch.micro=8"}).exit_code, 0);
  ASSERT_EQ(Train("one", {"batch.micro=1"}).exit_code, 0);
  ExpectClose(Losses("two"), Losses("eight"), 1e-5);
  ExpectClose(Losses("two"), Losses("one"), 1e-5);
}

// In bits: an activation made again by itself is what the fused kernel gave.
TEST_F(TinyRun, RecomputeGivesTheSameTraining) {
  ASSERT_EQ(Train("kept").exit_code, 0);
  const std::string text = ReadAll(config_);
  for (const std::string policy : {"full", "selective"}) {
    config_ = folder_.Write(
        policy + ".toml",
        text + "\n[[strategy]]\nplugin = \"recompute\"\npolicy = \"" + policy + "\"\n");
    const Outcome outcome = Train(policy);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    ASSERT_FALSE(Losses(policy).empty());
    EXPECT_EQ(Losses("kept"), Losses(policy));
  }
}

// With only the norms trained, the norm that recomputation clones gives its statistics and nothing
// reads its output.
TEST_F(TinyRun, RecomputeOfValuesThatNothingElseReads) {
  const std::vector<std::string> set = {"model.trainable=[\"*ln_*\"]"};
  ASSERT_EQ(Train("kept", set).exit_code, 0);
  config_ = folder_.Write("selective.toml", ReadAll(config_) +
                                                "\n[[strategy]]\nplugin = "
                                                "\"recompute\"\npolicy = \"selective\"\n");
  const Outcome outcome = Train("selective", set);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  ExpectClose(Losses("kept"), Losses("selective"), 1e-5);
}

TEST_F(TinyRun, RecomputeHoldsFewerBytes) {
  const auto arena = [&](const std::string& config) {
    const Outcome plan =
        Capstan({"plan", config, "--json", "--set", "batch.micro=8", "--set", "model.layers=8"});
    EXPECT_EQ(plan.exit_code, 0) << plan.err;
    return nlohmann::json::parse(plan.out)["memory"]["regions"]["activations"].get<int64_t>();
  };
  const std::string text = ReadAll(config_);
  const auto with = [&](const std::string& policy) {
    return folder_.Write(
        policy + ".toml",
        text + "\n[[strategy]]\nplugin = \"recompute\"\npolicy = \"" + policy + "\"\n");
  };
  const int64_t kept = arena(config_), selective = arena(with("selective")),
                full = arena(with("full"));
  EXPECT_LT(selective, kept);
  EXPECT_LT(full, selective);
}

TEST_F(TinyRun, ReferenceKernelsAgree) {
  ASSERT_EQ(Train("fast").exit_code, 0);
  ASSERT_EQ(Train("plain", {"device.kernels=reference"}).exit_code, 0);
  ExpectClose(Losses("fast"), Losses("plain"), 1e-5);
}

TEST_F(TinyRun, Float64AgreesWithFloat32) {
  ASSERT_EQ(Train("f32").exit_code, 0);
  ASSERT_EQ(Train("f64", {"precision.dtype=f64"}).exit_code, 0);
  ExpectClose(Losses("f32"), Losses("f64"), 1e-5);
}

TEST_F(TinyRun, OneThreadAgreesWithTwo) {
  ASSERT_EQ(Train("one", {"device.threads=1"}).exit_code, 0);
  ASSERT_EQ(Train("two", {"device.threads=2"}).exit_code, 0);
  ExpectClose(Losses("one"), Losses("two"), 1e-5);
}

TEST_F(TinyRun, FrozenParametersKeepTheirValues) {
  ASSERT_EQ(Train("all").exit_code, 0);
  const Outcome outcome = Train("some", {"model.trainable=[\"h.1.*\"]"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto early = ReadSafetensors(folder_ / "some/checkpoints/step-00000002/model.safetensors");
  const auto late = ReadSafetensors(folder_ / "some/checkpoints/step-00000008/model.safetensors");
  ASSERT_FALSE(early.empty());
  int moved = 0, kept = 0;
  for (const auto& [name, tensor] : early) {
    const bool layer = name.find("h.1.") != std::string::npos;
    const bool same = late.at(name).values == tensor.values;
    if (layer) moved += !same;
    if (!layer) {
      EXPECT_TRUE(same) << name;
      ++kept;
    }
  }
  EXPECT_GT(moved, 4);
  EXPECT_GT(kept, 4);
}

TEST_F(TinyRun, OptimizerGroupsUseTheirOwnOptions) {
  const std::string text = ReadAll(config_);
  config_ = folder_.Write(
      "groups.toml",
      text + "\n[[optimizer.group]]\nmatch = [\"*\"]\nlr = 0.0\nweight_decay = 0.0\n");
  ASSERT_EQ(Train("still").exit_code, 0);
  const auto early = ReadSafetensors(folder_ / "still/checkpoints/step-00000002/model.safetensors");
  const auto late = ReadSafetensors(folder_ / "still/checkpoints/step-00000008/model.safetensors");
  ASSERT_FALSE(early.empty());
  for (const auto& [name, tensor] : early) EXPECT_EQ(late.at(name).values, tensor.values) << name;
}

TEST_F(TinyRun, StartsFromItsOwnExportedWeights) {
  ASSERT_EQ(Train("first").exit_code, 0);
  const Outcome exported = Capstan({"export", folder_ / "first", folder_ / "weights"});
  ASSERT_EQ(exported.exit_code, 0) << exported.err;
  const Outcome second = Train("second", {"model.weights=" + (folder_ / "weights"), "run.steps=1",
                                          "optimizer.schedule.warmup_steps=0", "optimizer.lr=0.0",
                                          "optimizer.weight_decay=0.0"});
  ASSERT_EQ(second.exit_code, 0) << second.err;
  const auto a = ReadSafetensors(folder_ / "first/checkpoints/step-00000008/model.safetensors");
  const auto b = ReadSafetensors(folder_ / "second/checkpoints/step-00000001/model.safetensors");
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) EXPECT_EQ(b.at(name).values, tensor.values) << name;
}

}  // namespace
}  // namespace capstan::run_test
