// An emitter of ops with a cursor: one named function for each standard op (the catalogue in
// plugin_api/ops.h says what each computes), and `emit` for anything else.
//
//   sdk::Graph g(program, {"forward/0", {}});
//   g.set_layer(3);
//   Tensor h = g.rms_norm(x, norm_weight, 1e-5).y;
//   Tensor q = g.linear(h, q_weight);
#ifndef CAPSTAN_SDK_GRAPH_H_
#define CAPSTAN_SDK_GRAPH_H_

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sdk/program.h"

namespace capstan::sdk {

// How a parameter, state or constant starts.
struct Init {
  int32_t kind = CAPSTAN_INIT_ZEROS;
  double a = 0, b = 0;
};
constexpr Init zeros() { return {CAPSTAN_INIT_ZEROS, 0, 0}; }
constexpr Init constant(double value) { return {CAPSTAN_INIT_CONSTANT, value, 0}; }
constexpr Init normal(double mean, double std) { return {CAPSTAN_INIT_NORMAL, mean, std}; }
constexpr Init uniform(double low, double high) { return {CAPSTAN_INIT_UNIFORM, low, high}; }

// What an op made.
struct Emission {
  Op op;
  std::vector<Tensor> outputs;
  Tensor operator[](size_t i) const { return outputs.at(i); }
};

struct NormOut {
  Tensor y, mean, rstd;  // rms_norm has no mean
};
struct NormGrad {
  Tensor dx, dweight, dbias;
};
struct AttentionOut {
  Tensor o, lse;
};
struct AttentionGrad {
  Tensor dq, dk, dv;
};
struct LossGrad {
  Tensor loss, dx, dweight;
};

struct RotaryOptions {
  int64_t head_dim = 0;
  double theta = 10000.0;
  bool interleaved = false;
  double scaling_factor = 1.0, low_freq_factor = 1.0, high_freq_factor = 4.0;
  int64_t original_max_position = 0;  // 0: no llama3 scaling

  Attrs attrs(bool inverse = false) const {
    Attrs out{{"head_dim", head_dim}, {"theta", theta}};
    if (inverse) out.set({"inverse", 1});
    if (interleaved) out.set({"interleaved", 1});
    if (original_max_position > 0) {
      out.set({"scaling_factor", scaling_factor});
      out.set({"low_freq_factor", low_freq_factor});
      out.set({"high_freq_factor", high_freq_factor});
      out.set({"original_max_position", original_max_position});
    }
    return out;
  }
};

struct AttentionOptions {
  int64_t head_dim = 0;
  bool causal = true;
  double scale = 0;    // 0: 1/sqrt(head_dim)
  double dropout = 0;  // > 0 needs step and sample
  int64_t key = 0;
  Tensor step{}, sample{};

  Attrs attrs() const {
    Attrs out{{"head_dim", head_dim}, {"causal", causal ? 1 : 0}};
    if (scale != 0) out.set({"scale", scale});
    if (dropout > 0) {
      out.set({"dropout", dropout});
      out.set({"key", key});
    }
    return out;
  }
};

// Inputs that a random op draws its coordinates from.
struct RandomCoordinates {
  Tensor step, sample, position;  // i64[1], i64[B], i32[B,T]
};

class Graph {
 public:
  Graph(Program program, Position at) : program_(program), at_(std::move(at)) {}

  Program& program() { return program_; }
  const Position& position() const { return at_; }
  void move_to(Position at) { at_ = std::move(at); }

  // Marks of every op emitted from here on.
  void set_layer(int32_t layer) { layer_ = layer; }
  void set_role(int32_t role) { role_ = role; }
  void set_when(std::optional<capstan_when> when) { when_ = when; }

  // Any op. `outputs` names existing tensors to write or update; empty, or Tensor{} entries: new
  // ones.
  Emission emit(std::string kind, std::vector<Tensor> inputs, Attrs attrs = {},
                std::vector<Tensor> outputs = {}) {
    OpInfo info;
    info.kind = std::move(kind);
    info.inputs = std::move(inputs);
    info.outputs = std::move(outputs);
    info.attrs = std::move(attrs);
    info.layer = layer_;
    info.role = role_;
    info.when = when_;
    const Op op = program_.add(at_, info);
    return {op, program_.get(op).outputs};
  }
  // The sole (or first) output of an op.
  Tensor emit1(std::string kind, std::vector<Tensor> inputs, Attrs attrs = {}, Tensor into = {}) {
    return emit(std::move(kind), std::move(inputs), std::move(attrs), given({into})).outputs.at(0);
  }

