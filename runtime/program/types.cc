#include "runtime/program/types.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_join.h"
#include "runtime/program/op_def.h"
#include "runtime/strings.h"

namespace capstan {
namespace {

struct NamedDType {
  std::string_view name;
  DType dtype;
};

constexpr std::array kDTypes = {
    NamedDType{"f64", kF64},
    NamedDType{"f32", kF32},
    NamedDType{"f16", kF16},
    NamedDType{"bf16", kBF16},
    NamedDType{"i64", kI64},
    NamedDType{"i32", kI32},
    NamedDType{"i16", {CAPSTAN_DTYPE_INT, 16, 1}},
    NamedDType{"i8", kI8},
    NamedDType{"u32", {CAPSTAN_DTYPE_UINT, 32, 1}},
    NamedDType{"u16", {CAPSTAN_DTYPE_UINT, 16, 1}},
    NamedDType{"u8", {CAPSTAN_DTYPE_UINT, 8, 1}},
    NamedDType{"bool", kBool},
    NamedDType{"f8e4m3", {CAPSTAN_DTYPE_FLOAT8_E4M3FN, 8, 1}},
    NamedDType{"f8e5m2", {CAPSTAN_DTYPE_FLOAT8_E5M2, 8, 1}},
};

}  // namespace

std::string DTypeName(DType d) {
  for (const NamedDType& known : kDTypes) {
    if (SameDType(known.dtype, d)) return std::string(known.name);
  }
  return StrCat("dtype(", int{d.code}, ",", int{d.bits}, ",", int{d.lanes}, ")");
}

absl::StatusOr<DType> ParseDType(std::string_view name) {
  for (const NamedDType& known : kDTypes) {
    if (known.name == name) return known.dtype;
  }
  return absl::InvalidArgumentError(
      StrCat("unknown dtype '", name,
             "'; known: ", absl::StrJoin(kDTypes, ", ", [](std::string* out, const NamedDType& d) {
               StrAppend(out, d.name);
             })));
}

int64_t ElementCount(const Dims& shape) {
  int64_t n = 1;
  for (int64_t d : shape) n *= d;
  return n;
}

std::string ShapeString(const Dims& shape) { return StrCat("[", absl::StrJoin(shape, ","), "]"); }

AxisPlacement PlacementOn(const Placement& placement, std::string_view axis) {
  for (const AxisPlacement& item : placement) {
    if (item.axis == axis) return item;
  }
  AxisPlacement replicated;
  replicated.axis = std::string(axis);
  return replicated;
}

void SetPlacement(Placement& placement, AxisPlacement item) {
  auto it = std::find_if(placement.begin(), placement.end(),
                         [&](const AxisPlacement& p) { return p.axis == item.axis; });
  if (item.kind == CAPSTAN_REPLICATE) {
    if (it != placement.end()) placement.erase(it);
  } else if (it != placement.end()) {
    *it = std::move(item);
  } else {
    placement.push_back(std::move(item));
  }
}

std::string PlacementString(const AxisPlacement& item) {
  switch (item.kind) {
    case CAPSTAN_SHARD: {
      std::string text = StrCat("S(", item.dim, ")");
      if (!item.ranges.empty()) StrAppend(&text, "[", absl::StrJoin(item.ranges, ":"), "]");
      return text;
    }
    case CAPSTAN_PARTIAL:
      return item.reduce == CAPSTAN_MAX ? "P(max)" : "P";
    default:
      return std::string(1, item.kind);
  }
}

std::string PlacementString(const Placement& placement) {
  return StrCat("{",
                absl::StrJoin(placement, ", ",
                              [](std::string* out, const AxisPlacement& p) {
                                StrAppend(out, p.axis, ":", PlacementString(p));
                              }),
                "}");
}

int64_t Attrs::Int(std::string_view name, int64_t fallback) const {
  auto it = items_.find(name);
  if (it == items_.end()) return fallback;
  if (const auto* i = std::get_if<int64_t>(&it->second)) return *i;
  if (const auto* f = std::get_if<double>(&it->second)) return static_cast<int64_t>(*f);
  return fallback;
}

double Attrs::Float(std::string_view name, double fallback) const {
  auto it = items_.find(name);
  if (it == items_.end()) return fallback;
  if (const auto* f = std::get_if<double>(&it->second)) return *f;
  if (const auto* i = std::get_if<int64_t>(&it->second)) return static_cast<double>(*i);
  return fallback;
}

std::string Attrs::String(std::string_view name, std::string_view fallback) const {
  auto it = items_.find(name);
  if (it == items_.end()) return std::string(fallback);
  const auto* s = std::get_if<std::string>(&it->second);
  return s != nullptr ? *s : std::string(fallback);
}

Dims Attrs::Ints(std::string_view name) const {
  auto it = items_.find(name);
  if (it == items_.end()) return {};
  const auto* d = std::get_if<Dims>(&it->second);
  return d != nullptr ? *d : Dims{};
}

const std::string& Op::kind() const { return def->kind; }

}  // namespace capstan
