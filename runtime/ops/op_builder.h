// Builds the definition of a standard op from its signature, attributes and placement rule, so that
// the files of this folder read like the catalogue.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "runtime/ops/placement_rules.h"
#include "runtime/ops/signature.h"
#include "runtime/program/op_def.h"

namespace capstan::ops {

// "head_dim! int, causal int, approximate tanh|none": `!` after the name: required; a type of int,
// float, string, ints, dtype or placement, or the strings allowed.
struct AttrSpec {
  std::string name;
  std::string type;
  bool required = false;
};
absl::StatusOr<std::vector<AttrSpec>> ParseAttrSpecs(std::string_view text);

// Refuses unknown names (listing the known ones), missing ones, and values of another type.
absl::Status CheckAttrs(const InferContext& ctx, const std::vector<AttrSpec>& specs);

using PrepareFn = std::function<absl::Status(InferContext&, Labels&)>;
using CheckFn = std::function<absl::Status(InferContext&)>;
using VjpFn = std::function<absl::Status(VjpContext&)>;
using CostFn = std::function<OpCost(const InferContext&)>;

class OpBuilder {
 public:
  OpBuilder(std::string kind, std::string_view signature);

  OpBuilder& Flags(uint32_t flags);
  OpBuilder& Attrs(std::string_view specs);

  // Placement: see PlacementRule.
  OpBuilder& Sum(std::string labels);
  OpBuilder& Whole(std::string labels, std::string hint = "");
  OpBuilder& Varying(std::string labels);
  OpBuilder& Tied(std::string labels);
  OpBuilder& LinearIn(std::vector<size_t> inputs);
  OpBuilder& Partials(Partial how);
  OpBuilder& Reduce(int reduce);
  OpBuilder& Bias(int input);
  OpBuilder& Ignore(std::vector<size_t> inputs);

  // A label whose size is an attribute, or fixed.
  OpBuilder& Size(char label, std::string attr);
  OpBuilder& Size(char label, int64_t n);
  // Runs before sizes are matched: works out labels and sizes that depend on attributes or shapes.
  OpBuilder& Prepare(PrepareFn fn);
  // Runs last: further checks, changes of outputs.
  OpBuilder& Check(CheckFn fn);
  // Replaces everything after the checks of attributes and number of inputs.
  OpBuilder& Infer(CheckFn fn);

  OpBuilder& Vjp(VjpFn fn);
  OpBuilder& Cost(CostFn fn);
  OpBuilder& ValueAndGrad(std::string kind, std::vector<int> targets);

  absl::Status AddTo(OpRegistry& registry) const;

 private:
  struct Rule;
  std::shared_ptr<Rule> rule_;
  OpDef def_;
  std::string signature_text_, attrs_text_;
};

// Adds all, stopping at the first failure.
absl::Status AddAll(OpRegistry& registry, const std::vector<OpBuilder>& ops);

// ---- costs. FLOPs count multiplies and adds of the arithmetic a kernel does; an element-wise
// function counts the operations of its formula, a transcendental as one.

// Bytes of all operands (updated outputs are read too) and `flops`.
OpCost Costs(const InferContext& ctx, double flops);
// `flops` for each element of output 0.
CostFn PerOutputElement(double flops);
// `flops` for each element of input 0.
CostFn PerInputElement(double flops);
double Count(const Tensor* t);  // elements, 0 for an omitted input
double Bytes(const Tensor* t);
double Bytes(const TensorType& t);

// ---- sections of the catalogue

absl::Status RegisterLinearOps(OpRegistry& registry);
absl::Status RegisterNormOps(OpRegistry& registry);
absl::Status RegisterActivationOps(OpRegistry& registry);
absl::Status RegisterAttentionOps(OpRegistry& registry);
absl::Status RegisterLossOps(OpRegistry& registry);
absl::Status RegisterElementwiseOps(OpRegistry& registry);
absl::Status RegisterShapeOps(OpRegistry& registry);
absl::Status RegisterUpdateOps(OpRegistry& registry);
absl::Status RegisterCommOps(OpRegistry& registry);

}  // namespace capstan::ops
