// What tensor and sequence parallelism make of a Program: how often a layer communicates, what no rank
// ever holds, and what is not kept.
#include <map>
#include <set>

#include "runtime/exec/communicator.h"
#include "runtime/strings.h"
#include "tests/cut/cut_fixture.h"

namespace capstan::cut_test {
namespace {

using testing::ElementsAre;
using testing::Pair;

class TensorParallel : public Cut {
 protected:
  // Collectives over tp in a kind of segment, by layer (-1: outside) and op.
  using Counts = std::map<int, std::map<std::string, int>>;
  static Counts Collectives(const Program& program, std::string_view segment_kind) {
    Counts counts;
    for (const Segment& segment : program.segments()) {
      if (!segment.name.starts_with(segment_kind)) continue;
      for (const OpId o : segment.ops) {
        const Op& op = program.op(o);
        if (IsCommunication(op) && !IsAlias(op) && op.attrs.String("axis", "") == "tp")
          ++counts[op.layer][op.kind()];
      }
    }
    return counts;
  }
};

TEST_F(TensorParallel, ALayerReducesTwiceForwardAndTwiceBackward) {
  for (const char* model : {kGpt2, kGpt2Uneven, kLlama, kLlamaUneven}) {
    for (const char* mesh : {"tp=2", "tp=4"}) {
      if (model == kLlamaUneven && mesh[3] == '4') continue;  // 3 key/value heads over 4 ranks
      SCOPED_TRACE(StrCat(model, mesh));
      const auto rank = Compose({model, mesh, "tp", ""}, 1, 0);
      ASSERT_NE(rank, nullptr);
      auto forward = Collectives(rank->program(), "forward/");
      auto backward = Collectives(rank->program(), "backward/");
      // Outside the layers: the embedded tokens, three numbers a token of the loss; the hidden state.
      EXPECT_THAT(forward[-1], ElementsAre(Pair("all_gather", 1), Pair("reduce_from_group", 1)));
      EXPECT_THAT(backward[-1], ElementsAre(Pair("all_reduce", 1)));
      const int layers = model == kGpt2 || model == kLlama ? 4 : 3;
      EXPECT_EQ(forward.size(), static_cast<size_t>(layers + 1));
      for (int layer = 0; layer < layers; ++layer) {
        EXPECT_THAT(forward[layer], ElementsAre(Pair("reduce_from_group", 2)));
        EXPECT_THAT(backward[layer], ElementsAre(Pair("all_reduce", 2)));
      }
    }
  }
}

// The same bytes: an all-reduce is a reduce-scatter and an all-gather. Backward gathers twice more,
// what was not kept (Korthikanti et al. 2022, section 4.2.2).
TEST_F(TensorParallel, SequenceParallelismScattersAndGathersInstead) {
  for (const char* model : {kGpt2, kGpt2Uneven, kLlama}) {
    const auto rank = Compose({model, "tp=2", "tp sp", ""}, 1, 0);
    ASSERT_NE(rank, nullptr);
    auto forward = Collectives(rank->program(), "forward/");
    auto backward = Collectives(rank->program(), "backward/");
    EXPECT_THAT(forward[-1], ElementsAre(Pair("all_gather", 2), Pair("reduce_scatter", 1)));
    for (int layer = 0; layer < 3; ++layer) {
      EXPECT_THAT(forward[layer], ElementsAre(Pair("all_gather", 2), Pair("reduce_scatter", 2)));
      EXPECT_THAT(backward[layer], ElementsAre(Pair("all_gather", 4), Pair("reduce_scatter", 2)));
    }
  }
}

TEST_F(TensorParallel, GatheredSequencesAreNotKept) {
  for (const char* strategies : {"tp sp", "tp sp recompute:policy=selective"}) {
    const auto rank = Compose({kGpt2, "tp=2", strategies, ""}, 0, 0);
    ASSERT_NE(rank, nullptr);
    const Program& program = rank->program();
    int gathered = 0;
    for (OpId o = 0; o < program.op_limit(); ++o) {
      if (!program.OpAlive(o)) continue;
      const Op& op = program.op(o);
      const std::string& segment = program.segments()[op.segment].name;
      if (op.kind() != "all_gather" || op.attrs.Int("dim", -1) != 1) continue;
      if (!segment.starts_with("forward/")) continue;
      ++gathered;
      EXPECT_EQ(program.tensor(op.outputs[0]).save, CAPSTAN_SAVE_NO);
      for (const OpId user : program.Users(op.outputs[0])) {
        EXPECT_EQ(program.segments()[program.op(user).segment].name, segment)
            << program.OpText(user);
      }
    }
    EXPECT_EQ(gathered, 2 * 4 + 1);
  }
}

// Norms and biases that every rank holds have read only its part of the sequence.
TEST_F(TensorParallel, ReplicatedParametersAreSummedWhereTheirPlacementSaysSo) {
  const auto summed = [&](const Composition& composition) {
    const auto rank = Compose(composition, 0, 0);
    std::set<std::string> names;
    if (rank == nullptr) return names;
    const Program& program = rank->program();
    const int update = program.FindSegment("update");
    for (const OpId o : program.segments()[update].ops) {
      const Op& op = program.op(o);
      if (op.attrs.String("axis", "") != "tp") continue;
      for (const TensorId t : op.outputs) {
        if (program.tensor(t).kind == CAPSTAN_GRADIENT) names.insert(program.tensor(t).name);
      }
    }
    return names;
  };
  const char* set = "model.layers=1";
  EXPECT_THAT(summed({kGpt2, "tp=2", "tp", set}), testing::IsEmpty());
  EXPECT_THAT(summed({kGpt2, "tp=2", "tp sp", set}),
              ElementsAre("h.0.attn.o.bias.grad", "h.0.ln_1.bias.grad", "h.0.ln_1.weight.grad",
                          "h.0.ln_2.bias.grad", "h.0.ln_2.weight.grad", "h.0.mlp.down.bias.grad",
                          "ln_f.bias.grad", "ln_f.weight.grad", "wpe.weight.grad"));
  // Key/value heads that ranks share.
  EXPECT_THAT(summed({kLlama, "tp=4", "tp", set}),
              ElementsAre("model.layers.0.self_attn.k_proj.weight.grad",
                          "model.layers.0.self_attn.v_proj.weight.grad"));
}

TEST_F(TensorParallel, NoRankEverHoldsAllLogits) {
  for (const char* model : {kGpt2, kGpt2Uneven, kLlama, kLlamaUneven}) {
    for (const char* strategies : {"tp", "tp sp", "tp:keep_logits=true"}) {
      const auto rank = Compose({model, "tp=2", strategies, ""}, 0, 0);
      ASSERT_NE(rank, nullptr);
      const Program& program = rank->program();
      for (TensorId t = 0; t < program.tensor_limit(); ++t) {
        if (!program.TensorAlive(t) || program.tensor(t).shape().empty()) continue;
        EXPECT_LT(program.tensor(t).shape().back(), 256) << program.TensorName(t);
        EXPECT_LE(program.tensor(t).shape().front(), 130) << program.TensorName(t);
      }
    }
  }
}

// What is uneven: five heads over two ranks are three and two, with the channels that go with them.
TEST_F(TensorParallel, HeadsGoWhole) {
  for (int64_t r = 0; r < 2; ++r) {
    const auto rank = Compose({kGpt2Uneven, "tp=2", "tp", ""}, r, 0);
    ASSERT_NE(rank, nullptr);
    const Program& program = rank->program();
    const Tensor& q = program.tensor(program.FindTensor("h.0.attn.q.weight"));
    EXPECT_THAT(q.shape(), ElementsAre(r == 0 ? 18 : 12, 30));
    EXPECT_THAT(q.slice_start, ElementsAre(r == 0 ? 0 : 18, 0));
    EXPECT_THAT(q.global_shape, ElementsAre(30, 30));
    const Tensor& words = program.tensor(program.FindTensor("wte.weight"));
    EXPECT_THAT(words.shape(), ElementsAre(r == 0 ? 129 : 128, 30));
  }
}

// Query heads go with the key/value heads they read: three of two each over two ranks.
TEST_F(TensorParallel, QueryHeadsFollowTheirKeyValueHeads) {
  const auto rank = Compose({kLlamaUneven, "tp=2", "tp", ""}, 0, 0);
  ASSERT_NE(rank, nullptr);
  const Program& program = rank->program();
  const auto rows = [&](const char* name) {
    return program
        .tensor(program.FindTensor(StrCat("model.layers.0.self_attn.", name, "_proj.weight")))
        .shape()[0];
  };
  EXPECT_EQ(rows("q"), 4 * 6);
  EXPECT_EQ(rows("k"), 2 * 6);
  EXPECT_EQ(rows("v"), 2 * 6);
}

}  // namespace
}  // namespace capstan::cut_test
