// `capstan timeline`: the schedule predicted from the Programs, and as the traces of a run measured it.
#include <filesystem>
#include <set>

#include "nlohmann/json.hpp"
#include "runtime/strings.h"
#include "tests/cut/cut_fixture.h"

namespace capstan::cut_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using Json = nlohmann::json;

class Timeline : public Cut {
 protected:
  Json Of(const Composition& composition, std::vector<std::string> extra = {}) {
    extra.insert(extra.end(), {"--json", "--flops", "1e9"});
    const Outcome outcome = Command("timeline", composition, extra);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return Json::parse(outcome.out, nullptr, false);
  }

  // Names of a stage's steps, in order.
  static std::string Steps(const Json& stage) {
    std::string text;
    for (const Json& step : stage)
      StrAppend(&text, text.empty() ? "" : " ", step["step"].get<std::string>());
    return text;
  }
};

TEST_F(Timeline, IsTheScheduleThatWouldRun) {
  const Json report = Of({kGpt2, "pp=2", "pp", "batch.global=3"});
  ASSERT_EQ(report["predicted"]["stages"].size(), 2u);
  EXPECT_EQ(Steps(report["predicted"]["stages"][0]), "F0 F1 B0 F2 B1 B2");
  EXPECT_EQ(Steps(report["predicted"]["stages"][1]), "F0.1 B0.1 F1.1 B1.1 F2.1 B2.1");
  EXPECT_FALSE(report.contains("measured"));
}

// What crosses between stages takes the hop's time, once forward and once backward at the least.
TEST_F(Timeline, HopsPutOffTheNextStage) {
  const Composition composition{kGpt2, "pp=2", "pp", "batch.global=1"};
  const Json at_once = Of(composition)["predicted"],
             late = Of(composition, {"--hop-ms", "5"})["predicted"];
  EXPECT_NEAR(late["step_s"].get<double>(), at_once["step_s"].get<double>() + 0.010, 1e-9);
  EXPECT_NEAR(late["stages"][1][0]["start_s"].get<double>(),
              at_once["stages"][1][0]["start_s"].get<double>() + 0.005, 1e-9);
}

// More microbatches divide the bubble among them; the axis may have any name.
TEST_F(Timeline, ShowsTheBubble) {
  const auto bubble = [&](const std::string& mesh, const std::string& strategies,
                          int microbatches) {
    const Json report = Of({kGpt2, mesh, strategies, StrCat("batch.global=", microbatches)});
    EXPECT_EQ(report["predicted"]["stages"].size(), 2u);
    return report["predicted"]["bubble_over_ideal"].get<double>();
  };
  const double four = bubble("pp=2", "pp", 4), sixteen = bubble("pp=2", "pp", 16);
  EXPECT_GT(sixteen, 0);
  EXPECT_NEAR(four, 4 * sixteen, 0.05 * four);
  EXPECT_DOUBLE_EQ(bubble("stage=2 order=[\"stage\"]", "pp:axis=stage", 4), four);
  EXPECT_LT(bubble("pp=2", "pp:schedule=zb_h1", 4), four);
}

TEST_F(Timeline, IsDrawnAsTextAndSvg) {
  const std::string path = folder_ / "pipeline.svg";
  const Outcome outcome =
      Command("timeline", {kGpt2, "pp=4", "pp:schedule=gpipe", "batch.global=4"},
              {"--flops", "1e9", "--svg", path});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  for (int stage = 0; stage < 4; ++stage) {
    EXPECT_THAT(outcome.out, HasSubstr(StrCat("stage  ", stage)));
  }
  EXPECT_THAT(outcome.out,
              AllOf(HasSubstr("predicted"), HasSubstr("bubble"), HasSubstr("not measured")));
  const std::string svg = ReadAll(path);
  EXPECT_THAT(svg, AllOf(HasSubstr("<svg"), HasSubstr("</svg>"), HasSubstr("F3"),
                         HasSubstr("predicted"), Not(HasSubstr("measured"))));
}

// A traced run: each rank's own trace, and beside the prediction what was measured.
TEST_F(Timeline, ShowsWhatARunMeasured) {
  MakeData();
  const Composition composition{
      kGpt2, "pp=2", "pp",
      StrCat("run.steps=2 batch.global=4 batch.micro=1 run.dir=", folder_ / "run")};
  const Outcome train = Command("train", composition, {"--ranks", "2", "--trace"});
  ASSERT_EQ(train.exit_code, 0) << train.err;

  for (int rank = 0; rank < 2; ++rank) {
    const Json trace = Json::parse(
        ReadAll(folder_ / StrCat("run/trace/step-00000002-rank-", rank, ".json")), nullptr, false);
    ASSERT_TRUE(trace.contains("traceEvents"));
    std::set<std::string> names, segments;
    std::set<int> microbatches;
    for (const Json& event : trace["traceEvents"]) {
      EXPECT_EQ(event["pid"], rank);
      if (event["ph"] != "X") continue;
      EXPECT_GE(event["dur"].get<double>(), 0);
      names.insert(event["name"]);
      segments.insert(event["cat"]);
      microbatches.insert(event["args"]["microbatch"].get<int>());
    }
    EXPECT_TRUE(names.contains("linear"));
    EXPECT_TRUE(names.contains(rank == 0 ? "send" : "recv")) << testing::PrintToString(names);
    EXPECT_TRUE(names.contains(rank == 0 ? "wait for recv_grad" : "wait for recv"))
        << testing::PrintToString(names);
    EXPECT_TRUE(segments.contains(StrCat("forward/", rank)));
    EXPECT_TRUE(segments.contains("update"));
    EXPECT_EQ(microbatches, (std::set<int>{-1, 0, 1, 2, 3}));
  }

  const Json report = Of(composition);
  ASSERT_TRUE(report.contains("measured"));
  for (int stage = 0; stage < 2; ++stage) {
    EXPECT_EQ(Steps(report["measured"]["stages"][stage]),
              Steps(report["predicted"]["stages"][stage]));
  }
  EXPECT_GT(report["measured"]["step_s"].get<double>(), 0);

  // Of another schedule it is no measurement.
  Composition other = composition;
  other.strategies = "pp:schedule=gpipe";
  const Outcome refused = Command("timeline", other, {"--flops", "1e9"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("step-00000002-rank-0.json"), HasSubstr("other work")));

  // A step of which one stage's trace is missing is not taken for the newest.
  std::filesystem::copy_file(folder_ / "run/trace/step-00000002-rank-0.json",
                             folder_ / "run/trace/step-00000003-rank-0.json");
  EXPECT_EQ(Of(composition)["measured"], report["measured"]);

  folder_.Write("run/trace/step-00000003-rank-0.json", "{}");
  folder_.Write("run/trace/step-00000003-rank-1.json", "{}");
  const Outcome broken = Command("timeline", composition, {"--flops", "1e9"});
  EXPECT_EQ(broken.exit_code, 1);
  EXPECT_THAT(broken.err, AllOf(HasSubstr("step-00000003-rank-0.json"), HasSubstr("--trace")));
}

TEST_F(Timeline, OfOneStageHasNoBubble) {
  const Json report = Of({kGpt2, "", "", "batch.global=2"});
  ASSERT_EQ(report["predicted"]["stages"].size(), 1u);
  EXPECT_EQ(Steps(report["predicted"]["stages"][0]), "F0 B0 F1 B1");
  EXPECT_EQ(report["predicted"]["bubble_over_ideal"], 0);
}

}  // namespace
}  // namespace capstan::cut_test
