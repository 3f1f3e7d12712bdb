#include "tests/strategies/composed.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "runtime/strings.h"

namespace capstan::strategies_test {

const ModelCase kGpt2Uneven = {"gpt2_uneven",
                               "plugin = \"gpt2\"\nlayers = 2\nwidth = 10\nheads = 2\n"
                               "vocabulary = 259\nmax_sequence = 9\n"};
const ModelCase kLlamaUneven = {"llama_uneven",
                                "plugin = \"llama\"\nlayers = 2\nwidth = 8\nheads = 4\n"
                                "kv_heads = 1\nmlp_width = 13\nvocabulary = 257\n"
                                "max_sequence = 9\n"};
const ModelCase kGpt2Even = {"gpt2_even",
                             "plugin = \"gpt2\"\nlayers = 2\nwidth = 16\nheads = 2\n"
                             "vocabulary = 256\nmax_sequence = 8\n"};
const ModelCase kLlamaEven = {"llama_even",
                              "plugin = \"llama\"\nlayers = 2\nwidth = 16\nheads = 4\n"
                              "kv_heads = 2\nmlp_width = 24\nvocabulary = 256\nmax_sequence = 8\n"};
const ModelCase kLlamaTied = {"llama_tied",
                              "plugin = \"llama\"\nlayers = 2\nwidth = 16\nheads = 4\n"
                              "kv_heads = 2\nmlp_width = 24\nvocabulary = 256\nmax_sequence = 8\n"
                              "tie_embeddings = true\n"};

std::string ConfigText(const ModelCase& model, const std::string& strategies) {
  return StrCat(R"([run]
name = "tiny"
dir = "run"
steps = 3
seed = 5
[device]
plugin = "cpu"
threads = 1
)",
                strategies.empty() ? "" : "[mesh]\ndp = \"auto\"\n", "[model]\n", model.toml, R"(
[data]
plugin = "tokens"
sequence_length = 8
[[data.source]]
path = "data/train-*.ctok"
[batch]
micro = 1
global = 24
[optimizer]
plugin = "adamw"
lr = 1e-3
[checkpoint]
plugin = "safetensors"
)",
                strategies);
}

std::string Strategy(const std::string& name, const std::string& lines) {
  return StrCat("[[strategy]]\nplugin = \"", name, "\"\n", lines);
}

Rank::Rank(const std::string& config, int64_t rank, int64_t world,
           const std::vector<std::string>& overrides) {
  setenv("CAPSTAN_PLUGIN_PATH", CAPSTAN_PLUGINS, 1);
  absl::StatusOr<std::unique_ptr<HostEnvironment>> host = HostEnvironment::Create();
  if (!host.ok()) {
    status_ = host.status();
    return;
  }
  host_ = *std::move(host);
  host_->SetRanks({rank, world});
  absl::StatusOr<std::unique_ptr<Session>> session = Session::Open(config, overrides, host_.get());
  status_ = session.status();
  if (session.ok()) session_ = *std::move(session);
}

void Rank::Compose(const std::function<void(Ingredients&)>& change) {
  if (!status_.ok()) return;
  status_ = session_->device().status();  // tells the ingredients what it can fuse
  if (!status_.ok()) return;
  ingredients_ = std::make_unique<Ingredients>(session_->ingredients());
  if (change) change(*ingredients_);
  absl::StatusOr<std::unique_ptr<Program>> program = ComposeTrain(*ingredients_);
  status_ = program.status();
  if (program.ok()) program_ = *std::move(program);
}

MemoryPlan& Rank::plan() {
  if (plan_ == nullptr) {
    plan_ = std::make_unique<MemoryPlan>();
    const absl::Status added =
        plan_->Add(*program_, *session_->device(), session_->config().run.seed);
    EXPECT_TRUE(added.ok()) << added;
  }
  return *plan_;
}

int64_t Rank::region(const std::string& name) {
  const auto found = plan().region_bytes().find(name);
  return found == plan().region_bytes().end() ? 0 : found->second;
}

std::unique_ptr<Rank> Composed(const std::string& config, int64_t rank, int64_t world,
                               const std::vector<std::string>& overrides) {
  auto composed = std::make_unique<Rank>(config, rank, world, overrides);
  composed->Compose();
  if (!composed->status().ok()) {
    ADD_FAILURE() << "rank " << rank << " of " << world << ": " << composed->status();
    return nullptr;
  }
  return composed;
}

std::vector<int64_t> LaunchesByOp(Rank& rank) {
  std::vector<int64_t> launches(static_cast<size_t>(rank.program().op_limit()), 0);
  for (const PlannedLaunch& l : rank.plan().launches(rank.program())) {
    ++launches[static_cast<size_t>(l.op)];
  }
  return launches;
}

}  // namespace capstan::strategies_test
