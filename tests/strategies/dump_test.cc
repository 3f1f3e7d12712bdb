// The train Program of one rank after each strategy, as text: what a strategy does is what it changes
// here.
//
// After an intended change, regenerate with
//     CAPSTAN_UPDATE_DUMPS=1 ctest --test-dir build/release -R StrategyDump
// and review the difference as text.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "runtime/strings.h"
#include "tests/strategies/composed.h"

namespace capstan::strategies_test {
namespace {

using cli_test::Capstan;
using cli_test::Folder;
using cli_test::Outcome;
using cli_test::ReadAll;

struct DumpCase {
  std::string name;
  ModelCase model;
  std::string strategies;
  int64_t rank, world;
  std::vector<std::string> set = {};
};

void PrintTo(const DumpCase& c, std::ostream* out) { *out << c.name; }

class StrategyDump : public testing::TestWithParam<DumpCase> {};

TEST_P(StrategyDump, IsTheCommittedText) {
  const DumpCase& c = GetParam();
  const Folder folder;
  std::vector<std::string> arguments = {
      "dump",    folder.Write("run.toml", ConfigText(c.model, c.strategies)),
      "--rank",  std::to_string(c.rank),
      "--world", std::to_string(c.world),
      "--set",   "model.layers=1",
      "--set",   StrCat("batch.global=", 2 * c.world)};
  for (const std::string& s : c.set) {
    arguments.push_back("--set");
    arguments.push_back(s);
  }
  const Outcome first = Capstan(arguments), second = Capstan(arguments);
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_EQ(first.out, second.out);
  const std::string path =
      std::string(CAPSTAN_REPOSITORY) + "/tests/strategies/dumps/" + c.name + ".txt";
  if (std::getenv("CAPSTAN_UPDATE_DUMPS") != nullptr) {
    std::ofstream(path, std::ios::binary) << first.out;
  }
  EXPECT_EQ(first.out, ReadAll(path)) << "differs from " << path;
}

INSTANTIATE_TEST_SUITE_P(
    Even, StrategyDump,
    testing::Values(DumpCase{"dp", kGpt2Even, Strategy("dp", "bucket_mb = 0.004\n"), 0, 2},
                    DumpCase{"zero1", kGpt2Even, Strategy("zero1"), 0, 2},
                    DumpCase{"zero2", kGpt2Even, Strategy("zero2", "bucket_mb = 0.004\n"), 0, 2},
                    DumpCase{"zero3", kGpt2Even, Strategy("zero3"), 0, 2},
                    DumpCase{"fsdp", kLlamaEven,
                             Strategy("fsdp", "reshard_after_forward = false\nprefetch = 0\n"), 0,
                             2},
                    DumpCase{"fsdp_hybrid",
                             kLlamaEven,
                             Strategy("fsdp", "axis = \"shard\"\nreplicate_axis = \"dp\"\n"),
                             3,
                             4,
                             {"mesh.shard=2", "mesh.order=[\"shard\",\"dp\"]"}}),
    [](const auto& info) { return info.param.name; });

// Rows that three ranks do not share evenly.
INSTANTIATE_TEST_SUITE_P(
    Uneven, StrategyDump,
    testing::Values(DumpCase{"zero1_uneven", kLlamaUneven, Strategy("zero1"), 1, 3},
                    DumpCase{"zero3_uneven", kLlamaUneven, Strategy("zero3"), 2, 3}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace capstan::strategies_test