  // ---- persistent tensors: found by name when the program already has them ----------------------

  struct Parameter {
    std::string name;
    Shape shape;
    std::vector<std::string> axes;  // logical axis of each dim
    capstan_dtype dtype = kF32;
    Init init;
    std::optional<External> external;
    bool trainable = true;
  };
  Tensor parameter(const Parameter& p) {
    TensorInfo info = persistent(p.name, p.shape, p.dtype, CAPSTAN_PARAMETER, p.init);
    info.dim_axes = p.axes;
    info.trainable = p.trainable;
    info.external = p.external;
    return find_or_add(info);
  }
  Tensor state(const std::string& name, const Shape& shape, capstan_dtype dtype,
               const std::string& role, Init init = zeros(), std::vector<std::string> axes = {}) {
    TensorInfo info = persistent(name, shape, dtype, CAPSTAN_STATE, init);
    info.role = role;
    info.dim_axes = std::move(axes);
    return find_or_add(info);
  }
  Tensor constant_tensor(const std::string& name, const Shape& shape, capstan_dtype dtype,
                         Init init) {
    return find_or_add(persistent(name, shape, dtype, CAPSTAN_CONSTANT, init));
  }

  // ---- dense layers -----------------------------------------------------------------------------

  Tensor embedding(Tensor ids, Tensor table) { return emit1("embedding", {ids, table}); }
  Tensor embedding_grad(Tensor ids, Tensor dy, int64_t vocab, Tensor dtable = {}) {
    return emit1("embedding_grad", {ids, dy}, {{"vocab", vocab}}, dtable);
  }
  Tensor linear(Tensor x, Tensor weight, Tensor bias = {}) {
    return emit1("linear", with_optional({x, weight}, bias));
  }
  Tensor linear_dx(Tensor dy, Tensor weight) { return emit1("linear_dx", {dy, weight}); }
  Tensor linear_dw(Tensor x, Tensor dy, Tensor dweight = {}) {
    return emit1("linear_dw", {x, dy}, {}, dweight);
  }
  Tensor bias_grad(Tensor dy, Tensor dbias = {}) { return emit1("bias_grad", {dy}, {}, dbias); }
  Tensor matmul(Tensor a, Tensor b, bool transpose_a = false, bool transpose_b = false) {
    return emit1("matmul", {a, b},
                 {{"transpose_a", transpose_a ? 1 : 0}, {"transpose_b", transpose_b ? 1 : 0}});
  }

  // ---- normalisation and activation
  // -----------------------------------------------------------------

