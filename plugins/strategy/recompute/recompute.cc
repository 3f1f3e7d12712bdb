// Activation recomputation (Chen et al. 2016, "Training deep nets with sublinear memory cost";
// selective after Korthikanti et al. 2022): a forward value that the backward pass reads is made
// again there, right before its first use, so that it need not be kept in between.
//
// The work is done in groups. Under policy "full" a group is a block of `every` layers, of which
// only what enters from outside is kept. Under "selective" a group is one cheap op (norm,
// activation, gather), of which the output is dropped; linear outputs and attention's output and
// log-sum-exp are kept. A group is dropped only if that frees more bytes than its inputs would cost
// if kept instead.
#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "sdk/strategy.h"

namespace capstan {
namespace {

using sdk::Op;
using sdk::OpInfo;
using sdk::Program;
using sdk::Tensor;

constexpr capstan_option kOptions[] = {
    sdk::string_option(
        "policy", "\"selective\"",
        "full: keep each layer's input; selective: drop outputs of norms, activations and "
        "gathers.")
        .choices("full|selective"),
    sdk::int_option("every", "1", "full: layers in a group of which only the input is kept.")
        .range(1, 100000),
};

constexpr capstan_phase kPhases[] = {sdk::make_phase(CAPSTAN_PHASE_RECOMPUTE)};

// Ops whose outputs cost little to make again, next to a matrix product of the same tensor.
constexpr std::array<std::string_view, 14> kCheap = {
    "layer_norm", "rms_norm", "gelu", "swiglu",     "relu",          "silu", "sigmoid",
    "tanh",       "square",   "cast", "all_gather", "copy_to_group", "copy", "dropout"};

// What may be recomputed in one forward segment, and how it is grouped.
struct Candidates {
  std::map<Tensor, Op> producer;  // of every output of a candidate op
  std::map<Op, OpInfo> ops;
  std::map<Op, int64_t> group;            // groups are numbered in program order
  std::vector<std::vector<Op>> by_group;  // in program order
  std::set<int64_t> kept;                 // groups found not worth it

  bool droppable(Tensor t) const {
    const auto it = producer.find(t);
    return it != producer.end() && !kept.contains(group.at(it->second));
  }
};

class Recompute {
 public:
  Recompute(const sdk::Host&, const sdk::Options& options)
      : full_(options.get_string("policy") == "full"), every_(options.get_int("every")) {
    if (!full_ && options.from_user("every")) {
      throw sdk::usage_error("[[strategy]] recompute: every needs policy = \"full\"");
    }
  }

  std::span<const capstan_phase> phases() const noexcept { return kPhases; }

  void rewrite(std::string_view, Program& program) {
    constexpr std::string_view kForward = "forward/";
    for (const std::string& segment : program.segments()) {
      if (!segment.starts_with(kForward)) continue;
      const std::string chunk = segment.substr(kForward.size());
      std::vector<std::string> backward;
      for (const std::string& other : program.segments()) {
        if (other == "backward/" + chunk || other == "backward_weight/" + chunk)
          backward.push_back(other);
      }
      if (backward.empty()) continue;
      Candidates candidates = find(program, segment);
      keep_what_gains_nothing(program, backward, candidates);
      for (const std::string& b : backward) recompute_in(program, b, candidates);
    }
  }

 private:
  Candidates find(const Program& program, const std::string& forward) const;
  bool candidate(const Program& program, Op op, const OpInfo& info) const;
  bool leaves_block(const Program& program, const OpInfo& info) const;
  int64_t block(int32_t layer) const { return layer / every_; }
  static void keep_what_gains_nothing(const Program& program,
                                      const std::vector<std::string>& backward,
                                      Candidates& candidates);
  static void recompute_in(Program& program, const std::string& backward,
                           const Candidates& candidates);

