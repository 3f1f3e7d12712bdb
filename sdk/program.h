// The Program as a plugin sees it: value types that own their contents, and a handle with the
// host's accessors. Everything here throws sdk::Error on a host status.
//
// Strings and arrays that the host lends die at the next edit; the types below copy them, so a
// rewrite may iterate and edit freely.
#ifndef CAPSTAN_SDK_PROGRAM_H_
#define CAPSTAN_SDK_PROGRAM_H_

#include <algorithm>
#include <concepts>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "plugin_api/ops.h"
#include "plugin_api/program.h"
#include "sdk/error.h"

namespace capstan::sdk {

// ---- ids -------------------------------------------------------------------------------------

struct Tensor {
  capstan_tensor id = CAPSTAN_NONE;
  explicit operator bool() const { return id != CAPSTAN_NONE; }
  friend bool operator==(Tensor, Tensor) = default;
  friend auto operator<=>(Tensor, Tensor) = default;
};

struct Op {
  capstan_op id = CAPSTAN_NONE;
  explicit operator bool() const { return id != CAPSTAN_NONE; }
  friend bool operator==(Op, Op) = default;
  friend auto operator<=>(Op, Op) = default;
};

using Shape = std::vector<int64_t>;

// ---- dtypes ----------------------------------------------------------------------------------

inline constexpr capstan_dtype kF64{CAPSTAN_DTYPE_FLOAT, 64, 1};
inline constexpr capstan_dtype kF32{CAPSTAN_DTYPE_FLOAT, 32, 1};
inline constexpr capstan_dtype kF16{CAPSTAN_DTYPE_FLOAT, 16, 1};
inline constexpr capstan_dtype kBF16{CAPSTAN_DTYPE_BFLOAT, 16, 1};
inline constexpr capstan_dtype kI8{CAPSTAN_DTYPE_INT, 8, 1};
inline constexpr capstan_dtype kI32{CAPSTAN_DTYPE_INT, 32, 1};
inline constexpr capstan_dtype kI64{CAPSTAN_DTYPE_INT, 64, 1};
inline constexpr capstan_dtype kBool{CAPSTAN_DTYPE_BOOL, 8, 1};

constexpr bool same_dtype(capstan_dtype a, capstan_dtype b) {
  return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes;
}
constexpr bool is_floating(capstan_dtype d) {
  return d.code == CAPSTAN_DTYPE_FLOAT || d.code == CAPSTAN_DTYPE_BFLOAT ||
         d.code == CAPSTAN_DTYPE_FLOAT8_E4M3FN || d.code == CAPSTAN_DTYPE_FLOAT8_E5M2;
}
// The name used in attributes and dumps: "f32", "bf16", "i64".
inline std::string dtype_name(capstan_dtype d) {
  switch (d.code) {
    case CAPSTAN_DTYPE_INT:
      return text("i", int{d.bits});
    case CAPSTAN_DTYPE_UINT:
      return text("u", int{d.bits});
    case CAPSTAN_DTYPE_FLOAT:
      return text("f", int{d.bits});
    case CAPSTAN_DTYPE_BFLOAT:
      return text("bf", int{d.bits});
    case CAPSTAN_DTYPE_BOOL:
      return "bool";
    case CAPSTAN_DTYPE_FLOAT8_E4M3FN:
      return "f8e4m3";
    case CAPSTAN_DTYPE_FLOAT8_E5M2:
      return "f8e5m2";
    default:
      return text("dtype", int{d.code}, "x", int{d.bits});
  }
}

// FNV-1a (Fowler, Noll & Vo), 64 bits, as the signed integer an attribute holds: turns the name of
// a random op into its RNG key, so that the key depends on the name alone.
constexpr int64_t rng_key(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : name) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 0x100000001b3u;
  }
  return static_cast<int64_t>(hash);
}

// ---- attributes ------------------------------------------------------------------------------

struct Attr {
  std::string name;
  int32_t type = CAPSTAN_ATTR_INT;
  int64_t i = 0;
  double f = 0;
  std::string s;
  std::vector<int64_t> ints;

