// Which stage gets which layers, and that together the stages hold the whole model, once.
#include "plugins/strategy/pp/stages.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "runtime/strings.h"
#include "tests/cut/cut_fixture.h"

namespace capstan::cut_test {
namespace {

// ---- balance -----------------------------------------------------------------------------------

double Largest(const std::vector<double>& costs, const std::vector<size_t>& starts) {
  double largest = 0;
  for (size_t k = 0; k < starts.size(); ++k) {
    const size_t end = k + 1 < starts.size() ? starts[k + 1] : costs.size();
    largest = std::max(largest, std::accumulate(costs.begin() + static_cast<long>(starts[k]),
                                                costs.begin() + static_cast<long>(end), 0.0));
  }
  return largest;
}

// The smallest largest sum of all cuts there are.
double BruteForce(const std::vector<double>& costs, size_t parts) {
  double best = std::accumulate(costs.begin(), costs.end(), 0.0);
  std::vector<size_t> starts{0};
  const std::function<void()> cut = [&] {
    if (starts.size() == parts) {
      best = std::min(best, Largest(costs, starts));
      return;
    }
    for (size_t next = starts.back() + 1; next < costs.size(); ++next) {
      starts.push_back(next);
      cut();
      starts.pop_back();
    }
  };
  cut();
  return best;
}

TEST(Balance, IsAsGoodAsTheBestOfAllCuts) {
  std::mt19937 random(1);
  for (int round = 0; round < 3000; ++round) {
    std::vector<double> costs(1 + random() % 9);
    const uint32_t range = round % 3 == 0 ? 1 : round % 3 == 1 ? 3 : 1000;
    for (double& c : costs) c = static_cast<double>(random() % (range + 1));
    const size_t parts = 1 + random() % costs.size();
    const std::vector<size_t> starts = pp::balance(costs, parts);
    ASSERT_EQ(starts.size(), parts);
    ASSERT_EQ(starts[0], 0u);
    for (size_t k = 1; k < parts; ++k) ASSERT_LT(starts[k - 1], starts[k]);
    ASSERT_LT(starts.back(), costs.size());
    ASSERT_EQ(Largest(costs, starts), BruteForce(costs, parts));
  }
}

// ---- stages of a model -------------------------------------------------------------------------

class Stages : public Cut {
 protected:
  // FLOPs of a Program's forward ops by layer; those without one count with the first or last.
  static std::vector<double> LayerCosts(const Program& program) {
    std::vector<double> costs;
    for (const Segment& segment : program.segments()) {
      if (!segment.name.starts_with("forward/")) continue;
      for (const OpId o : segment.ops) {
        const Op& op = program.op(o);
        const size_t layer = op.layer >= 0   ? static_cast<size_t>(op.layer)
                             : costs.empty() ? 0
                                             : costs.size() - 1;
        if (costs.size() <= layer) costs.resize(layer + 1, 0);
        costs[layer] += program.Cost(o)->flops;
      }
    }
    return costs;
  }

  static std::set<int> LayersOf(const Program& program) {
    std::set<int> layers;
    for (const Segment& segment : program.segments()) {
      for (const OpId o : segment.ops) {
        if (program.op(o).layer >= 0) layers.insert(program.op(o).layer);
      }
    }
    return layers;
  }

