// Stochastic gradient descent, plain or with momentum (Sutskever et al. 2013, section 2, in the
// form whose buffer holds gradients: v = momentum v + g; p = p - lr v, or p - lr (g + momentum v)
// with Nesterov's look-ahead). Weight decay is decoupled, as in AdamW.
#include "sdk/optimizer.h"

namespace capstan {
namespace {

constexpr capstan_option kOptions[] = {
    sdk::float_option("lr", "0.1", "Peak learning rate; the schedule scales it.").range(0, 1e6),
    sdk::float_option("momentum", "0.0",
                      "Decay rate of the gradient buffer, below 1; 0: no buffer is kept.")
        .range(0, 1),
    sdk::bool_option("nesterov", "false",
                     "Step along the buffer as it will be after the next decay."),
    sdk::float_option("weight_decay", "0.0", "Decoupled decay, per unit of learning rate.")
        .range(0, 1e6),
};

constexpr capstan_optimizer_state kStates[] = {sdk::make_state("momentum", sdk::kF32)};
constexpr capstan_optimizer_state kStatesF64[] = {sdk::make_state("momentum", sdk::kF64)};

class Sgd {
 public:
  Sgd(const sdk::Host&, const sdk::Options& options)
      : momentum_(options.get_float("momentum")), nesterov_(options.get_bool("nesterov")) {
    if (momentum_ >= 1)
      throw sdk::usage_error(sdk::text("[optimizer] momentum = ", momentum_, " is not below 1"));
    if (nesterov_ && momentum_ == 0) {
      throw sdk::usage_error("[optimizer] nesterov = true needs momentum above 0");
    }
  }

  int32_t granularity() const noexcept { return CAPSTAN_GRANULARITY_ELEMENT; }

  std::span<const capstan_optimizer_state> states(
      const capstan_tensor_desc& parameter) const noexcept {
    if (momentum_ == 0) return {};
    if (sdk::same_dtype(parameter.dtype, sdk::kF64)) return kStatesF64;
    return kStates;
  }

  void emit(sdk::Graph& g, const sdk::Update& u) {
    const std::vector<sdk::Tensor> inputs{u.gradient, u.learning_rate, u.gradient_scale};
    if (momentum_ == 0) {
      g.emit("sgd_plain", inputs, {{"weight_decay", u.weight_decay}}, {u.parameter});
      return;
    }
    g.emit("sgd", inputs,
           {{"momentum", momentum_},
            {"nesterov", nesterov_ ? 1 : 0},
            {"weight_decay", u.weight_decay}},
           {u.parameter, u.states.at(0)});
  }

 private:
  double momentum_;
  bool nesterov_;
};

}  // namespace
}  // namespace capstan

CAPSTAN_PLUGIN_ENTRY("sgd", "1.0.0", "Apache-2.0", "Stochastic gradient descent.",
                     capstan::sdk::optimizer_component<capstan::Sgd>(
                         "sgd", "1.0.0", "Gradient descent, plain or with momentum.",
                         capstan::kOptions));
