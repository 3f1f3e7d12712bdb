// Programs cut by tp, sp and pp, as the committed text. These files are the strategies' specification:
// read them beside their READMEs.
//
// After an intended change, regenerate with
//     CAPSTAN_UPDATE_DUMPS=1 ctest --test-dir build/release -R CutDump
// and review the difference as text.
#include <cstdlib>
#include <fstream>

#include "runtime/program/program.h"
#include "tests/cut/cut_fixture.h"

namespace capstan::cut_test {
namespace {

struct DumpCase {
  const char* name;
  Composition composition;
  int64_t rank;
};

void PrintTo(const DumpCase& c, std::ostream* out) { *out << c.name; }

class CutDump : public Cut, public testing::WithParamInterface<DumpCase> {};

TEST_P(CutDump, IsTheCommittedText) {
  const auto rank = Compose(GetParam().composition, GetParam().rank, 0);
  ASSERT_NE(rank, nullptr);
  const std::string text = DumpProgram(rank->program());
  const std::string path =
      std::string(CAPSTAN_REPOSITORY) + "/tests/cut/dumps/" + GetParam().name + ".txt";
  if (std::getenv("CAPSTAN_UPDATE_DUMPS") != nullptr) std::ofstream(path, std::ios::binary) << text;
  EXPECT_EQ(text, ReadAll(path)) << "differs from " << path;
}

constexpr const char* kOneLayer = "model.layers=1 batch.global=2 optimizer.clip_norm=0.0";
constexpr const char* kTwoLayers = "model.layers=2 batch.global=2";

INSTANTIATE_TEST_SUITE_P(
    Programs, CutDump,
    testing::Values(
        DumpCase{"gpt2_tp", {kGpt2, "tp=2", "tp", kOneLayer}, 0},
        DumpCase{"gpt2_uneven_tp", {kGpt2Uneven, "tp=2", "tp", kOneLayer}, 1},
        DumpCase{"gpt2_tp_sp", {kGpt2, "tp=2", "tp sp", kOneLayer}, 0},
        DumpCase{"llama_tp", {kLlama, "tp=2", "tp", kOneLayer}, 1},
        DumpCase{"llama_tp_sp", {kLlama, "tp=2", "tp sp", kOneLayer}, 1},
        DumpCase{"llama_one_kv_head_tp",
                 {kLlama, "tp=2", "tp", "model.layers=1 batch.global=2 model.kv_heads=1"},
                 1},
        DumpCase{"gpt2_pp_first", {kGpt2, "pp=2", "pp", kTwoLayers}, 0},
        DumpCase{"gpt2_pp_last", {kGpt2, "pp=2", "pp", kTwoLayers}, 1},
        DumpCase{"llama_pp_first", {kLlama, "pp=2", "pp:schedule=zb_h1", kTwoLayers}, 0},
        DumpCase{"llama_pp_last", {kLlama, "pp=2", "pp:schedule=zb_h1", kTwoLayers}, 1}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace capstan::cut_test
