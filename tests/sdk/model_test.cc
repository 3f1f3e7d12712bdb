// GPT-2 and LLaMA: what they emit, and how they read and write published weights' config.json.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/sdk/bench.h"

namespace capstan {
namespace {

constexpr const char* kTinyGpt2 =
    "layers = 2\nwidth = 12\nheads = 3\nvocabulary = 17\nmax_sequence = 16\n";
constexpr const char* kTinyLlama =
    "layers = 2\nwidth = 16\nheads = 4\nkv_heads = 2\nmlp_width = 24\nvocabulary = "
    "19\nmax_sequence = 32\n";

constexpr const char* kGpt2Json = R"({"model_type": "gpt2", "activation_function": "gelu_new",
  "layer_norm_epsilon": 1e-05, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "n_layer": 2,
  "n_embd": 48, "n_head": 4, "vocab_size": 67, "n_positions": 32, "architectures": ["GPT2LMHeadModel"],
  "torch_dtype": "float32"})";
constexpr const char* kLlamaJson =
    R"({"model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-05,
  "rope_theta": 10000.0, "tie_word_embeddings": false, "max_position_embeddings": 64,
  "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
  "head_dim": 16, "intermediate_size": 112, "vocab_size": 97, "architectures": ["LlamaForCausalLM"],
  "torch_dtype": "float32"})";

std::string edited(const char* json, const std::string& key, const nlohmann::json& value) {
  nlohmann::json document = nlohmann::json::parse(json);
  document[key] = value;
  return document.dump();
}

// External tensors of a Program's parameters: shape, and how often each element is covered.
struct Coverage {
  Dims shape;
  std::vector<int> covered;
};

void cover(Coverage& e, const External& range, Dims extent) {
  if (range.transposed) std::swap(extent[0], extent[1]);
  Dims index(extent.size(), 0);
  for (;;) {
    int64_t flat = 0;
    for (size_t d = 0; d < extent.size(); ++d) flat = flat * e.shape[d] + range.start[d] + index[d];
    ++e.covered[static_cast<size_t>(flat)];
    size_t d = extent.size();
    while (d > 0 && ++index[d - 1] == extent[d - 1]) index[--d] = 0;
    if (d == 0) return;
  }
}

std::map<std::string, Coverage> externals_of(const Program& program) {
  std::map<std::string, Coverage> out;
  for (TensorId t = 0; t < program.tensor_limit(); ++t) {
    if (!program.TensorAlive(t) || program.tensor(t).kind != CAPSTAN_PARAMETER) continue;
    const Tensor& p = program.tensor(t);
    External range = p.external;
    if (range.shape.empty()) {
      range.shape = p.shape();
      range.start.assign(p.shape().size(), 0);
    }
    Coverage& e = out[range.name];
    if (e.shape.empty()) {
      e.shape = range.shape;
      e.covered.assign(static_cast<size_t>(ElementCount(range.shape)), 0);
    }
    EXPECT_EQ(e.shape, range.shape) << range.name;
    cover(e, range, p.shape());
  }
  return out;
}

void expect_published(const Program& program, const std::map<std::string, Dims>& published) {
  std::map<std::string, Dims> found;
  for (const auto& [name, external] : externals_of(program)) {
    found[name] = external.shape;
    for (int times : external.covered) ASSERT_EQ(times, 1) << name << " is not tiled exactly";
  }
  EXPECT_EQ(found, published);
}

std::unique_ptr<Program> train(Bench& bench) {
  absl::StatusOr<std::unique_ptr<Program>> program = ComposeTrain(bench.ingredients());
  EXPECT_TRUE(program.ok()) << program.status();
  return *std::move(program);
}

TEST(Gpt2, ParametersTileThePublishedTensorsExactly) {
  Bench bench;
  bench.compose("gpt2", kTinyGpt2);
  std::map<std::string, Dims> published = {{"wte.weight", {17, 12}},
                                           {"wpe.weight", {16, 12}},
                                           {"ln_f.weight", {12}},
                                           {"ln_f.bias", {12}}};
  for (const std::string h : {"h.0.", "h.1."}) {
    published[h + "ln_1.weight"] = published[h + "ln_1.bias"] = {12};
    published[h + "ln_2.weight"] = published[h + "ln_2.bias"] = {12};
    published[h + "attn.c_attn.weight"] = {12, 36};
    published[h + "attn.c_attn.bias"] = {36};
    published[h + "attn.c_proj.weight"] = {12, 12};
    published[h + "attn.c_proj.bias"] = {12};
    published[h + "mlp.c_fc.weight"] = {12, 48};
    published[h + "mlp.c_fc.bias"] = {48};
    published[h + "mlp.c_proj.weight"] = {48, 12};
    published[h + "mlp.c_proj.bias"] = {12};
  }
  expect_published(*train(bench), published);
}

