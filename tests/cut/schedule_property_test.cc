// What must hold of every schedule at every size: complete, in order, playable to its end, and within
// the memory and the bubble that were published for it.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "runtime/exec/comm_check.h"
#include "runtime/strings.h"
#include "tests/cut/played.h"

namespace capstan::cut_test {
namespace {

using pp::Work;

std::string Name(const pp::Pipeline& p) {
  return "stages " + std::to_string(p.stages) + ", chunks " + std::to_string(p.chunks) +
         ", microbatches " + std::to_string(p.microbatches);
}

// Sizes a schedule can do: all small ones, and some of many stages.
std::vector<pp::Pipeline> Sizes(const std::string& schedule) {
  std::vector<pp::Pipeline> sizes;
  const bool chunked = schedule == "interleaved";
  for (int64_t stages = 1; stages <= 16; ++stages) {
    for (int64_t chunks = 1; chunks <= (chunked ? 4 : 1); ++chunks) {
      const bool grouped = chunks > 1;  // then microbatches go in groups of as many as stages
      for (int64_t m = 1; m <= (grouped ? 6 * stages : 64); ++m) {
        if (!grouped || m % stages == 0) sizes.push_back({stages, chunks, m});
      }
    }
  }
  for (const int64_t stages : {32, 64, 127}) {
    sizes.push_back({stages, 1, 1});
    sizes.push_back({stages, 1, stages - 1});
    sizes.push_back({stages, chunked ? 2 : 1, 4 * stages});
  }
  return sizes;
}

class ScheduleProperty : public testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<pp::Schedule> schedule_ = pp::make_schedule(GetParam());
};

TEST_P(ScheduleProperty, EveryStepOnceAndInOrder) {
  for (const pp::Pipeline& p : Sizes(GetParam())) {
    SCOPED_TRACE(Name(p));
    const int64_t kinds = schedule_->splits_backward() ? 3 : 2;
    for (int64_t stage = 0; stage < p.stages; ++stage) {
      std::set<std::tuple<int, int64_t, int64_t>> done;
      for (const pp::Step& s : schedule_->steps(p, stage)) {
        const int work = static_cast<int>(s.work);
        ASSERT_TRUE(s.chunk % p.stages == stage && s.chunk < p.stages * p.chunks);
        ASSERT_TRUE(0 <= s.microbatch && s.microbatch < p.microbatches);
        ASSERT_TRUE(work == 0 || done.contains({work - 1, s.chunk, s.microbatch}))
            << "stage " << stage << ": microbatch " << s.microbatch << " of chunk " << s.chunk
            << " runs backward before forward";
        ASSERT_TRUE(done.insert({work, s.chunk, s.microbatch}).second);
      }
      ASSERT_EQ(static_cast<int64_t>(done.size()), kinds * p.chunks * p.microbatches);
    }
  }
}

// With times that bring stages out of step, too.
TEST_P(ScheduleProperty, NoStageWaitsForEver) {
  const std::vector<pp::Pipeline> sizes = Sizes(GetParam());
  EXPECT_GT(sizes.size(), 300u);
  for (const pp::Pipeline& p : sizes) {
    SCOPED_TRACE(Name(p));
    uint32_t random = 1;
    const auto duration = [&](size_t, const PipelineStep&) {
      random = random * 1664525u + 1013904223u;
      return static_cast<double>(random >> 16);
    };
    const auto timeline = SimulatePipeline(Lists(*schedule_, p), duration, 10000);
    ASSERT_TRUE(timeline.ok()) << timeline.status();
  }
}

// The most microbatches of its chunks a stage holds between F and the step that lets them go.
int64_t MostHeld(const std::vector<pp::Step>& steps, Work until) {
  int64_t held = 0, most = 0;
  for (const pp::Step& s : steps) {
    if (s.work == Work::kForward) most = std::max(most, ++held);
    if (s.work == until) --held;
  }
  return most;
}

TEST_P(ScheduleProperty, HoldsAsManyMicrobatchesAsPublished) {
  const std::string name = GetParam();
  for (const pp::Pipeline& p : Sizes(name)) {
    SCOPED_TRACE(Name(p));
    const int64_t all = p.chunks * p.microbatches;
    for (int64_t stage = 0; stage < p.stages; ++stage) {
      const Work until = schedule_->splits_backward() ? Work::kWeight : Work::kBackward;
      const std::vector<pp::Step> steps = schedule_->steps(p, stage);
      const int64_t held = MostHeld(steps, until);
      if (name == "gpipe") {
        ASSERT_EQ(held, all);
      } else if (name == "zb_h1") {
        // What 1F1B's first stage holds, on every stage (Qi et al. 2023, section 2.3).
        ASSERT_EQ(held, std::min(all, p.stages));
        ASSERT_EQ(MostHeld(steps, Work::kBackward), std::min(all, p.stages - stage));
      } else if (p.chunks == 1) {
        ASSERT_EQ(held, std::min(all, p.stages - stage));
      } else {
        // Korthikanti et al. 2022: the first stage holds 1 + (p - 1) / (p v) of its layers times the
        // stages, which is p v + p - 1 of its chunks.
        const int64_t published = p.stages * p.chunks + p.stages - 1;
        ASSERT_EQ(held, std::min(all, published - 2 * stage));
      }
    }
  }
}

// What a stage communicates, as the host plans it: a value is received and waited for before its step
// computes, and sent after it; a channel has one message in flight, so that a send waits for the one
// before it to have been asked for.
std::string Communication(const std::vector<PipelineStep>& steps, int64_t stages, int64_t chunks) {
  std::string script;
  std::map<int64_t, int> in_flight;  // by channel: the number of its last send
  int next = 0;
  const auto receive = [&](int64_t from, int64_t channel, int64_t microbatch) {
    StrAppend(&script, "recv pp ", from % stages, " ", channel, " f32 | recv of microbatch ",
              microbatch, "\nwait ", next++, "\n");
  };
  const auto send = [&](int64_t to, int64_t channel, int64_t microbatch) {
    const auto before = in_flight.find(channel);
    if (before != in_flight.end()) StrAppend(&script, "wait ", before->second, "\n");
    StrAppend(&script, "send pp ", to % stages, " ", channel, " f32 | send of microbatch ",
              microbatch, "\n");
    in_flight[channel] = next++;
  };
  const int64_t last = stages * chunks - 1;
  for (const PipelineStep& s : steps) {
    const int64_t c = s.chunk;
    if (s.work == PipelineWork::kForward) {
      if (c > 0) receive(c - 1, 2 * (c - 1), s.microbatch);
      if (c < last) send(c + 1, 2 * c, s.microbatch);
    } else if (s.work == PipelineWork::kBackward) {
      if (c < last) receive(c + 1, 2 * c + 1, s.microbatch);
      if (c > 0) send(c - 1, 2 * (c - 1) + 1, s.microbatch);
    }
  }
  for (const auto& [channel, number] : in_flight) StrAppend(&script, "wait ", number, "\n");
  return script;
}

TEST_P(ScheduleProperty, OneMessageInFlightAChannelIsEnough) {
  for (const pp::Pipeline& p : Sizes(GetParam())) {
    if (p.stages == 1 || p.stages * p.chunks * p.microbatches > 1000) continue;
    SCOPED_TRACE(Name(p));
    const auto mesh = Mesh::Layout({{"pp", p.stages}}, p.stages);
    ASSERT_TRUE(mesh.ok()) << mesh.status();
    std::vector<std::string> scripts;
    for (const auto& steps : Lists(*schedule_, p))
      scripts.push_back(Communication(steps, p.stages, p.chunks));
    const absl::Status checked = CheckCommunication(*mesh, scripts);
    ASSERT_TRUE(checked.ok()) << checked;
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules, ScheduleProperty,
                         testing::Values("gpipe", "1f1b", "interleaved", "zb_h1"),
                         [](const auto& info) {
                           return info.param == std::string("1f1b") ? "one_forward_one_backward"
                                                                    : std::string(info.param);
                         });

// Equal stages, B twice F, no time between stages.
double Bubble(const std::string& schedule, const pp::Pipeline& p) {
  return Play(*pp::make_schedule(schedule), p, {1, 1, 1, 0}).bubble_over_ideal();
}

TEST(Bubble, OfGPipeAndOneForwardOneBackwardIsStagesLessOneOverMicrobatches) {
  for (int64_t stages = 1; stages <= 16; ++stages) {
    for (int64_t m = 1; m <= 40; ++m) {
      const double published = static_cast<double>(stages - 1) / static_cast<double>(m);
      ASSERT_NEAR(Bubble("gpipe", {stages, 1, m}), published, 1e-12) << stages << " " << m;
      ASSERT_NEAR(Bubble("1f1b", {stages, 1, m}), published, 1e-12) << stages << " " << m;
    }
  }
}

TEST(Bubble, OfInterleavedIsDividedByTheChunks) {
  for (int64_t stages = 1; stages <= 12; ++stages) {
    for (int64_t chunks = 1; chunks <= 5; ++chunks) {
      for (int64_t m = stages; m <= 4 * stages; m += stages) {
        const double published = static_cast<double>(stages - 1) / static_cast<double>(chunks * m);
        ASSERT_NEAR(Bubble("interleaved", {stages, chunks, m}), published, 1e-12)
            << stages << " " << chunks << " " << m;
      }
    }
  }
}

// With F = B = W ZB-H1 has a third of 1F1B's bubble (Qi et al. 2023, table 1: (p - 1)(F + B - W)
// against (p - 1)(F + B + W)).
TEST(Bubble, OfZeroBubbleH1IsAThird) {
  for (int64_t stages = 1; stages <= 16; ++stages) {
    for (int64_t m = 2 * stages; m <= 4 * stages; ++m) {
      ASSERT_NEAR(Bubble("zb_h1", {stages, 1, m}), Bubble("1f1b", {stages, 1, m}) / 3, 1e-12)
          << stages << " " << m;
    }
  }
}

}  // namespace
}  // namespace capstan::cut_test
