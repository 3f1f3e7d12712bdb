// Packing of values into one arena: each gets an offset such that no two that live at the same time
// overlap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace capstan {

// A value of the arena: its size, and the launches between which it lives, both included.
struct Span {
  int64_t bytes = 0;
  int32_t first = 0, last = 0;
  bool operator==(const Span&) const = default;
};

// Offsets, one a span: largest first, each at the lowest place free over its whole life. A step
// repeats itself (every microbatch runs the same launches), so stretches of launches that no value
// crosses are packed by themselves, and alike ones only once.
std::vector<int64_t> PackSpans(const std::vector<Span>& spans, size_t launches);

}  // namespace capstan
