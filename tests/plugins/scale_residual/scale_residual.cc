// A strategy with ops, parameters and a state of its own; see README.md.
#include <cmath>
#include <string>
#include <vector>

#include "sdk/ops.h"
#include "sdk/strategy.h"

namespace capstan {
namespace {

// ---- kernels: x [rows, C], scale [C] ---------------------------------------------------------

struct Sizes {
  int64_t rows = 1, channels = 1;
  bool wide = false;  // float64

  explicit Sizes(const capstan_dl_tensor& x) : wide(x.dtype.bits == 64) {
    channels = x.shape[x.ndim - 1];
    for (int32_t d = 0; d + 1 < x.ndim; ++d) rows *= x.shape[d];
  }
};

template <class T>
void scaled_tanh(const Sizes& n, const capstan_kernel_args& args) {
  const T* x = static_cast<const T*>(args.inputs[0]);
  const T* scale = static_cast<const T*>(args.inputs[1]);
  T* y = static_cast<T*>(args.outputs[0]);
  for (int64_t r = 0; r < n.rows; ++r) {
    for (int64_t c = 0; c < n.channels; ++c) {
      y[r * n.channels + c] = scale[c] * std::tanh(x[r * n.channels + c]);
    }
  }
}

template <class T>
void scaled_tanh_grad(const Sizes& n, const capstan_kernel_args& args) {
  const T* dy = static_cast<const T*>(args.inputs[0]);
  const T* x = static_cast<const T*>(args.inputs[1]);
  const T* scale = static_cast<const T*>(args.inputs[2]);
  T* dx = static_cast<T*>(args.outputs[0]);  // either is NULL where nothing reads it
  T* dscale = static_cast<T*>(args.outputs[1]);
  const bool accumulate = (args.accumulate >> 1 & 1) != 0;
  for (int64_t c = 0; c < n.channels; ++c) {
    T sum = 0;
    for (int64_t r = 0; r < n.rows; ++r) {
      const int64_t i = r * n.channels + c;
      const T t = std::tanh(x[i]);
      sum += dy[i] * t;
      if (dx != nullptr) dx[i] = dy[i] * scale[c] * (1 - t * t);
    }
    if (dscale != nullptr) dscale[c] = accumulate ? dscale[c] + sum : sum;
  }
}

struct ScaledTanhCpu {
  static constexpr const char* kDevice = "cpu";
  static void prepare(const capstan_kernel_request& request, capstan_kernel* out) {
    sdk::make_kernel(ScaledTanhCpu{Sizes(request.inputs[0])}, "scaled_tanh", out);
  }
  void run(const capstan_kernel_args& args) const {
    n.wide ? scaled_tanh<double>(n, args) : scaled_tanh<float>(n, args);
  }
  Sizes n;
};

struct ScaledTanhGradCpu {
  static constexpr const char* kDevice = "cpu";
  static void prepare(const capstan_kernel_request& request, capstan_kernel* out) {
    sdk::make_kernel(ScaledTanhGradCpu{Sizes(request.inputs[1])}, "scaled_tanh_grad", out);
  }
  void run(const capstan_kernel_args& args) const {
    n.wide ? scaled_tanh_grad<double>(n, args) : scaled_tanh_grad<float>(n, args);
  }
  Sizes n;
};

struct CountUpdatesCpu {
  static constexpr const char* kDevice = "cpu";
  static void prepare(const capstan_kernel_request&, capstan_kernel* out) {
    sdk::make_kernel(CountUpdatesCpu{}, "count_updates", out);
  }
  void run(const capstan_kernel_args& args) const { *static_cast<float*>(args.outputs[0]) += 1; }
};

// ---- ops -------------------------------------------------------------------------------------

void refuse_mismatch(const sdk::Infer& ctx, size_t x, size_t scale) {
  const sdk::Shape whole = ctx.shape(x), channels = ctx.shape(scale);
  if (whole.empty() || channels != sdk::Shape{whole.back()}) {
    throw sdk::usage_error("scaled_tanh: scale must be [C], with C the last dim of x");
  }
  const capstan_dtype d = ctx.input(x).dtype;
  if (!sdk::same_dtype(d, ctx.input(scale).dtype) ||
      (!sdk::same_dtype(d, sdk::kF32) && !sdk::same_dtype(d, sdk::kF64))) {
    throw sdk::unsupported_error("scaled_tanh: x and scale must both be f32 or both f64, not " +
                                 sdk::dtype_name(d));
  }
}

double element_bytes(const sdk::Infer& ctx) {
  double n = ctx.input(0).dtype.bits / 8.0;
  for (const int64_t extent : ctx.shape(0)) n *= static_cast<double>(extent);
  return n;
}

struct ScaledTanhGrad {
  static constexpr const char* kKind = "org.capstan.test.scaled_tanh_grad";
  static constexpr int32_t kSemanticsVersion = 1;
  static constexpr uint32_t kFlags = CAPSTAN_OP_PURE;
  static constexpr size_t kMinInputs = 3, kMaxInputs = 3;
  static constexpr int32_t kOutputEffects[] = {CAPSTAN_WRITE, CAPSTAN_ACCUMULATE};
  static constexpr const char* kDoc = "(dy, x, scale) -> dx, +dscale";
  using Kernels = sdk::KernelList<ScaledTanhGradCpu>;

