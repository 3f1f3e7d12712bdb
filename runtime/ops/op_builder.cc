#include "runtime/ops/op_builder.h"

#include <algorithm>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "runtime/status.h"
#include "runtime/strings.h"
#include "runtime/suggest.h"

namespace capstan::ops {
namespace {

absl::Status CheckAttrType(const InferContext& ctx, const AttrSpec& spec, const AttrValue& value) {
  const bool is_int = std::holds_alternative<int64_t>(value);
  const auto* text = std::get_if<std::string>(&value);
  std::string wanted;
  if (spec.type == "int") {
    wanted = is_int ? "" : "an integer";
  } else if (spec.type == "float") {
    wanted = is_int || std::holds_alternative<double>(value) ? "" : "a number";
  } else if (spec.type == "ints") {
    wanted = std::holds_alternative<Dims>(value) ? "" : "a list of integers";
  } else if (text == nullptr) {
    wanted = "a string";
  } else if (spec.type == "dtype") {
    if (!ParseDType(*text).ok()) wanted = StrCat("a dtype such as f32 or bf16, not '", *text, "'");
  } else if (spec.type == "placement") {
    if (!ParsePlacement(*text).ok()) wanted = StrCat("a placement {tp:S(0)}, not '", *text, "'");
  } else if (spec.type != "string") {
    const std::vector<std::string> choices = absl::StrSplit(spec.type, '|');
    if (std::find(choices.begin(), choices.end(), *text) == choices.end()) {
      wanted = StrCat("one of ", absl::StrJoin(choices, ", "), ", not '", *text, "'");
    }
  }
  if (wanted.empty()) return absl::OkStatus();
  return UsageError(ctx.op, ": attribute '", spec.name, "' must be ", wanted);
}

}  // namespace

absl::StatusOr<std::vector<AttrSpec>> ParseAttrSpecs(std::string_view text) {
  std::vector<AttrSpec> specs;
  for (absl::string_view part : absl::StrSplit(ToAbsl(text), ',', absl::SkipWhitespace())) {
    const std::vector<std::string> words = absl::StrSplit(part, ' ', absl::SkipEmpty());
    if (words.size() != 2) return BugError("attribute '", part, "' is not 'name type'");
    AttrSpec spec{words[0], words[1], words[0].back() == '!'};
    if (spec.required) spec.name.pop_back();
    specs.push_back(std::move(spec));
  }
  return specs;
}

absl::Status CheckAttrs(const InferContext& ctx, const std::vector<AttrSpec>& specs) {
  std::vector<std::string> known;
  for (const AttrSpec& spec : specs) known.push_back(spec.name);
  for (const auto& [name, value] : ctx.attrs->items()) {
    auto it = std::find(known.begin(), known.end(), name);
    if (it != known.end()) {
      CAPSTAN_RETURN_IF_ERROR(CheckAttrType(ctx, specs[it - known.begin()], value));
      continue;
    }
    return UsageError(
        ctx.op, ": unknown attribute '", name, "'; ",
        known.empty() ? "this op has none" : StrCat("known: ", absl::StrJoin(known, ", ")));
  }
  for (const AttrSpec& spec : specs) {
    if (spec.required && !ctx.attrs->Has(spec.name)) {
      return UsageError(ctx.op, ": attribute '", spec.name, "' is required");
    }
  }
  return absl::OkStatus();
}

// Everything a definition's functions share.
struct OpBuilder::Rule {
  Signature signature;
  std::vector<AttrSpec> attrs;
  PlacementRule placement;
  std::vector<std::pair<char, std::string>> sizes;
  std::vector<std::pair<char, int64_t>> fixed;
  PrepareFn prepare;
  CheckFn check, infer;

