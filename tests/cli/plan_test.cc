// `capstan plan` as printed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "nlohmann/json.hpp"
#include "tests/cli/process.h"

namespace capstan::cli_test {
namespace {

using Json = nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(PlanParams, PrintsTheBillAndWhichGpusHoldIt) {
  const Outcome o = Capstan({"plan", "--params", "13e9", "--precision", "mixed"});
  EXPECT_EQ(o.exit_code, 0) << o.err;
  EXPECT_THAT(o.out,
              HasSubstr("13.00 billion parameters, mixed precision: 26 + 26 + 156 = 208 GB"));
  EXPECT_THAT(o.out, HasSubstr("26.0 GB"));
  EXPECT_THAT(o.out, HasSubstr("156.0 GB"));
  EXPECT_THAT(o.out,
              HasSubstr("does not fit: needs 208.0 GB, has 85.9 GB; 3 GPUs at least with zero3"));
  for (const char* gpu : {"A100 80GB", "A100 40GB", "H100 80GB", "H200 141GB", "RTX 3090 24GB"}) {
    EXPECT_THAT(o.out, HasSubstr(gpu));
  }
}

TEST(PlanParams, DividesByRanks) {
  const Outcome o =
      Capstan({"plan", "--params", "70e9", "--ranks", "8", "--strategy", "zero3", "--gpu", "H200"});
  EXPECT_EQ(o.exit_code, 0) << o.err;
  EXPECT_THAT(o.out, HasSubstr("17.5 + 17.5 + 105 = 140 GB a rank"));
  EXPECT_THAT(o.out, HasSubstr("fits: needs 140.0 GB, has 150.8 GB; 10.8 GB left for activations"));
  EXPECT_THAT(o.out, Not(HasSubstr("A100")));
}

TEST(PlanParams, GivesJson) {
  const Outcome o = Capstan({"plan", "--params", "7e9", "--gpu", "A100 80GB", "--json"});
  EXPECT_EQ(o.exit_code, 0) << o.err;
  const Json json = Json::parse(o.out);
  EXPECT_EQ(json["bytes"]["optimizer"], 84e9);
  EXPECT_EQ(json["bytes"]["total"], 112e9);
  EXPECT_EQ(json["gpus"].size(), 1u);
  EXPECT_EQ(json["gpus"][0]["fits"], false);
  EXPECT_EQ(json["gpus"][0]["fewest_ranks_zero3"], 2);
}

TEST(PlanConfig, NeedsNoData) {
  const Folder folder;
  const Outcome o = Capstan({"plan", TinyConfig(folder)});
  EXPECT_EQ(o.exit_code, 0) << o.err;
  EXPECT_THAT(o.out, AllOf(HasSubstr("parameters"), HasSubstr("gradients"),
                           HasSubstr("optimizer state"), HasSubstr("activations")));
  EXPECT_THAT(o.out, HasSubstr("this machine: fits"));
  EXPECT_EQ(folder.List(), std::vector<std::string>{"tiny.toml"});  // and leaves nothing behind
}

// The model's size is that of the whole model on every rank of any mesh; what a rank holds is its part.
TEST(PlanConfig, CountsTheWholeModelAndWhatARankHolds) {
  constexpr int64_t kTinyGpt = 10'844'160;
  const struct {
    const char* file;
    int ranks;
    int64_t at_least, at_most;  // held by all ranks together
  } cases[] = {
      {"ranks/dp.toml", 2, 2 * kTinyGpt, 2 * kTinyGpt},
      {"ranks/zero3.toml", 2, kTinyGpt, kTinyGpt},
      // The tied table on the first and the last stage; norms and biases on every rank of tp.
      {"ranks/pp.toml", 2, kTinyGpt + 256 * 384, kTinyGpt + 256 * 384},
      {"ranks/tp.toml", 2, kTinyGpt + 1, kTinyGpt + kTinyGpt / 50},
  };
  double rule = 0;
  for (const auto& c : cases) {
    int64_t held = 0;
    double all = 0;
    for (int rank = 0; rank < c.ranks; ++rank) {
      const Outcome o =
          Capstan({"plan", ConfigPath(c.file), "--rank", std::to_string(rank), "--json"});
      ASSERT_EQ(o.exit_code, 0) << o.err;
      const Json json = Json::parse(o.out);
      EXPECT_EQ(json["parameters"]["total"], kTinyGpt) << c.file;
      EXPECT_EQ(json["parameters"]["trainable"], kTinyGpt) << c.file;
      held += json["parameters"]["held"].get<int64_t>();
      all += json["flops"]["rule"].get<double>();
    }
    EXPECT_GE(held, c.at_least) << c.file;
    EXPECT_LE(held, c.at_most) << c.file;
    // The same step, however it is divided.
    if (rule == 0) rule = all;
    EXPECT_DOUBLE_EQ(all, rule) << c.file;
  }
}

// Adam in fp32: a gradient and two moments for every parameter, each padded to 64 bytes.
TEST(PlanConfig, RegionsSumToTheTotalAndAgreeWithTheParameters) {
  const Folder folder;
  const Outcome o = Capstan({"plan", TinyConfig(folder), "--json"});
  ASSERT_EQ(o.exit_code, 0) << o.err;
  const Json json = Json::parse(o.out);
  const Json& regions = json["memory"]["regions"];
  int64_t sum = 0;
  for (const auto& [name, bytes] : regions.items()) sum += bytes.get<int64_t>();
  EXPECT_EQ(sum, json["memory"]["total_bytes"]);
  // Every size of this model is a multiple of 16 elements, so nothing is padded.
  const int64_t parameters = json["parameters"]["total"];
  EXPECT_EQ(parameters, 256 * 32 + 16 * 32 + 2 * (12 * 32 * 32 + 13 * 32) + 2 * 32);
  EXPECT_EQ(regions["parameters"], 4 * parameters);
  EXPECT_EQ(regions["gradients"], 4 * parameters);
  EXPECT_EQ(regions["optimizer state"], 8 * parameters);
  int64_t peak = 0;
  for (const auto& [name, bytes] : json["memory"]["activations_peak"]["parts"].items()) {
    peak += bytes.get<int64_t>();
  }
  EXPECT_EQ(peak, regions["activations"]);
}

TEST(PlanConfig, CountsParametersByUse) {
  const Folder folder;
  const Outcome o = Capstan({"plan", TinyConfig(folder), "--json"});
  ASSERT_EQ(o.exit_code, 0) << o.err;
  const Json p = Json::parse(o.out)["parameters"];
  EXPECT_EQ(p["trainable"], p["total"]);
  EXPECT_EQ(p["parts"]["embeddings"], (256 + 16) * 32);  // the head is the token table
  EXPECT_EQ(p["parts"]["matrices of layers"], 2 * 12 * 32 * 32);
  EXPECT_EQ(p["in_products"], 256 * 32 + 2 * 12 * 32 * 32);
}

TEST(PlanConfig, FrozenParametersHaveNoGradient) {
  const Folder folder;
  const Outcome o =
      Capstan({"plan", TinyConfig(folder), "--set", "model.trainable=[\"h.*.mlp.*\"]", "--json"});
  ASSERT_EQ(o.exit_code, 0) << o.err;
  const Json json = Json::parse(o.out);
  EXPECT_EQ(json["parameters"]["trainable"], 2 * (8 * 32 * 32 + 5 * 32));
  EXPECT_EQ(json["memory"]["regions"]["gradients"],
            4 * json["parameters"]["trainable"].get<int64_t>());
}

// The products of a training step: 6 operations a parameter and token. Elementwise work comes on
// top, so the Program's count is larger, but not by much.
TEST(PlanConfig, OperationsFollowTheSixNRule) {
  const Outcome o = Capstan({"plan", ConfigPath("gpt2-124m.toml"), "--json"});
  ASSERT_EQ(o.exit_code, 0) << o.err;
  const Json json = Json::parse(o.out);
  const double rule = json["flops"]["rule"], step = json["flops"]["step"];
  const double model = json["flops"]["model"];
  EXPECT_NEAR(step / rule, 1, 0.1);
  EXPECT_NEAR(model / rule, 1, 0.1);
  const double n = json["parameters"]["in_products"], tokens = json["batch"]["tokens"];
  EXPECT_EQ(rule, tokens * (6 * n + 12.0 * 12 * 768 * 1024));
  double of_ops = 0;
  for (const Json& op : json["ops"]) of_ops += op["flops"].get<double>();
  EXPECT_NEAR(of_ops / step, 1, 1e-9);
}

TEST(PlanConfig, JudgesANamedGpu) {
  const Outcome o = Capstan({"plan", ConfigPath("llama-7b.toml"), "--gpu", "A100 80GB"});
  EXPECT_EQ(o.exit_code, 0) << o.err;
  EXPECT_THAT(o.out, HasSubstr("A100 80GB: does not fit: needs "));
}

// What `train` says it has allocated is what `plan` predicted.
TEST(PlanConfig, PredictsWhatTrainAllocates) {
  const Folder folder;
  const std::string config = TinyConfig(folder, 1);
  const std::string text = folder.Write("text.txt", std::string(4096, 'a'));
  ASSERT_EQ(Capstan({"data", "tokenize", text, "--out", folder / "data"}).exit_code, 0);
  const Outcome plan = Capstan({"plan", config, "--json"});
  ASSERT_EQ(plan.exit_code, 0) << plan.err;
  const double total = Json::parse(plan.out)["memory"]["total_bytes"];
  const Outcome train = Capstan({"train", config});
  ASSERT_EQ(train.exit_code, 0) << train.err;
  char megabytes[32];
  std::snprintf(megabytes, sizeof(megabytes), ", %.1f MB, ", total / 1e6);
  EXPECT_THAT(train.out, HasSubstr(megabytes));
}

}  // namespace
}  // namespace capstan::cli_test
