// Sequence parallelism (Korthikanti et al. 2022, "Reducing Activation Recomputation in Large
// Transformer Models", section 4.2.2): between the column- and row-parallel linears of tensor
// parallelism the residual stream, norms and dropout are cut along the sequence. The all-reduces
// become a reduce-scatter behind and an all-gather before; the gathered values are not kept for the
// backward pass but gathered again.
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "sdk/gradients.h"
#include "sdk/strategy.h"

namespace capstan::sp {
namespace {

using sdk::Op;
using sdk::OpInfo;
using sdk::Tensor;

constexpr capstan_option kOptions[] = {
    sdk::string_option("axis", "\"tp\"", "The mesh axis of tensor parallelism."),
};
constexpr capstan_phase kPhases[] = {sdk::make_phase(CAPSTAN_PHASE_SEQUENCE)};
constexpr const char* kNeeds[] = {"tp", nullptr};
constexpr int64_t kSequenceDim = 1;

class Rewriter {
 public:
  Rewriter(sdk::Program& program, const sdk::MeshAxis& axis) : program_(program), axis_(axis) {
    counts_ = sdk::block_counts(program.sequence_length(), axis.size);
  }

  void run() {
    for (const std::string& segment : program_.segments()) {
      for (const Op op : program_.ops(segment)) visit(op, program_.get(op));
    }
  }

 private:
  sdk::Attrs along_sequence() const {
    sdk::Attrs attrs{{"axis", axis_.name}, {"dim", kSequenceDim}};
    if (counts_.front() != counts_.back()) {
      attrs.set({"counts", counts_});
      attrs.set({"index", axis_.index});
    }
    return attrs;
  }
  bool cut(Tensor t) const {
    if (!t) return false;
    const sdk::Placement p = program_.get(t).over(axis_.name);
    return p.kind == CAPSTAN_SHARD && p.dim == kSequenceDim;
  }

  void visit(Op op, const OpInfo& info) {
    const bool ours = info.attrs.get_string("axis", "") == axis_.name;
    if (ours && info.kind == "reduce_from_group") return replace(op, info, "reduce_scatter");
    if (ours && info.kind == "copy_to_group" && cut(info.inputs[0]))
      return replace(op, info, "all_gather");
    if (info.kind == "dropout" && cut(info.inputs[0]))
      program_.set_input(op, 3, own_part(info.inputs[3], op));
    if (info.kind == "add") meet(op, info);
    program_.infer(op);
  }

  void replace(Op op, const OpInfo& info, const char* kind) {
    sdk::Graph g(program_, program_.before(op));
    g.set_layer(info.layer);
    const Tensor made = g.emit1(kind, info.inputs, along_sequence());
    if (info.kind == "copy_to_group") {
      sdk::TensorInfo gathered = program_.get(made);
      gathered.save = CAPSTAN_SAVE_NO;
      program_.set(made, gathered);
    }
    program_.replace_uses(info.outputs[0], made);
    program_.remove(op);
  }

  // This rank's part of a value that all have, made once.
  Tensor own_part(Tensor whole, Op before) {
    if (cut(whole)) return whole;
    const auto found = parts_.find(whole);
    if (found != parts_.end()) return found->second;
    sdk::Graph g(program_, program_.before(before));
    return parts_[whole] = g.emit1("shard", {whole}, along_sequence());
  }

  // A sum of a cut and a whole value: positions added to the embedded tokens. What looks rows up is
  // asked for this rank's rows alone.
  void meet(Op op, const OpInfo& info) {
    for (size_t i = 0; i < 2; ++i) {
      const Tensor whole = info.inputs[i], other = info.inputs[1 - i];
      if (!cut(other) || cut(whole) || program_.get(whole).shape.size() < 3) continue;
      const Op producer = program_.producer(whole);
      const OpInfo made = producer ? program_.get(producer) : OpInfo{};
      if (made.kind == "embedding" && program_.users(whole).size() == 1) {
        program_.set_input(producer, 0, own_part(made.inputs[0], producer));
        program_.infer(producer);
      } else {
        program_.set_input(op, i, own_part(whole, op));
      }
    }
  }

  sdk::Program& program_;
  const sdk::MeshAxis& axis_;
  std::vector<int64_t> counts_;
  std::map<Tensor, Tensor> parts_;
};

class SequenceParallel {
 public:
  SequenceParallel(const sdk::Host& host, const sdk::Options& options)
      : axis_{options.get_string("axis"), host.axis_size(options.get_string("axis")),
              host.axis_index(options.get_string("axis"))},
        uses_{sdk::make_axis(axis_.name.c_str(), CAPSTAN_AXIS_SEQUENCE)} {}

  std::span<const capstan_phase> phases() const noexcept { return kPhases; }
  std::span<const capstan_axis_use> axes() const noexcept { return uses_; }
  const char* const* needs() const noexcept { return kNeeds; }

  void rewrite(std::string_view, sdk::Program& program) {
    check_axis(program);
    if (axis_.size == 1) return;
    // A step of generation has one position, and a prompt any number: nothing to cut.
    if (program.name() == "prefill" || program.name() == "decode") return;
    if (program.sequence_length() < axis_.size) {
      throw sdk::usage_error(sdk::text("data.sequence_length = ", program.sequence_length(),
                                       " cannot be cut over the ", axis_.size, " ranks of mesh.",
                                       axis_.name, "; lengthen it, or leave sp out"));
    }
    Rewriter(program, axis_).run();
  }

 private:
  // What is summed over another axis alone is what tp cut over that one.
  void check_axis(const sdk::Program& program) const {
    std::string other;
    for (const std::string& segment : program.segments()) {
      for (const Op op : program.ops(segment)) {
        const OpInfo info = program.get(op);
        if (info.kind != "reduce_from_group") continue;
        const std::string axis = info.attrs.get_string("axis", "");
        if (axis == axis_.name) return;
        other = axis;
      }
    }
    if (other.empty()) return;
    throw sdk::usage_error(sdk::text("[[strategy]] sp: axis = \"", axis_.name,
                                     "\", but tp cuts the layers over \"", other,
                                     "\"; set axis = \"", other, "\" of sp too"));
  }

  sdk::MeshAxis axis_;
  capstan_axis_use uses_[1];
};

}  // namespace
}  // namespace capstan::sp

CAPSTAN_PLUGIN_ENTRY("sp", "1.0.0", "Apache-2.0", "Sequence parallelism beside tensor parallelism.",
                     capstan::sdk::strategy_component<capstan::sp::SequenceParallel>(
                         "sp", "1.0.0",
                         "Cuts norms, dropout and the residual stream along the sequence.",
                         capstan::sp::kOptions));
