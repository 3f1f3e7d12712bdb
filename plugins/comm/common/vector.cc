#include "plugins/comm/common/vector.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace capstan::comm {
namespace {

void copy(char* to, const char* from, size_t bytes) {
  if (to != from && bytes != 0) std::memcpy(to, from, bytes);
}

}  // namespace

Vector::Vector(std::vector<Part> parts, size_t element)
    : parts_(std::move(parts)), element_(element) {
  for (const Part& part : parts_) bytes_ += part.bytes;
}

const char* Vector::gather(char* room) const {
  if (!packed()) return parts_.front().send;
  pack(room);
  return room;
}

void Vector::pack(char* room) const {
  for (const Part& part : parts_) {
    copy(room, part.send, part.bytes);
    room += part.bytes;
  }
}

void Vector::unpack(const char* room) const {
  for (const Part& part : parts_) {
    copy(part.recv, room, part.bytes);
    room += part.bytes;
  }
}

std::vector<Vector> vectors_of(const Request& request, uint64_t most) {
  most -= most % request.element;
  std::vector<Vector> out;
  std::vector<Part> open;
  uint64_t open_bytes = 0;
  const auto close = [&] {
    if (!open.empty()) out.emplace_back(std::move(open), request.element);
    open.clear();
    open_bytes = 0;
  };
  for (const Item& item : request.items) {
    const uint64_t bytes = item.count * request.element;
    if (bytes == 0) continue;
    if (bytes > most / 4) {
      for (uint64_t at = 0; at < bytes; at += most) {
        out.emplace_back(
            std::vector<Part>{{item.send + at, item.recv + at, std::min(most, bytes - at)}},
            request.element);
      }
      continue;
    }
    if (open_bytes + bytes > most) close();
    open.push_back({item.send, item.recv, bytes});
    open_bytes += bytes;
  }
  close();
  return out;
}

std::vector<Slice> even_slices(uint64_t total, size_t parts) {
  std::vector<Slice> out;
  uint64_t begin = 0;
  for (size_t r = 0; r < parts; ++r) {
    const uint64_t count = total / parts + (r < total % parts ? 1 : 0);
    out.push_back({begin, count});
    begin += count;
  }
  return out;
}

}  // namespace capstan::comm
