#include "plugins/strategy/tp/cut.h"

#include <utility>

namespace capstan::tp {
namespace {

Heads heads_of(const sdk::Program& program) {
  Heads heads;
  for (const std::string& segment : program.segments()) {
    for (const sdk::Op op : program.ops(segment)) {
      const sdk::OpInfo info = program.get(op);
      if (info.kind != "attention" && info.kind != "attention_cached") continue;
      const int64_t d = info.attrs.get_int("head_dim", 1);
      const Heads these{d, program.get(info.inputs[0]).shape.back() / d,
                        program.get(info.inputs[1]).shape.back() / d};
      const bool same = these.head_dim == heads.head_dim && these.heads == heads.heads &&
                        these.kv_heads == heads.kv_heads;
      if (heads.head_dim != 0 && !same) {
        throw sdk::unsupported_error(
            "[[strategy]] tp: the layers of this model differ in their number or size of heads; "
            "one cut must fit all");
      }
      heads = these;
    }
  }
  return heads;
}

}  // namespace

Cuts::Cuts(const sdk::Program& program, sdk::MeshAxis axis)
    : axis_(std::move(axis)), heads_(heads_of(program)) {
  const int64_t ranks = axis_.size, h = heads_.heads;
  if (h == 0) return;
  if (h < ranks) {
    throw sdk::usage_error(sdk::text("mesh.", axis_.name, " = ", ranks, " is larger than the ", h,
                                     " attention heads of the model; make it ", h, " or less"));
  }
}

Part Cuts::blocks(int64_t units, int64_t unit) const {
  return of_counts(sdk::block_counts(units, axis_.size), unit);
}

Part Cuts::of_counts(std::vector<int64_t> counts, int64_t unit) const {
  Part part;
  part.counts = std::move(counts);
  for (int64_t r = 0; r < axis_.size; ++r) {
    int64_t& count = part.counts[static_cast<size_t>(r)];
    count *= unit;
    if (r < axis_.index) part.start += count;
    if (r == axis_.index) part.size = count;
  }
  return part;
}

std::vector<int64_t> Cuts::readers() const {
  return sdk::block_counts(axis_.size, heads_.kv_heads);
}

std::optional<Part> Cuts::of(const std::string& logical, int64_t extent) const {
  const bool attention = logical == "heads" || logical == "kv_heads";
  if (attention) {
    const int64_t d = heads_.head_dim;
    if (d == 0 || extent % d != 0) return std::nullopt;
    if (shares_kv_heads()) {
      if (logical == "kv_heads") return std::nullopt;
      // The query heads of a key/value head over the ranks that read it.
      std::vector<int64_t> counts;
      for (const int64_t ranks : readers()) {
        const std::vector<int64_t> group = sdk::block_counts(extent / d / heads_.kv_heads, ranks);
        counts.insert(counts.end(), group.begin(), group.end());
      }
      return of_counts(std::move(counts), d);
    }
    // Query heads go with the key/value heads they read.
    return blocks(heads_.kv_heads, extent / heads_.kv_heads);
  }
  if (logical != "mlp" && logical != "vocab") return std::nullopt;
  if (extent < axis_.size) {
    throw sdk::usage_error(sdk::text("mesh.", axis_.name, " = ", axis_.size, " ranks cannot share ",
                                     extent, " elements along \"", logical, "\"; make it ", extent,
                                     " or less"));
  }
  return blocks(extent, 1);
}

Part Cuts::kv_slice() const {
  Part part;
  int64_t head = 0, rank = axis_.index;
  for (const int64_t ranks : readers()) {
    if (rank < ranks) break;
    rank -= ranks;
    ++head;
  }
  part.start = head * heads_.head_dim;
  part.size = heads_.head_dim;
  return part;
}

int64_t Cuts::first_head() const {
  if (heads_.head_dim == 0) return 0;
  return of("heads", heads_.heads * heads_.head_dim)->start / heads_.head_dim;
}

void Cuts::apply(sdk::Program& program) const {
  for (const sdk::Tensor t : program.tensors()) {
    sdk::TensorInfo info = program.get(t);
    if (info.kind != CAPSTAN_PARAMETER && info.kind != CAPSTAN_STATE) continue;
    for (size_t d = 0; d < info.dim_axes.size() && d < info.shape.size(); ++d) {
      const std::optional<Part> part = of(info.dim_axes[d], info.shape[d]);
      if (!part) continue;
      info.global_shape = info.whole_shape();
      if (info.slice_start.empty()) info.slice_start.assign(info.shape.size(), 0);
      info.shape[d] = part->size;
      info.slice_start[d] += part->start;
      sdk::Placement cut = sdk::shard(axis_.name, static_cast<int32_t>(d));
      if (!part->even()) cut.ranges = {part->start, part->start + part->size};
      info.placement.push_back(std::move(cut));
      program.set(t, info);
      break;  // one cut a tensor
    }
  }
}

}  // namespace capstan::tp
