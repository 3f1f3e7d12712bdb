// What a layer keeps for its backward pass, as planned: the scaling that Korthikanti et al. 2022
// ("Reducing Activation Recomputation in Large Transformer Models", table 2) publish.
//
// A layer of theirs keeps s b h (34 + 5 a s / h) bytes in half precision. Of these, 5 a s / h are the
// attention's scores, softmax and dropout mask, which a fused attention does not keep; 2 are dropout
// masks, which are drawn again here. What remains is 16 values a token and channel:
//   4  inputs and outputs of the two norms: whole under tp, cut by sp;
//  12  queries, keys, values, attention's output, and the 8 of the MLP's 4h channels before and after
//      its activation: cut by tp.
// Beside them a token keeps two statistics a norm and one a head.
#include "runtime/strings.h"
#include "tests/cut/cut_fixture.h"

namespace capstan::cut_test {
namespace {

constexpr int64_t kWidth = 64, kHeads = 8, kSequence = 64, kMicroBatch = 2;
constexpr int64_t kTokens = kSequence * kMicroBatch;

// Bytes of fp32 values, of which `whole` channels' worth a token are whole on each of t ranks, and
// `divided` are cut; statistics of norms go with the whole ones, those of heads are cut.
int64_t LayerBytes(int64_t whole, int64_t divided, int64_t t) {
  const int64_t norm_statistics = 4;
  const int64_t kept = whole * kWidth + (whole > 0 ? norm_statistics : 0);
  const int64_t cut = divided * kWidth + (whole > 0 ? 0 : norm_statistics) + kHeads;
  return 4 * kTokens * (kept + cut / t);
}

class ActivationMemory : public Cut {
 protected:
  // The arena's peak on a rank of a model of `layers` layers.
  ArenaPeak Peak(const std::string& mesh, const std::string& strategies, int64_t rank,
                 int64_t layers, const std::string& set) {
    const std::string model =
        StrCat("plugin = \"gpt2\"\nlayers = ", layers, "\nwidth = ", kWidth, "\nheads = ", kHeads,
               "\nvocabulary = 128\nmax_sequence = ", kSequence, "\n");
    const auto composed = Compose(
        {model.c_str(), mesh, strategies,
         StrCat("data.sequence_length=", kSequence, " batch.micro=", kMicroBatch, " ", set)},
        rank, 0);
    return composed == nullptr ? ArenaPeak() : composed->plan().arena_peak();
  }

  int64_t Activations(const std::string& mesh, const std::string& strategies, int64_t rank,
                      int64_t layers, const std::string& set) {
    return Peak(mesh, strategies, rank, layers, set).activations;
  }

  // What each layer more adds.
  int64_t LayerOf(const std::string& mesh, const std::string& strategies) {
    const auto at = [&](int64_t layers) {
      return Activations(mesh, strategies, 0, layers, "batch.global=2");
    };
    EXPECT_EQ(at(12) - at(8), at(8) - at(4));
    return (at(8) - at(4)) / 4;
  }

  // The peak of a stage whose chunks have `layers` layers each. With `t` ranks a stage, under tp and sp.
  ArenaPeak PeakOfStage(int64_t stages, int64_t chunks, const std::string& schedule, int64_t stage,
                        int64_t layers, int64_t t = 1) {
    std::string split;
    for (int64_t c = 0; c < stages * chunks; ++c)
      StrAppend(&split, split.empty() ? "[" : ",", layers);
    return Peak(
        StrCat("tp=", t, " pp=", stages),
        StrCat("tp sp pp:schedule=\"", schedule, "\",chunks=", chunks, ",split=", split, "]"),
        stage * t, layers * stages * chunks, "batch.global=16");
  }