  Attr() = default;
  template <std::integral T>
  Attr(std::string n, T value) : name(std::move(n)), i(static_cast<int64_t>(value)) {}
  template <std::floating_point T>
  Attr(std::string n, T value) : name(std::move(n)), type(CAPSTAN_ATTR_FLOAT), f(value) {}
  Attr(std::string n, const char* value) : Attr(std::move(n), std::string(value)) {}
  Attr(std::string n, std::string value)
      : name(std::move(n)), type(CAPSTAN_ATTR_STRING), s(std::move(value)) {}
  Attr(std::string n, std::vector<int64_t> value)
      : name(std::move(n)), type(CAPSTAN_ATTR_INTS), ints(std::move(value)) {}
  explicit Attr(const capstan_attr& raw)
      : name(raw.name), type(raw.type), i(raw.i), f(raw.f), s(raw.s != nullptr ? raw.s : "") {
    if (raw.ints != nullptr) ints.assign(raw.ints, raw.ints + raw.count);
  }

  // Borrowed from this Attr.
  capstan_attr raw() const {
    auto out = sized<capstan_attr>();
    out.name = name.c_str();
    out.type = type;
    out.i = i;
    out.f = f;
    out.s = s.c_str();
    out.count = ints.size();
    out.ints = ints.data();
    return out;
  }
};

// Attributes of one op: Attrs{{"eps", 1e-5}, {"axis", "tp"}}.
class Attrs {
 public:
  Attrs() = default;
  Attrs(std::initializer_list<Attr> attrs) : attrs_(attrs) {}
  Attrs(const capstan_attr* raw, size_t count) {
    for (size_t i = 0; i < count; ++i) attrs_.emplace_back(item_of(raw, i));
  }

  Attrs& set(Attr attr) {
    for (Attr& old : attrs_) {
      if (old.name == attr.name) {
        old = std::move(attr);
        return *this;
      }
    }
    attrs_.push_back(std::move(attr));
    return *this;
  }
  const Attr* find(std::string_view name) const {
    for (const Attr& attr : attrs_) {
      if (attr.name == name) return &attr;
    }
    return nullptr;
  }
  bool has(std::string_view name) const { return find(name) != nullptr; }
  int64_t get_int(std::string_view name, int64_t fallback) const {
    const Attr* attr = find(name);
    return attr == nullptr ? fallback : attr->i;
  }
  double get_float(std::string_view name, double fallback) const {
    const Attr* attr = find(name);
    if (attr == nullptr) return fallback;
    return attr->type == CAPSTAN_ATTR_INT ? static_cast<double>(attr->i) : attr->f;
  }
  std::string get_string(std::string_view name, std::string fallback) const {
    const Attr* attr = find(name);
    return attr == nullptr ? std::move(fallback) : attr->s;
  }
  std::vector<int64_t> get_ints(std::string_view name) const {
    const Attr* attr = find(name);
    return attr == nullptr ? std::vector<int64_t>{} : attr->ints;
  }

  auto begin() const { return attrs_.begin(); }
  auto end() const { return attrs_.end(); }
  size_t size() const { return attrs_.size(); }

  // Borrowed from this Attrs.
  std::vector<capstan_attr> raw() const {
    std::vector<capstan_attr> out;
    out.reserve(attrs_.size());
    for (const Attr& attr : attrs_) out.push_back(attr.raw());
    return out;
  }

 private:
  std::vector<Attr> attrs_;
};

// ---- tensors ---------------------------------------------------------------------------------

struct Placement {
  std::string axis;
  int32_t kind = CAPSTAN_REPLICATE;
  int32_t dim = 0;
  int32_t reduce = CAPSTAN_SUM;
  std::vector<int64_t> ranges;
  friend bool operator==(const Placement&, const Placement&) = default;
};