  NormOut layer_norm(Tensor x, Tensor weight, Tensor bias, double eps) {
    const Emission e = emit("layer_norm", with_optional({x, weight}, bias), {{"eps", eps}});
    return {e[0], e[1], e[2]};
  }
  NormGrad layer_norm_grad(Tensor dy, Tensor x, Tensor weight, Tensor mean, Tensor rstd,
                           Tensor dweight = {}, Tensor dbias = {}) {
    const Emission e =
        emit("layer_norm_grad", {dy, x, weight, mean, rstd}, {}, given({Tensor{}, dweight, dbias}));
    return {e[0], e[1], e[2]};
  }
  NormOut rms_norm(Tensor x, Tensor weight, double eps) {
    const Emission e = emit("rms_norm", {x, weight}, {{"eps", eps}});
    return {e[0], {}, e[1]};
  }
  NormGrad rms_norm_grad(Tensor dy, Tensor x, Tensor weight, Tensor rstd, Tensor dweight = {}) {
    const Emission e = emit("rms_norm_grad", {dy, x, weight, rstd}, {}, given({Tensor{}, dweight}));
    return {e[0], e[1], {}};
  }
  Tensor gelu(Tensor x, const char* approximate = "tanh") {
    return emit1("gelu", {x}, {{"approximate", approximate}});
  }
  Tensor gelu_grad(Tensor dy, Tensor x, const char* approximate = "tanh") {
    return emit1("gelu_grad", {dy, x}, {{"approximate", approximate}});
  }
  Tensor swiglu(Tensor gate, Tensor up) { return emit1("swiglu", {gate, up}); }
  std::pair<Tensor, Tensor> swiglu_grad(Tensor dy, Tensor gate, Tensor up) {
    const Emission e = emit("swiglu_grad", {dy, gate, up});
    return {e[0], e[1]};
  }
  Tensor softmax(Tensor x) { return emit1("softmax", {x}); }
  Tensor softmax_grad(Tensor dy, Tensor y) { return emit1("softmax_grad", {dy, y}); }
  // "relu", "silu", "sigmoid", "tanh", "exp", "log", "sqrt", "rsqrt", "reciprocal", "neg",
  // "square", "abs"
  Tensor unary(const char* function, Tensor x) { return emit1(function, {x}); }
  Tensor unary_grad(const char* function, Tensor dy, Tensor x) {
    return emit1("unary_grad", {dy, x}, {{"function", function}});
  }
  // `name` makes the RNG key: give every dropout of a model its own.
  Tensor dropout(Tensor x, const RandomCoordinates& at, double p, std::string_view name) {
    return emit1("dropout", {x, at.step, at.sample, at.position},
                 {{"p", p}, {"key", rng_key(name)}});
  }

  // ---- attention --------------------------------------------------------------------------------

  Tensor rotary(Tensor x, Tensor position, const RotaryOptions& o, bool inverse = false) {
    return emit1("rotary", {x, position}, o.attrs(inverse));
  }
  AttentionOut attention(Tensor q, Tensor k, Tensor v, const AttentionOptions& o) {
    std::vector<Tensor> inputs{q, k, v};
    if (o.dropout > 0) inputs.insert(inputs.end(), {o.step, o.sample});
    const Emission e = emit("attention", std::move(inputs), o.attrs());
    return {e[0], e[1]};
  }
  AttentionGrad attention_grad(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse,
                               const AttentionOptions& o) {
    std::vector<Tensor> inputs{dout, q, k, v, out, lse};
    if (o.dropout > 0) inputs.insert(inputs.end(), {o.step, o.sample});
    const Emission e = emit("attention_grad", std::move(inputs), o.attrs());
    return {e[0], e[1], e[2]};
  }
  Tensor attention_cached(Tensor q, Tensor k_cache, Tensor v_cache, Tensor position,
                          int64_t head_dim, double scale = 0) {
    Attrs attrs{{"head_dim", head_dim}};
    if (scale != 0) attrs.set({"scale", scale});
    return emit1("attention_cached", {q, k_cache, v_cache, position}, std::move(attrs));
  }
  void cache_write(Tensor src, Tensor position, Tensor cache) {
    emit("cache_write", {src, position}, {}, {cache});
  }
  Tensor select_position(Tensor x, Tensor index) { return emit1("select_position", {x, index}); }

  // ---- losses; valid_vocab 0: all rows
  // ----------------------------------------------------------------

