#include "plugins/store/safetensors/slice.h"

namespace capstan::safetensors {

std::string box_text(const Box& box) {
  std::string text = "[";
  for (std::size_t d = 0; d < box.start.size(); ++d) {
    if (d > 0) text += ", ";
    text += std::to_string(box.start[d]) + ":" + std::to_string(box.start[d] + box.extent[d]);
  }
  return text + "]";
}

std::string shape_text(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (d > 0) text += ", ";
    text += std::to_string(shape[d]);
  }
  return text + "]";
}

std::string box_problem(std::span<const std::int64_t> shape, const Box& box) {
  if (box.start.size() != shape.size()) {
    return "has " + std::to_string(box.start.size()) + " dims, the tensor has " +
           std::to_string(shape.size());
  }
  for (std::size_t d = 0; d < shape.size(); ++d) {
    const std::int64_t start = box.start[d];
    const std::int64_t extent = box.extent[d];
    if (start < 0 || extent < 0 || start > shape[d] || extent > shape[d] - start) {
      return "takes " + std::to_string(extent) + " elements from " + std::to_string(start) +
             " on in dim " + std::to_string(d) + ", which has " + std::to_string(shape[d]);
    }
  }
  return "";
}

std::uint64_t box_volume(const Box& box) {
  std::uint64_t volume = 1;
  for (std::int64_t extent : box.extent) volume *= static_cast<std::uint64_t>(extent);
  return volume;
}

bool boxes_overlap(const Box& a, const Box& b) {
  for (std::size_t d = 0; d < a.start.size(); ++d) {
    if (a.extent[d] == 0 || b.extent[d] == 0) return false;
    if (a.start[d] + a.extent[d] <= b.start[d] || b.start[d] + b.extent[d] <= a.start[d]) {
      return false;
    }
  }
  return true;
}

Runs box_runs(std::span<const std::int64_t> shape, const Box& box, std::uint32_t element_size) {
  Runs runs;
  if (box_volume(box) == 0) return runs;
  runs.run_bytes = element_size;
  runs.run_count = 1;
  std::uint64_t stride = element_size;
  std::uint64_t last = 0;
  bool merging = true;
  for (std::size_t d = shape.size(); d-- > 0;) {
    const auto extent = static_cast<std::uint64_t>(box.extent[d]);
    runs.first += static_cast<std::uint64_t>(box.start[d]) * stride;
    if (merging) {
      runs.run_bytes *= extent;
      merging = box.extent[d] == shape[d];
    } else if (extent > 1) {
      runs.loops.insert(runs.loops.begin(), Runs::Loop{extent, stride});
      runs.run_count *= extent;
      last += (extent - 1) * stride;
    }
    stride *= static_cast<std::uint64_t>(shape[d]);
  }
  runs.span = last + runs.run_bytes;
  return runs;
}

void RunCursor::next() {
  ++k_;
  for (std::size_t i = runs_.loops.size(); i-- > 0;) {
    const Runs::Loop& loop = runs_.loops[i];
    offset_ += loop.stride;
    if (++index_[i] < loop.count) return;
    offset_ -= loop.stride * loop.count;
    index_[i] = 0;
  }
}

}  // namespace capstan::safetensors