inline Placement replicate(std::string axis) {
  return {std::move(axis), CAPSTAN_REPLICATE, 0, 0, {}};
}
inline Placement shard(std::string axis, int32_t dim) {
  return {std::move(axis), CAPSTAN_SHARD, dim, 0, {}};
}
inline Placement partial(std::string axis, int32_t reduce = CAPSTAN_SUM) {
  return {std::move(axis), CAPSTAN_PARTIAL, 0, reduce, {}};
}
inline Placement varying(std::string axis) { return {std::move(axis), CAPSTAN_VARYING, 0, 0, {}}; }

// Where a parameter lives in the weights of the published model (capstan_external).
struct External {
  std::string name;  // empty: the tensor's own name
  Shape shape;  // of the whole external tensor, in its own orientation; empty: same as the tensor
  Shape start;  // of this parameter in it
  bool transposed = false;
};

// Everything about a tensor, owned. Fields as in capstan_tensor_desc.
struct TensorInfo {
  std::string name;
  capstan_dtype dtype = kF32;
  Shape shape;  // local
  int32_t kind = CAPSTAN_ACTIVATION;
  bool trainable = false;
  int32_t save = CAPSTAN_SAVE_AUTO;
  int32_t scope = CAPSTAN_SCOPE_STEP;
  std::vector<Placement> placement;
  Shape global_shape;                 // empty: as shape
  Shape slice_start;                  // empty: zeros
  std::vector<std::string> dim_axes;  // parameters: logical axis of each dim
  Tensor view_of;
  int64_t view_offset = 0;
  int32_t init = CAPSTAN_INIT_ZEROS;
  double init_a = 0, init_b = 0;
  int32_t layer = -1;
  std::optional<External> external;
  Tensor of;
  bool loss_root = false;
  std::string role;
  std::string codec;
  std::vector<std::string> dim_extents;  // empty strings: fixed

  // Element count of what this rank holds.
  int64_t elements() const {
    int64_t n = 1;
    for (const int64_t extent : shape) n *= extent;
    return n;
  }
  const Shape& whole_shape() const { return global_shape.empty() ? shape : global_shape; }
  // The placement over an axis; replicated when not listed.
  Placement over(std::string_view axis) const {
    for (const Placement& p : placement) {
      if (p.axis == axis) return p;
    }
    return replicate(std::string(axis));
  }
};

namespace internal {

// A capstan_tensor_desc that borrows from a TensorInfo; both must outlive the call it is made for.
class RawTensor {
 public:
  explicit RawTensor(const TensorInfo& t) : desc(sized<capstan_tensor_desc>()) {
    desc.name = t.name.empty() ? nullptr : t.name.c_str();
    desc.dtype = t.dtype;
    desc.ndim = static_cast<int32_t>(t.shape.size());
    desc.shape = t.shape.data();
    desc.kind = t.kind;
    desc.trainable = t.trainable ? 1 : 0;
    desc.save = t.save;
    desc.scope = t.scope;
    for (const Placement& p : t.placement) {
      auto raw = sized<capstan_placement>();
      raw.axis = p.axis.c_str();
      raw.kind = p.kind;
      raw.dim = p.dim;
      raw.reduce = p.reduce;
      raw.range_count = static_cast<int32_t>(p.ranges.size() / 2);
      raw.ranges = p.ranges.empty() ? nullptr : p.ranges.data();
      placement_.push_back(raw);
    }
    desc.placement_count = placement_.size();
    desc.placement = placement_.data();
    desc.global_shape = t.global_shape.empty() ? nullptr : t.global_shape.data();
    desc.slice_start = t.slice_start.empty() ? nullptr : t.slice_start.data();
    for (const std::string& axis : t.dim_axes) axes_.push_back(axis.c_str());
    desc.dim_axes = axes_.empty() ? nullptr : axes_.data();
    desc.view_of = t.view_of.id;
    desc.view_offset = t.view_offset;
    desc.init = t.init;
    desc.init_a = t.init_a;
    desc.init_b = t.init_b;
    desc.layer = t.layer;
    if (t.external) {
      external_ = sized<capstan_external>();
      external_.name = t.external->name.empty() ? nullptr : t.external->name.c_str();
      external_.ndim = static_cast<int32_t>(t.external->shape.size());
      external_.transposed = t.external->transposed ? 1 : 0;
      external_.shape = t.external->shape.empty() ? nullptr : t.external->shape.data();
      external_.start = t.external->start.empty() ? nullptr : t.external->start.data();
      desc.external = &external_;
    }
    desc.of = t.of.id;
    desc.loss_root = t.loss_root ? 1 : 0;
    desc.role = t.role.c_str();
    desc.codec = t.codec.c_str();
    for (const std::string& e : t.dim_extents) extents_.push_back(e.empty() ? nullptr : e.c_str());
    desc.dim_extents = extents_.empty() ? nullptr : extents_.data();
  }
  RawTensor(const RawTensor&) = delete;
  RawTensor& operator=(const RawTensor&) = delete;

