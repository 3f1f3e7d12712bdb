// What the stages of one graph agree on without a word between them: which messages have gradients, and
// the channels of parameters that several hold.
#include <gtest/gtest.h>

#include <functional>

#include "plugins/strategy/pp/cut.h"
#include "runtime/program/autodiff.h"
#include "runtime/program/program_service.h"
#include "sdk/graph.h"

namespace capstan::cut_test {
namespace {

// A graph of [4, 8] values whose ops carry their layer, one layer a stage.
class Cutter : public testing::Test {
 protected:
  struct Stage {
    std::unique_ptr<Program> program;
    pp::Tied tied;
  };

  void SetUp() override { ASSERT_TRUE(RegisterStandardOps(ops_).ok()); }

  // The graph as each of `stages` has it once it is cut and differentiated.
  std::vector<Stage> Cut(int64_t stages, const std::function<void(sdk::Graph&)>& build) {
    std::vector<Stage> out;
    for (int64_t s = 0; s < stages; ++s) {
      Program::Options options;
      options.mesh = {{{"pp", stages}}, {s}};
      auto program = std::make_unique<Program>(&ops_, options);
      ProgramHandle handle(*program);
      sdk::Program plugin(ProgramService(), handle.get());
      sdk::Graph g(plugin, {pp::forward_segment(0), {}});
      build(g);
      std::vector<int64_t> chunk_of;
      for (const sdk::Op op : plugin.ops(pp::forward_segment(0)))
        chunk_of.push_back(plugin.get(op).layer);
      pp::Tied tied = pp::Cutter(plugin, {"pp", stages, s}, stages, chunk_of).run();
      EXPECT_EQ(program->Infer(), absl::OkStatus());
      EXPECT_EQ(Differentiate(*program, {}), absl::OkStatus());
      out.push_back({std::move(program), std::move(tied)});
    }
    return out;
  }

  static sdk::Tensor Weight(sdk::Graph& g, const char* name) {
    return g.parameter({name, {8, 8}, {"embed", "embed"}, sdk::kF32, sdk::zeros(), {}});
  }

  // Ends the graph in a loss.
  static void Lose(sdk::Graph& g, sdk::Tensor x) {
    const sdk::Tensor loss = g.reduce_sum(g.reduce_sum(x, 0), 0);
    sdk::TensorInfo info = g.program().get(loss);
    info.loss_root = true;
    g.program().set(loss, info);
  }

  static int Count(const Program& program, std::string_view kind) {
    int count = 0;
    for (OpId o = 0; o < program.op_limit(); ++o) {
      if (program.OpAlive(o) && program.op(o).kind() == kind) ++count;
    }
    return count;
  }

  OpRegistry ops_;
};

// Each stage passes on what the last reads; the loss depends on one of the two.
TEST_F(Cutter, AValueThatOnlyAMetricReadsHasNoGradient) {
  const auto stages = Cut(3, [](sdk::Graph& g) {
    g.set_layer(0);
    const sdk::Tensor x = g.fill(1, {4, 8});
    const sdk::Tensor aside = g.linear(x, Weight(g, "aside"));
    const sdk::Tensor h = g.linear(x, Weight(g, "first"));
    g.set_layer(1);
    const sdk::Tensor y = g.linear(h, Weight(g, "second"));
    g.set_layer(2);
    const sdk::Tensor metric = g.state("metric.aside", {4, 8}, sdk::kF32, "metric");
    g.accumulate(aside, metric);
    Lose(g, g.linear(y, Weight(g, "third")));
  });
  for (size_t s = 0; s + 1 < stages.size(); ++s) {
    EXPECT_EQ(Count(*stages[s].program, "send"), 2) << s;
    EXPECT_EQ(Count(*stages[s].program, "recv_grad"), 1) << s;
    EXPECT_EQ(Count(*stages[s + 1].program, "send_grad"), 1) << s;
  }
}

// What leads to the loss through whole numbers alone has no gradient either.
TEST_F(Cutter, AValueThatTheLossCountsInHasNoGradient) {
  const auto stages = Cut(2, [](sdk::Graph& g) {
    g.set_layer(0);
    const sdk::Tensor x = g.fill(1, {4, 8});
    const sdk::Tensor h = g.linear(x, Weight(g, "first"));
    g.set_layer(1);
    const sdk::Tensor table = Weight(g, "table");
    const sdk::Tensor ids = g.cast(g.reduce_sum(h, 1), sdk::kI32);
    Lose(g, g.emit1("embedding", {ids, table}));
  });
  EXPECT_EQ(Count(*stages[0].program, "recv_grad"), 0);
  EXPECT_EQ(Count(*stages[1].program, "send_grad"), 0);
}

// Parameters of stages 0 and 1, 0 and 3, 1 and 2: no stage holds all of them, all number them alike.
TEST_F(Cutter, ChannelsOfTiedParametersAreTheSameOnEveryStage) {
  const auto stages = Cut(4, [](sdk::Graph& g) {
    sdk::Tensor x;
    const std::vector<const char*> of_layer[] = {
        {"ends", "early"}, {"early", "middle"}, {"middle"}, {"ends"}};
    for (int32_t layer = 0; layer < 4; ++layer) {
      g.set_layer(layer);
      if (layer == 0) x = g.fill(1, {4, 8});
      for (const char* name : of_layer[layer]) x = g.linear(x, Weight(g, name));
    }
    Lose(g, x);
  });
  for (const Stage& stage : stages) {
    ASSERT_EQ(stage.tied.size(), 3u);
    const auto is = [&](const char* name, std::vector<int64_t> holders, int64_t channel) {
      EXPECT_EQ(stage.tied.at(name).stages, holders) << name;
      EXPECT_EQ(stage.tied.at(name).channel, channel) << name;
    };
    is("early", {0, 1}, 4);
    is("ends", {0, 3}, 6);
    is("middle", {1, 2}, 8);
  }
}

}  // namespace
}  // namespace capstan::cut_test
