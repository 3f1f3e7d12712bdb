// Stretches of tensors that are reduced together as one vector, and its shares.
#ifndef CAPSTAN_PLUGINS_COMM_COMMON_VECTOR_H_
#define CAPSTAN_PLUGINS_COMM_COMMON_VECTOR_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plugins/comm/common/request.h"

namespace capstan::comm {

// A stretch of one tensor.
struct Part {
  const char* send;
  char* recv;
  size_t bytes;
};

// One part is used where it lies; several are packed, because for small tensors two more copies cost
// less than exchanges of their own.
class Vector {
 public:
  Vector(std::vector<Part> parts, size_t element);

  bool packed() const { return parts_.size() != 1; }
  size_t bytes() const { return bytes_; }
  uint64_t elements() const { return bytes_ / element_; }

  // The vector as one piece of memory: `room` if it must be packed.
  const char* gather(char* room) const;
  // Where its result belongs before unpack: `room` if it is packed.
  char* result(char* room) const { return packed() ? room : parts_.front().recv; }
  void pack(char* room) const;
  void unpack(const char* room) const;

 private:
  std::vector<Part> parts_;
  size_t element_;
  size_t bytes_ = 0;
};

// Cuts the items of an all-reduce into vectors of at most `most` bytes: long items into stretches of
// their own, short ones together.
std::vector<Vector> vectors_of(const Request& request, uint64_t most);

// `total` elements in `parts` slices that follow one another and differ by one element at most, the
// longer ones first.
std::vector<Slice> even_slices(uint64_t total, size_t parts);

}  // namespace capstan::comm

#endif  // CAPSTAN_PLUGINS_COMM_COMMON_VECTOR_H_