  std::vector<std::set<int>> LayersOfStages(const Composition& composition, int64_t stages) {
    std::vector<std::set<int>> layers;
    for (int64_t s = 0; s < stages; ++s) {
      const auto rank = Compose(composition, s, stages);
      layers.push_back(rank == nullptr ? std::set<int>() : LayersOf(rank->program()));
    }
    return layers;
  }
};

// A head as heavy as several layers: the last stage gets fewer of them, as few as is best.
TEST_F(Stages, CountWhatComesBeforeAndAfterTheLayers) {
  const char* model =
      "plugin = \"gpt2\"\nlayers = 8\nwidth = 16\nheads = 2\nvocabulary = 700\nmax_sequence = 16\n";
  const auto whole = Compose({model, "", "", ""}, 0, 1);
  ASSERT_NE(whole, nullptr);
  const auto forward = ComposeEval(whole->session().ingredients());
  ASSERT_TRUE(forward.ok()) << forward.status();
  const std::vector<double> costs = LayerCosts(**forward);
  ASSERT_EQ(costs.size(), 8u);
  EXPECT_GT(costs[7], 2 * costs[6]);
  for (const int64_t stages : {2, 3, 4}) {
    SCOPED_TRACE(stages);
    const auto layers = LayersOfStages({model, StrCat("pp=", stages), "pp", ""}, stages);
    std::vector<size_t> starts;
    for (const std::set<int>& stage : layers) {
      ASSERT_FALSE(stage.empty());
      starts.push_back(static_cast<size_t>(*stage.begin()));
    }
    // Near the best: the finished Program has loss and gradients in one op, the cut saw the loss.
    EXPECT_LE(Largest(costs, starts), 1.15 * BruteForce(costs, static_cast<size_t>(stages)));
    EXPECT_LT(layers.back().size(), layers.front().size());
  }
}

// Evaluation drops nothing out, which must not tip a balance that is nearly even: at some of these
// sizes of the head it would.
TEST_F(Stages, AreTheSameInEvaluation) {
  for (int64_t words = 416; words <= 428; ++words) {
    const std::string model = StrCat(
        "plugin = \"gpt2\"\nlayers = 5\nwidth = 16\nheads = 2\nmax_sequence = 16\n"
        "dropout = 0.1\nvocabulary = ",
        words, "\n");
    const auto train = Compose({model.c_str(), "pp=2", "pp", ""}, 0, 2);
    ASSERT_NE(train, nullptr);
    const auto eval = ComposeEval(train->session().ingredients());
    ASSERT_TRUE(eval.ok()) << eval.status();
    EXPECT_EQ(LayersOf(train->program()), LayersOf(**eval)) << words;
  }
}

// Uneven heads and words make the head of the model a heavier share of what one rank runs than of what
// another does; all ranks of a stage have its layers all the same.
TEST_F(Stages, AreTheSameOnAllRanksOfAStage) {
  for (int64_t words = 560; words <= 680; words += 20) {
    const std::string model = StrCat(
        "plugin = \"gpt2\"\nlayers = 4\nwidth = 48\nheads = 3\nmax_sequence = 16\nvocabulary = ",
        words, "\n");
    for (const char* strategies : {"tp pp", "tp sp pp"}) {
      const Composition cut{model.c_str(), "tp=2 pp=2", strategies, ""};
      std::vector<std::set<int>> layers;
      for (int64_t r = 0; r < 4; ++r) {  // tp is the inner axis
        const auto rank = Compose(cut, r, 0);
        ASSERT_NE(rank, nullptr);
        layers.push_back(LayersOf(rank->program()));
      }
      EXPECT_EQ(layers[0], layers[1]) << words;
      EXPECT_EQ(layers[2], layers[3]) << words;
      EXPECT_EQ(layers[0].size() + layers[2].size(), 4u) << words;
    }
  }
}

TEST_F(Stages, AreWhatTheUserSays) {
  using testing::ElementsAre;
  EXPECT_THAT(LayersOfStages({kGpt2, "pp=2", "pp:split=[1,3]", ""}, 2),
              ElementsAre(ElementsAre(0), ElementsAre(1, 2, 3)));
  EXPECT_THAT(
      LayersOfStages({kGpt2, "pp=2", "pp:schedule=interleaved,chunks=2,split=[1,1,1,1]", ""}, 2),
      ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3)));
}

// ---- the whole of a model over its ranks -------------------------------------------------------

// How often each element of a persistent tensor is held.
class Coverage {
 public:
  void Add(const Tensor& t) {
    const Dims& whole = t.global_shape.empty() ? t.shape() : t.global_shape;
    if (held_.empty()) held_.assign(static_cast<size_t>(ElementCount(whole)), 0);
    Dims at(t.shape().size(), 0);
    for (int64_t i = 0; i < ElementCount(t.shape()); ++i) {
      int64_t index = 0;
      for (size_t d = 0; d < whole.size(); ++d) {
        const int64_t start = t.slice_start.empty() ? 0 : t.slice_start[d];
        index = index * whole[d] + start + at[d];
      }
      ++held_[static_cast<size_t>(index)];
      for (size_t d = at.size(); d-- > 0 && ++at[d] == t.shape()[d];) at[d] = 0;
    }
  }
  // How often every element is held; -1 where that differs.
  int Everywhere() const {
    const auto [least, most] = std::minmax_element(held_.begin(), held_.end());
    return *least == *most ? *least : -1;
  }

 private:
  std::vector<int> held_;
};

class WholeModel : public Stages, public testing::WithParamInterface<Composition> {};

// Ops of a layer and kind that every stage runs in its forward pass, and those that a Program of one
// rank has.
using OpCounts = std::map<std::pair<int, std::string>, int>;

