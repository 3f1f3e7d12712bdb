// Kind "ops": a plugin's own op definitions, each a struct of constants and static functions.
//
//   struct ScaledTanh {
//     static constexpr const char* kKind = "org.example.scaled_tanh";
//     static constexpr int32_t kSemanticsVersion = 1;
//     static constexpr uint32_t kFlags = CAPSTAN_OP_PURE;
//     static constexpr size_t kMinInputs = 2, kMaxInputs = 2;
//     static constexpr int32_t kOutputEffects[] = {CAPSTAN_WRITE};
//     static constexpr const char* kDoc = "y = scale * tanh(x)";
//     static void infer(sdk::Infer& ctx);                          // add_output once per output
//     // Optional:
//     static void vjp(sdk::Vjp& ctx);
//     static capstan_cost cost(const sdk::Infer& ctx);             // start from
//     sized<capstan_cost>() static void decompose(sdk::Program& program, sdk::Op op); using Kernels
//     = sdk::KernelList<ScaledTanhCpu>;   // kDevice, static void prepare(request, out)
//   };
//   sdk::ops_component<ScaledTanh, ScaledTanhGrad>("example", "1.0.0", "...")
#ifndef CAPSTAN_SDK_OPS_H_
#define CAPSTAN_SDK_OPS_H_

#include <array>
#include <string>
#include <string_view>

#include "plugin_api/ops.h"
#include "sdk/device.h"
#include "sdk/graph.h"
#include "sdk/model.h"
#include "sdk/plugin.h"

namespace capstan::sdk {

// Shapes and attributes in, outputs out.
class Infer {
 public:
  explicit Infer(capstan_infer* raw) : raw_(raw), attrs_(raw->attrs, raw->attr_count) {}

  size_t input_count() const { return raw_->input_count; }
  bool has_input(size_t i) const { return i < raw_->input_count && raw_->inputs[i] != nullptr; }
  const capstan_tensor_desc& input(size_t i) const {
    if (!has_input(i)) throw usage_error(text("input ", i, " is missing"));
    return *raw_->inputs[i];
  }
  Shape shape(size_t i) const { return internal::owned_shape(input(i).shape, input(i).ndim); }
  const Attrs& attrs() const { return attrs_; }

  // The next output. Without placement: what an element-wise op of input 0 would have.
  void add_output(capstan_dtype dtype, const Shape& shape) {
    check(raw_->add_output(raw_, dtype, static_cast<int32_t>(shape.size()), shape.data(), nullptr,
                           0));
  }
  void add_output(capstan_dtype dtype, const Shape& shape,
                  const std::vector<Placement>& placement) {
    TensorInfo info;
    info.placement = placement;
    const internal::RawTensor raw(info);
    check(raw_->add_output(raw_, dtype, static_cast<int32_t>(shape.size()), shape.data(),
                           raw.desc.placement, raw.desc.placement_count));
  }

 private:
  capstan_infer* raw_;
  Attrs attrs_;
};

// One evaluation of a differentiation rule.
class Vjp {
 public:
  Vjp(const Host& host, capstan_vjp* raw)
      : raw_(raw),
        graph_(host.program(raw->program), internal::position_of(raw->position)),
        info_(graph_.program().get(Op{raw->op})) {
    graph_.set_layer(info_.layer);
    graph_.set_role(CAPSTAN_ROLE_DATA_GRADIENT);
  }

  Graph& graph() { return graph_; }  // at the right place of the backward segment
  const OpInfo& op() const { return info_; }
  Tensor input(size_t i) const { return info_.inputs.at(i); }
  Tensor output(size_t i) const { return info_.outputs.at(i); }
  // Tensor{}: no gradient flows into that output.
  Tensor cotangent(size_t output) const { return {raw_->output_cotangents[output]}; }
  bool needs(size_t input) const { return raw_->needs[input] != 0; }
  // Where a weight-gradient op should accumulate; Tensor{}: not a trainable parameter.
  Tensor gradient_of(size_t input) { return {raw_->gradient_of(raw_, input)}; }
  void set_cotangent(size_t input, Tensor cotangent) {
    check(raw_->set_cotangent(raw_, input, cotangent.id));
  }