TEST(Llama, ParametersTileThePublishedTensorsExactly) {
  Bench bench;
  bench.compose("llama", kTinyLlama);
  std::map<std::string, Dims> published = {{"model.embed_tokens.weight", {19, 16}},
                                           {"model.norm.weight", {16}},
                                           {"lm_head.weight", {19, 16}}};
  for (const std::string l : {"model.layers.0.", "model.layers.1."}) {
    published[l + "input_layernorm.weight"] =
        published[l + "post_attention_layernorm.weight"] = {16};
    published[l + "self_attn.q_proj.weight"] = published[l + "self_attn.o_proj.weight"] = {16, 16};
    published[l + "self_attn.k_proj.weight"] = published[l + "self_attn.v_proj.weight"] = {8, 16};
    published[l + "mlp.gate_proj.weight"] = published[l + "mlp.up_proj.weight"] = {24, 16};
    published[l + "mlp.down_proj.weight"] = {16, 24};
  }
  expect_published(*train(bench), published);
}

TEST(Llama, TiedHeadHasNoParameterOfItsOwn) {
  Bench bench;
  bench.compose("llama", std::string(kTinyLlama) + "tie_embeddings = true\n");
  const std::unique_ptr<Program> program = train(bench);
  EXPECT_EQ(program->FindTensor("lm_head.weight"), kNone);
  EXPECT_NE(program->FindTensor("model.embed_tokens.weight.grad"), kNone);
}

TEST(Gpt2, ForwardIsTheArchitectureAsPublished) {
  Bench bench;
  bench.compose("gpt2", kTinyGpt2);
  const std::unique_ptr<Program> program = train(bench);
  EXPECT_EQ(
      KindsOf(*program, "forward/0", 0),
      "layer_norm linear linear linear attention linear add layer_norm linear gelu linear add");
  EXPECT_TRUE(KindsOf(*program, "forward/0", -1).starts_with("embedding embedding add layer_norm"));
}

TEST(Llama, ForwardIsTheArchitectureAsPublished) {
  Bench bench;
  bench.compose("llama", kTinyLlama);
  EXPECT_EQ(KindsOf(*train(bench), "forward/0", 1),
            "rms_norm linear linear linear rotary rotary attention linear add rms_norm linear "
            "linear swiglu "
            "linear add");
}

TEST(Gpt2, InitialisesResidualProjectionsSmaller) {
  Bench bench;
  bench.compose("gpt2", kTinyGpt2);
  const std::unique_ptr<Program> program = train(bench);
  const auto std_of = [&](const char* name) {
    return program->tensor(program->FindTensor(name)).init.b;
  };
  EXPECT_DOUBLE_EQ(std_of("h.0.attn.q.weight"), 0.02);
  EXPECT_DOUBLE_EQ(std_of("h.0.attn.o.weight"), 0.01) << "0.02 / sqrt(2 * 2 layers)";
  EXPECT_DOUBLE_EQ(std_of("h.1.mlp.down.weight"), 0.01);
}

TEST(Gpt2, DropsOutInTrainingOnlyWithAKeyForEachPlace) {
  Bench bench;
  bench.compose("gpt2", std::string(kTinyGpt2) + "dropout = 0.1\nattention_dropout = 0.2\n");
  const std::unique_ptr<Program> program = train(bench);
  std::set<int64_t> keys;
  for (OpId o : OpsOf(*program, "forward/0")) {
    const Op& op = program->op(o);
    if (op.kind() == "dropout") {
      EXPECT_EQ(op.attrs.Float("p", 0), 0.1);
      keys.insert(op.attrs.Int("key", 0));
    } else if (op.kind() == "attention") {
      EXPECT_EQ(op.attrs.Float("dropout", 0), 0.2);
      keys.insert(op.attrs.Int("key", 0));
    }
  }
  EXPECT_EQ(keys.size(), 1u + 3 * 2) << "embedding, and attention and two residuals a layer";
  const auto eval = ComposeEval(bench.ingredients());
  ASSERT_TRUE(eval.ok()) << eval.status();
  EXPECT_EQ(KindsOf(**eval, "forward/0").find("dropout"), std::string::npos);
}

