#include "runtime/mesh.h"

#include <algorithm>

#include "absl/strings/str_join.h"
#include "runtime/status.h"

namespace capstan {
namespace {

constexpr int64_t kMostRanks = int64_t{1} << 31;  // ranks are 32-bit in the ABI

std::string Product(const std::vector<MeshAxis>& axes) {
  std::vector<std::string> parts;
  for (const MeshAxis& a : axes) {
    if (a.size != 1) parts.push_back(StrCat(a.name, " = ", a.size == 0 ? "auto" : StrCat(a.size)));
  }
  return parts.empty() ? "[mesh]" : StrCat("[mesh] ", absl::StrJoin(parts, " x "));
}

}  // namespace

absl::StatusOr<Mesh> Mesh::Layout(std::vector<MeshAxis> axes, int64_t world) {
  const std::string text = Product(axes);
  int64_t known = 1;
  MeshAxis* open = nullptr;
  for (MeshAxis& axis : axes) {
    if (axis.size == 0) {
      open = &axis;
    } else if (__builtin_mul_overflow(known, axis.size, &known) || known > kMostRanks) {
      return UsageError(text, " asks for more than 2^31 ranks; make an axis smaller");
    }
  }
  if (world == 0) world = known;
  if (open != nullptr) {
    if (world % known != 0) {
      return UsageError(text, ": the other axes make ", known, " ranks, which ", world,
                        " ranks are no multiple of; start ", (world / known + 1) * known,
                        " ranks or change [mesh]");
    }
    open->size = world / known;
    known = world;
  }
  if (known != world) {
    return UsageError(text, known == 1 ? " is one rank" : StrCat(" makes ", known, " ranks"),
                      ", this run has ", world,
                      known == 1 ? "; give an axis a size (dp = \"auto\" takes them all)"
                                 : StrCat("; start it with --ranks ", known, ", or change [mesh]"));
  }
  Mesh mesh;
  mesh.axes_ = std::move(axes);
  mesh.world_ = world;
  return mesh;
}

MeshView Mesh::View(int64_t rank) const {
  MeshView view;
  for (const MeshAxis& a : axes_) {
    view.axes.emplace_back(a.name, a.size);
    view.indices.push_back(Index(a.name, rank));
  }
  return view;
}

int64_t Mesh::Size(std::string_view axis) const {
  for (const MeshAxis& a : axes_) {
    if (a.name == axis) return a.size;
  }
  return 1;
}

int64_t Mesh::Index(std::string_view axis, int64_t rank) const {
  for (const MeshAxis& a : axes_) {
    if (a.name == axis) return rank % a.size;
    rank /= a.size;
  }
  return 0;
}

std::vector<int32_t> Mesh::Group(const std::vector<std::string>& axes, int64_t rank) const {
  std::vector<int32_t> ranks{static_cast<int32_t>(rank)};
  int64_t stride = 1;
  for (const MeshAxis& a : axes_) {
    if (std::find(axes.begin(), axes.end(), a.name) != axes.end()) {
      const std::vector<int32_t> lines = ranks;
      const int64_t own = rank / stride % a.size;
      ranks.clear();
      for (int64_t i = 0; i < a.size; ++i) {
        for (const int32_t r : lines) ranks.push_back(static_cast<int32_t>(r + (i - own) * stride));
      }
    }
    stride *= a.size;
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

std::string Mesh::ToString() const {
  std::vector<std::string> parts;
  for (const MeshAxis& a : axes_) {
    if (a.size > 1) parts.push_back(StrCat(a.name, "=", a.size));
  }
  return parts.empty() ? "1 rank" : absl::StrJoin(parts, " ");
}

}  // namespace capstan