  static void infer(sdk::Infer& ctx) {
    refuse_mismatch(ctx, 1, 2);
    ctx.add_output(ctx.input(0).dtype, ctx.shape(0));
    // dscale sums over the leading dims: sharded there, each rank holds a part of the sum.
    const sdk::TensorInfo dy = sdk::tensor_info(ctx.input(0));
    const int32_t last = static_cast<int32_t>(dy.shape.size()) - 1;
    std::vector<sdk::Placement> placement;
    for (const sdk::Placement& p : dy.placement) {
      if (p.kind != CAPSTAN_SHARD) continue;
      placement.push_back(p.dim == last ? sdk::shard(p.axis, 0) : sdk::partial(p.axis));
    }
    ctx.add_output(ctx.input(2).dtype, ctx.shape(2), placement);
  }
  static capstan_cost cost(const sdk::Infer& ctx) {
    auto cost = sdk::sized<capstan_cost>();
    cost.flops = 8 * element_bytes(ctx);
    cost.bytes_read = 2 * element_bytes(ctx);
    cost.bytes_written = element_bytes(ctx);
    return cost;
  }
};

struct ScaledTanh {
  static constexpr const char* kKind = "org.capstan.test.scaled_tanh";
  static constexpr int32_t kSemanticsVersion = 1;
  static constexpr uint32_t kFlags = CAPSTAN_OP_PURE;
  static constexpr size_t kMinInputs = 2, kMaxInputs = 2;
  static constexpr int32_t kOutputEffects[] = {CAPSTAN_WRITE};
  static constexpr const char* kDoc = "(x [...,C], scale [C]) -> scale * tanh(x)";
  using Kernels = sdk::KernelList<ScaledTanhCpu>;

  static void infer(sdk::Infer& ctx) {
    refuse_mismatch(ctx, 0, 1);
    ctx.add_output(ctx.input(0).dtype, ctx.shape(0));
  }
  static void vjp(sdk::Vjp& ctx) {
    const sdk::Tensor gradient = ctx.gradient_of(1);
    std::vector<sdk::Tensor> outputs;
    if (gradient) outputs = {sdk::Tensor{}, gradient};
    const sdk::Emission e = ctx.graph().emit(
        ScaledTanhGrad::kKind, {ctx.cotangent(0), ctx.input(0), ctx.input(1)}, {}, outputs);
    if (ctx.needs(0)) ctx.set_cotangent(0, e[0]);
    if (ctx.needs(1) && !gradient) ctx.set_cotangent(1, e[1]);
  }
  static capstan_cost cost(const sdk::Infer& ctx) {
    auto cost = sdk::sized<capstan_cost>();
    cost.flops = 5 * element_bytes(ctx);
    cost.bytes_read = element_bytes(ctx);
    cost.bytes_written = element_bytes(ctx);
    return cost;
  }
  static void decompose(sdk::Program& program, sdk::Op op) {
    const sdk::OpInfo info = program.get(op);
    sdk::Graph g(program, program.before(op));
    g.set_layer(info.layer);
    g.set_role(info.role);
    g.set_when(info.when);
    const sdk::Tensor y = g.mul(g.unary("tanh", info.inputs[0]), info.inputs[1]);
    program.replace_uses(info.outputs[0], y);
    program.remove(op);
  }
};

struct CountUpdates {
  static constexpr const char* kKind = "org.capstan.test.count_updates";
  static constexpr int32_t kSemanticsVersion = 1;
  static constexpr uint32_t kFlags = CAPSTAN_OP_SIDE_EFFECT;
  static constexpr size_t kMinInputs = 0, kMaxInputs = 0;
  static constexpr int32_t kOutputEffects[] = {CAPSTAN_UPDATE};
  static constexpr const char* kDoc = "() -> !count, one more";
  using Kernels = sdk::KernelList<CountUpdatesCpu>;

