// Proof that a composition trains as one rank would: both are run on the same data, and what they
// leave is compared.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/run/weights.h"

namespace capstan {

// Loss and gradient norm of every step of a run, as a snapshot keeps them.
struct StepRecord {
  double loss = 0, grad_norm = 0;
};

// A snapshot is two bundles: <path>-first after the first step, whose gradients are of parameters that
// are still the same in any run, and <path>-last after the last.
inline constexpr const char* kFirstSnapshot = "-first";
inline constexpr const char* kLastSnapshot = "-last";

// Writes one of them: parameters, optimizer states, gradients of the step, and the steps so far. All
// ranks call it.
absl::Status WriteSnapshot(const Store& store, const Ranks& ranks, const std::string& path,
                           const Program& program, Storage& storage,
                           const std::vector<StepRecord>& steps);

// One thing compared: losses and gradient norms of every step, gradients of the first, parameters and
// states after the last. The error of a gradient is the largest absolute difference over the larger of
// the reference's largest magnitude and 1e-3 of the norm of all gradients. Of a parameter or state it
// is the norm of the difference over the norm of the reference, with the same floor: Adam's first
// steps have full length wherever a gradient is not exactly zero, so that single elements whose
// gradients nearly cancel differ by more than their gradients do.
struct Difference {
  std::string kind;  // "loss", "grad_norm", "gradient", "parameter", "state"
  std::string name;  // a tensor, or "step 3"
  double error = 0;
  int64_t steps = 1;  // that the error has grown over; the tolerance is one step's
  // Not judged: the gradient is zero but for rounding, which an optimizer that divides by its size
  // (Adam) turns into steps of full length.
  bool noise = false;
};

// Largest error a step first. Refuses snapshots that do not hold the same tensors.
absl::StatusOr<std::vector<Difference>> CompareSnapshots(const Store& store,
                                                         const std::string& path,
                                                         const std::string& reference);

}  // namespace capstan
