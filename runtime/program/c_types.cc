#include "runtime/program/c_types.h"

#include "runtime/status.h"
#include "sdk/error.h"

namespace capstan {

void AttrsView::Fill(const Attrs& attrs) {
  copy_ = attrs;
  list.clear();
  for (const auto& [name, value] : copy_.items()) {
    capstan_attr a{};
    a.struct_size = sizeof(a);
    a.name = name.c_str();
    if (const auto* i = std::get_if<int64_t>(&value)) {
      a.type = CAPSTAN_ATTR_INT;
      a.i = *i;
      a.f = static_cast<double>(*i);
    } else if (const auto* f = std::get_if<double>(&value)) {
      a.type = CAPSTAN_ATTR_FLOAT;
      a.f = *f;
    } else if (const auto* s = std::get_if<std::string>(&value)) {
      a.type = CAPSTAN_ATTR_STRING;
      a.s = s->c_str();
    } else {
      const Dims& d = std::get<Dims>(value);
      a.type = CAPSTAN_ATTR_INTS;
      a.count = d.size();
      a.ints = d.data();
    }
    list.push_back(a);
  }
}

void PlacementView::Fill(const Placement& placement) {
  copy_ = placement;
  list.clear();
  for (const AxisPlacement& item : copy_) {
    list.push_back({sizeof(capstan_placement), item.axis.c_str(), item.kind, item.dim, item.reduce,
                    static_cast<int32_t>(item.ranges.size() / 2),
                    item.ranges.empty() ? nullptr : item.ranges.data()});
  }
}

void TensorView::Fill(const Tensor& tensor) {
  copy_ = tensor;
  const Tensor& t = copy_;
  placement_.Fill(t.placement());
  axes_.clear();
  for (const std::string& axis : t.dim_axes) axes_.push_back(axis.c_str());
  extents_.clear();
  for (const std::string& e : t.dim_extents) extents_.push_back(e.empty() ? nullptr : e.c_str());
  desc = {};
  desc.struct_size = sizeof(desc);
  desc.name = t.name.empty() ? nullptr : t.name.c_str();
  desc.dtype = t.dtype();
  desc.ndim = static_cast<int32_t>(t.shape().size());
  desc.shape = t.shape().data();
  desc.kind = t.kind;
  desc.trainable = t.trainable;
  desc.save = t.save;
  desc.scope = t.scope;
  desc.placement_count = placement_.list.size();
  desc.placement = placement_.list.data();
  desc.global_shape = t.global_shape.data();
  desc.slice_start = t.slice_start.data();
  desc.dim_axes = axes_.empty() ? nullptr : axes_.data();
  desc.view_of = t.view_of;
  desc.view_offset = t.view_offset;
  desc.init = t.init.kind;
  desc.init_a = t.init.a;
  desc.init_b = t.init.b;
  desc.layer = t.layer;
  desc.of = t.of;
  desc.loss_root = t.loss_root;
  desc.role = t.role.c_str();
  desc.codec = t.codec.c_str();
  desc.dim_extents = extents_.empty() ? nullptr : extents_.data();
  if (!t.external.name.empty()) {
    external_ = {sizeof(capstan_external),
                 t.external.name.c_str(),
                 static_cast<int32_t>(t.external.shape.size()),
                 t.external.transposed,
                 t.external.shape.data(),
                 t.external.start.data()};
    desc.external = &external_;
  }
}

void OpView::Fill(const Op& op) {
  kind_ = op.kind();
  inputs_ = op.inputs;
  outputs_ = op.outputs;
  attrs_.Fill(op.attrs);
  when_ = {sizeof(capstan_when), op.when.microbatch, 0, op.when.start, op.when.stop, op.when.every,
           op.when.offset,       op.when.guard};
  desc = {};
  desc.struct_size = sizeof(desc);
  desc.kind = kind_.c_str();
  desc.input_count = inputs_.size();
  desc.inputs = inputs_.data();
  desc.output_count = outputs_.size();
  desc.outputs = outputs_.data();
  desc.attr_count = attrs_.list.size();
  desc.attrs = attrs_.list.data();
  desc.layer = op.layer;
  desc.role = op.role;
  desc.when = &when_;
}

Placement PlacementFromC(const capstan_placement* list, size_t count) {
  Placement placement;
  for (size_t i = 0; i < count; ++i) {
    const capstan_placement& p = sdk::item_of(list, i);
    AxisPlacement item;
    item.axis = p.axis;
    item.kind = static_cast<char>(p.kind);
    item.dim = p.dim;
    item.reduce = p.reduce;
    if (p.ranges != nullptr) item.ranges.assign(p.ranges, p.ranges + 2 * p.range_count);
    SetPlacement(placement, std::move(item));
  }
  return placement;
}

absl::StatusOr<Tensor> TensorFromC(const capstan_tensor_desc& d) {
  if (!CAPSTAN_HAS(&d, of))
    return BugError("capstan_tensor_desc.struct_size is ", d.struct_size, ", too small");
  if (d.ndim < 0 || d.ndim > kMostDims || (d.ndim > 0 && d.shape == nullptr)) {
    return UsageError("a tensor description has ", d.ndim, " dims; 0 to ", kMostDims,
                      " are allowed");
  }
  Tensor t;
  if (d.name != nullptr) t.name = d.name;
  t.kind = d.kind;
  t.type.dtype = d.dtype;
  t.type.shape.assign(d.shape, d.shape + d.ndim);
  t.type.placement = PlacementFromC(d.placement, d.placement_count);
  t.trainable = d.trainable != 0;
  t.save = d.save;
  t.scope = d.scope;
  if (d.global_shape != nullptr) t.global_shape.assign(d.global_shape, d.global_shape + d.ndim);
  if (d.slice_start != nullptr) t.slice_start.assign(d.slice_start, d.slice_start + d.ndim);
  for (int i = 0; d.dim_axes != nullptr && i < d.ndim; ++i) {
    t.dim_axes.emplace_back(d.dim_axes[i] == nullptr ? "" : d.dim_axes[i]);
  }
  t.view_of = d.view_of;
  t.view_offset = d.view_offset;
  t.init = {d.init, d.init_a, d.init_b};
  t.layer = d.layer;
  t.of = d.of;
  if (d.external != nullptr) {
    const capstan_external& e = *d.external;
    t.external.name = e.name == nullptr ? t.name : e.name;
    t.external.transposed = e.transposed != 0;
    if (e.ndim > 0) {
      if (e.ndim != d.ndim || e.shape == nullptr || (t.external.transposed && e.ndim != 2)) {
        return UsageError("tensor '", t.name, "' has ", d.ndim, " dims and its external tensor '",
                          t.external.name, "' ", e.ndim,
                          "; they must agree, and only matrices are stored transposed");
      }
      t.external.shape.assign(e.shape, e.shape + e.ndim);
      t.external.start.assign(e.ndim, 0);
      if (e.start != nullptr) t.external.start.assign(e.start, e.start + e.ndim);
    }
  }
  if (CAPSTAN_HAS(&d, loss_root)) t.loss_root = d.loss_root != 0;
  if (CAPSTAN_HAS(&d, role) && d.role != nullptr) t.role = d.role;
  if (CAPSTAN_HAS(&d, codec) && d.codec != nullptr) t.codec = d.codec;
  if (CAPSTAN_HAS(&d, dim_extents) && d.dim_extents != nullptr) {
    for (int i = 0; i < d.ndim; ++i) {
      t.dim_extents.emplace_back(d.dim_extents[i] == nullptr ? "" : d.dim_extents[i]);
    }
  }
  return t;
}

absl::StatusOr<AttrValue> AttrFromC(const capstan_attr& a) {
  switch (a.type) {
    case CAPSTAN_ATTR_INT:
      return AttrValue(a.i);
    case CAPSTAN_ATTR_FLOAT:
      return AttrValue(a.f);
    case CAPSTAN_ATTR_STRING:
      return AttrValue(std::string(a.s == nullptr ? "" : a.s));
    case CAPSTAN_ATTR_INTS:
      return AttrValue(Dims(a.ints, a.ints + a.count));
    default:
      return UsageError("attribute '", std::string(a.name == nullptr ? "" : a.name),
                        "' has unknown type ", a.type);
  }
}

absl::StatusOr<NewOp> OpFromC(const capstan_op_desc& d) {
  if (d.kind == nullptr) return UsageError("an op description has no kind");
  NewOp op;
  op.kind = d.kind;
  op.inputs.assign(d.inputs, d.inputs + d.input_count);
  op.outputs.assign(d.outputs, d.outputs + d.output_count);
  for (size_t i = 0; i < d.attr_count; ++i) {
    const capstan_attr& attr = sdk::item_of(d.attrs, i);
    if (attr.name == nullptr) return UsageError("an attribute of op '", op.kind, "' has no name");
    CAPSTAN_ASSIGN_OR_RETURN(AttrValue value, AttrFromC(attr));
    op.attrs.Set(attr.name, std::move(value));
  }
  op.layer = d.layer;
  op.role = d.role;
  op.when = WhenFromC(d.when);
  return op;
}

When WhenFromC(const capstan_when* w) {
  When when;
  if (w == nullptr) return when;
  when.microbatch = w->microbatch;
  when.start = w->start;
  when.stop = w->stop;
  when.every = w->every;
  when.offset = w->offset;
  when.guard = w->guard;
  return when;
}

}  // namespace capstan
