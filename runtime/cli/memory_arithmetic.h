// The bill of model states: what parameters, gradients and optimizer state take, from the number of
// parameters alone. Activations are not in it; they need the Program (plan CONFIG).
//
// Bytes a parameter follow section 3.1 of Rajbhandari, Rasley, Ruwase & He 2020 ("ZeRO: memory
// optimizations toward training trillion parameter models"), the division by ranks its section 5.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace capstan {

// Bytes of one parameter by role. The optimizer is Adam or AdamW.
struct BytesPerParameter {
  double parameters = 0, gradients = 0;
  double master = 0;   // fp32 copy that the optimizer updates
  double moments = 0;  // both
  double optimizer() const { return master + moments; }
  double total() const { return parameters + gradients + optimizer(); }
};

// Bytes on one rank.
struct MemoryBill {
  double parameters = 0, gradients = 0, optimizer = 0;
  double total() const { return parameters + gradients + optimizer; }
};

const std::vector<std::string>& BillPrecisions();  // mixed, fp32, bf16
const std::vector<std::string>& BillStrategies();  // zero1, zero2, zero3

// `precision`: mixed (2 + 2 + 12: fp32 master and moments), fp32 (4 + 4 + 8) or bf16 (2 + 2 + 4).
absl::StatusOr<BytesPerParameter> BytesOf(const std::string& precision);

// What each of `ranks` data-parallel ranks holds. zero1 divides the optimizer state, zero2 the
// gradients too, zero3 the parameters too; "" divides nothing.
absl::StatusOr<MemoryBill> BillOf(double parameters, const std::string& precision,
                                  const std::string& strategy, int64_t ranks);

// Fewest ranks over which zero3 brings a bill of one rank down to `memory` bytes a rank.
int64_t FewestRanks(const MemoryBill& of_one_rank, double memory);

}  // namespace capstan