  Tensor linear_cross_entropy(Tensor h, Tensor weight, Tensor targets, Tensor count,
                              int64_t valid_vocab = 0) {
    return emit1("linear_cross_entropy", {h, weight, targets, count},
                 {{"valid_vocab", valid_vocab}});
  }
  LossGrad linear_cross_entropy_grad(Tensor h, Tensor weight, Tensor targets, Tensor count,
                                     int64_t valid_vocab = 0, Tensor dweight = {}) {
    const Emission e = emit("linear_cross_entropy_grad", {h, weight, targets, count},
                            {{"valid_vocab", valid_vocab}}, given({Tensor{}, Tensor{}, dweight}));
    return {e[0], e[1], e[2]};
  }
  Tensor cross_entropy(Tensor logits, Tensor targets, Tensor count) {
    return emit1("cross_entropy", {logits, targets, count});
  }
  LossGrad cross_entropy_grad(Tensor logits, Tensor targets, Tensor count) {
    const Emission e = emit("cross_entropy_grad", {logits, targets, count});
    return {e[0], e[1], {}};
  }
  Tensor lce_stats(Tensor h, Tensor weight, Tensor targets, int64_t vocab_start,
                   int64_t valid_vocab = 0) {
    return emit1("lce_stats", {h, weight, targets},
                 {{"vocab_start", vocab_start}, {"valid_vocab", valid_vocab}});
  }
  std::pair<Tensor, Tensor> lce_merge(Tensor stats, Tensor targets, Tensor count) {
    const Emission e = emit("lce_merge", {stats, targets, count});
    return {e[0], e[1]};
  }
  std::pair<Tensor, Tensor> lce_grad(Tensor h, Tensor weight, Tensor targets, Tensor lse,
                                     Tensor count, int64_t vocab_start, int64_t valid_vocab = 0,
                                     Tensor dweight = {}) {
    const Emission e = emit("lce_grad", {h, weight, targets, lse, count},
                            {{"vocab_start", vocab_start}, {"valid_vocab", valid_vocab}},
                            given({Tensor{}, dweight}));
    return {e[0], e[1]};
  }

  // ---- arithmetic and shape
  // -------------------------------------------------------------------------

  Tensor add(Tensor a, Tensor b) { return emit1("add", {a, b}); }
  Tensor sub(Tensor a, Tensor b) { return emit1("sub", {a, b}); }
  Tensor mul(Tensor a, Tensor b) { return emit1("mul", {a, b}); }
  Tensor div(Tensor a, Tensor b) { return emit1("div", {a, b}); }
  Tensor scale(Tensor x, double factor) { return emit1("scale", {x}, {{"factor", factor}}); }
  Tensor copy(Tensor x, Tensor into = {}) { return emit1("copy", {x}, {}, into); }
  Tensor cast(Tensor x, capstan_dtype dtype, Tensor into = {}) {
    return emit1("cast", {x}, {{"dtype", dtype_name(dtype)}}, into);
  }
  void accumulate(Tensor x, Tensor into) { emit("accumulate", {x}, {}, {into}); }
  Tensor reshape(Tensor x, const Shape& shape) { return emit1("reshape", {x}, {{"shape", shape}}); }
  Tensor transpose(Tensor x, const Shape& perm) {
    return emit1("transpose", {x}, {{"perm", perm}});
  }
  Tensor slice(Tensor x, int64_t dim, int64_t start, int64_t size) {
    return emit1("slice", {x}, {{"dim", dim}, {"start", start}, {"size", size}});
  }
  Tensor pad(Tensor x, int64_t dim, int64_t start, int64_t size) {
    return emit1("pad", {x}, {{"dim", dim}, {"start", start}, {"size", size}});
  }
  Tensor concat(std::vector<Tensor> xs, int64_t dim) {
    return emit1("concat", std::move(xs), {{"dim", dim}});
  }
  Tensor reduce_sum(Tensor x, int64_t dim) { return emit1("reduce_sum", {x}, {{"dim", dim}}); }
  Tensor reduce_max(Tensor x, int64_t dim) { return emit1("reduce_max", {x}, {{"dim", dim}}); }
  Tensor broadcast(Tensor x, int64_t dim, int64_t size) {
    return emit1("broadcast", {x}, {{"dim", dim}, {"size", size}});
  }
  Tensor gather(Tensor x, Tensor index) { return emit1("gather", {x, index}); }
  Tensor gather_grad(Tensor index, Tensor dy, int64_t rows) {
    return emit1("gather_grad", {index, dy}, {{"rows", rows}});
  }
  Tensor fill(double value, const Shape& shape, capstan_dtype dtype = kF32) {
    return emit1("fill", {}, {{"value", value}, {"shape", shape}, {"dtype", dtype_name(dtype)}});
  }
  std::pair<Tensor, Tensor> quantize(Tensor x, int64_t block) {
    const Emission e = emit("quantize", {x}, {{"block", block}});
    return {e[0], e[1]};
  }
  Tensor dequantize(Tensor codes, Tensor scales, int64_t block, capstan_dtype dtype) {
    return emit1("dequantize", {codes, scales}, {{"block", block}, {"dtype", dtype_name(dtype)}});
  }

