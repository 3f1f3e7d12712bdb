#include "plugins/model/llama/config.h"

#include <array>
#include <utility>

#include "plugins/model/common/hf_config.h"
#include "sdk/error.h"

namespace capstan::llama {
namespace {

using models::HfConfig;
using models::Json;

constexpr std::pair<const char*, const char*> kScalingKeys[] = {
    {"rope_scaling.factor", "factor"},
    {"rope_scaling.low_freq_factor", "low_freq_factor"},
    {"rope_scaling.high_freq_factor", "high_freq_factor"},
    {"rope_scaling.original_max_position", "original_max_position_embeddings"}};

RopeScaling scaling_from_options(const sdk::Options& options) {
  return {options.get_float("rope_scaling.factor"),
          options.get_float("rope_scaling.low_freq_factor"),
          options.get_float("rope_scaling.high_freq_factor"),
          options.get_int("rope_scaling.original_max_position")};
}

double number_in(const Json& object, const char* table, const char* key) {
  if (!object.contains(key) || !object[key].is_number() || object[key] <= 0) {
    throw sdk::data_error(sdk::text(table, " in config.json needs a positive number ", key));
  }
  return object[key].get<double>();
}

// "rope_scaling" of older files, "rope_parameters" of newer ones (where rope_theta lives inside).
RopeScaling scaling_from_json(const Json& object, const char* table) {
  if (!object.is_object())
    throw sdk::data_error(sdk::text(table, " in config.json is not an object"));
  std::string type = "default";
  for (const char* key : {"type", "rope_type"}) {
    if (!object.contains(key)) continue;
    if (!object[key].is_string()) {
      throw sdk::data_error(sdk::text(key, " of ", table, " in config.json is not a string, but ",
                                      object[key].dump()));
    }
    type = object[key].get<std::string>();
  }
  if (type == "default") return {};
  if (type != "llama3") {
    throw sdk::unsupported_error(sdk::text("config.json asks for ", table, " of type \"", type,
                                           "\"; only \"default\" and \"llama3\" are offered"));
  }
  for (const auto& [key, value] : object.items()) {
    const bool known = key == "rope_type" || key == "type" || key == "rope_theta" ||
                       key == "factor" || key == "low_freq_factor" || key == "high_freq_factor" ||
                       key == "original_max_position_embeddings" || value.is_null();
    if (!known)
      throw sdk::unsupported_error(
          sdk::text("config.json has an unknown key ", key, " in ", table));
  }
  RopeScaling out;
  out.factor = number_in(object, table, "factor");
  out.low_freq_factor = number_in(object, table, "low_freq_factor");
  out.high_freq_factor = number_in(object, table, "high_freq_factor");
  const double original = number_in(object, table, "original_max_position_embeddings");
  if (original < 1 || original > 1 << 30) {
    throw sdk::data_error(sdk::text("original_max_position_embeddings = ", original, " of ", table,
                                    " in config.json is not a number of positions"));
  }
  out.original_max_position = static_cast<int64_t>(original);
  return out;
}

RopeScaling read_scaling(HfConfig& hf, const sdk::Options& options) {
  const RopeScaling own = scaling_from_options(options);
  if (!hf.given()) return own;
  const Json* older = hf.raw("rope_scaling");
  const Json* newer = hf.raw("rope_parameters");
  RopeScaling out;
  if (newer != nullptr) out = scaling_from_json(*newer, "rope_parameters");
  if (older != nullptr) out = scaling_from_json(*older, "rope_scaling");
  const std::array<double, 4> ours{own.factor, own.low_freq_factor, own.high_freq_factor,
                                   static_cast<double>(own.original_max_position)};
  const std::array<double, 4> theirs{out.factor, out.low_freq_factor, out.high_freq_factor,
                                     static_cast<double>(out.original_max_position)};
  for (size_t i = 0; i < ours.size(); ++i) {
    if (options.from_user(kScalingKeys[i].first) && ours[i] != theirs[i]) {
      throw sdk::usage_error(sdk::text("[model] ", kScalingKeys[i].first, " = ", ours[i],
                                       " contradicts config.json, which has ", theirs[i]));
    }
  }
  return out;
}

double read_theta(HfConfig& hf, const sdk::Options& options) {
  const Json* newer = hf.given() ? hf.raw("rope_parameters") : nullptr;
  if (newer == nullptr || !newer->is_object() || !newer->contains("rope_theta")) {
    return hf.number("rope_theta", "rope_theta", 10000.0);
  }
  const double theta = number_in(*newer, "rope_parameters", "rope_theta");
  if (options.from_user("rope_theta") && options.get_float("rope_theta") != theta) {
    throw sdk::usage_error(sdk::text("[model] rope_theta = ", options.get_float("rope_theta"),
                                     " contradicts rope_theta = ", theta, " in config.json"));
  }
  return theta;
}

void refuse_impossible_sizes(const Config& c) {
  if (c.heads % c.kv_heads != 0) {
    throw sdk::usage_error(sdk::text("[model] kv_heads = ", c.kv_heads,
                                     " does not divide heads = ", c.heads,
                                     "; each key head serves the same number of query heads"));
  }
  if (c.head_dim % 2 != 0) {
    throw sdk::usage_error(sdk::text("[model] head_dim = ", c.head_dim,
                                     " is odd; rotary embeddings turn pairs of channels"));
  }
  const RopeScaling& s = c.rope_scaling;
  if (s.original_max_position > 0 && s.high_freq_factor <= s.low_freq_factor) {
    throw sdk::usage_error(sdk::text("[model] rope_scaling.high_freq_factor = ", s.high_freq_factor,
                                     " must exceed low_freq_factor = ", s.low_freq_factor));
  }
  if (!(c.rms_norm_eps >= 0 && c.rms_norm_eps <= 1)) {
    throw sdk::usage_error(
        sdk::text("[model] rms_norm_eps = ", c.rms_norm_eps, " is not between 0 and 1"));
  }
  if (!(c.rope_theta >= 1 && c.rope_theta <= 1e12)) {
    throw sdk::usage_error(
        sdk::text("[model] rope_theta = ", c.rope_theta, " is not between 1 and 1e12"));
  }
  if (c.eos_token >= c.vocabulary) {
    throw sdk::usage_error(sdk::text("[model] eos_token = ", c.eos_token,
                                     " is not below vocabulary = ", c.vocabulary));
  }
}

// Defaults that follow from other sizes.
void fill_derived_sizes(Config& c) {
  if (c.kv_heads == 0) c.kv_heads = c.heads;
  if (c.head_dim == 0) {
    if (c.width % c.heads != 0) {
      throw sdk::usage_error(sdk::text("[model] heads = ", c.heads,
                                       " does not divide width = ", c.width,
                                       "; choose a number of heads that does, or set head_dim"));
    }
    c.head_dim = c.width / c.heads;
  }
  // Two thirds of 4 C, rounded up (Touvron et al. 2023, section 2.2; the multiple is their code's).
  if (c.mlp_width == 0) c.mlp_width = (8 * c.width / 3 + 255) / 256 * 256;
}

std::string write_json(const Config& c, Json document) {
  document["model_type"] = "llama";
  document["architectures"] = {"LlamaForCausalLM"};
  document["hidden_act"] = "silu";
  document["vocab_size"] = c.vocabulary;
  document["max_position_embeddings"] = c.max_sequence;
  document["hidden_size"] = c.width;
  document["intermediate_size"] = c.mlp_width;
  document["num_hidden_layers"] = c.layers;
  document["num_attention_heads"] = c.heads;
  document["num_key_value_heads"] = c.kv_heads;
  document["head_dim"] = c.head_dim;
  document["rms_norm_eps"] = c.rms_norm_eps;
  document["tie_word_embeddings"] = c.tie_embeddings;
  document["attention_bias"] = false;
  document["mlp_bias"] = false;
  document.erase("rope_parameters");
  document["rope_theta"] = c.rope_theta;
  document["rope_scaling"] = nullptr;
  if (c.rope_scaling.original_max_position > 0) {
    document["rope_scaling"] = {
        {"rope_type", "llama3"},
        {"factor", c.rope_scaling.factor},
        {"low_freq_factor", c.rope_scaling.low_freq_factor},
        {"high_freq_factor", c.rope_scaling.high_freq_factor},
        {"original_max_position_embeddings", c.rope_scaling.original_max_position}};
  }
  if (c.eos_token >= 0 && !document.contains("eos_token_id"))
    document["eos_token_id"] = c.eos_token;
  if (!document.contains("torch_dtype")) document["torch_dtype"] = "float32";
  return document.dump(2) + "\n";
}

}  // namespace

Config read_config(const sdk::Options& options, const std::string* config_json) {
  HfConfig hf("llama", options, config_json);
  Config c;
  c.layers = hf.integer("layers", "num_hidden_layers", {}, HfConfig::kMostLayers);
  c.width = hf.integer("width", "hidden_size");
  c.heads = hf.integer("heads", "num_attention_heads");
  c.kv_heads = hf.integer("kv_heads", "num_key_value_heads", c.heads);
  c.head_dim = hf.integer("head_dim", "head_dim", c.width % c.heads == 0 ? c.width / c.heads : 0);
  c.mlp_width = hf.integer("mlp_width", "intermediate_size");
  c.vocabulary = hf.integer("vocabulary", "vocab_size");
  c.max_sequence = hf.integer("max_sequence", "max_position_embeddings");
  c.rope_theta = read_theta(hf, options);
  c.rope_scaling = read_scaling(hf, options);
  c.rms_norm_eps = hf.number("rms_norm_eps", "rms_norm_eps", 1e-6);
  c.tie_embeddings = hf.boolean("tie_embeddings", "tie_word_embeddings", false);
  c.eos_token = hf.eos_token();

  hf.require("hidden_act", "silu", "only silu (SwiGLU) is offered");
  hf.require("attention_bias", false, "attention biases are not offered");
  hf.require("mlp_bias", false, "MLP biases are not offered");
  hf.require("attention_dropout", 0.0, "attention dropout is not offered for LLaMA");
  hf.without_effect({"pretraining_tp", "rope_theta"});
  hf.refuse_unknown();
  fill_derived_sizes(c);
  refuse_impossible_sizes(c);
  c.json = write_json(c, hf.document());
  return c;
}

}  // namespace capstan::llama
