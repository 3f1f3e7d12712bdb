#include "plugins/model/gpt2/config.h"

#include "plugins/model/common/hf_config.h"
#include "sdk/error.h"

namespace capstan::gpt2 {
namespace {

using models::HfConfig;
using models::Json;

// One of the three dropouts: its own option, else `dropout` if the user set it, else the file's.
double read_dropout(HfConfig& hf, const sdk::Options& options, const char* own, const char* key) {
  constexpr double kPublished = 0.1;  // what a config.json without the key means
  const double general = hf.training_number("dropout", key, kPublished);
  const double p = options.has(own) ? options.get_float(own) : general;
  if (!(p >= 0 && p < 1)) {
    throw sdk::data_error(sdk::text(key, " = ", p, " in config.json is not a probability below 1"));
  }
  return p;
}

void refuse_impossible_sizes(const Config& c) {
  if (c.width % c.heads != 0) {
    throw sdk::usage_error(sdk::text("[model] heads = ", c.heads, " does not divide width = ",
                                     c.width, "; choose a number of heads that does"));
  }
  if (!(c.layer_norm_eps >= 0 && c.layer_norm_eps <= 1)) {
    throw sdk::usage_error(
        sdk::text("[model] layer_norm_eps = ", c.layer_norm_eps, " is not between 0 and 1"));
  }
  if (c.eos_token >= c.vocabulary) {
    throw sdk::usage_error(sdk::text("[model] eos_token = ", c.eos_token,
                                     " is not below vocabulary = ", c.vocabulary));
  }
}

std::string write_json(const Config& c, Json document) {
  document["model_type"] = "gpt2";
  document["architectures"] = {"GPT2LMHeadModel"};
  document["activation_function"] = "gelu_new";
  document["vocab_size"] = c.vocabulary;
  document["n_positions"] = c.max_sequence;
  document["n_embd"] = c.width;
  document["n_layer"] = c.layers;
  document["n_head"] = c.heads;
  document["n_inner"] = c.mlp_width == 4 * c.width ? Json(nullptr) : Json(c.mlp_width);
  document["layer_norm_epsilon"] = c.layer_norm_eps;
  document["embd_pdrop"] = c.embedding_dropout;
  document["resid_pdrop"] = c.residual_dropout;
  document["attn_pdrop"] = c.attention_dropout;
  document["tie_word_embeddings"] = true;
  if (c.eos_token >= 0) document["eos_token_id"] = c.eos_token;
  if (!document.contains("torch_dtype")) document["torch_dtype"] = "float32";
  return document.dump(2) + "\n";
}

}  // namespace

Config read_config(const sdk::Options& options, const std::string* config_json) {
  HfConfig hf("gpt2", options, config_json);
  Config c;
  c.layers = hf.integer("layers", "n_layer", {}, HfConfig::kMostLayers);
  c.width = hf.integer("width", "n_embd");
  c.heads = hf.integer("heads", "n_head");
  c.vocabulary = hf.integer("vocabulary", "vocab_size");
  c.max_sequence = hf.integer("max_sequence", "n_positions");
  c.mlp_width = hf.integer("mlp_width", "n_inner", 4 * c.width);
  if (c.mlp_width == 0) c.mlp_width = 4 * c.width;
  c.layer_norm_eps = hf.number("layer_norm_eps", "layer_norm_epsilon", 1e-5);
  c.embedding_dropout = read_dropout(hf, options, "embedding_dropout", "embd_pdrop");
  c.residual_dropout = read_dropout(hf, options, "residual_dropout", "resid_pdrop");
  c.attention_dropout = read_dropout(hf, options, "attention_dropout", "attn_pdrop");
  c.eos_token = hf.eos_token();

  hf.require("activation_function", "gelu_new", "only gelu_new (the tanh form) is offered");
  hf.require("scale_attn_weights", true, "attention is always scaled by 1/sqrt(head_dim)");
  hf.require("scale_attn_by_inverse_layer_idx", false, "attention is not scaled by layer");
  hf.require("tie_word_embeddings", true, "the head is always tied to the token table");
  hf.require("n_ctx", c.max_sequence, "n_ctx must equal n_positions");
  hf.without_effect({"reorder_and_upcast_attn", "summary_activation", "summary_first_dropout",
                     "summary_proj_to_labels", "summary_type", "summary_use_proj"});
  hf.refuse_unknown();
  refuse_impossible_sizes(c);
  c.json = write_json(c, hf.document());
  return c;
}

}  // namespace capstan::gpt2
