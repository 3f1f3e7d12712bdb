#include "plugins/strategy/common/sharded.h"

#include <algorithm>
#include <utility>

namespace capstan::sharded {
namespace {

using sdk::Block;
using sdk::Op;
using sdk::Tensor;
using sdk::TensorInfo;

constexpr const char* kPart = ".shard";
constexpr const char* kUpdate = "update";

// Ops of one segment that run together and so share a gather: those of one unit of layers.
struct Unit {
  Op first;
  std::vector<Op> ops;
  std::vector<Tensor> parameters;  // divided ones that its ops read, in order of use
};

}  // namespace

void Sharder::divide() {
  const bool alone = settings_.axis.size == 1;  // whole copies, which only sum their gradients
  if (settings_.level == Level::kParameters && !alone) divide_parameters();
  if (program_.name() != "train") return;
  if (!alone) {
    divide_gradients();
  } else {
    for (const sdk::PartialGradient& p : sdk::partial_gradients(program_, settings_.replicas))
      gradients_.push_back(p.gradient);
  }
  sum_replicas();
}

// ---- parameters --------------------------------------------------------------------------------

void Sharder::divide_parameters() {
  for (const Tensor t : program_.tensors()) {
    const TensorInfo info = program_.get(t);
    if (info.kind != CAPSTAN_PARAMETER || info.view_of || info.shape.empty()) continue;
    if (info.over(settings_.axis.name).kind != CAPSTAN_REPLICATE) continue;
    Block block = sdk::block_of(info, settings_.axis);
    program_.set(t, block.part);
    divided_.emplace(t, std::move(block));
  }
  for (const std::string& segment : program_.segments()) {
    if (segment != "begin" && segment != kUpdate) gather_in(segment);
  }
}

void Sharder::gather_in(const std::string& segment) {
  const bool backward = segment.starts_with("backward");
  std::vector<Unit> units;
  int64_t current = -2;
  for (const Op op : program_.ops(segment)) {
    const sdk::OpInfo info = program_.get(op);
    const int64_t unit = info.layer < 0 ? -1 : info.layer / settings_.unit_layers;
    if (units.empty() || unit != current) units.push_back({op, {}, {}});
    current = unit;
    units.back().ops.push_back(op);
    for (const Tensor t : info.inputs) {
      std::vector<Tensor>& list = units.back().parameters;
      if (divided_.contains(t) && std::find(list.begin(), list.end(), t) == list.end())
        list.push_back(t);
    }
  }
  std::erase_if(units, [](const Unit& u) { return u.parameters.empty(); });
  for (size_t u = 0; u < units.size(); ++u) {
    const size_t ahead = static_cast<size_t>(settings_.prefetch);
    sdk::Graph g(program_, program_.before(units[u < ahead ? 0 : u - ahead].first));
    g.set_layer(program_.get(units[u].first).layer);
    std::map<Tensor, Tensor> whole;
    std::vector<std::vector<Tensor>> lists;  // a list has one dtype
    for (const Tensor t : units[u].parameters) {
      const auto kept = kept_.find(t);
      if (backward && kept != kept_.end()) {
        whole[t] = kept->second;
        continue;
      }
      const capstan_dtype dtype = program_.get(t).dtype;
      auto list = std::find_if(lists.begin(), lists.end(), [&](const auto& l) {
        return sdk::same_dtype(program_.get(l[0]).dtype, dtype);
      });
      if (list == lists.end()) list = lists.insert(lists.end(), std::vector<Tensor>());
      list->push_back(t);
    }
    for (const std::vector<Tensor>& list : lists) {
      std::vector<Block> blocks;
      for (const Tensor t : list) blocks.push_back(divided_.at(t));
      const sdk::Emission e = g.emit("all_gather", list, sdk::block_attrs(settings_.axis, blocks));
      for (size_t i = 0; i < list.size(); ++i) {
        whole[list[i]] = e[i];
        if (!backward && !settings_.reshard) kept_[list[i]] = e[i];
      }
    }
    for (const Op op : units[u].ops) {
      const std::vector<Tensor> inputs = program_.get(op).inputs;
      for (size_t i = 0; i < inputs.size(); ++i) {
        const auto found = whole.find(inputs[i]);
        if (found != whole.end()) program_.set_input(op, i, found->second);
      }
    }
  }
}

// ---- gradients ---------------------------------------------------------------------------------

void Sharder::divide_gradients() {
  const auto partial = sdk::partial_gradients(program_, settings_.axis.name);
  const std::vector<sdk::Bucket> buckets = sdk::buckets(program_, partial, settings_.bucket_bytes);
  if (settings_.level == Level::kStates) {
    for (const sdk::Bucket& bucket : buckets) scatter_whole(bucket);
  } else {
    scatter_transient(buckets);
  }
}

// The rank's block of a parameter, as what its gradient's block updates.
Tensor Sharder::part_of_parameter(Tensor parameter) {
  if (divided_.contains(parameter)) return parameter;
  const TensorInfo whole = program_.get(parameter);
  if (const Tensor made = program_.find(whole.name + kPart)) return made;
  Block block = sdk::block_of(whole, settings_.axis);
  block.part.name = whole.name + kPart;
  block.part.view_of = parameter;
  block.part.view_offset = block.offset;
  return program_.add(block.part);
}

// Gradients stay whole; after the last microbatch each rank's block of them, in place, is the sum.
void Sharder::scatter_whole(const sdk::Bucket& bucket) {
  std::vector<Tensor> whole, parts;
  std::vector<Block> blocks;
  for (const sdk::PartialGradient& p : bucket.gradients) {
    Block block = sdk::block_of(p.info, settings_.axis);
    block.part.name = p.info.name + kPart;
    block.part.view_of = p.gradient;
    block.part.view_offset = block.offset;
    block.part.of = part_of_parameter(p.info.of);
    whole.push_back(p.gradient);
    parts.push_back(program_.add(block.part));
    blocks.push_back(std::move(block));
  }
  sdk::Graph g(program_, program_.after(bucket.complete()));
  g.set_when(sdk::last_microbatch());
  g.emit("reduce_scatter", whole, sdk::block_attrs(settings_.axis, blocks), parts);
  gradients_.insert(gradients_.end(), parts.begin(), parts.end());
}

// Every microbatch's gradients go to transient memory, are scattered as a bucket fills and added to
// the blocks, one bucket later so that the scatter runs beside the backward pass.
void Sharder::scatter_transient(const std::vector<sdk::Bucket>& buckets) {
  std::vector<std::pair<Tensor, Tensor>> pending;  // scattered block, gradient
  const auto add_pending = [&](const sdk::Position& at) {
    sdk::Graph g(program_, at);
    g.set_role(CAPSTAN_ROLE_WEIGHT_GRADIENT);
    for (const auto& [part, gradient] : pending) g.accumulate(part, gradient);
    pending.clear();
  };
  Op scattered;  // by it, the bucket before
  for (size_t b = 0; b < buckets.size(); ++b) {
    const sdk::Bucket& bucket = buckets[b];
    std::vector<Tensor> transient;
    std::vector<Block> blocks;
    for (const sdk::PartialGradient& p : bucket.gradients) {
      TensorInfo whole;
      whole.dtype = p.info.dtype;
      whole.shape = p.info.shape;
      whole.placement = p.info.placement;
      whole.layer = p.info.layer;
      const Tensor t = program_.add(whole);
      for (const auto& [op, output] : p.writes) program_.set_output(op, output, t);
      Block block = sdk::block_of(p.info, settings_.axis);
      TensorInfo kept = block.part;
      kept.of = part_of_parameter(p.info.of);
      program_.set(p.gradient, kept);
      transient.push_back(t);
      blocks.push_back(std::move(block));
      gradients_.push_back(p.gradient);
    }
    // One op may complete two buckets, which keep their order.
    const bool both = b > 0 && buckets[b - 1].complete() == bucket.complete();
    const sdk::Position at = program_.after(both ? scattered : bucket.complete());
    sdk::Graph g(program_, at);
    const sdk::Emission e =
        g.emit("reduce_scatter", transient, sdk::block_attrs(settings_.axis, blocks));
    scattered = e.op;
    add_pending(at);
    for (size_t i = 0; i < bucket.gradients.size(); ++i)
      pending.emplace_back(e[i], bucket.gradients[i].gradient);
    const bool ends = b + 1 == buckets.size() || buckets[b + 1].segment != bucket.segment;
    if (ends) add_pending({bucket.segment, {}});
  }
}

// Hybrid sharding: the blocks, summed within a shard group, are summed over the groups.
void Sharder::sum_replicas() {
  if (settings_.replicas.empty() || gradients_.empty()) return;
  std::vector<Tensor> list;
  for (const Tensor t : gradients_) {
    if (program_.get(t).over(settings_.replicas).kind == CAPSTAN_PARTIAL) list.push_back(t);
  }
  if (list.empty()) return;
  sdk::Graph g(program_, {kUpdate, {}});
  g.emit("reduce_gradient", list, {{"axis", settings_.replicas}}, list);
}

// ---- publish -----------------------------------------------------------------------------------

void Sharder::publish() {
  // Updated blocks, by the op that updates them, in order.
  std::vector<std::pair<Op, Tensor>> updates;
  for (const Op op : program_.ops(kUpdate)) {
    for (const Tensor t : program_.get(op).outputs) {
      const TensorInfo info = program_.get(t);
      const bool part = info.kind == CAPSTAN_PARAMETER && info.view_of &&
                        info.over(settings_.axis.name).kind == CAPSTAN_SHARD;
      if (part) updates.emplace_back(op, t);
    }
  }
  for (size_t begin = 0, end = 0; begin < updates.size(); begin = end) {
    std::vector<Tensor> parts, whole;
    std::vector<Block> blocks;
    int64_t bytes = 0;
    const capstan_dtype dtype = program_.get(updates[begin].second).dtype;
    for (; end < updates.size() && (end == begin || bytes < settings_.bucket_bytes); ++end) {
      const TensorInfo part = program_.get(updates[end].second);
      const TensorInfo base = program_.get(part.view_of);
      if (!sdk::same_dtype(base.dtype, dtype)) break;
      parts.push_back(updates[end].second);
      whole.push_back(part.view_of);
      blocks.push_back(sdk::block_of(base, settings_.axis));
      bytes += base.elements() * base.dtype.bits / 8;
    }
    sdk::Graph g(program_, program_.after(updates[end - 1].first));
    g.emit("all_gather", parts, sdk::block_attrs(settings_.axis, blocks), whole);
  }
}

}  // namespace capstan::sharded
