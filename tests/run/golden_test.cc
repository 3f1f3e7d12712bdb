// The golden cases: an independent float64 implementation's losses, gradient norms, gradients, logits
// and parameters, against this one's in float32 -- through the command line and through the library.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "nlohmann/json.hpp"
#include "runtime/run/generator.h"
#include "runtime/run/session.h"
#include "tests/cli/process.h"
#include "tests/run/safetensors_file.h"

namespace capstan::run_test {
namespace {

using cli_test::Folder;
using cli_test::ReadAll;

struct Case {
  std::string name, model, prefix;  // prefix: of stored names that golden files leave out
};

class Golden : public testing::TestWithParam<Case> {
 protected:
  Golden() : data_(std::string(CAPSTAN_REPOSITORY) + "/tests/data/" + GetParam().name) {
    setenv("CAPSTAN_PLUGIN_PATH", CAPSTAN_PLUGINS, 1);
    tokens_ = nlohmann::json::parse(ReadAll(data_ + "/tokens.json")).get<decltype(tokens_)>();
    expected_ = nlohmann::json::parse(ReadAll(data_ + "/expected.json"));
    std::string bytes;
    for (const auto& step : tokens_) {
      for (const auto& sequence : step) {
        for (const uint16_t token : sequence)
          bytes.append(reinterpret_cast<const char*>(&token), 2);
      }
    }
    folder_.Write("tokens.bin", bytes);
    const auto batch = static_cast<int>(tokens_[0].size());
    const auto length = static_cast<int>(tokens_[0][0].size()) - 1;
    config_ = folder_.Write("golden.toml", Config(batch, length));
  }

  std::string Config(int batch, int length) const {
    return "[run]\nname = \"golden\"\ndir = \"run\"\nsteps = " + std::to_string(tokens_.size()) +
           "\nseed = 1\n[model]\nplugin = \"" + GetParam().model + "\"\nweights = \"" + data_ +
           "\"\n[data]\nplugin = \"tokens\"\norder = \"sequential\"\nsequence_length = " +
           std::to_string(length) + "\nsample_stride = " + std::to_string(length + 1) +
           "\n[[data.source]]\npath = \"tokens.bin\"\n[batch]\nmicro = " + std::to_string(batch) +
           "\nglobal = " + std::to_string(batch) +
           "\n[optimizer]\nplugin = \"adamw\"\nlr = 1e-3\nbetas = [0.9, 0.95]\neps = "
           "1e-8\nweight_decay = 0.1\n"
           "clip_norm = 1.0\n";
  }

