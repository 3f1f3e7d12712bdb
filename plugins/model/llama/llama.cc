// LLaMA (Touvron et al. 2023, "LLaMA: open and efficient foundation language models", and its
// successors): RMS norm before each sub-block, rotary positions in the half-split layout of the
// published weights, grouped-query attention, SwiGLU, no biases.
//
// Shapes: B sequences, T positions, C width, H query heads, G key heads, D head_dim, S cached
// positions, F mlp_width, V vocabulary.
#include <string>

#include "plugins/model/llama/config.h"
#include "sdk/model.h"

namespace capstan::llama {
namespace {

using sdk::Graph;
using sdk::Tensor;

class Llama {
 public:
  Llama(const sdk::Host&, const sdk::Options& options, const std::string* config_json)
      : c_(read_config(options, config_json)) {}

  capstan_model_info info() const noexcept {
    auto info = sdk::sized<capstan_model_info>();
    info.vocabulary = c_.vocabulary;
    info.max_sequence = c_.max_sequence;
    info.layers = c_.layers;
    info.width = c_.width;
    info.heads = c_.heads;
    info.kv_heads = c_.kv_heads;
    info.head_dim = c_.head_dim;
    info.eos_token = c_.eos_token;
    return info;
  }

  const std::string& config_json() const noexcept { return c_.json; }

  sdk::Emitted emit(Graph& g, const sdk::Emit& m);

 private:
  Tensor attention(Graph& g, const sdk::Emit& m, Tensor x, const std::string& block, int64_t layer);
  Tensor mlp(Graph& g, const sdk::Emit& m, Tensor x, const std::string& block);
  Tensor norm(Graph& g, const sdk::Emit& m, Tensor x, const std::string& name);
  Tensor matrix(Graph& g, const sdk::Emit& m, const std::string& name, const char* out_axis,
                int64_t out, const char* in_axis, int64_t in);

  sdk::RotaryOptions rotary() const {
    return {.head_dim = c_.head_dim,
            .theta = c_.rope_theta,
            .interleaved = false,
            .scaling_factor = c_.rope_scaling.factor,
            .low_freq_factor = c_.rope_scaling.low_freq_factor,
            .high_freq_factor = c_.rope_scaling.high_freq_factor,
            .original_max_position = c_.rope_scaling.original_max_position};
  }

  Config c_;
};

sdk::Emitted Llama::emit(Graph& g, const sdk::Emit& m) {
  const int64_t longest = m.uses_cache() ? std::max(m.cache_length, m.sequence) : m.sequence;
  if (longest > c_.max_sequence) {
    throw sdk::usage_error(sdk::text(
        "a sequence of ", longest, " positions is longer than the model's max_sequence = ",
        c_.max_sequence, "; shorten it or raise [model] max_sequence"));
  }
  const Tensor table =
      matrix(g, m, "model.embed_tokens.weight", "vocab", c_.vocabulary, "embed", c_.width);

  Tensor x = g.embedding(m.tokens, table);  // [B,T,C]
  for (int64_t layer = 0; layer < c_.layers; ++layer) {
    g.set_layer(static_cast<int32_t>(layer));
    const std::string block = sdk::text("model.layers.", layer);
    x = g.add(
        x, attention(g, m, norm(g, m, x, block + ".input_layernorm"), block + ".self_attn", layer));
    x = g.add(x, mlp(g, m, norm(g, m, x, block + ".post_attention_layernorm"), block + ".mlp"));
  }
  g.set_layer(-1);
  if (m.mode == CAPSTAN_MODE_PREFILL) x = g.select_position(x, m.last);  // [B,1,C]
  const Tensor hidden = norm(g, m, x, "model.norm");
  const Tensor head =
      c_.tie_embeddings ? table
                        : matrix(g, m, "lm_head.weight", "vocab", c_.vocabulary, "embed", c_.width);
  return {hidden, head, c_.vocabulary};
}

Tensor Llama::attention(Graph& g, const sdk::Emit& m, Tensor x, const std::string& block,
                        int64_t layer) {
  const int64_t q_width = c_.heads * c_.head_dim, kv_width = c_.kv_heads * c_.head_dim;
  Tensor q =
      g.linear(x, matrix(g, m, block + ".q_proj.weight", "heads", q_width, "embed", c_.width));
  Tensor k =
      g.linear(x, matrix(g, m, block + ".k_proj.weight", "kv_heads", kv_width, "embed", c_.width));
  const Tensor v =
      g.linear(x, matrix(g, m, block + ".v_proj.weight", "kv_heads", kv_width, "embed", c_.width));
  q = g.rotary(q, m.position, rotary());  // [B,T,H*D]
  k = g.rotary(k, m.position, rotary());  // [B,T,G*D]

  Tensor k_cache, v_cache;  // keys are cached turned
  if (m.uses_cache()) {
    const sdk::Shape shape{m.batch, m.cache_length, kv_width};  // [B,S,G*D]
    const std::vector<std::string> axes{"batch", "position", "kv_heads"};
    k_cache = g.state(sdk::text("cache.k.", layer), shape, m.dtype, "cache", sdk::zeros(), axes);
    v_cache = g.state(sdk::text("cache.v.", layer), shape, m.dtype, "cache", sdk::zeros(), axes);
    g.cache_write(k, m.cache_position, k_cache);
    g.cache_write(v, m.cache_position, v_cache);
  }

  const Tensor o = m.mode == CAPSTAN_MODE_DECODE
                       ? g.attention_cached(q, k_cache, v_cache, m.cache_position, c_.head_dim)
                       : g.attention(q, k, v, {.head_dim = c_.head_dim}).o;
  return g.linear(o, matrix(g, m, block + ".o_proj.weight", "embed", c_.width, "heads", q_width));
}

Tensor Llama::mlp(Graph& g, const sdk::Emit& m, Tensor x, const std::string& block) {
  const Tensor gate = g.linear(
      x, matrix(g, m, block + ".gate_proj.weight", "mlp", c_.mlp_width, "embed", c_.width));
  const Tensor up =
      g.linear(x, matrix(g, m, block + ".up_proj.weight", "mlp", c_.mlp_width, "embed", c_.width));
  return g.linear(g.swiglu(gate, up), matrix(g, m, block + ".down_proj.weight", "embed", c_.width,
                                             "mlp", c_.mlp_width));
}

Tensor Llama::norm(Graph& g, const sdk::Emit& m, Tensor x, const std::string& name) {
  const Tensor weight = g.parameter(
      {name + ".weight", {c_.width}, {"embed"}, m.dtype, sdk::constant(1), sdk::External{}});
  return g.rms_norm(x, weight, c_.rms_norm_eps).y;
}

Tensor Llama::matrix(Graph& g, const sdk::Emit& m, const std::string& name, const char* out_axis,
                     int64_t out, const char* in_axis, int64_t in) {
  constexpr double kStd = 0.02;
  return g.parameter(
      {name, {out, in}, {out_axis, in_axis}, m.dtype, sdk::normal(0, kStd), sdk::External{}});
}

}  // namespace
}  // namespace capstan::llama

CAPSTAN_PLUGIN_ENTRY("llama", "1.0.0", "Apache-2.0", "LLaMA 1 to 3.",
                     capstan::sdk::model_component<capstan::llama::Llama>(
                         "llama", "1.0.0",
                         "LLaMA: RMS norm, rotary positions, grouped-query attention, SwiGLU.",
                         capstan::llama::kOptions));
