// GPT-2 (Radford, Wu, Child, Luan, Amodei & Sutskever 2019, "Language models are unsupervised
// multitask learners"): learned positions, layer norm before each sub-block (pre-LN), tanh GELU,
// biases everywhere, the head tied to the token table.
//
// Shapes: B sequences, T positions, C width, F mlp_width, S cached positions, V vocabulary.
#include <cmath>
#include <string>

#include "plugins/model/gpt2/config.h"
#include "sdk/model.h"

namespace capstan::gpt2 {
namespace {

using sdk::Graph;
using sdk::Tensor;

class Gpt2 {
 public:
  Gpt2(const sdk::Host&, const sdk::Options& options, const std::string* config_json)
      : c_(read_config(options, config_json)) {}

  capstan_model_info info() const noexcept {
    auto info = sdk::sized<capstan_model_info>();
    info.vocabulary = c_.vocabulary;
    info.max_sequence = c_.max_sequence;
    info.layers = c_.layers;
    info.width = c_.width;
    info.heads = c_.heads;
    info.kv_heads = c_.heads;
    info.head_dim = c_.head_dim();
    info.eos_token = c_.eos_token;
    return info;
  }

  const std::string& config_json() const noexcept { return c_.json; }

  sdk::Emitted emit(Graph& g, const sdk::Emit& m);

 private:
  enum class Cut { kWhole, kQuery, kKey, kValue };  // which third of c_attn a parameter is

  Tensor attention(Graph& g, const sdk::Emit& m, Tensor x, const std::string& block, int64_t layer);
  Tensor mlp(Graph& g, const sdk::Emit& m, Tensor x, const std::string& block);
  Tensor norm(Graph& g, const sdk::Emit& m, Tensor x, const std::string& name);
  Tensor linear(Graph& g, const sdk::Emit& m, Tensor x, const std::string& name,
                const std::string& published, const char* out_axis, int64_t out,
                const char* in_axis, int64_t in, double std, Cut cut = Cut::kWhole);
  Tensor dropout(Graph& g, const sdk::Emit& m, Tensor x, double p, const std::string& name);

  double residual_std() const { return kStd / std::sqrt(2.0 * static_cast<double>(c_.layers)); }