  capstan_tensor_desc desc;

 private:
  std::vector<capstan_placement> placement_;
  std::vector<const char*> axes_, extents_;
  capstan_external external_{};
};

inline std::string owned(const char* s) { return s != nullptr ? s : ""; }

inline Shape owned_shape(const int64_t* values, int32_t count) {
  return values == nullptr ? Shape{} : Shape(values, values + count);
}

inline std::vector<std::string> owned_strings(const char* const* values, int32_t count) {
  std::vector<std::string> out;
  if (values == nullptr) return out;
  for (int32_t i = 0; i < count; ++i) out.push_back(owned(values[i]));
  return out;
}

}  // namespace internal

// A deep copy of a borrowed desc.
inline TensorInfo tensor_info(const capstan_tensor_desc& raw) {
  using internal::owned;
  TensorInfo t;
  t.name = owned(raw.name);
  t.dtype = raw.dtype;
  t.shape = internal::owned_shape(raw.shape, raw.ndim);
  t.kind = raw.kind;
  t.trainable = raw.trainable != 0;
  t.save = raw.save;
  t.scope = raw.scope;
  for (size_t i = 0; i < raw.placement_count; ++i) {
    const capstan_placement& p = item_of(raw.placement, i);
    t.placement.push_back({owned(p.axis), p.kind, p.dim, p.reduce,
                           internal::owned_shape(p.ranges, 2 * p.range_count)});
  }
  t.global_shape = internal::owned_shape(raw.global_shape, raw.ndim);
  t.slice_start = internal::owned_shape(raw.slice_start, raw.ndim);
  t.dim_axes = internal::owned_strings(raw.dim_axes, raw.ndim);
  t.view_of = {raw.view_of};
  t.view_offset = raw.view_offset;
  t.init = raw.init;
  t.init_a = raw.init_a;
  t.init_b = raw.init_b;
  t.layer = raw.layer;
  if (raw.external != nullptr) {
    const capstan_external& e = *raw.external;
    t.external = External{owned(e.name), internal::owned_shape(e.shape, e.ndim),
                          internal::owned_shape(e.start, e.ndim), e.transposed != 0};
  }
  t.of = {raw.of};
  t.loss_root = raw.loss_root != 0;
  t.role = owned(raw.role);
  t.codec = owned(raw.codec);
  t.dim_extents = internal::owned_strings(raw.dim_extents, raw.ndim);
  return t;
}

// ---- ops -------------------------------------------------------------------------------------

// A `when` that holds at every step and microbatch.
inline capstan_when always() {
  auto when = sized<capstan_when>();
  when.microbatch = CAPSTAN_EVERY_MICROBATCH;
  when.stop = -1;
  when.every = 1;
  when.guard = CAPSTAN_NONE;
  return when;
}

// Everything about an op, owned. Omitted optional inputs are Tensor{}.
struct OpInfo {
  std::string kind;
  std::vector<Tensor> inputs;
  std::vector<Tensor> outputs;
  Attrs attrs;
  int32_t layer = -1;
  int32_t role = CAPSTAN_ROLE_NONE;
  std::optional<capstan_when> when;
};

// Where new ops go: before an op, or at the end of the segment.
struct Position {
  std::string segment;
  Op before;
};

// ---- the program -----------------------------------------------------------------------------

// A handle on a host's Program; copy it freely, it owns nothing.
class Program {
 public:
  Program(const capstan_program_service* service, capstan_program* program)
      : s_(service), p_(program) {}

