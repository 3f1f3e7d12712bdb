// Sizes and settings of a LLaMA, from TOML options or config.json.
#ifndef CAPSTAN_PLUGINS_MODEL_LLAMA_CONFIG_H_
#define CAPSTAN_PLUGINS_MODEL_LLAMA_CONFIG_H_

#include <cstdint>
#include <string>

#include "sdk/options.h"

namespace capstan::llama {

// The wavelength-dependent stretching of rotary frequencies of LLaMA 3.1 (Dubey et al. 2024, the
// published reference code). original_max_position 0: none.
struct RopeScaling {
  double factor = 1, low_freq_factor = 1, high_freq_factor = 4;
  int64_t original_max_position = 0;
};

struct Config {
  int64_t layers, width, heads, kv_heads, head_dim, mlp_width, vocabulary, max_sequence;
  double rope_theta, rms_norm_eps;
  RopeScaling rope_scaling;
  bool tie_embeddings;
  int64_t eos_token;  // -1: none
  std::string json;   // config.json of this model
};

inline constexpr capstan_option kOptions[] = {
    sdk::int_option("layers", "12", "Number of transformer blocks.").range(1, 100000),
    sdk::int_option("width", "768", "Channels of the residual stream.").range(1, 1 << 20),
    sdk::int_option("heads", "12", "Query heads.").range(1, 1 << 16),
    sdk::int_option("kv_heads", "0", "Key and value heads, a divisor of heads; 0: heads.")
        .range(0, 1 << 16),
    sdk::int_option("head_dim", "0", "Channels of a head, even; 0: width / heads.")
        .range(0, 1 << 16),
    sdk::int_option("mlp_width", "0",
                    "Hidden channels of the MLP; 0: 8/3 of width, rounded up to a multiple of 256.")
        .range(0, 1 << 24),
    sdk::int_option("vocabulary", "32000", "Number of token ids.").range(1, 1 << 30),
    sdk::int_option("max_sequence", "2048", "Longest sequence, in tokens.").range(1, 1 << 30),
    sdk::float_option("rope_theta", "10000.0", "Base of the rotary wavelengths.").range(1, 1e12),
    sdk::float_option("rope_scaling.factor", "8.0", "llama3 scaling: stretch of long wavelengths.")
        .range(1, 1e6),
    sdk::float_option(
        "rope_scaling.low_freq_factor", "1.0",
        "llama3 scaling: wavelengths above original_max_position over this are stretched whole.")
        .range(1e-6, 1e6),
    sdk::float_option(
        "rope_scaling.high_freq_factor", "4.0",
        "llama3 scaling: wavelengths below original_max_position over this are left alone.")
        .range(1e-6, 1e6),
    sdk::int_option("rope_scaling.original_max_position", "0",
                    "llama3 scaling: longest sequence before stretching; 0: no scaling.")
        .range(0, 1 << 30),
    sdk::float_option("rms_norm_eps", "1e-5", "Added to the mean square in RMS norms.").range(0, 1),
    sdk::bool_option("tie_embeddings", "false", "Use the token table as the head."),
    sdk::int_option("eos_token", "-1", "Token that ends a text; -1: none.").range(-1, 1 << 30),
};

// Throws sdk::Error on a contradiction, an impossible size or an unknown feature.
Config read_config(const sdk::Options& options, const std::string* config_json);

}  // namespace capstan::llama

#endif  // CAPSTAN_PLUGINS_MODEL_LLAMA_CONFIG_H_