  absl::Status Apply(InferContext& ctx) const {
    CAPSTAN_RETURN_IF_ERROR(CheckAttrs(ctx, attrs));
    CAPSTAN_RETURN_IF_ERROR(CheckArity(signature, ctx));
    if (infer) return infer(ctx);
    CAPSTAN_ASSIGN_OR_RETURN(std::vector<DType> dtypes, MatchDTypes(signature, ctx));
    CAPSTAN_ASSIGN_OR_RETURN(Labels labels, ExpandLabels(signature, ctx));
    for (const auto& [label, attr] : sizes) {
      labels.Bind(label, ctx.attrs->Int(attr, 0), StrCat("attribute ", attr));
    }
    for (const auto& [label, n] : fixed) labels.Bind(label, n, "the op's definition");
    if (prepare) CAPSTAN_RETURN_IF_ERROR(prepare(ctx, labels));
    CAPSTAN_RETURN_IF_ERROR(MatchSizes(signature, ctx, labels));
    CAPSTAN_ASSIGN_OR_RETURN(std::vector<Placement> placements,
                             PlaceOutputs(ctx, placement, labels));
    for (size_t j = 0; j < labels.out.size(); ++j) {
      ctx.outputs.push_back({dtypes[j], ShapeOf(labels.out[j], labels), std::move(placements[j])});
    }
    return check ? check(ctx) : absl::OkStatus();
  }
};

OpBuilder::OpBuilder(std::string kind, std::string_view signature)
    : rule_(std::make_shared<Rule>()), signature_text_(signature) {
  def_.kind = std::move(kind);
  def_.flags = CAPSTAN_OP_PURE;
}

OpBuilder& OpBuilder::Flags(uint32_t flags) {
  def_.flags = flags;
  return *this;
}
OpBuilder& OpBuilder::Attrs(std::string_view specs) {
  attrs_text_ = specs;
  return *this;
}
OpBuilder& OpBuilder::Sum(std::string labels) {
  rule_->placement.sum = std::move(labels);
  return *this;
}
OpBuilder& OpBuilder::Whole(std::string labels, std::string hint) {
  rule_->placement.whole = std::move(labels);
  rule_->placement.hint = std::move(hint);
  return *this;
}
OpBuilder& OpBuilder::Varying(std::string labels) {
  rule_->placement.varying = std::move(labels);
  return *this;
}
OpBuilder& OpBuilder::Tied(std::string labels) {
  rule_->placement.tied = std::move(labels);
  return *this;
}
OpBuilder& OpBuilder::LinearIn(std::vector<size_t> inputs) {
  rule_->placement.partial = Partial::kLinear;
  rule_->placement.linear_in = std::move(inputs);
  return *this;
}
OpBuilder& OpBuilder::Partials(Partial how) {
  rule_->placement.partial = how;
  return *this;
}
OpBuilder& OpBuilder::Reduce(int reduce) {
  rule_->placement.reduce = reduce;
  return *this;
}
OpBuilder& OpBuilder::Bias(int input) {
  rule_->placement.bias = input;
  return *this;
}
OpBuilder& OpBuilder::Ignore(std::vector<size_t> inputs) {
  rule_->placement.ignored = std::move(inputs);
  return *this;
}
OpBuilder& OpBuilder::Size(char label, std::string attr) {
  rule_->sizes.emplace_back(label, std::move(attr));
  return *this;
}
OpBuilder& OpBuilder::Size(char label, int64_t n) {
  rule_->fixed.emplace_back(label, n);
  return *this;
}
OpBuilder& OpBuilder::Prepare(PrepareFn fn) {
  rule_->prepare = std::move(fn);
  return *this;
}
OpBuilder& OpBuilder::Check(CheckFn fn) {
  rule_->check = std::move(fn);
  return *this;
}
OpBuilder& OpBuilder::Infer(CheckFn fn) {
  rule_->infer = std::move(fn);
  return *this;
}
OpBuilder& OpBuilder::Vjp(VjpFn fn) {
  def_.vjp = std::move(fn);
  return *this;
}
OpBuilder& OpBuilder::Cost(CostFn fn) {
  def_.cost = std::move(fn);
  return *this;
}
OpBuilder& OpBuilder::ValueAndGrad(std::string kind, std::vector<int> targets) {
  def_.value_and_grad = std::move(kind);
  def_.value_and_grad_targets = std::move(targets);
  return *this;
}

absl::Status OpBuilder::AddTo(OpRegistry& registry) const {
  CAPSTAN_ASSIGN_OR_RETURN(rule_->signature, ParseSignature(signature_text_));
  CAPSTAN_ASSIGN_OR_RETURN(rule_->attrs, ParseAttrSpecs(attrs_text_));
  OpDef def = def_;
  def.doc =
      StrCat(def.kind, ": ", signature_text_, attrs_text_.empty() ? "" : StrCat("; ", attrs_text_));
  def.min_inputs = rule_->signature.min_inputs();
  def.max_inputs = rule_->signature.max_inputs();
  for (const OperandSpec& spec : rule_->signature.outputs) {
    def.output_effects.push_back(spec.effect);
    def.output_per_input = spec.variadic;
  }
  def.infer = [rule = rule_](InferContext& ctx) { return rule->Apply(ctx); };
  if (!def.cost) def.cost = [](const InferContext& ctx) { return Costs(ctx, 0); };
  return registry.Add(std::move(def));
}

absl::Status AddAll(OpRegistry& registry, const std::vector<OpBuilder>& ops) {
  for (const OpBuilder& op : ops) CAPSTAN_RETURN_IF_ERROR(op.AddTo(registry));
  return absl::OkStatus();
}

OpCost Costs(const InferContext& ctx, double flops) {
  OpCost cost = OperandBytes(ctx);
  cost.flops = flops;
  return cost;
}

CostFn PerOutputElement(double flops) {
  return [flops](const InferContext& ctx) {
    return Costs(ctx, flops * static_cast<double>(ElementCount(ctx.outputs[0].shape)));
  };
}

CostFn PerInputElement(double flops) {
  return [flops](const InferContext& ctx) { return Costs(ctx, flops * Count(ctx.inputs[0])); };
}

double Count(const Tensor* t) { return t == nullptr ? 0 : static_cast<double>(t->elements()); }
double Bytes(const Tensor* t) { return t == nullptr ? 0 : static_cast<double>(t->bytes()); }
double Bytes(const TensorType& t) {
  return static_cast<double>(ElementCount(t.shape) * DTypeBytes(t.dtype));
}

}  // namespace capstan::ops