  capstan_program* raw() const { return p_; }
  const capstan_program_service& service() const { return *s_; }

  std::string name() const { return s_->name(p_); }
  int64_t microbatches() const { return s_->microbatches(p_); }
  int64_t micro_batch_size() const { return s_->micro_batch_size(p_); }
  int64_t sequence_length() const { return s_->sequence_length(p_); }

  // Tensors.
  bool alive(Tensor t) const { return s_->tensor_alive(p_, t.id) != 0; }
  std::vector<Tensor> tensors() const {
    std::vector<Tensor> out;
    const capstan_tensor limit = s_->tensor_limit(p_);
    for (capstan_tensor t = 0; t < limit; ++t) {
      if (s_->tensor_alive(p_, t) != 0) out.push_back({t});
    }
    return out;
  }
  TensorInfo get(Tensor t) const {
    auto raw = sized<capstan_tensor_desc>();
    check(s_->tensor_get(p_, t.id, &raw));
    return tensor_info(raw);
  }
  Tensor find(const std::string& name) const { return {s_->tensor_find(p_, name.c_str())}; }
  Tensor require(const std::string& name) const {
    const Tensor t = find(name);
    if (!t) throw bug_error(text("program '", this->name(), "' has no tensor named '", name, "'"));
    return t;
  }
  Tensor add(const TensorInfo& info) {
    const internal::RawTensor raw(info);
    Tensor t;
    check(s_->tensor_add(p_, &raw.desc, &t.id));
    return t;
  }
  void set(Tensor t, const TensorInfo& info) {
    const internal::RawTensor raw(info);
    check(s_->tensor_set(p_, t.id, &raw.desc));
  }
  // A tensor that no op reads or writes.
  void remove(Tensor t) { check(s_->tensor_remove(p_, t.id)); }
  Op producer(Tensor t) const { return {s_->tensor_producer(p_, t.id)}; }
  // Ops that read or update t, in program order.
  std::vector<Op> users(Tensor t) const {
    const capstan_op* ops = nullptr;
    size_t count = 0;
    check(s_->tensor_users(p_, t.id, &ops, &count));
    return owned_ops(ops, count);
  }

  // Segments.
  std::vector<std::string> segments() const {
    std::vector<std::string> out;
    const size_t count = s_->segment_count(p_);
    for (size_t i = 0; i < count; ++i) out.emplace_back(s_->segment_name(p_, i));
    return out;
  }
  std::vector<Op> ops(const std::string& segment) const {
    const capstan_op* ops = nullptr;
    size_t count = 0;
    check(s_->segment_ops(p_, segment.c_str(), &ops, &count));
    return owned_ops(ops, count);
  }