OpCounts ForwardOps(const Program& program) {
  OpCounts counts;
  for (const Segment& segment : program.segments()) {
    if (!segment.name.starts_with("forward/")) continue;
    for (const OpId o : segment.ops) {
      const Op& op = program.op(o);
      const bool layer = op.kind() == "linear" || op.kind().starts_with("attention") ||
                         op.kind().ends_with("norm") || op.kind() == "embedding" ||
                         op.kind() == "linear_gelu" || op.kind() == "swiglu" ||
                         op.kind() == "rotary";
      if (layer) ++counts[{op.layer, op.kind()}];
    }
  }
  return counts;
}

// All ranks of a mesh: each op of the forward pass runs on one stage alone, and each element of each
// parameter, gradient and state is held by as many ranks as its placement says.
TEST_P(WholeModel, IsBuiltExactlyOnce) {
  const Composition& cut = GetParam();
  const auto one = Compose({cut.model, "", "", cut.set}, 0, 1);
  ASSERT_NE(one, nullptr);
  std::map<std::string, Coverage> coverage;
  std::map<std::string, int> expected;
  OpCounts ops;
  int64_t world = 1;
  for (int64_t r = 0; r < world; ++r) {
    const auto rank = Compose(cut, r, 0);
    ASSERT_NE(rank, nullptr);
    const Mesh& mesh = rank->session().host().mesh();
    world = mesh.world();
    const Program& program = rank->program();
    if (mesh.Index("tp", r) == 0 && mesh.Index("dp", r) == 0) {
      for (const auto& [key, count] : ForwardOps(program)) ops[key] += count;
    }
    for (TensorId id = 0; id < program.tensor_limit(); ++id) {
      if (!program.TensorAlive(id)) continue;
      const Tensor& t = program.tensor(id);
      const bool persistent =
          t.kind == CAPSTAN_PARAMETER || t.kind == CAPSTAN_GRADIENT || t.kind == CAPSTAN_STATE;
      if (!persistent || t.view_of != kNone || t.name == "metric.loss") continue;
      coverage[t.name].Add(t);
      // Once for every rank of the axes it is not cut over, on each stage that has it.
      if (mesh.Index("tp", r) != 0 || mesh.Index("dp", r) != 0) continue;
      int copies = static_cast<int>(mesh.Size("tp") * mesh.Size("dp"));
      for (const AxisPlacement& p : t.placement()) {
        if (p.kind == CAPSTAN_SHARD) copies /= static_cast<int>(mesh.Size(p.axis));
      }
      expected[t.name] += copies;
    }
  }
  EXPECT_EQ(ops, ForwardOps(one->program()));
  size_t parameters = 0;
  for (const auto& [name, tensor] : coverage) {
    EXPECT_EQ(tensor.Everywhere(), expected[name]) << name;
  }
  const Program& program = one->program();
  for (TensorId id = 0; id < program.tensor_limit(); ++id) {
    if (!program.TensorAlive(id) || program.tensor(id).kind != CAPSTAN_PARAMETER) continue;
    ++parameters;
    EXPECT_TRUE(coverage.contains(program.tensor(id).name)) << program.tensor(id).name;
  }
  EXPECT_GT(parameters, 10u);
}

INSTANTIATE_TEST_SUITE_P(
    Meshes, WholeModel,
    testing::Values(Composition{kGpt2, "pp=2", "pp", ""}, Composition{kGpt2, "pp=3", "pp", ""},
                    Composition{kGpt2, "pp=4", "pp:schedule=zb_h1", ""},
                    Composition{kGpt2, "pp=2", "pp:schedule=interleaved,chunks=2", ""},
                    Composition{kGpt2Uneven, "pp=2", "pp:split=[1,2]", ""},
                    Composition{kLlama, "pp=2", "pp:split=[3,1]", ""},
                    Composition{kLlamaUneven, "pp=3", "pp:schedule=gpipe", ""},
                    Composition{kGpt2Uneven, "tp=2", "tp", ""},
                    Composition{kGpt2Uneven, "tp=4", "tp sp", ""},
                    Composition{kLlamaUneven, "tp=2 pp=2", "tp sp pp", ""},
                    Composition{kLlamaUneven, "tp=4", "tp sp", "model.kv_heads=2"},
                    Composition{kLlama, "tp=4 pp=2", "tp sp pp", "model.kv_heads=1"},
                    Composition{kLlamaUneven, "tp=3 pp=3 dp=2", "tp sp pp dp", ""}),
    [](const auto& info) { return NameOf(info.param); });

}  // namespace
}  // namespace capstan::cut_test