  // What each layer more in every chunk adds to a stage.
  int64_t LayerOfStage(int64_t stages, int64_t chunks, const std::string& schedule, int64_t stage) {
    return PeakOfStage(stages, chunks, schedule, stage, 3).activations -
           PeakOfStage(stages, chunks, schedule, stage, 2).activations;
  }
};

TEST_F(ActivationMemory, OfALayerOnOneRank) { EXPECT_EQ(LayerOf("", ""), LayerBytes(4, 12, 1)); }

TEST_F(ActivationMemory, TensorParallelismCutsWhatLiesBetweenItsLinears) {
  for (const int64_t t : {2, 4, 8}) {
    EXPECT_EQ(LayerOf(StrCat("tp=", t), "tp"), LayerBytes(4, 12, t)) << t;
  }
}

TEST_F(ActivationMemory, SequenceParallelismCutsTheRest) {
  for (const int64_t t : {2, 4}) {  // with 8, statistics of 2 positions round up to 64 bytes
    EXPECT_EQ(LayerOf(StrCat("tp=", t), "tp sp"), LayerBytes(0, 16, t)) << t;
  }
}

// The logits of this rank's words, where they are kept for the loss's gradient.
TEST_F(ActivationMemory, KeptLogitsAreInTheLedger) {
  constexpr int64_t kWords = 128;
  for (const int64_t t : {2, 4}) {
    const auto at = [&](const std::string& strategies) {
      return Activations(StrCat("tp=", t), strategies, 0, 1, "batch.global=2");
    };
    EXPECT_EQ(at("tp:keep_logits=true") - at("tp"), 4 * kTokens * kWords / t) << t;
  }
}

// 2 s b h of theirs: the layer's input alone.
TEST_F(ActivationMemory, FullRecomputationKeepsTheInput) {
  EXPECT_EQ(LayerOf("", "recompute:policy=full"), 4 * kTokens * kWidth);
  EXPECT_EQ(LayerOf("tp=4", "tp recompute:policy=full"), 4 * kTokens * kWidth);
  EXPECT_EQ(LayerOf("tp=4", "tp sp recompute:policy=full"), 4 * kTokens * kWidth / 4);
}

// Microbatches in flight: with 1F1B stage s of p keeps p - s, with GPipe all, ...
TEST_F(ActivationMemory, AStageKeepsItsMicrobatchesInFlight) {
  const int64_t layer = LayerBytes(4, 12, 1);
  for (int64_t stage = 0; stage < 4; ++stage) {
    EXPECT_EQ(LayerOfStage(4, 1, "1f1b", stage), (4 - stage) * layer) << stage;
    EXPECT_EQ(LayerOfStage(4, 1, "gpipe", stage), 8 * layer) << stage;
  }
}

// The plan names them: warm-up keeps p - s microbatches of equal size, but for what the peak's own launch
// has not yet made or has already let go.
TEST_F(ActivationMemory, ThePlanNamesMicrobatchesInFlight) {
  const std::string model =
      StrCat("plugin = \"gpt2\"\nlayers = 4\nwidth = ", kWidth, "\nheads = ", kHeads,
             "\nvocabulary = 128\nmax_sequence = ", kSequence, "\n");
  for (int64_t stage = 0; stage < 4; ++stage) {
    const auto composed = Compose({model.c_str(), "pp=4", "pp",
                                   StrCat("data.sequence_length=", kSequence,
                                          " batch.micro=", kMicroBatch, " batch.global=16")},
                                  stage, 0);
    ASSERT_NE(composed, nullptr);
    const ArenaPeak& peak = composed->plan().arena_peak();
    EXPECT_EQ(peak.by_microbatch.size(), static_cast<size_t>(4 - stage));
    int64_t sum = 0;
    for (const auto& [microbatch, bytes] : peak.by_microbatch) {
      // A layer's input that was received counts as communication.
      const int64_t received = stage > 0 ? 4 * kTokens * kWidth : 0;
      EXPECT_GE(bytes, LayerBytes(4, 12, 1) - received)
          << "stage " << stage << ", microbatch " << microbatch;
      sum += bytes;
    }
    EXPECT_EQ(sum, peak.activations);
  }
}

// ... and interleaved the first stage p v + p - 1 of its chunks: 1 + (p - 1) / (p v) times as much as
// 1F1B, where each chunk has 1 / v of the layers (Korthikanti et al. 2022, section 4.2.3).
TEST_F(ActivationMemory, InterleavingKeepsMore) {
  const int64_t layer = LayerBytes(4, 12, 1);
  EXPECT_EQ(LayerOfStage(4, 2, "interleaved", 0), (4 * 2 + 4 - 1) * layer);
}

// With weight gradients put off, every stage keeps what the first does with 1F1B: of stage s, s microbatches
// less of the 9 values that the backward pass alone reads, and as many of the gradients that wait.
TEST_F(ActivationMemory, WeightGradientsPutOffFillWhatLaterStagesHadFree) {
  for (int64_t stage = 0; stage < 4; ++stage) {
    const ArenaPeak two = PeakOfStage(4, 1, "zb_h1", stage, 2);
    const ArenaPeak three = PeakOfStage(4, 1, "zb_h1", stage, 3);
    const int64_t gradients = three.gradients_of_activations - two.gradients_of_activations;
    EXPECT_EQ(gradients, stage * 9 * kWidth * kTokens * 4) << stage;
    const int64_t statistics = stage * LayerBytes(0, 0, 1);  // of the s microbatches less
    EXPECT_EQ(three.activations - two.activations + gradients,
              4 * LayerBytes(4, 12, 1) - statistics)
        << stage;
  }
}

// Beside sp no sequence waits gathered, for it is gathered again, but of the gradients two a layer are.
TEST_F(ActivationMemory, WeightGradientsPutOffGatherSequencesAgain) {
  for (int64_t stage = 0; stage < 4; ++stage) {
    const int64_t gathered = PeakOfStage(4, 1, "zb_h1", stage, 3, 2).communication -
                             PeakOfStage(4, 1, "zb_h1", stage, 2, 2).communication;
    EXPECT_EQ(gathered, (stage + 1) * 2 * kWidth * kTokens * 4) << stage;
  }
}

}  // namespace
}  // namespace capstan::cut_test
