// A hyper-rectangle of a dense row-major tensor, as the contiguous runs of bytes it is made of.
#ifndef CAPSTAN_PLUGINS_STORE_SAFETENSORS_SLICE_H_
#define CAPSTAN_PLUGINS_STORE_SAFETENSORS_SLICE_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace capstan::safetensors {

// start and extent have one value a dim; both are checked against the tensor's shape before use.
struct Box {
  std::vector<std::int64_t> start;
  std::vector<std::int64_t> extent;

  bool operator==(const Box&) const = default;
};

// "[0:4, 128:256]": for messages.
std::string box_text(const Box& box);
std::string shape_text(std::span<const std::int64_t> shape);

// Empty when the box lies inside the shape; else what is wrong with it, without a full stop.
std::string box_problem(std::span<const std::int64_t> shape, const Box& box);

// Elements of the box; the box must lie inside a tensor whose own size does not overflow.
std::uint64_t box_volume(const Box& box);
bool boxes_overlap(const Box& a, const Box& b);

// The runs of a box inside its tensor. Trailing dims that the box covers wholly are merged into the
// run, so whole rows are one run and a column range has one run a row.
struct Runs {
  std::uint64_t run_bytes = 0;
  std::uint64_t run_count = 0;
  std::uint64_t first = 0;  // byte offset of the first run inside the tensor
  std::uint64_t span = 0;   // bytes from the first run's begin to the last one's end

  struct Loop {
    std::uint64_t count;
    std::uint64_t stride;  // bytes
  };
  std::vector<Loop> loops;  // outermost first
};
Runs box_runs(std::span<const std::int64_t> shape, const Box& box, std::uint32_t element_size);

// Walks the runs in ascending order of offset: the k-th run lies at run_offset() in the tensor and
// at k * run_bytes in the dense slice.
class RunCursor {
 public:
  explicit RunCursor(const Runs& runs)
      : runs_(runs), index_(runs.loops.size(), 0), offset_(runs.first) {}

  bool done() const { return k_ == runs_.run_count; }
  std::uint64_t run_offset() const { return offset_; }
  std::uint64_t slice_offset() const { return k_ * runs_.run_bytes; }
  void next();

 private:
  const Runs& runs_;
  std::vector<std::uint64_t> index_;
  std::uint64_t offset_;
  std::uint64_t k_ = 0;
};

}  // namespace capstan::safetensors

#endif  // CAPSTAN_PLUGINS_STORE_SAFETENSORS_SLICE_H_