  static constexpr double kStd = 0.02;  // of every weight but the residual projections
  Config c_;
};

sdk::Emitted Gpt2::emit(Graph& g, const sdk::Emit& m) {
  const int64_t longest = m.uses_cache() ? std::max(m.cache_length, m.sequence) : m.sequence;
  if (longest > c_.max_sequence) {
    throw sdk::usage_error(sdk::text(
        "a sequence of ", longest, " positions is longer than the model's max_sequence = ",
        c_.max_sequence, "; shorten it or raise [model] max_sequence"));
  }
  const Tensor wte = g.parameter({"wte.weight",
                                  {c_.vocabulary, c_.width},
                                  {"vocab", "embed"},
                                  m.dtype,
                                  sdk::normal(0, kStd),
                                  sdk::External{}});
  const Tensor wpe = g.parameter({"wpe.weight",
                                  {c_.max_sequence, c_.width},
                                  {"position", "embed"},
                                  m.dtype,
                                  sdk::normal(0, kStd),
                                  sdk::External{}});

  Tensor x = g.add(g.embedding(m.tokens, wte), g.embedding(m.position, wpe));  // [B,T,C]
  x = dropout(g, m, x, c_.embedding_dropout, "embedding");
  for (int64_t layer = 0; layer < c_.layers; ++layer) {
    g.set_layer(static_cast<int32_t>(layer));
    const std::string block = sdk::text("h.", layer);
    x = g.add(x, attention(g, m, norm(g, m, x, block + ".ln_1"), block, layer));
    x = g.add(x, mlp(g, m, norm(g, m, x, block + ".ln_2"), block));
  }
  g.set_layer(-1);
  if (m.mode == CAPSTAN_MODE_PREFILL) x = g.select_position(x, m.last);  // [B,1,C]
  return {norm(g, m, x, "ln_f"), wte, c_.vocabulary};
}

Tensor Gpt2::attention(Graph& g, const sdk::Emit& m, Tensor x, const std::string& block,
                       int64_t layer) {
  const std::string attn = block + ".attn";
  const int64_t width = c_.width;
  const std::string fused = attn + ".c_attn";
  const Tensor q =
      linear(g, m, x, attn + ".q", fused, "heads", width, "embed", width, kStd, Cut::kQuery);
  const Tensor k =
      linear(g, m, x, attn + ".k", fused, "kv_heads", width, "embed", width, kStd, Cut::kKey);
  const Tensor v =
      linear(g, m, x, attn + ".v", fused, "kv_heads", width, "embed", width, kStd, Cut::kValue);

  Tensor k_cache, v_cache;
  if (m.uses_cache()) {
    const sdk::Shape shape{m.batch, m.cache_length, width};  // [B,S,C]
    const std::vector<std::string> axes{"batch", "position", "kv_heads"};
    k_cache = g.state(sdk::text("cache.k.", layer), shape, m.dtype, "cache", sdk::zeros(), axes);
    v_cache = g.state(sdk::text("cache.v.", layer), shape, m.dtype, "cache", sdk::zeros(), axes);
    g.cache_write(k, m.cache_position, k_cache);
    g.cache_write(v, m.cache_position, v_cache);
  }

  Tensor o;  // [B,T,C]
  if (m.mode == CAPSTAN_MODE_DECODE) {
    o = g.attention_cached(q, k_cache, v_cache, m.cache_position, c_.head_dim());
  } else {
    sdk::AttentionOptions options{.head_dim = c_.head_dim()};
    if (m.training && c_.attention_dropout > 0) {
      options.dropout = c_.attention_dropout;
      options.key = sdk::rng_key(attn + ".dropout");
      options.step = m.step;
      options.sample = m.sample;
    }
    o = g.attention(q, k, v, options).o;
  }
  const Tensor y = linear(g, m, o, attn + ".o", attn + ".c_proj", "embed", width, "heads", width,
                          residual_std());
  return dropout(g, m, y, c_.residual_dropout, attn + ".residual");
}

Tensor Gpt2::mlp(Graph& g, const sdk::Emit& m, Tensor x, const std::string& block) {
  const std::string name = block + ".mlp";
  const Tensor up =
      linear(g, m, x, name + ".up", name + ".c_fc", "mlp", c_.mlp_width, "embed", c_.width, kStd);
  const Tensor y = linear(g, m, g.gelu(up), name + ".down", name + ".c_proj", "embed", c_.width,
                          "mlp", c_.mlp_width, residual_std());
  return dropout(g, m, y, c_.residual_dropout, name + ".residual");
}

Tensor Gpt2::norm(Graph& g, const sdk::Emit& m, Tensor x, const std::string& name) {
  const Tensor weight = g.parameter(
      {name + ".weight", {c_.width}, {"embed"}, m.dtype, sdk::constant(1), sdk::External{}});
  const Tensor bias =
      g.parameter({name + ".bias", {c_.width}, {"embed"}, m.dtype, sdk::zeros(), sdk::External{}});
  return g.layer_norm(x, weight, bias, c_.layer_norm_eps).y;
}

// A biased linear. The published weights are stored [in, out]; those of q, k and v are the three
// column ranges of one tensor [C, 3C].
Tensor Gpt2::linear(Graph& g, const sdk::Emit& m, Tensor x, const std::string& name,
                    const std::string& published, const char* out_axis, int64_t out,
                    const char* in_axis, int64_t in, double std, Cut cut) {
  const int64_t parts = cut == Cut::kWhole ? 1 : 3;
  const int64_t part = cut == Cut::kKey ? 1 : cut == Cut::kValue ? 2 : 0;
  const Tensor weight =
      g.parameter({name + ".weight",
                   {out, in},
                   {out_axis, in_axis},
                   m.dtype,
                   sdk::normal(0, std),
                   sdk::External{published + ".weight", {in, parts * out}, {0, part * out}, true}});
  const Tensor bias =
      g.parameter({name + ".bias",
                   {out},
                   {out_axis},
                   m.dtype,
                   sdk::zeros(),
                   sdk::External{published + ".bias", {parts * out}, {part * out}, false}});
  return g.linear(x, weight, bias);
}

Tensor Gpt2::dropout(Graph& g, const sdk::Emit& m, Tensor x, double p, const std::string& name) {
  if (!m.training || p == 0) return x;
  return g.dropout(x, m.coordinates(), p, name + ".dropout");
}

}  // namespace
}  // namespace capstan::gpt2

CAPSTAN_PLUGIN_ENTRY("gpt2", "1.0.0", "Apache-2.0", "GPT-2 as published in 2019.",
                     capstan::sdk::model_component<capstan::gpt2::Gpt2>(
                         "gpt2", "1.0.0", "GPT-2: learned positions, pre-LN, tanh GELU, tied head.",
                         capstan::gpt2::kOptions));
