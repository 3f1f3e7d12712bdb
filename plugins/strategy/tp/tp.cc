// Tensor parallelism (Shoeybi et al. 2019, "Megatron-LM"): linears that make heads, MLP channels or
// logits are cut by columns, those that read them by rows, so that a layer needs two all-reduces
// forward and two backward. The embedding table and the loss are cut by the vocabulary; no rank holds
// all logits. Works on logical axis names (see cut.h), not on names of modules.
#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "plugins/strategy/tp/cut.h"

namespace capstan::tp {
namespace {

using sdk::Op;
using sdk::OpInfo;
using sdk::Tensor;

constexpr capstan_option kOptions[] = {
    sdk::string_option("axis", "\"tp\"", "The mesh axis the model's layers are cut over."),
    sdk::bool_option(
        "keep_logits", "false",
        "Keeps this rank's logits from the loss to its gradient instead of making them "
        "again: one product with the head less, their bytes more."),
};

// Replicated parameters may have gradients that are partial over the axis (key/value heads that
// several ranks share, norms under sequence parallelism): summed once gradients are reduced over the
// batch.
constexpr const char* kGradientPhase = "tensor_gradient";
constexpr capstan_phase kPhases[] = {sdk::make_phase(CAPSTAN_PHASE_TENSOR),
                                     sdk::make_phase(kGradientPhase, CAPSTAN_PHASE_GRADIENT)};

// Goes through the forward ops in order; everything before the cursor is typed.
class Rewriter {
 public:
  Rewriter(sdk::Program& program, const Cuts& cuts, bool keep_logits)
      : program_(program), cuts_(cuts), keep_logits_(keep_logits) {}

  void run() {
    for (const std::string& segment : program_.segments()) {
      for (const Op op : program_.ops(segment)) visit(op, program_.get(op));
    }
  }

 private:
  const std::string& axis() const { return cuts_.axis().name; }
  int32_t kind(Tensor t) const { return program_.get(t).over(axis()).kind; }
  // The dim a parameter is cut along, -1: whole.
  int cut_of(Tensor t) const {
    if (!t) return -1;
    const sdk::Placement p = program_.get(t).over(axis());
    return p.kind == CAPSTAN_SHARD ? p.dim : -1;
  }
  sdk::Graph graph_at(const sdk::Position& at, const OpInfo& like) const {
    sdk::Graph g(program_, at);
    g.set_layer(like.layer);
    return g;
  }

  void visit(Op op, const OpInfo& info) {
    if (info.kind == "linear") return linear(op, info);
    if (info.kind == "embedding" && cut_of(info.inputs[1]) == 0) return embedding(op, info);
    if (info.kind == "linear_cross_entropy" && cut_of(info.inputs[1]) == 0) return loss(op, info);
    if (info.kind == "attention" || info.kind == "attention_cached") attention(op, info);
    program_.infer(op);
  }

  // x as the column-parallel linears read it: one copy_to_group a value, shared by all of them.
  Tensor copied(Tensor x, Op before, const OpInfo& reader) {
    const auto found = copies_.find(x);
    if (found != copies_.end()) return found->second;
    sdk::Graph g = graph_at(program_.before(before), reader);
    return copies_[x] = g.copy_to_group(x, axis());
  }

  void linear(Op op, const OpInfo& info) {
    const int cut = cut_of(info.inputs[1]);
    // Key/value weights that every rank holds whole are read with the copy too: what flows back
    // from each rank's slice is its own part.
    const bool column = cut == 0 || (cut < 0 && makes_shared_kv(info));
    if (column) program_.set_input(op, 0, copied(info.inputs[0], op, info));
    const bool row = cut == 1;
    const Tensor bias = row && info.inputs.size() > 2 ? info.inputs[2] : Tensor{};
    if (bias) program_.set_input(op, 2, {});
    const sdk::TensorInfo weight = program_.get(info.inputs[1]);
    if (cut == 0 && !weight.dim_axes.empty() && weight.dim_axes[0] == "vocab")
      return gather(op, info);
    program_.infer(op);
    if (row) reduce(op, info, bias);
  }

  bool makes_shared_kv(const OpInfo& info) const {
    const sdk::TensorInfo weight = program_.get(info.inputs[1]);
    return cuts_.shares_kv_heads() && !weight.dim_axes.empty() && weight.dim_axes[0] == "kv_heads";
  }

  // The output is each rank's part of a sum; the bias is added once, to the sum.
  void reduce(Op op, const OpInfo& info, Tensor bias) {
    const Tensor part = info.outputs[0];
    sdk::Graph g = graph_at(program_.after(op), info);
    const sdk::Emission whole = g.emit("reduce_from_group", {part}, {{"axis", axis()}});
    const Tensor y = bias ? g.add(whole[0], bias) : whole[0];
    program_.replace_uses(part, y, whole.op);
  }

  // Logits outside the loss are wanted whole, under their name.
  void gather(Op op, const OpInfo& info) {
    const Part part = *cuts_.of("vocab", program_.get(info.inputs[1]).whole_shape()[0]);
    const sdk::TensorInfo logits = program_.get(info.outputs[0]);
    sdk::TensorInfo own;
    own.dtype = logits.dtype;
    own.shape = logits.shape;
    program_.set_output(op, 0, program_.add(own));
    program_.infer(op);
    sdk::Graph g = graph_at(program_.after(op), info);
    sdk::Attrs attrs{{"axis", axis()}, {"dim", static_cast<int64_t>(logits.shape.size()) - 1}};
    if (!part.even()) {
      attrs.set({"counts", part.counts});
      attrs.set({"index", cuts_.axis().index});
    }
    g.emit("all_gather", {program_.get(op).outputs[0]}, std::move(attrs), {info.outputs[0]});
  }