  // Ops.
  bool alive(Op op) const { return s_->op_alive(p_, op.id) != 0; }
  OpInfo get(Op op) const {
    auto raw = sized<capstan_op_desc>();
    check(s_->op_get(p_, op.id, &raw));
    OpInfo out;
    out.kind = raw.kind;
    for (size_t i = 0; i < raw.input_count; ++i) out.inputs.push_back({raw.inputs[i]});
    for (size_t i = 0; i < raw.output_count; ++i) out.outputs.push_back({raw.outputs[i]});
    out.attrs = Attrs(raw.attrs, raw.attr_count);
    out.layer = raw.layer;
    out.role = raw.role;
    if (raw.when != nullptr) out.when = *raw.when;
    return out;
  }
  std::string segment(Op op) const { return internal::owned(s_->op_segment(p_, op.id)); }
  uint32_t flags(Op op) const { return s_->op_flags(p_, op.id); }
  // Adds an op; an empty `outputs`, and every Tensor{} in it, makes new ones. Read them with get().
  Op add(const Position& at, const OpInfo& info) {
    auto position = sized<capstan_position>();
    position.segment = at.segment.c_str();
    position.before = at.before.id;
    std::vector<capstan_tensor> inputs, outputs;
    for (const Tensor t : info.inputs) inputs.push_back(t.id);
    for (const Tensor t : info.outputs) outputs.push_back(t.id);
    const std::vector<capstan_attr> attrs = info.attrs.raw();
    auto raw = sized<capstan_op_desc>();
    raw.kind = info.kind.c_str();
    raw.input_count = inputs.size();
    raw.inputs = inputs.data();
    raw.output_count = outputs.size();
    raw.outputs = outputs.empty() ? nullptr : outputs.data();
    raw.attr_count = attrs.size();
    raw.attrs = attrs.data();
    raw.layer = info.layer;
    raw.role = info.role;
    raw.when = info.when ? &*info.when : nullptr;
    Op op;
    check(s_->op_add(p_, &position, &raw, &op.id, nullptr, 0));
    return op;
  }
  void remove(Op op) { check(s_->op_remove(p_, op.id)); }
  void move(Op op, const Position& to) {
    auto position = sized<capstan_position>();
    position.segment = to.segment.c_str();
    position.before = to.before.id;
    check(s_->op_move(p_, op.id, &position));
  }
  void set_input(Op op, size_t index, Tensor t) { check(s_->op_set_input(p_, op.id, index, t.id)); }
  void set_output(Op op, size_t index, Tensor t) {
    check(s_->op_set_output(p_, op.id, index, t.id));
  }
  void set_attr(Op op, const Attr& attr) {
    const capstan_attr raw = attr.raw();
    check(s_->op_set_attr(p_, op.id, &raw));
  }
  void set_when(Op op, const capstan_when& when) { check(s_->op_set_when(p_, op.id, &when)); }
  void replace_uses(Tensor from, Tensor to, Op except = {}) {
    check(s_->replace_uses(p_, from.id, to.id, except.id));
  }
  // Dtypes, shapes and placements of all activations, after edits.
  void infer() { check(s_->infer(p_)); }
  // FLOPs of one launch.
  double flops(Op op) const {
    double flops = 0, read = 0, written = 0;
    check(s_->op_cost(p_, op.id, &flops, &read, &written));
    return flops;
  }
  // Of the outputs of one op, from its inputs as they stand.
  void infer(Op op) { check(s_->op_infer(p_, op.id)); }

  // The op after `op` in its segment, or Op{}: Position{segment, next(op)} is right behind op.
  Op next(Op op) const {
    const std::vector<Op> all = ops(segment(op));
    const auto it = std::find(all.begin(), all.end(), op);
    return it == all.end() || it + 1 == all.end() ? Op{} : *(it + 1);
  }
  Position before(Op op) const { return {segment(op), op}; }
  Position after(Op op) const { return {segment(op), next(op)}; }

  // Schedule: (segment, microbatch) pairs; microbatch -1 is once a step.
  std::vector<std::pair<std::string, int32_t>> schedule() const {
    const capstan_schedule_entry* entries = nullptr;
    size_t count = 0;
    check(s_->schedule_get(p_, &entries, &count));
    std::vector<std::pair<std::string, int32_t>> out;
    for (size_t i = 0; i < count; ++i) {
      const capstan_schedule_entry& entry = item_of(entries, i);
      out.emplace_back(entry.segment, entry.microbatch);
    }
    return out;
  }
  void set_schedule(const std::vector<std::pair<std::string, int32_t>>& schedule) {
    std::vector<capstan_schedule_entry> entries;
    for (const auto& [segment, microbatch] : schedule) {
      auto entry = sized<capstan_schedule_entry>();
      entry.segment = segment.c_str();
      entry.microbatch = microbatch;
      entries.push_back(entry);
    }
    check(s_->schedule_set(p_, entries.data(), entries.size()));
  }

 private:
  static std::vector<Op> owned_ops(const capstan_op* ops, size_t count) {
    std::vector<Op> out;
    out.reserve(count);
    for (size_t i = 0; i < count; ++i) out.push_back({ops[i]});
    return out;
  }

  const capstan_program_service* s_;
  capstan_program* p_;
};

}  // namespace capstan::sdk

#endif  // CAPSTAN_SDK_PROGRAM_H_
