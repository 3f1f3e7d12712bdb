// The mesh: ranks laid out on named axes, innermost (neighbouring ranks, fastest links) first.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/config.h"
#include "runtime/program/program.h"

namespace capstan {

class Mesh {
 public:
  Mesh() = default;  // one rank, no axes

  // An axis of size 0 ("auto") takes what the others leave of `world`. `world` 0: as many ranks as
  // the axes make, "auto" being 1 (plans need no ranks).
  static absl::StatusOr<Mesh> Layout(std::vector<MeshAxis> axes, int64_t world);

  int64_t world() const { return world_; }
  const std::vector<MeshAxis>& axes() const { return axes_; }
  MeshView View(int64_t rank) const;
  int64_t Size(std::string_view axis) const;                 // 1 for an axis it does not have
  int64_t Index(std::string_view axis, int64_t rank) const;  // this rank's coordinate, from 0
  // The ranks that differ from `rank` along these axes at most, ascending: the order of their
  // coordinates when there is one axis.
  std::vector<int32_t> Group(const std::vector<std::string>& axes, int64_t rank) const;
  // "tp=2 dp=4", the axes of more than one rank; "1 rank" without any.
  std::string ToString() const;

 private:
  std::vector<MeshAxis> axes_;
  int64_t world_ = 1;
};

}  // namespace capstan