  // ---- update
  // ---------------------------------------------------------------------------------------

  Tensor sum_squares(std::vector<Tensor> xs) { return emit1("sum_squares", std::move(xs)); }
  Tensor all_finite(std::vector<Tensor> xs) { return emit1("all_finite", std::move(xs)); }
  // (norm, scale) of the squared norm.
  std::pair<Tensor, Tensor> clip_scale(Tensor norm2, double clip) {
    const Emission e = emit("clip_scale", {norm2}, {{"clip", clip}});
    return {e[0], e[1]};
  }

  // ---- communication
  // --------------------------------------------------------------------------------

  Tensor copy_to_group(Tensor x, const std::string& axis) {
    return emit1("copy_to_group", {x}, {{"axis", axis}});
  }
  Tensor reduce_from_group(Tensor x, const std::string& axis) {
    return emit1("reduce_from_group", {x}, {{"axis", axis}});
  }
  Tensor all_reduce(Tensor x, const std::string& axis, const char* reduce = "sum",
                    Tensor into = {}) {
    return emit1("all_reduce", {x}, {{"axis", axis}, {"reduce", reduce}}, into);
  }
  Tensor all_gather(Tensor x, const std::string& axis, int64_t dim, Tensor into = {}) {
    return emit1("all_gather", {x}, {{"axis", axis}, {"dim", dim}}, into);
  }
  Tensor reduce_scatter(Tensor x, const std::string& axis, int64_t dim, Tensor into = {}) {
    return emit1("reduce_scatter", {x}, {{"axis", axis}, {"dim", dim}}, into);
  }
  Tensor shard(Tensor x, const std::string& axis, int64_t dim) {
    return emit1("shard", {x}, {{"axis", axis}, {"dim", dim}});
  }
  Tensor all_to_all(Tensor x, const std::string& axis, int64_t from, int64_t to) {
    return emit1("all_to_all", {x}, {{"axis", axis}, {"from", from}, {"to", to}});
  }
  Tensor broadcast_from(Tensor x, const std::string& axis, int64_t root) {
    return emit1("broadcast_from", {x}, {{"axis", axis}, {"root", root}});
  }
  void send(Tensor x, const std::string& axis, int64_t peer, int64_t channel) {
    emit("send", {x}, {{"axis", axis}, {"peer", peer}, {"channel", channel}});
  }
  Tensor recv(const std::string& axis, int64_t peer, int64_t channel, const Shape& shape,
              capstan_dtype dtype) {
    return emit1("recv", {},
                 {{"axis", axis},
                  {"peer", peer},
                  {"channel", channel},
                  {"shape", shape},
                  {"dtype", dtype_name(dtype)}});
  }
  Tensor reduce_gradient(Tensor x, const std::string& axis, Tensor into = {}) {
    return emit1("reduce_gradient", {x}, {{"axis", axis}}, into);
  }

 private:
  // An outputs list, empty when it names nothing (the op then defines how many it has).
  static std::vector<Tensor> given(std::vector<Tensor> outputs) {
    for (const Tensor t : outputs) {
      if (t) return outputs;
    }
    return {};
  }
  static std::vector<Tensor> with_optional(std::vector<Tensor> inputs, Tensor last) {
    if (last) inputs.push_back(last);
    return inputs;
  }
  TensorInfo persistent(const std::string& name, const Shape& shape, capstan_dtype dtype,
                        int32_t kind, Init init) const {
    TensorInfo info;
    info.name = name;
    info.shape = shape;
    info.dtype = dtype;
    info.kind = kind;
    info.init = init.kind;
    info.init_a = init.a;
    info.init_b = init.b;
    info.layer = layer_;
    return info;
  }
  Tensor find_or_add(const TensorInfo& info) {
    const Tensor existing = program_.find(info.name);
    return existing ? existing : program_.add(info);
  }

  Program program_;
  Position at_;
  int32_t layer_ = -1;
  int32_t role_ = CAPSTAN_ROLE_NONE;
  std::optional<capstan_when> when_;
};

}  // namespace capstan::sdk

#endif  // CAPSTAN_SDK_GRAPH_H_
