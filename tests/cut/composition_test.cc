// Every way of cutting a model is the same training as one rank: losses, gradient norms, gradients,
// parameters and optimizer states within 1e-5 a step in fp32, by `capstan verify`, a test a mesh.
#include <filesystem>

#include "runtime/strings.h"
#include "tests/cut/cut_fixture.h"

namespace capstan::cut_test {
namespace {

// Three heads over two ranks, and words that are half the work of one of them.
constexpr const char* kGpt2Heads =
    "plugin = \"gpt2\"\nlayers = 4\nwidth = 48\nheads = 3\nvocabulary = 620\nmax_sequence = 16\n";

const Composition kCompositions[] = {
    // Layers.
    {kGpt2, "tp=2", "tp", "model.dropout=0.1"},
    {kGpt2, "tp=4", "tp sp", ""},
    {kGpt2, "tp=2", "tp", "precision.dtype=f64"},
    {kLlama, "tp=2", "tp", "precision.dtype=f64"},
    {kGpt2, "tp=2", "tp", "device.kernels=reference"},
    {kGpt2, "tp=2", "tp", "model.trainable=[\"h.0.*\"]"},
    {kGpt2, "tp=2", "tp", "model.trainable=[\"*ln_1*\"]"},
    {kGpt2, "tp=2", "tp recompute:policy=full", "model.dropout=0.1"},
    {kGpt2, "tp=2", "tp sp recompute:policy=selective", "model.dropout=0.1 batch.micro=4"},
    {kGpt2Uneven, "tp=2", "tp", ""},
    {kGpt2Uneven, "tp=3", "tp sp", "model.dropout=0.1"},
    {kGpt2Uneven, "tp=5", "tp sp", "batch.micro=2"},
    {kGpt2Uneven, "tp=3", "tp:keep_logits=true sp", "model.dropout=0.1"},
    {kLlama, "tp=2 pp=2", "tp:keep_logits=true pp recompute:policy=full", ""},
    {kLlama, "tp=2", "tp", ""},
    {kLlama, "tp=4", "tp sp", ""},
    {kLlama, "tp=4", "tp", "model.kv_heads=1"},
    {kLlamaUneven, "tp=2", "tp sp", "batch.micro=8"},
    {kLlamaUneven, "tp=3", "tp", ""},
    {kLlamaUneven, "tp=6", "tp sp", ""},
    // Ranks share key/value heads, and not evenly.
    {kLlama, "tp=3", "tp", ""},
    {kLlamaUneven, "tp=4", "tp sp", "model.kv_heads=2"},
    {kLlamaUneven, "tp=5 pp=1", "tp sp recompute:policy=full", "model.kv_heads=1"},
    // Stages.
    {kGpt2, "pp=2", "pp", "model.dropout=0.1"},
    {kGpt2, "pp=2", "pp:schedule=gpipe", ""},
    {kGpt2, "pp=2", "pp:schedule=interleaved,chunks=2", "model.dropout=0.1"},
    {kGpt2, "pp=4", "pp:schedule=zb_h1", "model.dropout=0.1"},
    {kGpt2, "pp=4", "pp", "batch.micro=4"},
    {kGpt2Uneven, "pp=3", "pp", "model.dropout=0.1"},
    {kGpt2Uneven, "pp=2", "pp:split=[1,2]", ""},
    {kLlama, "pp=4", "pp:schedule=gpipe", ""},
    {kLlama, "pp=2", "pp:schedule=interleaved,chunks=2 recompute:policy=selective", ""},
    {kLlamaUneven, "pp=3", "pp:schedule=zb_h1", ""},
    {kLlamaUneven, "pp=2", "pp:split=[2,1] recompute:policy=full", ""},
    // Layers and stages.
    {kGpt2, "tp=2 pp=2", "tp pp", "model.dropout=0.1"},
    {kGpt2, "tp=2 pp=2", "tp sp pp:schedule=zb_h1", ""},
    {kGpt2Uneven, "tp=2 pp=3", "tp sp pp recompute:policy=full", "model.dropout=0.1"},
    {kGpt2Heads, "tp=2 pp=2", "tp pp", ""},
    {kLlama, "tp=2 pp=2", "tp sp pp:schedule=interleaved,chunks=2", ""},
    {kLlama, "tp=2 pp=4", "tp sp pp:schedule=zb_h1", "model.kv_heads=1"},
    {kLlamaUneven, "tp=2 pp=3", "tp sp pp", "batch.micro=2"},
    // Layers and the batch.
    {kGpt2, "tp=2 dp=2", "tp dp", ""},
    {kGpt2, "tp=2 dp=2", "tp sp zero1", "model.dropout=0.1"},
    {kGpt2, "tp=2 dp=4", "tp sp fsdp", ""},
    {kGpt2Uneven, "tp=3 dp=2", "tp sp zero2 recompute:policy=selective", "model.dropout=0.1"},
    {kLlama, "tp=2 dp=2", "tp sp zero3", ""},
    {kLlama, "tp=4 dp=2", "tp sp zero1", "model.kv_heads=2"},
    {kLlamaUneven, "tp=2 dp=2", "tp:keep_logits=true zero2", ""},
    // Stages and the batch.
    {kGpt2, "pp=2 dp=2", "pp dp", "model.dropout=0.1"},
    {kGpt2, "pp=2 dp=2", "pp zero1", ""},
    {kGpt2, "pp=2 dp=2", "pp:schedule=interleaved,chunks=2 fsdp", ""},
    {kGpt2Uneven, "pp=3 dp=2", "pp:schedule=zb_h1 zero3", "model.dropout=0.1"},
    {kLlama, "pp=2 dp=2", "pp:schedule=zb_h1 zero2 recompute:policy=selective", ""},
    {kLlamaUneven, "pp=2 dp=2", "pp zero3", "batch.micro=2"},
    {kLlama, "pp=2 dp=2", "pp:schedule=gpipe fsdp:unit_layers=2,reshard_after_forward=false", ""},
    // Parts that are not trained: stages that send no gradients, and one with nothing to train.
    {kGpt2, "pp=2", "pp", "model.trainable=[\"*ln_*\"]"},
    {kGpt2, "tp=2 pp=2", "tp sp pp", "model.trainable=[\"h.3.*\"]"},
    {kLlama, "tp=2 pp=2", "tp sp pp:schedule=zb_h1", "model.trainable=[\"*.mlp.*\"]"},
    // All of it. The axes need not be in their usual order.
    {kGpt2, "tp=2 pp=2 dp=2", "tp pp dp", ""},
    {kGpt2Uneven, "tp=2 pp=2 dp=2", "tp:keep_logits=true sp pp:schedule=zb_h1 fsdp", ""},
    {kGpt2, "tp=2 pp=2 dp=2", "tp sp pp zero1", "model.dropout=0.1"},
    {kGpt2, "tp=2 pp=2 dp=2", "tp sp pp recompute:policy=full zero1", "model.dropout=0.1"},
    {kGpt2, "tp=2 pp=2 dp=2", "tp sp pp:schedule=interleaved,chunks=2 fsdp:unit_layers=2", ""},
    {kGpt2Uneven, "tp=2 pp=2 dp=2", "tp sp pp fsdp", "model.dropout=0.1 batch.micro=2"},
    {kLlama, "tp=2 pp=2 dp=2", "tp sp pp:schedule=zb_h1 zero2", ""},
    {kLlama, "tp=2 pp=2 dp=2", "tp sp pp zero3", "model.kv_heads=1"},
    {kLlamaUneven, "tp=2 pp=2 dp=2", "tp sp pp:schedule=zb_h1 recompute:policy=full,every=2 zero3",
     ""},
    {kLlama, "order=[\"dp\",\"pp\",\"tp\"] tp=2 pp=2 dp=2", "tp sp pp zero1", ""},
};

class Composed : public Cut, public testing::WithParamInterface<Composition> {};

TEST_P(Composed, IsTheTrainingOfOneRank) {
  MakeData();
  const Outcome verified = Command("verify", GetParam(), {"--steps", "2"});
  EXPECT_EQ(verified.exit_code, 0) << verified.out << verified.err;
  EXPECT_THAT(verified.out, testing::HasSubstr("equal within 1.0e-05 a step"));
}

INSTANTIATE_TEST_SUITE_P(Meshes, Composed, testing::ValuesIn(kCompositions),
                         [](const auto& info) { return NameOf(info.param); });

// The configurations of configs/ranks, at a size that is soon done. MPI starts its ranks itself.
TEST_F(Cut, TheConfigurationsOfTheFolderAreTheTrainingOfOneRank) {
  MakeData();
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(cli_test::ConfigPath("ranks"))) {
    const std::string name = entry.path().stem().string();
    if (name == "mpi" || name == "gloo") continue;
    std::vector<std::string> arguments = {"verify", entry.path().string(), "--steps", "2"};
    for (const std::string& setting :
         {StrCat("data.source.0.path=", folder_ / "data/*"), std::string("data.validation.every=0"),
          std::string("data.sequence_length=16"), std::string("model.max_sequence=16"),
          std::string("model.width=32"), std::string("model.heads=4"),
          std::string("model.layers=4"), std::string("device.threads=1")}) {
      arguments.insert(arguments.end(), {"--set", setting});
    }
    const Outcome verified = Capstan(arguments);
    EXPECT_EQ(verified.exit_code, 0) << name << ": " << verified.out << verified.err;
    ++files;
  }
  EXPECT_GE(files, 9);
}

// A schedule of one's own: ZB-H1's weight gradients, all at the end.
TEST_F(Cut, AScheduleFileIsTheTrainingOfOneRank) {
  MakeData();
  const std::string path = folder_.Write("steps.txt",
                                         "F0 F1 B0 F2 B1 F3 B2 B3 W0 W1 W2 W3  # the first stage\n"
                                         "F0 B0 F1 B1 F2 B2 F3 B3 W0 W1 W2 W3\n");
  const Outcome verified = Command(
      "verify", {kGpt2, "pp=2", "pp:schedule_file=" + path, "batch.micro=2"}, {"--steps", "2"});
  EXPECT_EQ(verified.exit_code, 0) << verified.out << verified.err;
}

}  // namespace
}  // namespace capstan::cut_test
