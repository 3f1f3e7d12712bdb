// The golden cases of an independent float64 implementation, trained by several ranks: losses,
// gradient norms and parameters after ten steps of AdamW from the same weights.
#include <gtest/gtest.h>

#include <cmath>
#include <sstream>

#include "nlohmann/json.hpp"
#include "runtime/strings.h"
#include "tests/cli/process.h"
#include "tests/run/safetensors_file.h"
#include "tests/strategies/composed.h"

namespace capstan::strategies_test {
namespace {

using cli_test::Folder;
using cli_test::ReadAll;
using nlohmann::json;
using run_test::FileTensor;

struct GoldenCase {
  std::string data, model, prefix;  // prefix: of stored names that golden files leave out
  int ranks;
};

void PrintTo(const GoldenCase& c, std::ostream* out) { *out << c.data; }

class GoldenRanks : public testing::TestWithParam<GoldenCase> {
 protected:
  GoldenRanks() {
    tokens_ = json::parse(ReadAll(data_ + "/tokens.json")).get<decltype(tokens_)>();
    expected_ = json::parse(ReadAll(data_ + "/expected.json"));
    std::string bytes;
    for (const auto& step : tokens_) {
      for (const auto& sequence : step) {
        for (const uint16_t token : sequence)
          bytes.append(reinterpret_cast<const char*>(&token), 2);
      }
    }
    folder_.Write("tokens.bin", bytes);
  }

  std::string Config(const std::string& strategy) const {
    const size_t batch = tokens_[0].size(), length = tokens_[0][0].size() - 1;
    return folder_.Write(
        strategy + ".toml",
        StrCat(
            "[run]\ndir = \"", strategy, "\"\nsteps = ", tokens_.size(),
            "\n[device]\nplugin = \"cpu\"\nthreads = 1\n[mesh]\ndp = \"auto\"\n[model]\n",
            "plugin = \"", GetParam().model, "\"\nweights = \"", data_,
            "\"\n[data]\nplugin = \"tokens\"\norder = \"sequential\"\nsequence_length = ", length,
            "\nsample_stride = ", length + 1, "\n[[data.source]]\npath = \"tokens.bin\"\n",
            "[batch]\nmicro = ", batch / static_cast<size_t>(GetParam().ranks),
            "\nglobal = ", batch, "\n[optimizer]\nplugin = \"adamw\"\nlr = 1e-3\n",
            "betas = [0.9, 0.95]\neps = 1e-8\nweight_decay = 0.1\nclip_norm = 1.0\n",
            Strategy(strategy)));
  }

  void CompareSteps(const std::string& metrics) const {
    std::istringstream lines(ReadAll(metrics));
    size_t step = 0;
    for (std::string line; std::getline(lines, line); ++step) {
      const json row = json::parse(line);
      ASSERT_LT(step, tokens_.size());
      const double loss = expected_["loss_mean_nats"][step];
      const double norm = expected_["grad_norm_before_clip"][step];
      EXPECT_NEAR(row["loss"].get<double>(), loss, 1e-5 * loss) << "step " << step;
      EXPECT_NEAR(row["grad_norm"].get<double>(), norm, 1e-4 * norm) << "step " << step;
    }
    EXPECT_EQ(step, tokens_.size());
  }

  void CompareParameters(const std::string& file) const {
    const auto ours = run_test::ReadSafetensors(file);
    const auto gradients = run_test::ReadSafetensors(data_ + "/grads_step0.safetensors");
    size_t compared = 0;
    for (const auto& [name, golden] :
         run_test::ReadSafetensors(data_ + "/params_after_10.safetensors")) {
      const FileTensor& tensor = Find(ours, name);
      const FileTensor& gradient = Find(gradients, name);
      ASSERT_EQ(tensor.shape, golden.shape) << name;
      for (size_t i = 0; i < golden.values.size(); ++i) {
        if (std::abs(gradient.values[i]) < 1e-7f) continue;  // Adam amplifies rounding there
        ASSERT_NEAR(tensor.values[i], golden.values[i], 2e-4) << name << "[" << i << "]";
        ++compared;
      }
    }
    EXPECT_GT(compared, 30000u);
  }

  static const FileTensor& Find(const std::map<std::string, FileTensor>& tensors,
                                const std::string& name) {
    static const FileTensor none;
    for (const std::string& known : {name, GetParam().prefix + name}) {
      if (const auto it = tensors.find(known); it != tensors.end()) return it->second;
    }
    const size_t prefix = name.starts_with(GetParam().prefix) ? GetParam().prefix.size() : 0;
    const auto it = tensors.find(name.substr(prefix));
    return it == tensors.end() ? none : it->second;
  }

  const std::string data_ = std::string(CAPSTAN_REPOSITORY) + "/tests/data/" + GetParam().data;
  Folder folder_;
  std::vector<std::vector<std::vector<uint16_t>>> tokens_;
  json expected_;
};

TEST_P(GoldenRanks, LossesNormsAndParameters) {
  for (const char* strategy : {"dp", "zero2", "zero3"}) {
    SCOPED_TRACE(strategy);
    const cli_test::Outcome outcome =
        cli_test::Capstan({"train", Config(strategy), "--ranks", std::to_string(GetParam().ranks),
                           "--set", cli_test::kRanksDeadline});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    CompareSteps(folder_ / (std::string(strategy) + "/metrics.jsonl"));
    CompareParameters(folder_ /
                      (std::string(strategy) + "/checkpoints/step-00000010/model.safetensors"));
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, GoldenRanks,
                         testing::Values(GoldenCase{"gpt2_tiny", "gpt2", "transformer.", 3},
                                         GoldenCase{"llama_tiny", "llama", "model.", 2}),
                         [](const auto& info) { return info.param.data; });

}  // namespace
}  // namespace capstan::strategies_test