class Generation : public testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(Generation, PrefillFillsTheCacheThatDecodeExtends) {
  Bench bench;
  bench.compose(GetParam().first, GetParam().second);
  const auto prefill = ComposeGenerate(bench.ingredients(), CAPSTAN_MODE_PREFILL, {2, 5, 12});
  ASSERT_TRUE(prefill.ok()) << prefill.status();
  const auto decode = ComposeGenerate(bench.ingredients(), CAPSTAN_MODE_DECODE, {2, 1, 12});
  ASSERT_TRUE(decode.ok()) << decode.status();
  for (const Program* program : {prefill->get(), decode->get()}) {
    for (const char* name : {"cache.k.0", "cache.v.0", "cache.k.1", "cache.v.1"}) {
      const TensorId cache = program->FindTensor(name);
      ASSERT_NE(cache, kNone) << name;
      EXPECT_EQ(program->tensor(cache).kind, CAPSTAN_STATE);
      EXPECT_EQ(program->tensor(cache).role, "cache");
      EXPECT_EQ(program->tensor(cache).shape()[1], 12);
    }
    const Tensor& logits = program->tensor(program->FindTensor(kLogits));
    EXPECT_EQ(logits.shape()[0], 2);
    EXPECT_EQ(logits.shape()[1], 1) << "of the last position only";
  }
  EXPECT_EQ(KindsOf(**decode, "forward/0").find("attention "), std::string::npos);
  EXPECT_NE(KindsOf(**decode, "forward/0").find("attention_cached"), std::string::npos);
  EXPECT_NE(KindsOf(**prefill, "forward/0").find("select_position"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Models, Generation,
                         testing::Values(std::pair("gpt2", kTinyGpt2),
                                         std::pair("llama", kTinyLlama)),
                         [](const auto& info) { return info.param.first; });

TEST(Models, RefuseASequenceLongerThanTheirPositions) {
  Bench bench;
  bench.compose("gpt2", kTinyGpt2);
  bench.ingredients().sequence = 17;
  const auto program = ComposeTrain(bench.ingredients());
  ASSERT_FALSE(program.ok());
  EXPECT_NE(program.status().message().find("max_sequence = 16"), std::string::npos)
      << program.status();
}

TEST(Models, InfoFollowsConfigJson) {
  Bench bench;
  const auto model = bench.model("llama", "", kLlamaJson);
  ASSERT_TRUE(model.ok()) << model.status();
  capstan_model_info info{};
  info.struct_size = sizeof info;
  ASSERT_EQ(model->vtable->info(model->self, &info), nullptr);
  EXPECT_EQ(info.vocabulary, 97);
  EXPECT_EQ(info.kv_heads, 2);
  EXPECT_EQ(info.head_dim, 16);
  EXPECT_EQ(info.max_sequence, 64);
  EXPECT_EQ(info.eos_token, -1);
}

std::string config_of(const Instance<capstan_model_v1>& model) {
  const char* text = nullptr;
  EXPECT_EQ(model.vtable->config_json(model.self, &text), nullptr);
  return text;
}

struct RoundTripCase {
  const char* name;
  const char* model;
  std::string toml;
};
class RoundTrip : public testing::TestWithParam<RoundTripCase> {};

TEST_P(RoundTrip, ConfigJsonMakesTheSameModelAgain) {
  Bench bench;
  const auto first = bench.model(GetParam().model, GetParam().toml);
  ASSERT_TRUE(first.ok()) << first.status();
  const std::string json = config_of(*first);
  const auto second = bench.model(GetParam().model, "", json.c_str());
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(config_of(*second), json);
}

INSTANTIATE_TEST_SUITE_P(
    Models, RoundTrip,
    testing::Values(
        RoundTripCase{"gpt2", "gpt2", kTinyGpt2},
        RoundTripCase{"gpt2_all", "gpt2",
                      std::string(kTinyGpt2) + "mlp_width = 20\ndropout = 0.25\neos_token = 3\n"},
        RoundTripCase{"llama", "llama", kTinyLlama},
        RoundTripCase{
            "llama_all", "llama",
            std::string(kTinyLlama) +
                "tie_embeddings = true\nhead_dim = 6\nrope_theta = 500000.0\neos_token = 4\n"
                "[rope_scaling]\nfactor = 8.0\noriginal_max_position = 8192\n"}),
    [](const auto& info) { return info.param.name; });

TEST(Models, KeepUnrelatedKeysOfAConfigJson) {
  Bench bench;
  const std::string json = edited(kGpt2Json, "bos_token_id", 5);
  const auto model = bench.model("gpt2", "", json.c_str());
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(nlohmann::json::parse(config_of(*model))["bos_token_id"], 5);
}

TEST(Models, TakeAnAgreeingOption) {
  Bench bench;
  EXPECT_TRUE(bench.model("gpt2", "layers = 2\n", kGpt2Json).ok());
  EXPECT_TRUE(bench.model("llama", "head_dim = 16\nmlp_width = 0\n", kLlamaJson).ok());
}

TEST(Models, LetTheUserChangeDropoutOfPublishedWeights) {
  Bench bench;
  const auto model = bench.model("gpt2", "dropout = 0.3\n", kGpt2Json);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(nlohmann::json::parse(config_of(*model))["resid_pdrop"], 0.3);
}

struct Refusal {
  const char* name;
  const char* model;
  std::string toml;
  std::string json;   // "": none
  const char* names;  // what the sentence must name
};
class Refused : public testing::TestWithParam<Refusal> {};

TEST_P(Refused, InASentenceThatNamesTheKey) {
  Bench bench;
  const Refusal& r = GetParam();
  const auto model = bench.model(r.model, r.toml, r.json.empty() ? nullptr : r.json.c_str());
  ASSERT_FALSE(model.ok());
  EXPECT_NE(model.status().message().find(r.names), std::string::npos) << model.status();
}

INSTANTIATE_TEST_SUITE_P(
    Models, Refused,
    testing::Values(
        Refusal{"heads", "gpt2", "width = 48\nheads = 5\n", "",
                "heads = 5 does not divide width = 48"},
        Refusal{"llama_heads", "llama", "width = 48\nheads = 5\n", "",
                "heads = 5 does not divide width = 48"},
        Refusal{"kv_heads", "llama", "heads = 12\nkv_heads = 5\n", "", "kv_heads = 5"},
        Refusal{"odd_head", "llama", "head_dim = 7\n", "", "head_dim = 7"},
        Refusal{"contradiction", "gpt2", "layers = 3\n", kGpt2Json,
                "layers = 3 contradicts n_layer = 2"},
        Refusal{"contradicted_tie", "llama", "tie_embeddings = true\n", kLlamaJson,
                "tie_word_embeddings"},
        Refusal{"other_model", "gpt2", "", kLlamaJson, "model_type"},
        Refusal{"not_json", "gpt2", "", "{", "not a JSON object"},
        Refusal{"missing", "gpt2", "", R"({"model_type": "gpt2"})", "n_layer"},
        Refusal{"negative", "gpt2", "", edited(kGpt2Json, "n_layer", -1), "n_layer = -1"},
        Refusal{"fraction", "gpt2", "", edited(kGpt2Json, "n_embd", 48.5), "n_embd"},
        Refusal{"activation", "gpt2", "", edited(kGpt2Json, "activation_function", "relu"),
                "activation_function"},
        Refusal{"inverse_scale", "gpt2", "",
                edited(kGpt2Json, "scale_attn_by_inverse_layer_idx", true),
                "scale_attn_by_inverse_layer_idx"},
        Refusal{"unknown", "gpt2", "", edited(kGpt2Json, "sliding_window", 4096), "sliding_window"},
        Refusal{"yarn", "llama", "",
                edited(kLlamaJson, "rope_scaling", {{"rope_type", "yarn"}, {"factor", 4.0}}),
                "yarn"},
        Refusal{"new_yarn", "llama", "",
                edited(kLlamaJson, "rope_parameters", {{"rope_type", "yarn"}, {"rope_theta", 1e4}}),
                "yarn"},
        Refusal{"half_scaling", "llama", "",
                edited(kLlamaJson, "rope_scaling", {{"rope_type", "llama3"}, {"factor", 4.0}}),
                "low_freq_factor"},
        Refusal{"attention_bias", "llama", "", edited(kLlamaJson, "attention_bias", true),
                "attention_bias"},
        Refusal{"hidden_act", "llama", "", edited(kLlamaJson, "hidden_act", "gelu"), "hidden_act"},
        Refusal{"quantized", "llama", "", edited(kLlamaJson, "quantization_config", {{"bits", 4}}),
                "quantization_config"}),
    [](const auto& info) { return info.param.name; });

TEST(Llama, ReadsRopeParametersOfNewerFiles) {
  Bench bench;
  nlohmann::json document = nlohmann::json::parse(kLlamaJson);
  document.erase("rope_theta");
  document["rope_parameters"] = {
      {"rope_type", "llama3"},   {"rope_theta", 500000.0},
      {"factor", 8.0},           {"low_freq_factor", 1.0},
      {"high_freq_factor", 4.0}, {"original_max_position_embeddings", 8192}};
  const auto model = bench.model("llama", "", document.dump().c_str());
  ASSERT_TRUE(model.ok()) << model.status();
  const nlohmann::json back = nlohmann::json::parse(config_of(*model));
  EXPECT_EQ(back["rope_theta"], 500000.0);
  EXPECT_EQ(back["rope_scaling"]["original_max_position_embeddings"], 8192);
}

}  // namespace
}  // namespace capstan
