#include "plugins/strategy/pp/cut.h"

#include <algorithm>
#include <utility>

namespace capstan::pp {
namespace {

using sdk::Op;
using sdk::OpInfo;
using sdk::Tensor;
using sdk::TensorInfo;

constexpr const char* kMetric = "metric.loss";

}  // namespace

std::string placement_text(const TensorInfo& info) {
  std::string out;
  for (const sdk::Placement& p : info.placement) {
    if (p.kind == CAPSTAN_REPLICATE) continue;
    out += sdk::text(out.empty() ? "" : ", ", p.axis, ":", static_cast<char>(p.kind));
    if (p.kind == CAPSTAN_PARTIAL && p.reduce == CAPSTAN_MAX) out += "(max)";
    if (p.kind != CAPSTAN_SHARD) continue;
    out += sdk::text("(", p.dim, ")");
    for (size_t i = 0; i < p.ranges.size(); ++i) out += sdk::text(i == 0 ? "[" : ":", p.ranges[i]);
    if (!p.ranges.empty()) out += "]";
  }
  return out.empty() ? "" : "{" + out + "}";
}

Cutter::Cutter(sdk::Program& program, sdk::MeshAxis axis, int64_t chunks,
               std::vector<int64_t> chunk_of)
    : program_(program),
      axis_(std::move(axis)),
      chunks_(chunks),
      ops_(program.ops(forward_segment(0))),
      chunk_of_(std::move(chunk_of)) {
  for (const Op op : ops_) infos_.push_back(program.get(op));
}

Tied Cutter::run() {
  find_crossings();
  move_own_ops();
  for (int64_t chunk = 0; chunk < chunks_; ++chunk) {
    if (!mine(chunk)) continue;
    here_.clear();
    repeat_cheap(chunk);
    receive(chunk);
    send(chunk);
  }
  share_metric();
  Tied tied = drop_foreign_parameters();
  return tied;
}

// Pure ops of inputs alone: the positions of a sequence shard.
bool Cutter::repeatable(Op op, const OpInfo& info) const {
  const uint32_t flags = program_.flags(op);
  if ((flags & CAPSTAN_OP_PURE) == 0 || (flags & CAPSTAN_OP_COLLECTIVE) != 0) return false;
  return std::all_of(info.inputs.begin(), info.inputs.end(),
                     [&](Tensor t) { return !t || program_.get(t).kind == CAPSTAN_INPUT; });
}

bool Cutter::needs_gradient(const OpInfo& info) const {
  return std::any_of(info.inputs.begin(), info.inputs.end(), [&](Tensor t) {
    if (!t) return false;
    const TensorInfo in = program_.get(t);
    return gradients_.contains(t) || (in.kind == CAPSTAN_PARAMETER && in.trainable);
  });
}

// Both stages of a border must agree on what has a gradient: the sender knows what a value depends on,
// the receiver what depends on it.
void Cutter::find_gradients() {
  const auto floating = [&](Tensor t) { return t && sdk::is_floating(program_.get(t).dtype); };
  for (const OpInfo& info : infos_) {
    if (!needs_gradient(info)) continue;
    for (const Tensor t : info.outputs) {
      if (floating(t)) gradients_.insert(t);
    }
  }
  std::set<Tensor> read;  // on the way to a loss
  for (auto info = infos_.rbegin(); info != infos_.rend(); ++info) {
    const bool leads = std::any_of(info->outputs.begin(), info->outputs.end(), [&](Tensor t) {
      return floating(t) && (read.contains(t) || program_.get(t).loss_root);
    });
    if (leads) read.insert(info->inputs.begin(), info->inputs.end());
  }
  std::erase_if(gradients_, [&](Tensor t) { return !read.contains(t); });
}

void Cutter::find_crossings() {
  find_gradients();
  std::map<Tensor, size_t> made;
  std::map<Tensor, int64_t> last;
  for (size_t i = 0; i < ops_.size(); ++i) {
    for (const Tensor t : infos_[i].inputs) {
      if (t && made.contains(t)) last[t] = std::max(last[t], chunk_of_[i]);
    }
    for (const Tensor t : infos_[i].outputs) {
      if (program_.get(t).kind == CAPSTAN_ACTIVATION) made.try_emplace(t, i);
    }
  }
  std::vector<std::pair<size_t, Tensor>> order;
  for (const auto& [t, i] : made) order.emplace_back(i, t);
  std::sort(order.begin(), order.end());
  for (const auto& [i, t] : order) {
    const auto until = last.find(t);
    if (until == last.end() || until->second <= chunk_of_[i]) continue;
    crossings_.push_back(
        {t, chunk_of_[i], until->second, repeatable(ops_[i], infos_[i]), gradients_.contains(t)});
  }
}

void Cutter::move_own_ops() {
  for (size_t i = 0; i < ops_.size(); ++i) {
    if (mine(chunk_of_[i]) && chunk_of_[i] != 0)
      program_.move(ops_[i], {forward_segment(chunk_of_[i]), {}});
  }
}

void Cutter::replace_in(int64_t chunk, Tensor from, Tensor to) {
  for (size_t i = 0; i < ops_.size(); ++i) {
    if (chunk_of_[i] != chunk) continue;
    for (size_t k = 0; k < infos_[i].inputs.size(); ++k) {
      if (infos_[i].inputs[k] == from) program_.set_input(ops_[i], k, to);
    }
  }
}

void Cutter::repeat_cheap(int64_t chunk) {
  for (const Crossing& c : crossings_) {
    if (!c.cheap || c.from >= chunk || c.until < chunk) continue;
    const auto made = std::find_if(infos_.begin(), infos_.end(), [&](const OpInfo& info) {
      return std::find(info.outputs.begin(), info.outputs.end(), c.value) != info.outputs.end();
    });
    const size_t output = static_cast<size_t>(
        std::find(made->outputs.begin(), made->outputs.end(), c.value) - made->outputs.begin());
    OpInfo copy = *made;
    copy.outputs.clear();
    const std::vector<Op> own = program_.ops(forward_segment(chunk));
    const Op op = program_.add({forward_segment(chunk), own.empty() ? Op{} : own.front()}, copy);
    replace_in(chunk, c.value, program_.get(op).outputs[output]);
  }
}

void Cutter::receive(int64_t chunk) {
  if (chunk == 0) return;
  const std::vector<Op> own = program_.ops(forward_segment(chunk));
  sdk::Graph g(program_, {forward_segment(chunk), own.empty() ? Op{} : own.front()});
  for (const Crossing& c : crossings_) {
    if (c.cheap || c.from >= chunk || c.until < chunk) continue;
    const TensorInfo info = program_.get(c.value);
    const std::string placement = placement_text(info);
    sdk::Attrs attrs{{"axis", axis_.name},
                     {"peer", stage_of(chunk - 1)},
                     {"channel", chunk - 1},
                     {"shape", info.shape},
                     {"dtype", sdk::dtype_name(info.dtype)},
                     {"requires_grad", c.gradient ? 1 : 0}};
    if (!placement.empty()) attrs.set({"placement", placement});
    const Tensor value = g.emit1("recv", {}, std::move(attrs));
    here_[c.value] = value;
    replace_in(chunk, c.value, value);
  }
}

void Cutter::send(int64_t chunk) {
  if (chunk + 1 == chunks_) return;
  sdk::Graph g(program_, {forward_segment(chunk), {}});
  for (const Crossing& c : crossings_) {
    if (c.cheap || c.from > chunk || c.until <= chunk) continue;
    const auto received = here_.find(c.value);
    g.emit("send", {received == here_.end() ? c.value : received->second},
           {{"axis", axis_.name},
            {"peer", stage_of(chunk + 1)},
            {"channel", chunk},
            {"requires_grad", c.gradient ? 1 : 0}});
  }
}

// The loss is known on the last stage; on the others their part of the sum over stages is zero.
void Cutter::share_metric() {
  const Tensor metric = program_.find(kMetric);
  if (!metric) return drop_foreign_ops();
  TensorInfo info = program_.get(metric);
  info.placement.push_back(sdk::partial(axis_.name));
  program_.set(metric, info);
  for (size_t i = 0; i < ops_.size(); ++i) {
    const bool adds = std::find(infos_[i].outputs.begin(), infos_[i].outputs.end(), metric) !=
                      infos_[i].outputs.end();
    if (!adds || !mine(chunk_of_[i])) continue;
    const Tensor loss = infos_[i].inputs[0];
    TensorInfo part = program_.get(loss);
    part.placement.push_back(sdk::partial(axis_.name));
    sdk::Graph g(program_, program_.before(ops_[i]));
    program_.set_input(ops_[i], 0,
                       g.emit1("reinterpret", {loss},
                               {{"placement", placement_text(part)},
                                {"reason", "the last stage alone has the loss"}}));
  }
  drop_foreign_ops();
}

void Cutter::drop_foreign_ops() {
  for (size_t i = ops_.size(); i-- > 0;) {
    if (!mine(chunk_of_[i])) program_.remove(ops_[i]);
  }
}

Tied Cutter::drop_foreign_parameters() {
  std::map<Tensor, std::set<int64_t>> stages;
  std::map<std::string, std::set<int64_t>> shared;
  for (size_t i = 0; i < ops_.size(); ++i) {
    for (const std::vector<Tensor>* list : {&infos_[i].inputs, &infos_[i].outputs}) {
      for (const Tensor t : *list) {
        if (!t || !program_.alive(t)) continue;
        const int32_t kind = program_.get(t).kind;
        if (kind == CAPSTAN_PARAMETER || kind == CAPSTAN_CONSTANT ||
            (kind == CAPSTAN_STATE && program_.get(t).name != kMetric))
          stages[t].insert(stage_of(chunk_of_[i]));
      }
    }
  }
  for (const auto& [t, holders] : stages) {
    const TensorInfo info = program_.get(t);
    if (info.kind == CAPSTAN_PARAMETER && holders.size() > 1) shared[info.name] = holders;
    if (!holders.contains(axis_.index)) program_.remove(t);
  }
  Tied tied;
  int64_t channel = chunks_;  // those below are of the borders
  for (const auto& [name, holders] : shared) {
    tied[name] = {{holders.begin(), holders.end()}, channel};
    channel += static_cast<int64_t>(holders.size());
  }
  return tied;
}

}  // namespace capstan::pp
