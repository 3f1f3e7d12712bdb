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

// They are gathered again where they are read: with the weight gradients, where these are put off.
TEST_F(TensorParallel, GatheredSequencesAreNotKept) {
  for (const std::string strategies :
       {"tp sp", "tp sp recompute:policy=selective", "tp sp pp:schedule=zb_h1"}) {
    SCOPED_TRACE(strategies);
    const bool staged = strategies.ends_with("zb_h1");
    int gathered = 0, again = 0;
    for (int64_t r = 0; r < (staged ? 4 : 2); r += 2) {  // of each stage
      const auto rank = Compose({kGpt2, staged ? "tp=2 pp=2" : "tp=2", strategies, ""}, r, 0);
      ASSERT_NE(rank, nullptr);
      const Program& program = rank->program();
      const auto segment = [&](OpId o) { return program.segments()[program.op(o).segment].name; };
      for (OpId o = 0; o < program.op_limit(); ++o) {
        if (!program.OpAlive(o)) continue;
        const Op& op = program.op(o);
        if (op.kind() != "all_gather" || op.attrs.Int("dim", -1) != 1) continue;
        if (!segment(program.Producer(op.inputs[0])).starts_with("forward/")) continue;
        const bool forward = segment(o).starts_with("forward/");
        ++(forward ? gathered : again);
        EXPECT_EQ(program.tensor(op.outputs[0]).save == CAPSTAN_SAVE_NO, forward);
        for (const OpId user : program.Users(op.outputs[0])) {
          EXPECT_EQ(segment(user), segment(o)) << program.OpText(user);
        }
      }
    }
    EXPECT_EQ(gathered, 2 * 4 + 1);
    // What recomputation makes again it gathers from what it made.
    const bool recomputes = strategies.ends_with("selective");
    EXPECT_EQ(again, recomputes ? 1 : 2 * 4 + 1);
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

// Logits that are kept are made once: the loss's gradient reads them, and has two products with the head
// for three.
TEST_F(TensorParallel, KeptLogitsAreMadeOnce) {
  for (const char* model : {kGpt2Uneven, kLlama}) {
    std::map<std::string, int> kinds[2];
    double flops[2] = {};
    for (const bool keep : {false, true}) {
      const auto rank = Compose({model, "tp=2", keep ? "tp:keep_logits=true" : "tp", ""}, 1, 0);
      ASSERT_NE(rank, nullptr);
      const Program& program = rank->program();
      for (OpId o = 0; o < program.op_limit(); ++o) {
        if (!program.OpAlive(o)) continue;
        const Op& op = program.op(o);
        if (op.layer < 0) ++kinds[keep][op.kind()];
        if (op.kind() == "lce_grad") flops[keep] = program.Cost(o)->flops;
      }
    }
    EXPECT_EQ(kinds[0]["lce_stats"], 1);
    EXPECT_EQ(kinds[0]["linear"] + kinds[0]["ce_stats"], 0);
    EXPECT_EQ(kinds[1]["linear"], 1);
    EXPECT_EQ(kinds[1]["ce_stats"], 1);
    EXPECT_EQ(kinds[1]["lce_stats"] + kinds[1]["linear_dx"] + kinds[1]["linear_dw"], 0);
    EXPECT_NEAR(flops[1] / flops[0], 2.0 / 3, 0.02);
  }
}

// Every rank has the logits that generation draws from, and of shared key/value heads those it reads.
TEST_F(TensorParallel, GenerationHasAllLogits) {
  for (const Composition& cut :
       {Composition{kGpt2Uneven, "tp=2", "tp", ""}, Composition{kLlama, "tp=2", "tp sp", ""},
        Composition{kLlama, "tp=4", "tp", ""}}) {
    const auto rank = Compose(cut, 1, 0);
    ASSERT_NE(rank, nullptr);
    for (const int mode : {CAPSTAN_MODE_PREFILL, CAPSTAN_MODE_DECODE}) {
      const int64_t tokens = mode == CAPSTAN_MODE_PREFILL ? 5 : 1;
      const auto program = ComposeGenerate(rank->session().ingredients(), mode, {1, tokens, 8});
      ASSERT_TRUE(program.ok()) << NameOf(cut) << program.status();
      const TensorId logits = (*program)->FindTensor("logits");
      ASSERT_NE(logits, kNone);
      EXPECT_THAT((*program)->tensor(logits).shape(),
                  ElementsAre(1, 1, cut.model == kGpt2Uneven ? 257 : 256));
      EXPECT_EQ((*program)->op((*program)->Producer(logits)).kind(), "all_gather");
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

// Two key/value heads, whole on four ranks: two ranks read each, and share the three query heads of it.
TEST_F(TensorParallel, QueryHeadsOfASharedKeyValueHeadAreSpreadOverItsRanks) {
  const int64_t heads[] = {2, 1, 2, 1}, read[] = {0, 0, 1, 1};
  for (int64_t r = 0; r < 4; ++r) {
    const auto rank = Compose({kLlamaUneven, "tp=4", "tp", "model.kv_heads=2"}, r, 0);
    ASSERT_NE(rank, nullptr);
    const Program& program = rank->program();
    const auto parameter = [&](const char* name) -> const Tensor& {
      return program.tensor(
          program.FindTensor(StrCat("model.layers.0.self_attn.", name, "_proj.weight")));
    };
    EXPECT_EQ(parameter("q").shape()[0], heads[r] * 6);
    EXPECT_EQ(parameter("q").slice_start[0], 6 * (r == 0 ? 0 : r == 1 ? 2 : r == 2 ? 3 : 5));
    EXPECT_EQ(parameter("k").shape()[0], 2 * 6);
    int slices = 0;
    for (const OpId o : program.segments()[program.FindSegment("forward/0")].ops) {
      const Op& op = program.op(o);
      if (op.kind() != "slice" || op.layer != 0) continue;
      ++slices;
      EXPECT_EQ(op.attrs.Int("start", -1), 6 * read[r]);
      EXPECT_EQ(op.attrs.Int("size", -1), 6);
    }
    EXPECT_EQ(slices, 2) << "of k and of v";
  }
}

}  // namespace
}  // namespace capstan::cut_test
