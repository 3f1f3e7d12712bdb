// Words for strategies that reduce gradients over an axis of the mesh and divide tensors among its
// ranks: which gradients are partial, when the backward pass has completed each, buckets of them, and
// the block of a tensor that a rank keeps.
//
//   for (const sdk::Bucket& b : sdk::buckets(sdk::partial_gradients(program, "dp"), 25 << 20)) ...
#ifndef CAPSTAN_SDK_GRADIENTS_H_
#define CAPSTAN_SDK_GRADIENTS_H_

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sdk/program.h"

namespace capstan::sdk {

// An axis of the mesh as one rank sees it.
struct MeshAxis {
  std::string name;
  int64_t size = 1, index = 0;
};

// ---- gradients -------------------------------------------------------------------------------

// A gradient that ranks along an axis hold parts (P) of, and who writes it within a microbatch.
struct PartialGradient {
  Tensor gradient;
  TensorInfo info;
  std::vector<std::pair<Op, size_t>> writes;  // op and output, in the order they run
  Op complete() const { return writes.back().first; }
};

// Gradients partial over the axis, in the order in which their last writes run. Segments appear in
// the order they run: forward chunks, backward chunks, begin and update apart.
inline std::vector<PartialGradient> partial_gradients(const Program& program,
                                                      const std::string& axis) {
  std::map<Tensor, PartialGradient> found;
  for (const Tensor t : program.tensors()) {
    TensorInfo info = program.get(t);
    if (info.kind != CAPSTAN_GRADIENT || info.over(axis).kind != CAPSTAN_PARTIAL) continue;
    found[t] = {t, std::move(info), {}};
  }
  std::map<Tensor, size_t> completed;
  size_t when = 0;
  for (const std::string& segment : program.segments()) {
    for (const Op op : program.ops(segment)) {
      const std::vector<Tensor> outputs = program.get(op).outputs;
      for (size_t j = 0; j < outputs.size(); ++j) {
        const auto it = found.find(outputs[j]);
        if (it == found.end()) continue;
        it->second.writes.emplace_back(op, j);
        completed[outputs[j]] = ++when;
      }
    }
  }
  std::vector<PartialGradient> out;
  for (auto& [t, gradient] : found) {
    if (!gradient.writes.empty()) out.push_back(std::move(gradient));
  }
  std::sort(out.begin(), out.end(), [&](const PartialGradient& a, const PartialGradient& b) {
    return completed.at(a.gradient) < completed.at(b.gradient);
  });
  return out;
}

// What parameters, or parts of them, are updated from: where parts (views) were made of a gradient,
// those in its place.
inline std::vector<Tensor> updated_gradients(const Program& program) {
  std::vector<Tensor> all, divided;
  for (const Tensor t : program.tensors()) {
    const TensorInfo info = program.get(t);
    if (info.kind != CAPSTAN_GRADIENT || !info.of) continue;
    all.push_back(t);
    if (info.view_of) divided.push_back(info.view_of);
  }
  std::erase_if(
      all, [&](Tensor t) { return std::find(divided.begin(), divided.end(), t) != divided.end(); });
  return all;
}

// Gradients that travel together: one dtype, one reduction set, completed in one segment.
struct Bucket {
  std::string segment;
  std::vector<PartialGradient> gradients;
  int64_t bytes = 0;
  Op complete() const { return gradients.back().complete(); }
};

// Consecutive gradients until a bucket holds `bytes` or more.
inline std::vector<Bucket> buckets(const Program& program, std::vector<PartialGradient> gradients,
                                   int64_t bytes) {
  std::vector<Bucket> out;
  for (PartialGradient& g : gradients) {
    const std::string segment = program.segment(g.complete());
    const bool joins = !out.empty() && out.back().segment == segment && out.back().bytes < bytes &&
                       same_dtype(out.back().gradients[0].info.dtype, g.info.dtype) &&
                       out.back().gradients[0].info.placement == g.info.placement;
    if (!joins) out.push_back({segment, {}, 0});
    out.back().bytes += g.info.elements() * g.info.dtype.bits / 8;
    out.back().gradients.push_back(std::move(g));
  }
  return out;
}

// ---- blocks of dim 0 -------------------------------------------------------------------------

// How n rows are shared among ranks, in their order: the first n % ranks have one more. A function
// of n and ranks alone, so copies of a tensor are always cut alike.
inline std::vector<int64_t> block_counts(int64_t n, int64_t ranks) {
  std::vector<int64_t> counts(static_cast<size_t>(ranks), n / ranks);
  for (int64_t r = 0; r < n % ranks; ++r) ++counts[static_cast<size_t>(r)];
  return counts;
}

// The rank's block of a tensor cut along dim 0 over an axis, inside the cuts it already has.
struct Block {
  std::vector<int64_t> counts;  // rows a rank
  int64_t start = 0, rows = 0;  // this rank's, in the local rows
  int64_t offset = 0;           // elements before it
  TensorInfo part;              // the block as a tensor of its own: no name, view or kind
  bool even() const { return counts.front() == counts.back(); }
};

inline Block block_of(const TensorInfo& whole, const MeshAxis& axis) {
  Block b;
  const int64_t rows = whole.shape.empty() ? 1 : whole.shape[0];
  b.counts = block_counts(rows, axis.size);
  for (int64_t r = 0; r < axis.index; ++r) b.start += b.counts[static_cast<size_t>(r)];
  b.rows = b.counts[static_cast<size_t>(axis.index)];
  b.offset = rows == 0 ? 0 : b.start * (whole.elements() / rows);
  b.part = whole;
  b.part.global_shape = whole.whole_shape();
  b.part.slice_start = whole.slice_start.empty() ? Shape(whole.shape.size(), 0) : whole.slice_start;
  if (!b.part.shape.empty()) {
    b.part.shape[0] = b.rows;
    b.part.slice_start[0] += b.start;
  }
  std::erase_if(b.part.placement, [&](const Placement& p) { return p.axis == axis.name; });
  Placement cut = shard(axis.name, 0);
  if (!b.even()) cut.ranges = {b.start, b.start + b.rows};
  b.part.placement.push_back(std::move(cut));
  return b;
}

// Attributes of an all_gather or reduce_scatter along dim 0 of tensors cut into these blocks.
inline Attrs block_attrs(const MeshAxis& axis, const std::vector<Block>& blocks) {
  Attrs attrs{{"axis", axis.name}, {"dim", 0}};
  std::vector<int64_t> counts;
  bool even = true;
  for (const Block& b : blocks) {
    counts.insert(counts.end(), b.counts.begin(), b.counts.end());
    even = even && b.even();
  }
  if (!even) {
    attrs.set({"counts", counts});
    attrs.set({"index", axis.index});
  }
  return attrs;
}

// ---- when ------------------------------------------------------------------------------------

// Once a step, in the last microbatch that runs the op's segment.
inline capstan_when last_microbatch() {
  auto when = sized<capstan_when>();
  when.microbatch = CAPSTAN_LAST_MICROBATCH;
  when.stop = -1;
  when.every = 1;
  when.guard = CAPSTAN_NONE;
  return when;
}

}  // namespace capstan::sdk

#endif  // CAPSTAN_SDK_GRADIENTS_H_
