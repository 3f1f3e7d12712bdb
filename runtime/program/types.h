// The plain data of a Program: tensors, ops, placements, attributes. No behaviour beyond comparison
// and printing. Shapes are in elements; ids are indices into the Program that made them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "plugin_api/base.h"
#include "plugin_api/ops.h"
#include "plugin_api/program.h"

namespace capstan {

using TensorId = capstan_tensor;
using OpId = capstan_op;
inline constexpr int32_t kNone = CAPSTAN_NONE;

using Dims = std::vector<int64_t>;

// ---- dtypes ----------------------------------------------------------------------------------

using DType = capstan_dtype;
inline constexpr DType kF64{CAPSTAN_DTYPE_FLOAT, 64, 1};
inline constexpr DType kF32{CAPSTAN_DTYPE_FLOAT, 32, 1};
inline constexpr DType kF16{CAPSTAN_DTYPE_FLOAT, 16, 1};
inline constexpr DType kBF16{CAPSTAN_DTYPE_BFLOAT, 16, 1};
inline constexpr DType kU8{CAPSTAN_DTYPE_UINT, 8, 1};
inline constexpr DType kI64{CAPSTAN_DTYPE_INT, 64, 1};
inline constexpr DType kI32{CAPSTAN_DTYPE_INT, 32, 1};
inline constexpr DType kI8{CAPSTAN_DTYPE_INT, 8, 1};
inline constexpr DType kBool{CAPSTAN_DTYPE_BOOL, 8, 1};

inline bool SameDType(DType a, DType b) {
  return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes;
}
inline bool IsFloat(DType d) {
  return d.code == CAPSTAN_DTYPE_FLOAT || d.code == CAPSTAN_DTYPE_BFLOAT ||
         d.code == CAPSTAN_DTYPE_FLOAT8_E4M3FN || d.code == CAPSTAN_DTYPE_FLOAT8_E5M2;
}
inline int64_t DTypeBytes(DType d) { return (int64_t{d.bits} * d.lanes + 7) / 8; }
std::string DTypeName(DType d);                           // "f32", "bf16", "i64", "bool", ...
absl::StatusOr<DType> ParseDType(std::string_view name);  // the inverse

int64_t ElementCount(const Dims& shape);     // product; 1 for a scalar
std::string ShapeString(const Dims& shape);  // "[2,128,384]"

// ---- placement -------------------------------------------------------------------------------

// How a tensor lies over one mesh axis or named group. An axis that is not listed is replicated.
struct AxisPlacement {
  std::string axis;
  char kind = CAPSTAN_REPLICATE;  // 'R' 'S' 'P' 'V'
  int dim = 0;                    // S: the sharded dim
  int reduce = CAPSTAN_SUM;       // P: CAPSTAN_SUM or CAPSTAN_MAX
  std::vector<int64_t> ranges;    // S: global [begin,end) pairs; empty: even blocks

  bool operator==(const AxisPlacement&) const = default;
};

// Outermost first. Normalised: no 'R' entries.
using Placement = std::vector<AxisPlacement>;

AxisPlacement PlacementOn(const Placement& placement, std::string_view axis);  // 'R' when absent
void SetPlacement(Placement& placement, AxisPlacement item);                   // replaces or adds
std::string PlacementString(const AxisPlacement& item);   // "S(2)", "P", "P(max)"
std::string PlacementString(const Placement& placement);  // "{dp:S(0), tp:P}"

// ---- attributes ------------------------------------------------------------------------------

using AttrValue = std::variant<int64_t, double, std::string, Dims>;

// Few per op, ordered by name so that dumps are stable.
class Attrs {
 public:
  Attrs() = default;
  Attrs(std::initializer_list<std::pair<const std::string, AttrValue>> items) : items_(items) {}
  void Set(std::string name, AttrValue value) { items_[std::move(name)] = std::move(value); }
  bool Has(std::string_view name) const { return items_.find(name) != items_.end(); }
  int64_t Int(std::string_view name, int64_t fallback) const;
  double Float(std::string_view name, double fallback) const;  // also reads ints
  std::string String(std::string_view name, std::string_view fallback) const;
  Dims Ints(std::string_view name) const;  // empty when absent
  const std::map<std::string, AttrValue, std::less<>>& items() const { return items_; }
  bool operator==(const Attrs&) const = default;

 private:
  std::map<std::string, AttrValue, std::less<>> items_;
};

// ---- tensors ---------------------------------------------------------------------------------

// Where a logical parameter lives in the weights of the published model (capstan_external).
struct External {
  std::string name;
  Dims shape;  // of the whole external tensor, its own orientation
  Dims start;  // of this parameter in it, its own orientation
  bool transposed = false;
};

struct Init {
  int kind = CAPSTAN_INIT_ZEROS;
  double a = 0, b = 0;
};

// What inference decides about a tensor.
struct TensorType {
  DType dtype = kF32;
  Dims shape;  // local
  Placement placement;
};

struct Tensor {
  TensorId id = kNone;
  std::string name;  // "" for unnamed activations: printed as %id
  int kind = CAPSTAN_ACTIVATION;
  TensorType type;
  Dims global_shape;
  Dims slice_start;
  std::vector<std::string> dim_axes;
  bool trainable = false;
  int save = CAPSTAN_SAVE_AUTO;
  int scope = CAPSTAN_SCOPE_STEP;
  TensorId view_of = kNone;
  int64_t view_offset = 0;  // elements
  Init init;
  int layer = -1;
  External external;    // external.name empty: stored under its own name and shape
  TensorId of = kNone;  // gradients and states: their parameter
  bool loss_root = false;
  std::string role;  // states
  std::string codec;
  std::vector<std::string> dim_extents;

  const Dims& shape() const { return type.shape; }
  DType dtype() const { return type.dtype; }
  const Placement& placement() const { return type.placement; }
  int64_t elements() const { return ElementCount(type.shape); }
  int64_t bytes() const { return elements() * DTypeBytes(type.dtype); }
  bool persistent() const {
    return kind == CAPSTAN_PARAMETER || kind == CAPSTAN_GRADIENT || kind == CAPSTAN_STATE ||
           kind == CAPSTAN_CONSTANT;
  }
};

// ---- ops -------------------------------------------------------------------------------------

struct When {
  int microbatch = CAPSTAN_EVERY_MICROBATCH;
  int64_t start = 0, stop = -1, every = 1, offset = 0;
  TensorId guard = kNone;
  bool operator==(const When&) const = default;
  bool EveryStep() const { return start <= 0 && stop < 0 && every <= 1; }
  bool Always() const {
    return microbatch == CAPSTAN_EVERY_MICROBATCH && EveryStep() && guard == kNone;
  }
  bool RunsAtStep(int64_t step) const {
    return step >= start && (stop < 0 || step < stop) &&
           (every <= 1 || (step - offset) % every == 0);
  }
};

struct OpDef;

struct Op {
  OpId id = kNone;
  const OpDef* def = nullptr;
  std::vector<TensorId> inputs;  // kNone: omitted optional input
  std::vector<TensorId> outputs;
  Attrs attrs;
  int layer = -1;
  int role = CAPSTAN_ROLE_NONE;
  When when;
  int segment = -1;  // index into Program::segments()

  const std::string& kind() const;
};

struct ScheduleEntry {
  std::string segment;
  int microbatch = -1;  // -1: once a step
  bool operator==(const ScheduleEntry&) const = default;
};

struct Segment {
  std::string name;
  std::vector<OpId> ops;
};

}  // namespace capstan