  bool full_;
  int64_t every_;
};

bool repeatable(const Program& program, Op op, const OpInfo& info) {
  const uint32_t flags = program.flags(op);
  if ((flags & (CAPSTAN_OP_PURE | CAPSTAN_OP_RANDOM)) == 0 || (flags & CAPSTAN_OP_SIDE_EFFECT) != 0)
    return false;
  // A guard or a state may have changed by the time the backward pass runs.
  if (info.when && info.when->guard != CAPSTAN_NONE) return false;
  for (const Tensor t : info.inputs) {
    if (!t) continue;
    const int32_t kind = program.get(t).kind;
    if (kind == CAPSTAN_STATE || kind == CAPSTAN_GRADIENT) return false;
  }
  return std::all_of(info.outputs.begin(), info.outputs.end(), [&](Tensor t) {
    const sdk::TensorInfo out = program.get(t);
    return out.kind == CAPSTAN_ACTIVATION && !out.loss_root && !out.view_of &&
           program.producer(t) == op;
  });
}

// True when a later block (or the end of the model) reads an output: then it is kept as its input.
bool Recompute::leaves_block(const Program& program, const OpInfo& info) const {
  for (const Tensor t : info.outputs) {
    for (const Op user : program.users(t)) {
      if (!program.segment(user).starts_with("forward/")) continue;
      const int32_t layer = program.get(user).layer;
      if (layer < 0 || block(layer) != block(info.layer)) return true;
    }
  }
  return false;
}

bool Recompute::candidate(const Program& program, Op op, const OpInfo& info) const {
  if (info.layer < 0 || !repeatable(program, op, info)) return false;
  if (full_) return !leaves_block(program, info);
  return std::find(kCheap.begin(), kCheap.end(), info.kind) != kCheap.end();
}

Candidates Recompute::find(const Program& program, const std::string& forward) const {
  Candidates out;
  std::map<int64_t, int64_t> group_of_block;
  for (const Op op : program.ops(forward)) {
    OpInfo info = program.get(op);
    if (!candidate(program, op, info)) continue;
    int64_t group = static_cast<int64_t>(out.by_group.size());
    if (full_) group = group_of_block.try_emplace(block(info.layer), group).first->second;
    if (group == static_cast<int64_t>(out.by_group.size())) out.by_group.emplace_back();
    out.by_group[static_cast<size_t>(group)].push_back(op);
    out.group[op] = group;
    for (const Tensor t : info.outputs) out.producer[t] = op;
    out.ops.emplace(op, std::move(info));
  }
  return out;
}

int64_t bytes(const Program& program, Tensor t) {
  const sdk::TensorInfo info = program.get(t);
  return info.elements() * info.dtype.bits / 8;
}

// What recomputing t reads that is not itself recomputed.
void collect_sources(const Candidates& candidates, Tensor t, std::set<Tensor>& sources,
                     std::set<Tensor>& seen) {
  if (!t || !seen.insert(t).second) return;
  if (!candidates.droppable(t)) {
    sources.insert(t);
    return;
  }
  for (const Tensor input : candidates.ops.at(candidates.producer.at(t)).inputs) {
    collect_sources(candidates, input, sources, seen);
  }
}

void Recompute::keep_what_gains_nothing(const Program& program,
                                        const std::vector<std::string>& backward,
                                        Candidates& candidates) {
  std::set<Tensor> held;  // what the backward pass reads, and so keeps, in any case
  for (const std::string& segment : backward) {
    for (const Op op : program.ops(segment)) {
      for (const Tensor t : program.get(op).inputs) held.insert(t);
    }
  }
  for (size_t g = 0; g < candidates.by_group.size(); ++g) {
    int64_t freed = 0, added = 0;
    std::set<Tensor> sources, seen;
    for (const Op op : candidates.by_group[g]) {
      for (const Tensor t : candidates.ops.at(op).outputs) {
        if (!held.contains(t)) continue;
        freed += bytes(program, t);
        collect_sources(candidates, t, sources, seen);
      }
    }
    for (const Tensor t : sources) {
      if (program.get(t).kind == CAPSTAN_ACTIVATION && !held.contains(t))
        added += bytes(program, t);
    }
    if (freed == 0) continue;  // nothing to drop here, though others may be remade through it
    if (added < freed) {
      held.insert(sources.begin(), sources.end());
    } else {
      candidates.kept.insert(static_cast<int64_t>(g));
    }
  }
}

// Makes copies of candidate ops in one backward segment, each before the op that first needs it.
class Cloner {
 public:
  Cloner(Program& program, std::string segment, const Candidates& candidates)
      : program_(program), segment_(std::move(segment)), candidates_(candidates) {}

  // The tensor to read in place of t, remade before `user` unless it already was.
  Tensor remade(Tensor t, Op user) {
    if (!t || !candidates_.droppable(t)) return t;
    const auto found = copies_.find(t);
    if (found != copies_.end()) return found->second;
    const OpInfo& original = candidates_.ops.at(candidates_.producer.at(t));
    OpInfo clone = original;  // kind, attributes (the RNG key among them), layer and when
    clone.outputs.clear();
    for (Tensor& input : clone.inputs) input = remade(input, user);
    const std::vector<Tensor> made = program_.get(program_.add({segment_, user}, clone)).outputs;
    for (size_t i = 0; i < made.size(); ++i) copies_[original.outputs[i]] = made[i];
    return copies_.at(t);
  }

 private:
  Program& program_;
  std::string segment_;
  const Candidates& candidates_;
  std::map<Tensor, Tensor> copies_;
};

void Recompute::recompute_in(Program& program, const std::string& backward,
                             const Candidates& candidates) {
  Cloner cloner(program, backward, candidates);
  for (const Op op : program.ops(backward)) {
    const std::vector<Tensor> inputs = program.get(op).inputs;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const Tensor t = cloner.remade(inputs[i], op);
      if (t != inputs[i]) program.set_input(op, i, t);
    }
  }
}

}  // namespace
}  // namespace capstan

CAPSTAN_PLUGIN_ENTRY("recompute", "1.0.0", "Apache-2.0", "Activation recomputation.",
                     capstan::sdk::strategy_component<capstan::Recompute>(
                         "recompute", "1.0.0",
                         "Makes forward values again in the backward pass instead of keeping them.",
                         capstan::kOptions));
