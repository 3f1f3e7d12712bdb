// The loss of language modelling: the mean, over target tokens, of the cross-entropy of the next
// token. Targets of -1 count for nothing. The head and the loss are one op, so logits never exist
// whole.
#include <cstdint>

#include "sdk/objective.h"

namespace capstan {
namespace {

constexpr int32_t kIgnored = -1;

constexpr capstan_field kFields[] = {sdk::make_field("tokens", sdk::kI32, true),
                                     sdk::make_field("targets", sdk::kI32, true),
                                     sdk::make_field("position", sdk::kI32, true)};
constexpr size_t kTargets = 1;

class CausalLm {
 public:
  CausalLm(const sdk::Host&, const sdk::Options&) {}

  std::span<const capstan_field> fields() const noexcept { return kFields; }
  const char* unit() const noexcept { return "target tokens"; }

  double weight(std::span<const void* const> fields, int64_t sequence_length) const noexcept {
    const auto* targets = static_cast<const int32_t*>(fields[kTargets]);
    int64_t counted = 0;
    for (int64_t t = 0; t < sequence_length; ++t) counted += targets[t] != kIgnored ? 1 : 0;
    return static_cast<double>(counted);
  }

  sdk::Tensor emit(sdk::Graph& g, const sdk::Loss& loss) {
    return g.linear_cross_entropy(loss.model.hidden, loss.model.head_weight,
                                  loss.fields.at(kTargets), loss.count,
                                  loss.model.valid_vocabulary);
  }
};

}  // namespace
}  // namespace capstan

CAPSTAN_PLUGIN_ENTRY("causal_lm", "1.0.0", "Apache-2.0", "Next-token cross-entropy.",
                     capstan::sdk::objective_component<capstan::CausalLm>(
                         "causal_lm", "1.0.0",
                         "Mean cross-entropy of the next token over target tokens."));
