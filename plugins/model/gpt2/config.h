// Sizes and settings of a GPT-2, from TOML options or config.json.
#ifndef CAPSTAN_PLUGINS_MODEL_GPT2_CONFIG_H_
#define CAPSTAN_PLUGINS_MODEL_GPT2_CONFIG_H_

#include <cstdint>
#include <string>

#include "sdk/options.h"

namespace capstan::gpt2 {

struct Config {
  int64_t layers, width, heads, vocabulary, max_sequence, mlp_width;
  double layer_norm_eps;
  double embedding_dropout, residual_dropout, attention_dropout;
  int64_t eos_token;  // -1: none
  std::string json;   // config.json of this model

  int64_t head_dim() const { return width / heads; }
};

inline constexpr capstan_option kOptions[] = {
    sdk::int_option("layers", "12", "Number of transformer blocks.").range(1, 100000),
    sdk::int_option("width", "768", "Channels of the residual stream.").range(1, 1 << 20),
    sdk::int_option("heads", "12", "Attention heads; must divide width.").range(1, 1 << 16),
    sdk::int_option("vocabulary", "50257", "Number of token ids.").range(1, 1 << 30),
    sdk::int_option("max_sequence", "1024", "Longest sequence: rows of the position table.")
        .range(1, 1 << 30),
    sdk::int_option("mlp_width", "0", "Hidden channels of the MLP; 0: four times width.")
        .range(0, 1 << 24),
    sdk::float_option("layer_norm_eps", "1e-5", "Added to the variance in layer norms.")
        .range(0, 1),
    sdk::float_option("dropout", "0.0", "Probability of all three dropouts.").range(0, 0.999),
    sdk::float_option("embedding_dropout", nullptr,
                      "Dropout after the embeddings; absent: dropout.")
        .range(0, 0.999),
    sdk::float_option("residual_dropout", nullptr,
                      "Dropout of each block's two outputs; absent: dropout.")
        .range(0, 0.999),
    sdk::float_option("attention_dropout", nullptr,
                      "Dropout of attention weights; absent: dropout.")
        .range(0, 0.999),
    sdk::int_option("eos_token", "-1", "Token that ends a text; -1: none.").range(-1, 1 << 30),
};

// Throws sdk::Error on a contradiction, an impossible size or an unknown feature.
Config read_config(const sdk::Options& options, const std::string* config_json);

}  // namespace capstan::gpt2

#endif  // CAPSTAN_PLUGINS_MODEL_GPT2_CONFIG_H_