  Folder folder_;
  std::string data_, config_;
  std::vector<std::vector<std::vector<uint16_t>>> tokens_;
  nlohmann::json expected_;
};

// The stored tensor a golden file calls `name`.
const FileTensor* Find(const std::map<std::string, FileTensor>& tensors, const std::string& name) {
  for (const std::string prefix : {"", "transformer.", "model."}) {
    if (auto it = tensors.find(prefix + name); it != tensors.end()) return &it->second;
    if (name.starts_with(prefix)) {
      if (auto it = tensors.find(name.substr(prefix.size())); it != tensors.end())
        return &it->second;
    }
  }
  return nullptr;
}

TEST_P(Golden, LossesNormsAndParametersThroughTheCommandLine) {
  const cli_test::Outcome outcome = cli_test::Capstan({"train", config_});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  std::istringstream lines(ReadAll(folder_ / "run/metrics.jsonl"));
  std::string line;
  size_t step = 0;
  while (std::getline(lines, line)) {
    const auto row = nlohmann::json::parse(line);
    if (row.value("scope", "train") != "train") continue;
    ASSERT_LT(step, tokens_.size());
    const double loss = expected_["loss_mean_nats"][step];
    const double norm = expected_["grad_norm_before_clip"][step];
    EXPECT_NEAR(row["loss"].get<double>(), loss, 1e-5 * loss) << "step " << step;
    EXPECT_NEAR(row["grad_norm"].get<double>(), norm, 1e-4 * norm) << "step " << step;
    ++step;
  }
  EXPECT_EQ(step, tokens_.size());
  const auto ours = ReadSafetensors(folder_ / "run/checkpoints/step-00000010/model.safetensors");
  const auto gold = ReadSafetensors(data_ + "/params_after_10.safetensors");
  const auto gradients = ReadSafetensors(data_ + "/grads_step0.safetensors");
  size_t compared = 0;
  for (const auto& [name, golden] : gold) {
    const FileTensor* tensor = Find(ours, name);
    const FileTensor* gradient = Find(gradients, name);
    ASSERT_NE(tensor, nullptr) << name;
    ASSERT_NE(gradient, nullptr) << name;
    ASSERT_EQ(tensor->shape, golden.shape) << name;
    for (size_t i = 0; i < golden.values.size(); ++i) {
      if (std::abs(gradient->values[i]) < 1e-7f) continue;  // Adam amplifies rounding there
      ASSERT_NEAR(tensor->values[i], golden.values[i], 2e-4) << name << "[" << i << "]";
      ++compared;
    }
  }
  EXPECT_GT(compared, 30000u);
}

// A session with its memory, weights loaded, ready to run one Program.
struct Loaded {
  std::unique_ptr<HostEnvironment> host;
  std::unique_ptr<Session> session;
  MemoryPlan plan;
  std::unique_ptr<Program> program;
  std::unique_ptr<Storage> storage;
  std::unique_ptr<Executor> executor;
};

TEST_P(Golden, GradientsOfTheFirstStep) {
  Loaded l;
  l.host = HostEnvironment::Create().value();
  absl::StatusOr<std::unique_ptr<Session>> session = Session::Open(config_, {}, l.host.get());
  ASSERT_TRUE(session.ok()) << session.status();
  l.session = *std::move(session);
  Device* device = l.session->device().value();
  l.program = ComposeTrain(l.session->ingredients()).value();
  ASSERT_TRUE(l.plan.Add(*l.program, device, 1).ok());
  l.storage = Storage::Allocate(device, &l.plan).value();
  l.executor = Executor::Compile(l.program.get(), l.storage.get()).value();
  const Store* store = l.session->store().value();
  ASSERT_TRUE(LoadWeights(*store, Ranks(), data_, *l.program, *l.storage).ok());
  const Dataset data = l.session->OpenData(CAPSTAN_SPLIT_TRAIN).value();
  BatchLoader loader =
      BatchLoader::Create(&data, &l.session->objective(), l.program.get(), l.storage.get()).value();
  ASSERT_TRUE(loader.Load(0).ok());
  ASSERT_TRUE(SetScalar(*l.program, *l.storage, "lr", 0.0).ok());
  ASSERT_TRUE(SetScalar(*l.program, *l.storage, kInputStep, int64_t{1}).ok());
  const absl::Status ran = l.executor->Run(0);
  ASSERT_TRUE(ran.ok()) << ran;
  const auto gold = ReadSafetensors(data_ + "/grads_step0.safetensors");
  const double norm = expected_["grad_norm_before_clip"][0];
  size_t compared = 0;
  for (TensorId id = 0; id < l.program->tensor_limit(); ++id) {
    if (!l.program->TensorAlive(id) || l.program->tensor(id).kind != CAPSTAN_GRADIENT) continue;
    const Tensor& gradient = l.program->tensor(id);
    const Tensor& parameter = l.program->tensor(gradient.of);
    const External& external = parameter.external;
    const FileTensor* golden = Find(gold, external.name.empty() ? parameter.name : external.name);
    ASSERT_NE(golden, nullptr) << parameter.name;
    float largest = 0;
    for (float g : golden->values) largest = std::max(largest, std::abs(g));
    const double tolerance = 1e-4 * std::max<double>(largest, 1e-3 * norm);
    const auto* values = reinterpret_cast<const float*>(l.storage->Data(*l.program, id));
    const int64_t columns = gradient.shape().back();
    for (int64_t i = 0; i < gradient.elements(); ++i) {
      int64_t row = i / columns, column = i % columns;
      if (external.transposed) std::swap(row, column);
      if (!external.start.empty()) column += external.start.back();
      if (external.start.size() == 2) row += external.start.front();
      const int64_t at = golden->shape.size() == 2 ? row * golden->shape[1] + column : column;
      ASSERT_NEAR(values[i], golden->values[at], tolerance) << parameter.name << "[" << i << "]";
      ++compared;
    }
  }
  EXPECT_GT(compared, 50000u);
}

// Every position's logits, by the KV cache: the prompt's last from prefill, the rest one decode step
// at a time.
TEST_P(Golden, LogitsThroughTheCache) {
  const auto gold = ReadSafetensors(data_ + "/logits_step0.safetensors");
  ASSERT_EQ(gold.size(), 1u);
  const FileTensor& logits = gold.begin()->second;
  ASSERT_EQ(logits.shape.size(), 3u);
  const int64_t batch = logits.shape[0], length = logits.shape[1], vocabulary = logits.shape[2];
  float largest = 0;
  for (float v : logits.values) largest = std::max(largest, std::abs(v));
  std::unique_ptr<HostEnvironment> host = HostEnvironment::Create().value();
  std::unique_ptr<Session> session = Session::Open(config_, {}, host.get()).value();
  constexpr int64_t kPrompt = 5;
  absl::StatusOr<std::unique_ptr<Generator>> generator =
      Generator::Create(session.get(), data_, kPrompt, length - kPrompt);
  ASSERT_TRUE(generator.ok()) << generator.status();
  for (int64_t b = 0; b < batch; ++b) {
    const std::vector<int32_t> tokens(tokens_[0][b].begin(), tokens_[0][b].end() - 1);
    int64_t position = kPrompt - 1;
    const absl::Status scored = (*generator)->Score(tokens, [&](const std::vector<float>& row) {
      ASSERT_EQ(static_cast<int64_t>(row.size()), vocabulary);
      for (int64_t v = 0; v < vocabulary; ++v) {
        ASSERT_NEAR(row[v], logits.values[(b * length + position) * vocabulary + v], 1e-4 * largest)
            << "sequence " << b << ", position " << position;
      }
      ++position;
    });
    ASSERT_TRUE(scored.ok()) << scored;
    EXPECT_EQ(position, length);
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, Golden,
                         testing::Values(Case{"gpt2_tiny", "gpt2", "transformer."},
                                         Case{"llama_tiny", "llama", "model."}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace capstan::run_test
