// AdamW (Loshchilov & Hutter 2019, "Decoupled weight decay regularization", algorithm 2):
// bias-corrected first and second moments, eps outside the square root, decay lr * weight_decay
// applied to the parameter before the step.
#include <vector>

#include "sdk/optimizer.h"

namespace capstan {
namespace {

constexpr capstan_option kOptions[] = {
    sdk::float_option("lr", "6e-4", "Peak learning rate; the schedule scales it.").range(0, 1e6),
    sdk::floats_option("betas", "[0.9, 0.95]",
                       "Decay rates of the first and second moment, each below 1.")
        .range(0, 1),
    sdk::float_option("eps", "1e-8", "Added to the root of the second moment.").range(0, 1),
    sdk::float_option("weight_decay", "0.1", "Decoupled decay, per unit of learning rate.")
        .range(0, 1e6),
};

constexpr capstan_optimizer_state kStates[] = {sdk::make_state("exp_avg", sdk::kF32),
                                               sdk::make_state("exp_avg_sq", sdk::kF32)};
constexpr capstan_optimizer_state kStatesF64[] = {sdk::make_state("exp_avg", sdk::kF64),
                                                  sdk::make_state("exp_avg_sq", sdk::kF64)};

class AdamW {
 public:
  AdamW(const sdk::Host&, const sdk::Options& options) : eps_(options.get_float("eps")) {
    const std::vector<double> betas = options.get_floats("betas");
    if (betas.size() != 2) {
      throw sdk::usage_error(
          sdk::text("[optimizer] betas has ", betas.size(), " numbers; give two"));
    }
    for (const double beta : betas) {
      if (beta >= 1)
        throw sdk::usage_error(sdk::text("[optimizer] betas: ", beta, " is not below 1"));
    }
    beta1_ = betas[0];
    beta2_ = betas[1];
  }

  int32_t granularity() const noexcept { return CAPSTAN_GRANULARITY_ELEMENT; }

  std::span<const capstan_optimizer_state> states(
      const capstan_tensor_desc& parameter) const noexcept {
    if (sdk::same_dtype(parameter.dtype, sdk::kF64)) return kStatesF64;
    return kStates;
  }

  void emit(sdk::Graph& g, const sdk::Update& u) {
    g.emit("adamw", {u.gradient, u.learning_rate, u.step, u.gradient_scale},
           {{"beta1", beta1_}, {"beta2", beta2_}, {"eps", eps_}, {"weight_decay", u.weight_decay}},
           {u.parameter, u.states.at(0), u.states.at(1)});
  }

 private:
  double beta1_, beta2_, eps_;
};

}  // namespace
}  // namespace capstan

CAPSTAN_PLUGIN_ENTRY("adamw", "1.0.0", "Apache-2.0", "AdamW.",
                     capstan::sdk::optimizer_component<capstan::AdamW>(
                         "adamw", "1.0.0", "Adam with decoupled weight decay.", capstan::kOptions));
