#include "runtime/ops/standard_ops.h"

#include <algorithm>
#include <array>

#include "runtime/ops/op_builder.h"
#include "runtime/status.h"

namespace capstan {
namespace {

constexpr std::array<std::string_view, 7> kCollectives = {
    "reduce_from_group", "all_reduce",     "all_gather",     "reduce_scatter",
    "all_to_all",        "broadcast_from", "reduce_gradient"};
constexpr std::array<std::string_view, 4> kMessages = {"send", "recv", "send_grad", "recv_grad"};

}  // namespace

absl::Status RegisterStandardOps(OpRegistry& registry) {
  using Section = absl::Status (*)(OpRegistry&);
  constexpr Section kSections[] = {
      ops::RegisterLinearOps,    ops::RegisterNormOps,   ops::RegisterActivationOps,
      ops::RegisterAttentionOps, ops::RegisterLossOps,   ops::RegisterElementwiseOps,
      ops::RegisterShapeOps,     ops::RegisterUpdateOps, ops::RegisterCommOps,
  };
  for (Section section : kSections) CAPSTAN_RETURN_IF_ERROR(section(registry));
  return absl::OkStatus();
}

double OpFlops(const Program& program, OpId o) {
  absl::StatusOr<OpCost> cost = program.Cost(o);
  return cost.ok() ? cost->flops : 0;
}

bool IsCollective(std::string_view kind) {
  return std::find(kCollectives.begin(), kCollectives.end(), kind) != kCollectives.end();
}

bool IsPointToPoint(std::string_view kind) {
  return std::find(kMessages.begin(), kMessages.end(), kind) != kMessages.end();
}

}  // namespace capstan