  int64_t first_row(Tensor table) const {
    return cuts_.of("vocab", program_.get(table).whole_shape()[0])->start;
  }

  void embedding(Op op, const OpInfo& info) {
    program_.set_attr(op, {"vocab_start", first_row(info.inputs[1])});
    program_.infer(op);
    reduce(op, info, {});
  }

  void attention(Op op, const OpInfo& info) {
    if (info.attrs.get_float("dropout", 0) > 0) {
      program_.set_attr(op, {"head_start", cuts_.first_head()});
    }
    if (!cuts_.shares_kv_heads()) return;
    const Part part = cuts_.kv_slice();
    for (size_t i = 1; i <= 2; ++i) {
      sdk::Graph g = graph_at(program_.before(op), info);
      program_.set_input(
          op, i,
          g.emit1("slice", {info.inputs[i]},
                  {{"dim", 2}, {"start", part.start}, {"size", part.size}, {"axis", axis()}}));
    }
  }

  // Each rank makes its own logits; what is gathered is three numbers a token. The loss's gradient
  // reads h, weight and the kept logits directly, so the product that made these has none of its own.
  void loss(Op op, const OpInfo& info) {
    const Tensor weight = info.inputs[1], targets = info.inputs[2], count = info.inputs[3];
    const Tensor h = copied(info.inputs[0], op, info);
    const int64_t rows = program_.get(weight).whole_shape()[0];
    const int64_t valid = info.attrs.get_int("valid_vocab", 0);
    const sdk::Attrs attrs{{"vocab_start", first_row(weight)},
                           {"valid_vocab", valid > 0 ? valid : rows}};
    sdk::Graph g = graph_at(program_.before(op), info);
    std::vector<Tensor> sources = {h, weight};
    if (keep_logits_) sources.push_back(g.linear(h, weight));
    const Tensor stats = keep_logits_ ? g.emit1("ce_stats", {sources[2], targets}, attrs)
                                      : g.emit1("lce_stats", {h, weight, targets}, attrs);
    const Tensor all = g.all_gather(g.broadcast(stats, 0, 1), axis(), 0);  // [R, ..., 3]
    std::vector<Tensor> inputs = {all, targets, count};
    inputs.insert(inputs.end(), sources.begin(), sources.end());
    const sdk::Emission merged = g.emit("lce_merge", inputs, attrs);
    sdk::TensorInfo root = program_.get(merged[0]);
    sdk::TensorInfo old = program_.get(info.outputs[0]);
    std::swap(root.loss_root, old.loss_root);
    program_.set(merged[0], root);
    program_.set(info.outputs[0], old);
    program_.replace_uses(info.outputs[0], merged[0]);
    program_.remove(op);
  }

  sdk::Program& program_;
  const Cuts& cuts_;
  const bool keep_logits_;
  std::map<Tensor, Tensor> copies_;
};

class TensorParallel {
 public:
  TensorParallel(const sdk::Host& host, const sdk::Options& options)
      : axis_{options.get_string("axis"), host.axis_size(options.get_string("axis")),
              host.axis_index(options.get_string("axis"))},
        keep_logits_(options.get_bool("keep_logits")),
        uses_{sdk::make_axis(axis_.name.c_str(), CAPSTAN_AXIS_MODEL)} {}

  std::span<const capstan_phase> phases() const noexcept { return kPhases; }
  std::span<const capstan_axis_use> axes() const noexcept { return uses_; }

  void rewrite(std::string_view phase, sdk::Program& program) {
    if (axis_.size == 1) return;
    if (phase == kGradientPhase) return sum_gradients(program);
    const Cuts cuts(program, axis_);
    cuts.apply(program);
    Rewriter(program, cuts, keep_logits_).run();
  }

 private:
  void sum_gradients(sdk::Program& program) const {
    std::vector<sdk::Tensor> list;
    for (const sdk::Tensor t : sdk::updated_gradients(program)) {
      if (program.get(t).over(axis_.name).kind == CAPSTAN_PARTIAL) list.push_back(t);
    }
    if (list.empty()) return;
    sdk::Position head{"update", {}};
    const std::vector<std::string> segments = program.segments();
    if (std::find(segments.begin(), segments.end(), "update") != segments.end()) {
      const std::vector<sdk::Op> ops = program.ops("update");
      if (!ops.empty()) head.before = ops.front();
    }
    sdk::Graph g(program, head);
    g.emit("reduce_gradient", list, {{"axis", axis_.name}}, list);
  }

  sdk::MeshAxis axis_;
  bool keep_logits_;
  capstan_axis_use uses_[1];
};

}  // namespace
}  // namespace capstan::tp

CAPSTAN_PLUGIN_ENTRY("tp", "1.0.0", "Apache-2.0", "Tensor parallelism.",
                     capstan::sdk::strategy_component<capstan::tp::TensorParallel>(
                         "tp", "1.0.0",
                         "Cuts attention heads, MLP channels and the vocabulary over ranks.",
                         capstan::tp::kOptions));
