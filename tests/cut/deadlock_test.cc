// Pipelines of any depth, with any number of microbatches, come to their end: what the ranks' Programs
// communicate, played through, and runs on ranks of this machine.
#include <optional>
#include <random>

#include "plugins/strategy/pp/schedules.h"
#include "runtime/exec/comm_check.h"
#include "runtime/strings.h"
#include "sdk/error.h"
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

// Any line a stage could run by itself: microbatches in order, forward before backward.
std::string AnyLine(int64_t chunks, int64_t microbatches, std::mt19937& random) {
  std::vector<int64_t> forward(static_cast<size_t>(chunks)), backward = forward;
  std::vector<pp::Step> steps;
  for (int64_t left = 2 * chunks * microbatches; left > 0;) {
    const size_t c = random() % static_cast<size_t>(chunks);
    const bool back = random() % 2 == 0;
    int64_t& next = back ? backward[c] : forward[c];
    if (next == (back ? forward[c] : microbatches)) continue;
    steps.push_back(
        {back ? pp::Work::kBackward : pp::Work::kForward, static_cast<int64_t>(c), next++});
    --left;
  }
  std::string line;
  for (const pp::Step& s : steps) {
    StrAppend(&line, s.work == pp::Work::kForward ? "F" : "B", s.microbatch, ".", s.chunk, " ");
  }
  return line;
}

class AnySchedule : public Cut {
 protected:
  // What FromFile says of the lines; nullopt: taken.
  static std::optional<std::string> Refusal(const std::string& path, const pp::Pipeline& pipeline) {
    try {
      pp::FromFile(path).steps(pipeline, 0);
    } catch (const sdk::Error& error) {
      return error.what();
    }
    return std::nullopt;
  }

  // The Programs of all stages, run in the order of the words of their lines.
  static absl::Status Play(const std::vector<std::unique_ptr<Rank>>& ranks,
                           const std::vector<std::string>& lines) {
    std::vector<std::string> scripts;
    for (size_t s = 0; s < ranks.size(); ++s) {
      Program& program = ranks[s]->mutable_program();
      std::vector<ScheduleEntry> schedule = {{"begin", -1}};
      for (const std::string& word : Words(lines[s])) {
        const size_t dot = word.find('.');
        const int64_t chunk =
            std::stoll(word.substr(dot + 1)) * static_cast<int64_t>(ranks.size()) +
            static_cast<int64_t>(s);
        schedule.push_back({StrCat(word[0] == 'F' ? "forward/" : "backward/", chunk),
                            std::stoi(word.substr(1, dot - 1))});
      }
      schedule.push_back({"update", -1});
      if (const absl::Status set = program.SetSchedule(schedule); !set.ok()) return set;
      MemoryPlan plan;
      const absl::Status planned = plan.Add(program, *ranks[s]->session().device(), 7);
      if (!planned.ok()) return planned;
      scripts.push_back(CommScript(program, plan));
    }
    return CheckCommunication(ranks[0]->session().host().mesh(), scripts);
  }
};

// A file is taken exactly if what the ranks' Programs communicate in its order comes to an end.
TEST_F(AnySchedule, FromAFileIsTakenIfItComesToItsEnd) {
  std::mt19937 random(1);
  int taken = 0, refused = 0;
  for (const pp::Pipeline& p : {pp::Pipeline{2, 1, 2}, pp::Pipeline{2, 1, 4}, pp::Pipeline{3, 1, 2},
                                pp::Pipeline{2, 2, 2}}) {
    const Composition composition{
        kGpt2, StrCat("pp=", p.stages), StrCat("pp:schedule=interleaved,chunks=", p.chunks),
        StrCat("model.layers=", p.stages * p.chunks, " batch.global=", p.microbatches)};
    std::vector<std::unique_ptr<Rank>> ranks;
    for (int64_t r = 0; r < p.stages; ++r) {
      ranks.push_back(Compose(composition, r, 0));
      ASSERT_NE(ranks.back(), nullptr);
    }
    for (int round = 0; round < 40; ++round) {
      std::vector<std::string> lines;
      std::string text;
      for (int64_t s = 0; s < p.stages; ++s) {
        lines.push_back(AnyLine(p.chunks, p.microbatches, random));
        StrAppend(&text, lines.back(), "\n");
      }
      const std::optional<std::string> refusal = Refusal(folder_.Write("steps.txt", text), p);
      const absl::Status played = Play(ranks, lines);
      EXPECT_EQ(refusal.has_value(), !played.ok()) << text << refusal.value_or("taken") << "\n"
                                                   << played;
      ++(refusal ? refused : taken);
    }
  }
  EXPECT_GT(taken, 20);
  EXPECT_GT(refused, 20);
}

INSTANTIATE_TEST_SUITE_P(Schedules, Deadlock,
                         testing::Values("gpipe", "1f1b", "interleaved", "zb_h1"),
                         [](const auto& info) {
                           return info.param == std::string("1f1b") ? "one_forward_one_backward"
                                                                    : std::string(info.param);
                         });

}  // namespace
}  // namespace capstan::cut_test