  static void infer(sdk::Infer& ctx) { ctx.add_output(sdk::kF32, {1}, {}); }
};

// ---- the strategy ----------------------------------------------------------------------------

constexpr capstan_option kOptions[] = {
    sdk::float_option("initial", "1.0", "Start value of the scales.").range(-1e6, 1e6),
};

constexpr capstan_phase kPhases[] = {sdk::make_phase(CAPSTAN_PHASE_ADAPT),
                                     sdk::make_phase(CAPSTAN_PHASE_PUBLISH)};

class ScaleResidual {
 public:
  ScaleResidual(const sdk::Host&, const sdk::Options& options)
      : initial_(options.get_float("initial")) {}

  std::span<const capstan_phase> phases() const noexcept { return kPhases; }

  // The loss differs from the unmodified model's: it is its own reference.
  int32_t equivalence(double*) const noexcept { return CAPSTAN_EQUIVALENCE_REFERENCE; }

  void rewrite(std::string_view phase, sdk::Program& program) {
    if (phase == CAPSTAN_PHASE_ADAPT) return scale_mlps(program);
    if (program.name() != "train") return;
    sdk::Graph g(program, {"update", {}});
    const sdk::Tensor count = g.state("scale_residual.updates", {1}, sdk::kF32, "counter");
    g.emit(CountUpdates::kKind, {}, {}, {count});
  }

 private:
  void scale_mlps(sdk::Program& program) {
    int64_t found = 0;
    for (const sdk::Op op : program.ops("forward/0")) {
      const sdk::OpInfo info = program.get(op);
      if (info.kind != "linear") continue;
      const sdk::TensorInfo weight = program.get(info.inputs[1]);
      if (weight.dim_axes != std::vector<std::string>{"embed", "mlp"}) continue;
      ++found;
      sdk::Graph g(program, program.after(op));
      g.set_layer(info.layer);
      const std::string name = weight.name.substr(0, weight.name.rfind('.')) + ".scale";
      const sdk::Tensor scale = g.parameter(
          {name, {weight.shape[0]}, {"embed"}, weight.dtype, sdk::constant(initial_), {}, true});
      const sdk::Tensor y = info.outputs[0];
      const sdk::Emission scaled = g.emit(ScaledTanh::kKind, {y, scale});
      program.replace_uses(y, scaled[0], scaled.op);
    }
    if (found == 0) {
      throw sdk::unsupported_error(
          "scale_residual found no linear with a weight of axes embed, mlp in program '" +
          program.name() + "'");
    }
  }

  double initial_;
};

}  // namespace
}  // namespace capstan

CAPSTAN_PLUGIN_ENTRY(
    "scale_residual", "1.0.0", "Apache-2.0", "Test of third-party ops, parameters and states.",
    capstan::sdk::strategy_component<capstan::ScaleResidual>(
        "scale_residual", "1.0.0", "Scales each MLP output by a trained tanh.", capstan::kOptions),
    capstan::sdk::ops_component<capstan::ScaledTanh, capstan::ScaledTanhGrad,
                                capstan::CountUpdates>(
        "scale_residual_ops", "1.0.0", "scaled_tanh, its gradient, and a counter."));