 private:
  capstan_vjp* raw_;
  Graph graph_;
  OpInfo info_;
};

template <class... K>
struct KernelList {};

namespace internal {

// The host given to `bind`, needed by vjp and decompose, which get no self. Written once at load,
// before any op is used.
inline constinit const capstan_host* bound_host = nullptr;

template <class K>
constexpr capstan_kernel_def make_kernel_def() {
  auto out = sized<capstan_kernel_def>();
  out.device = K::kDevice;
  out.prepare = [](const capstan_kernel_request* request, capstan_kernel* kernel) noexcept {
    return guard([&] { K::prepare(*request, kernel); });
  };
  return out;
}
template <class K>
inline constexpr capstan_kernel_def kKernelDef = make_kernel_def<K>();

template <class List>
struct KernelTable;
template <class... K>
struct KernelTable<KernelList<K...>> {
  static constexpr const capstan_kernel_def* kTable[] = {&kKernelDef<K>..., nullptr};
};

template <class D>
constexpr capstan_op_def make_op_def() {
  auto out = sized<capstan_op_def>();
  out.kind = D::kKind;
  out.semantics_version = D::kSemanticsVersion;
  out.flags = D::kFlags;
  out.min_inputs = D::kMinInputs;
  out.max_inputs = D::kMaxInputs;
  out.output_count = std::size(D::kOutputEffects);
  out.output_effects = D::kOutputEffects;
  out.doc = D::kDoc;
  out.infer = [](capstan_infer* ctx) noexcept {
    return guard([&] {
      Infer infer(ctx);
      D::infer(infer);
    });
  };
  if constexpr (requires(Vjp & v) { D::vjp(v); }) {
    out.vjp = [](capstan_vjp* ctx) noexcept {
      return guard([&] {
        Vjp vjp(Host(bound_host), ctx);
        D::vjp(vjp);
      });
    };
  }
  if constexpr (requires(const Infer& i) { D::cost(i); }) {
    out.cost = [](const capstan_infer* ctx, capstan_cost* cost) noexcept {
      return guard([&] {
        const capstan_cost made = D::cost(Infer(const_cast<capstan_infer*>(ctx)));
        cost->flops = made.flops;
        cost->bytes_read = made.bytes_read;
        cost->bytes_written = made.bytes_written;
      });
    };
  }
  if constexpr (requires(Program & p, Op op) { D::decompose(p, op); }) {
    out.decompose = [](capstan_program* raw, capstan_op op) noexcept {
      return guard([&] {
        Program program = Host(bound_host).program(raw);
        D::decompose(program, Op{op});
      });
    };
  }
  if constexpr (requires { typename D::Kernels; }) {
    out.kernels = KernelTable<typename D::Kernels>::kTable;
  }
  return out;
}
template <class D>
inline constexpr capstan_op_def kOpDef = make_op_def<D>();

template <class... D>
struct OpsThunks {
  static constexpr const capstan_op_def* kDefs[] = {&kOpDef<D>...};

  static capstan_status* bind(const capstan_host* host) noexcept {
    bound_host = host;
    return nullptr;
  }
  static const capstan_op_def* get(size_t index) noexcept {
    return index < std::size(kDefs) ? kDefs[index] : nullptr;
  }
  static constexpr capstan_ops_v1 vtable() {
    auto v = sized<capstan_ops_v1>();
    v.bind = &bind;
    v.get = &get;
    return v;
  }
};
template <class... D>
inline constexpr capstan_ops_v1 kOpsVtable = OpsThunks<D...>::vtable();

}  // namespace internal

template <class... D>
constexpr capstan_component ops_component(const char* id, const char* version, const char* doc) {
  return internal::make_component("ops", CAPSTAN_OPS_INTERFACE, id, version, doc, {},
                                  &internal::kOpsVtable<D...>);
}

}  // namespace capstan::sdk

#endif  // CAPSTAN_SDK_OPS_H_
