// Pipelines of any depth, with any number of microbatches, come to their end: what the ranks' Programs
// communicate, played through, and runs on ranks of this machine.
#include "runtime/exec/comm_check.h"
#include "runtime/strings.h"
#include "tests/cut/cut_fixture.h"

namespace capstan::cut_test {
namespace {

class Deadlock : public Cut, public testing::WithParamInterface<const char*> {
 protected:
  bool interleaved() const { return std::string(GetParam()) == "interleaved"; }

  Composition Pipeline(int64_t stages, int64_t chunks, int64_t microbatches,
                       const std::string& more_mesh = "", const std::string& more = "") const {
    return {kGpt2, StrCat(more_mesh, "pp=", stages),
            StrCat(more, "pp:schedule=\"", GetParam(), "\",chunks=", chunks),
            StrCat("model.layers=", stages * chunks, " batch.global=", microbatches)};
  }

  void Play(const Composition& composition) {
    SCOPED_TRACE(NameOf(composition));
    std::vector<std::string> scripts;
    Mesh mesh;
    for (int64_t r = 0; r == 0 || r < mesh.world(); ++r) {
      const auto rank = Compose(composition, r, 0);
      ASSERT_NE(rank, nullptr);
      mesh = rank->session().host().mesh();
      scripts.push_back(CommScript(rank->program(), rank->plan()));
    }
    const absl::Status checked = CheckCommunication(mesh, scripts);
    EXPECT_TRUE(checked.ok()) << checked;
  }
};

TEST_P(Deadlock, ProgramsOfManySizesComeToTheirEnd) {
  for (int64_t stages = 2; stages <= 6; ++stages) {
    for (int64_t chunks = 1; chunks <= (interleaved() ? 3 : 1); ++chunks) {
      const std::vector<int64_t> microbatches =
          chunks > 1 ? std::vector<int64_t>{stages, 2 * stages, 3 * stages}
                     : std::vector<int64_t>{1, 2, stages - 1, stages, 2 * stages + 1};
      for (const int64_t m : microbatches) Play(Pipeline(stages, chunks, m));
    }
  }
  // Beside the collectives of other axes.
  const int64_t chunks = interleaved() ? 2 : 1;
  Play(Pipeline(2, chunks, 4, "tp=2 ", "tp sp "));
  Play(Pipeline(3, chunks, 6, "tp=2 ", "tp "));
}

TEST_P(Deadlock, RanksComeToTheirEnd) {
  MakeData();
  const int64_t chunks = interleaved() ? 2 : 1, group = interleaved() ? 4 : 1;
  for (const int64_t m : {1, 3, 4, 9}) {
    Composition pipeline = Pipeline(4, chunks, m * group);
    pipeline.set += StrCat(" run.steps=1 run.dir=", folder_ / StrCat("run", m));
    const Outcome outcome = Command("train", pipeline, {"--ranks", "4"});
    EXPECT_EQ(outcome.exit_code, 0) << m << " microbatches: " << outcome.err;
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules, Deadlock,
                         testing::Values("gpipe", "1f1b", "interleaved", "zb_h1"),
                         [](const auto& info) {
                           return info.param == std::string("1f1b") ? "one_forward_one_backward"
                                                                    : std::string(info.param);
                         });

}  // namespace
}  // namespace capstan::cut_test
