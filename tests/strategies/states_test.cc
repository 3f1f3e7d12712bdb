// What a rank holds: 1/N of the optimizer state under zero1, of the gradients too under zero2, and of
// the parameters too under zero3 and fsdp (Rajbhandari et al. 2020, "ZeRO", section 5), to the byte.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "nlohmann/json.hpp"
#include "runtime/strings.h"
#include "tests/strategies/composed.h"

namespace capstan::strategies_test {
namespace {

using cli_test::Capstan;
using cli_test::Folder;
using cli_test::Outcome;

// The training parameters of a model, as one rank holds them.
std::map<std::string, Dims> Shapes(const Folder& folder, const ModelCase& model) {
  const std::string config = folder.Write("alone.toml", ConfigText(model, ""));
  std::map<std::string, Dims> shapes;
  const auto rank = Composed(config, 0, 1);
  for (TensorId t = 0; rank != nullptr && t < rank->program().tensor_limit(); ++t) {
    if (!rank->program().TensorAlive(t)) continue;
    const Tensor& tensor = rank->program().tensor(t);
    if (tensor.kind == CAPSTAN_PARAMETER) shapes[tensor.name] = tensor.shape();
  }
  EXPECT_GT(shapes.size(), 10u);
  return shapes;
}

int64_t Padded(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// Rows of dim 0 that a rank has: the first ranks one more where they do not divide.
int64_t Rows(int64_t rows, int64_t rank, int64_t world) {
  return rows / world + (rank < rows % world ? 1 : 0);
}

// Bytes of fp32 copies of all parameters, each padded to 64 bytes; cut: of this rank's rows alone.
int64_t Bytes(const std::map<std::string, Dims>& shapes, bool cut, int64_t rank, int64_t world) {
  int64_t bytes = 0;
  for (const auto& [name, shape] : shapes) {
    const int64_t row = ElementCount(shape) / shape[0];
    bytes += Padded(4 * row * (cut ? Rows(shape[0], rank, world) : shape[0]));
  }
  return bytes;
}

struct Level {
  const char* strategy;
  const char* options;
  bool states, gradients, parameters;  // which are divided
};

constexpr Level kLevels[] = {
    {"dp", "", false, false, false},
    {"zero1", "", true, false, false},
    {"zero2", "", true, true, false},
    {"zero3", "", true, true, true},
    {"fsdp", "", true, true, true},
    {"fsdp", "unit_layers = 2\nreshard_after_forward = false\nprefetch = 2\n", true, true, true},
};

class States : public testing::TestWithParam<ModelCase> {};

TEST_P(States, AreDividedAsThePaperSaysOnEveryRank) {
  const Folder folder;
  const std::map<std::string, Dims> shapes = Shapes(folder, GetParam());
  for (const Level& level : kLevels) {
    const std::string config =
        folder.Write("cut.toml", ConfigText(GetParam(), Strategy(level.strategy, level.options)));
    for (const int64_t world : {1, 2, 3, 4, 8}) {
      for (int64_t r = 0; r < world; ++r) {
        SCOPED_TRACE(StrCat(level.strategy, ", rank ", r, " of ", world));
        const auto rank = Composed(config, r, world);
        ASSERT_NE(rank, nullptr);
        EXPECT_EQ(rank->region(kOptimizerState), 2 * Bytes(shapes, level.states, r, world));
        EXPECT_EQ(rank->region(kGradients), Bytes(shapes, level.gradients, r, world));
        EXPECT_EQ(rank->region(kParameters), Bytes(shapes, level.parameters, r, world));
      }
    }
  }
}

// The slices of every stored tensor, by rank, are rows that follow one another from first to last.
TEST_P(States, SlicesOfAllRanksMakeTheWhole) {
  const Folder folder;
  const std::map<std::string, Dims> shapes = Shapes(folder, GetParam());
  for (const Level& level : kLevels) {
    const std::string config =
        folder.Write("cut.toml", ConfigText(GetParam(), Strategy(level.strategy, level.options)));
    for (const int64_t world : {2, 3, 4}) {
      SCOPED_TRACE(StrCat(level.strategy, " on ", world));
      std::map<std::string, int64_t> rows;
      for (int64_t r = 0; r < world; ++r) {
        const auto rank = Composed(config, r, world);
        ASSERT_NE(rank, nullptr);
        for (TensorId id = 0; id < rank->program().tensor_limit(); ++id) {
          if (!rank->program().TensorAlive(id)) continue;
          const Tensor& t = rank->program().tensor(id);
          const bool kept = t.kind == CAPSTAN_PARAMETER || (t.kind == CAPSTAN_STATE && t.of >= 0);
          if (!kept || t.view_of != kNone || t.slice_start.empty()) continue;
          if (PlacementOn(t.placement(), "dp").kind != CAPSTAN_SHARD) continue;
          EXPECT_EQ(t.slice_start[0], rows[t.name]) << t.name << " on rank " << r;
          rows[t.name] += t.shape()[0];
          for (size_t d = 1; d < t.shape().size(); ++d) EXPECT_EQ(t.shape()[d], t.global_shape[d]);
          if (r + 1 == world) {
            EXPECT_EQ(rows[t.name], t.global_shape[0]) << t.name;
          }
        }
      }
      const size_t a_parameter = (level.states ? 2 : 0) + (level.parameters ? 1 : 0);
      EXPECT_EQ(rows.size(), a_parameter * shapes.size());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, States, testing::Values(kGpt2Uneven, kLlamaUneven, kLlamaTied),
                         [](const auto& info) { return std::string(info.param.name); });

// A group of shards, and copies of it along the other axis.
TEST(HybridStates, AreDividedOverTheShardAxisAlone) {
  const Folder folder;
  const std::map<std::string, Dims> shapes = Shapes(folder, kGpt2Uneven);
  const std::string config = folder.Write(
      "cut.toml",
      ConfigText(kGpt2Uneven, Strategy("fsdp", "axis = \"shard\"\nreplicate_axis = \"dp\"\n")));
  for (int64_t r = 0; r < 6; ++r) {
    const auto rank = Composed(config, r, 6, {"mesh.shard=3", "mesh.order=[\"shard\",\"dp\"]"});
    ASSERT_NE(rank, nullptr);
    for (const char* region : {kParameters, kGradients}) {
      EXPECT_EQ(rank->region(region), Bytes(shapes, true, r % 3, 3)) << "rank " << r;
    }
    EXPECT_EQ(rank->region(kOptimizerState), 2 * Bytes(shapes, true, r % 3, 3)) << "rank " << r;
  }
}

// `capstan plan` shows the same, rank by rank.
TEST(PlanOfARank, IsItsOwnShare) {
  const Folder folder;
  const std::map<std::string, Dims> shapes = Shapes(folder, kGpt2Uneven);
  const std::string config = folder.Write("cut.toml", ConfigText(kGpt2Uneven, Strategy("zero2")));
  for (int64_t r = 0; r < 3; ++r) {
    const Outcome o =
        Capstan({"plan", config, "--world", "3", "--rank", std::to_string(r), "--json"});
    ASSERT_EQ(o.exit_code, 0) << o.err;
    const auto regions = nlohmann::json::parse(o.out)["memory"]["regions"];
    EXPECT_EQ(regions[kOptimizerState], 2 * Bytes(shapes, true, r, 3)) << "rank " << r;
    EXPECT_EQ(regions[kGradients], Bytes(shapes, true, r, 3)) << "rank " << r;
    EXPECT_EQ(regions[kParameters], Bytes(shapes, false, r, 3)) << "rank " << r;
  }
}

// ---- 70 billion parameters ---------------------------------------------------------------------

TEST(Plan70B, OfANumberOfParametersPrintsThePapersGigabytes) {
  const std::pair<const char*, const char*> cases[] = {
      {"zero1", "140 + 140 + 105 = 385 GB a rank"},
      {"zero2", "140 + 17.5 + 105 = 262.5 GB a rank"},
      {"zero3", "17.5 + 17.5 + 105 = 140 GB a rank"}};
  for (const auto& [strategy, bill] : cases) {
    const Outcome o = Capstan({"plan", "--params", "70e9", "--precision", "mixed", "--ranks", "8",
                               "--strategy", strategy});
    EXPECT_EQ(o.exit_code, 0) << o.err;
    EXPECT_THAT(o.out, testing::HasSubstr(bill));
    EXPECT_THAT(o.out, testing::HasSubstr("105.0 GB a rank"));
  }
}

// LLaMA 2 70B of the committed configuration. Every matrix and vector divides by 8, so a rank's share
// is an eighth to the byte: 4 bytes a parameter and gradient, 8 of Adam's moments.
TEST(Plan70B, OfTheRealModelDividesByEight) {
  constexpr int64_t kParametersOf70B = 68976648192;
  const Level levels[] = {{"zero1", "", true, false, false},
                          {"zero2", "", true, true, false},
                          {"zero3", "", true, true, true},
                          {"fsdp", "", true, true, true}};
  for (const Level& level : levels) {
    const Outcome o = Capstan({"plan", cli_test::ConfigPath("llama-70b.toml"), "--set", "mesh.dp=8",
                               "--set", StrCat("strategy.1.plugin=", level.strategy), "--set",
                               "batch.global=8", "--json"});
    ASSERT_EQ(o.exit_code, 0) << o.err;
    const auto regions = nlohmann::json::parse(o.out)["memory"]["regions"];
    const auto share = [&](bool divided) { return kParametersOf70B / (divided ? 8 : 1); };
    EXPECT_EQ(regions[kOptimizerState], 8 * share(level.states)) << level.strategy;
    EXPECT_EQ(regions[kGradients], 4 * share(level.gradients)) << level.strategy;
    EXPECT_EQ(regions[kParameters], 4 * share(level.parameters)) << level.strategy;
  }
}

}  // namespace
}  // namespace capstan::strategies_test
