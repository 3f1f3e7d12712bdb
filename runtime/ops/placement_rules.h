// How the placements of an op's inputs give those of its outputs, one mesh axis at a time.
//
// Dims carry labels (signature.h). An axis cuts one label: every operand that has the label must be
// cut along it alike, operands without it must be replicated. Outputs that have the label are cut;
// outputs that lack it are partial sums where the label is summed over, and refused elsewhere.
// A partial input passes through ops that are linear in it, a varying one (V) through any op whose
// other inputs are replicated or varying.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/ops/signature.h"
#include "runtime/program/op_def.h"

namespace capstan::ops {

enum class Partial {
  kRefuse,  // not linear: partial inputs are refused
  kLinear,  // linear in each input of `linear_in`, one partial at a time, the others replicated
  kJoint,   // linear in all inputs together (add): all partial or none
  kMove,    // only moves elements: any partial value, sums and maxima alike
};

struct PlacementRule {
  std::string sum;      // labels summed over; '*' for the leading dims
  std::string varying;  // labels that make outputs without them varying
  std::string whole;    // labels that no axis may cut, though outputs have them
  std::string tied;     // labels in different units that are cut together ("hg": heads, kv heads)
  std::string hint;     // how to mend a cut along a whole label; empty: all_gather
  int reduce = CAPSTAN_SUM;  // what summing over `sum` does
  Partial partial = Partial::kRefuse;
  std::vector<size_t> linear_in;
  int bias = -1;                // an input that may not be present when the result is partial
  std::vector<size_t> ignored;  // inputs whose placement says nothing about the outputs
};

absl::StatusOr<std::vector<Placement>> PlaceOutputs(const InferContext& ctx,
                                                    const PlacementRule& rule,
                                                    const Labels& labels);

// Placement of the output of an op with one data operand: shards of dim d become shards of
// new_dim(d), refused where that is negative; partial and varying values stay so.
absl::StatusOr<Placement> CarryPlacement(const InferContext& ctx, const Tensor& x,
                                         const std::function<int(int dim)>& new_dim);

// Refuses a partial x over any axis, with the collective that mends it.
absl::Status RefusePartial(const InferContext& ctx, const Tensor& x, std::string_view why);

// "partial (P)", "replicated (R)", "sharded (S(1))", "varying (V)"
std::string PlacementWords(const AxisPlacement& item);

// The inverse of PlacementString: "{dp:S(0)[0:4], tp:P}".
absl::StatusOr<Placement> ParsePlacement(std::string_view text);

}  // namespace capstan::ops
