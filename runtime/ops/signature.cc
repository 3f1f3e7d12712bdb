#include "runtime/ops/signature.h"

#include <algorithm>

#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "runtime/status.h"
#include "runtime/strings.h"

namespace capstan::ops {
namespace {

constexpr int kMaxLeadingDims = 8;

absl::StatusOr<OperandSpec> ParseOperand(absl::string_view text, bool output) {
  std::vector<std::string> words = absl::StrSplit(text, ' ', absl::SkipEmpty());
  if (words.size() != 3) {
    return BugError("signature: operand '", text, "' is not 'name dtype dims'");
  }
  OperandSpec spec;
  absl::string_view name = words[0];
  if (output && absl::ConsumePrefix(&name, "+")) spec.effect = CAPSTAN_ACCUMULATE;
  if (output && absl::ConsumePrefix(&name, "!")) spec.effect = CAPSTAN_UPDATE;
  spec.variadic = absl::ConsumeSuffix(&name, "...");
  spec.optional = absl::ConsumeSuffix(&name, "?");
  spec.name = std::string(name);
  spec.dtype = words[1];
  spec.dims = words[2];
  return spec;
}

bool IsComputeFloat(DType d) {
  return SameDType(d, kF32) || SameDType(d, kBF16) || SameDType(d, kF16) || SameDType(d, kF64);
}

// The dtypes that the tied letters f, t and w stand for in one op.
struct Tied {
  const Tensor* f = nullptr;
  const Tensor* t = nullptr;
  const Tensor* w = nullptr;
  const Tensor* x = nullptr;

  DType Wide() const {
    if (f != nullptr) return SameDType(f->dtype(), kF64) ? kF64 : kF32;
    return w != nullptr ? w->dtype() : kF32;
  }
};

absl::Status WrongDType(const InferContext& ctx, const OperandSpec& spec, const Tensor& t,
                        std::string_view wanted) {
  return UsageError(ctx.op, ": ", Describe(spec, t), " must be ", std::string(wanted),
                    "; insert cast(", Name(t), ") before this op");
}

absl::Status SameAs(const InferContext& ctx, const OperandSpec& spec, const Tensor& t,
                    const Tensor*& first) {
  if (first == nullptr) first = &t;
  if (SameDType(first->dtype(), t.dtype())) return absl::OkStatus();
  return WrongDType(ctx, spec, t, StrCat(DTypeName(first->dtype()), " as ", Name(*first), " is"));
}

absl::Status MatchInputDType(const InferContext& ctx, const OperandSpec& spec, const Tensor& t,
                             Tied& tied) {
  if (spec.dtype == "f") {
    if (!IsComputeFloat(t.dtype())) return WrongDType(ctx, spec, t, "f32, bf16, f16 or f64");
    return SameAs(ctx, spec, t, tied.f);
  }
  if (spec.dtype == "t") return SameAs(ctx, spec, t, tied.t);
  if (spec.dtype == "x") {
    if (tied.x == nullptr) tied.x = &t;
    return IsFloat(t.dtype()) ? absl::OkStatus() : WrongDType(ctx, spec, t, "a float dtype");
  }
  if (spec.dtype == "r" || spec.dtype == "w") {
    if (!SameDType(t.dtype(), kF32) && !SameDType(t.dtype(), kF64)) {
      return WrongDType(ctx, spec, t, "f32 (f64 in f64 programs)");
    }
    return spec.dtype == "w" ? SameAs(ctx, spec, t, tied.w) : absl::OkStatus();
  }
  absl::StatusOr<DType> wanted = ParseDType(spec.dtype);
  if (!wanted.ok()) return wanted.status();
  return SameDType(*wanted, t.dtype()) ? absl::OkStatus() : WrongDType(ctx, spec, t, spec.dtype);
}

absl::StatusOr<DType> OutputDType(const InferContext& ctx, const OperandSpec& spec,
                                  const Tensor* given, const Tied& tied) {
  DType dtype = kF32;
  if (spec.dtype == "d") {
    absl::StatusOr<DType> parsed = ParseDType(ctx.attrs->String("dtype", "f32"));
    return parsed.ok() ? parsed : UsageError(ctx.op, ": ", parsed.status().message());
  }
  if (spec.effect == CAPSTAN_UPDATE) return given->dtype();
  if (spec.dtype == "f" && tied.f != nullptr) {
    dtype = tied.f->dtype();
  } else if (spec.dtype == "t" && tied.t != nullptr) {
    dtype = tied.t->dtype();
  } else if (spec.dtype == "x" && tied.x != nullptr) {
    dtype = tied.x->dtype();
  } else if (spec.dtype == "w") {
    dtype = tied.Wide();
  } else {
    CAPSTAN_ASSIGN_OR_RETURN(dtype, ParseDType(spec.dtype));
  }
  if (spec.effect != CAPSTAN_ACCUMULATE || given == nullptr) return dtype;
  // A gradient may be wider than what is added to it.
  if (IsFloat(given->dtype()) && given->dtype().bits >= dtype.bits) return given->dtype();
  return UsageError(ctx.op, ": accumulates ", DTypeName(dtype), " values into ", Name(*given),
                    ", which is ", DTypeName(given->dtype()),
                    "; a gradient must be at least as wide as its op's operands");
}

}  // namespace

size_t Signature::min_inputs() const {
  size_t n = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].optional) n = i + 1;
  }
  return n;
}

size_t Signature::max_inputs() const {
  constexpr size_t kMany = 1 << 20;
  return !inputs.empty() && inputs.back().variadic ? kMany : inputs.size();
}

const OperandSpec& Signature::input(size_t i) const {
  return inputs[std::min(i, inputs.size() - 1)];
}

absl::StatusOr<Signature> ParseSignature(std::string_view text) {
  std::vector<absl::string_view> sides = absl::StrSplit(ToAbsl(text), "->");
  if (sides.size() != 2) return BugError("signature '", text, "' needs one ->");
  Signature signature;
  for (int side = 0; side < 2; ++side) {
    for (absl::string_view operand : absl::StrSplit(sides[side], ',', absl::SkipWhitespace())) {
      CAPSTAN_ASSIGN_OR_RETURN(OperandSpec spec, ParseOperand(operand, side == 1));
      (side == 0 ? signature.inputs : signature.outputs).push_back(std::move(spec));
    }
  }
  return signature;
}

std::string Name(const Tensor& t) {
  return t.name.empty() ? StrCat("%", t.id) : StrCat("@", t.name);
}

std::string Describe(const OperandSpec& spec, const Tensor& t) {
  return StrCat(spec.name, " ", Name(t), " ", DTypeName(t.dtype()), ShapeString(t.shape()));
}

absl::Status CheckArity(const Signature& signature, const InferContext& ctx) {
  if (ctx.inputs.size() < signature.min_inputs() || ctx.inputs.size() > signature.max_inputs()) {
    return UsageError(ctx.op, ": takes ", signature.min_inputs(), " to ", signature.max_inputs(),
                      " inputs, given ", ctx.inputs.size());
  }
  for (size_t i = 0; i < ctx.inputs.size(); ++i) {
    if (ctx.inputs[i] == nullptr && !signature.input(i).optional) {
      return UsageError(ctx.op, ": input ", i, " (", signature.input(i).name,
                        ") is not optional; give a tensor");
    }
  }
  for (size_t j = 0; j < signature.outputs.size(); ++j) {
    const bool given = j < ctx.given_outputs.size() && ctx.given_outputs[j] != nullptr;
    if (signature.outputs[j].effect == CAPSTAN_UPDATE && !given) {
      return UsageError(ctx.op, ": output ", j, " (", signature.outputs[j].name,
                        ") is updated in place; name an existing tensor among the outputs");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<DType>> MatchDTypes(const Signature& signature,
                                               const InferContext& ctx) {
  Tied tied;
  for (size_t i = 0; i < ctx.inputs.size(); ++i) {
    if (!ctx.has(i)) continue;
    CAPSTAN_RETURN_IF_ERROR(MatchInputDType(ctx, signature.input(i), *ctx.inputs[i], tied));
  }
  if (tied.w != nullptr && !SameDType(tied.w->dtype(), tied.Wide())) {
    return UsageError(ctx.op, ": ", Name(*tied.w), " must be ", DTypeName(tied.Wide()), " when ",
                      Name(*tied.f), " is ", DTypeName(tied.f->dtype()), "; insert a cast");
  }
  std::vector<DType> dtypes;
  for (size_t j = 0; j < signature.outputs.size(); ++j) {
    const Tensor* given = j < ctx.given_outputs.size() ? ctx.given_outputs[j] : nullptr;
    CAPSTAN_ASSIGN_OR_RETURN(DType dtype, OutputDType(ctx, signature.outputs[j], given, tied));
    dtypes.push_back(dtype);
  }
  return dtypes;
}

// Replaces `*` by the leading labels; learns how many there are from the first operand with one.
static absl::StatusOr<std::string> ExpandInput(const InferContext& ctx, const OperandSpec& spec,
                                               const Tensor& t, bool& lead_known, Labels& labels) {
  const size_t star = spec.dims.find('*');
  const size_t ndim = t.shape().size();
  if (star == std::string::npos) {
    if (spec.dims == "?" || ndim == spec.dims.size()) return spec.dims;
    return UsageError(ctx.op, ": ", Describe(spec, t), " must have ", spec.dims.size(),
                      " dims; insert a reshape");
  }
  const size_t own = spec.dims.size() - 1;
  if (ndim < own || ndim - own > kMaxLeadingDims) {
    return UsageError(ctx.op, ": ", Describe(spec, t), " must have ", own, " to ",
                      own + kMaxLeadingDims, " dims; insert a reshape");
  }
  if (!lead_known) {
    for (size_t i = 0; i < ndim - own; ++i) labels.lead.push_back(static_cast<char>('0' + i));
    lead_known = true;
  } else if (labels.lead.size() != ndim - own) {
    return UsageError(ctx.op, ": ", Describe(spec, t), " must have ", labels.lead.size(),
                      " leading dims as the operands before it; insert a reshape");
  }
  return StrCat(spec.dims.substr(0, star), labels.lead, spec.dims.substr(star + 1));
}

absl::StatusOr<Labels> ExpandLabels(const Signature& signature, const InferContext& ctx) {
  Labels labels;
  bool lead_known = false;
  for (size_t i = 0; i < ctx.inputs.size(); ++i) {
    std::string dims;
    if (ctx.has(i)) {
      CAPSTAN_ASSIGN_OR_RETURN(
          dims, ExpandInput(ctx, signature.input(i), *ctx.inputs[i], lead_known, labels));
    }
    labels.in.push_back(std::move(dims));
  }
  for (const OperandSpec& spec : signature.outputs) {
    std::string dims = spec.dims;
    const size_t star = dims.find('*');
    if (star != std::string::npos) dims.replace(star, 1, labels.lead);
    labels.out.push_back(std::move(dims));
  }
  return labels;
}

static absl::Status MatchOperand(const InferContext& ctx, const OperandSpec& spec, const Tensor& t,
                                 const std::string& dims, Labels& labels) {
  if (dims.size() != t.shape().size()) {
    return UsageError(ctx.op, ": ", Describe(spec, t), " must have ", dims.size(),
                      " dims; insert a reshape");
  }
  for (size_t d = 0; d < dims.size(); ++d) {
    const char label = dims[d];
    const int64_t n = t.shape()[d];
    if (label == '.') {
      if (n == 1) continue;
      return UsageError(ctx.op, ": dim ", d, " of ", Describe(spec, t), " must be 1");
    }
    auto [it, fresh] = labels.size.try_emplace(label, n);
    if (fresh) labels.bound[label] = StrCat("dim ", d, " of ", Describe(spec, t));
    if (it->second == n) continue;
    return UsageError(ctx.op, ": dim ", d, " of ", Describe(spec, t), " must be ", it->second,
                      " to match ", labels.bound[label],
                      " (shapes are this rank's; cut or reshape both alike)");
  }
  return absl::OkStatus();
}

absl::Status MatchSizes(const Signature& signature, const InferContext& ctx, Labels& labels) {
  for (size_t i = 0; i < ctx.inputs.size(); ++i) {
    if (!ctx.has(i)) continue;
    CAPSTAN_RETURN_IF_ERROR(
        MatchOperand(ctx, signature.input(i), *ctx.inputs[i], labels.in[i], labels));
  }
  for (size_t j = 0; j < signature.outputs.size(); ++j) {
    if (signature.outputs[j].effect != CAPSTAN_UPDATE) continue;
    CAPSTAN_RETURN_IF_ERROR(
        MatchOperand(ctx, signature.outputs[j], *ctx.given_outputs[j], labels.out[j], labels));
  }
  return absl::OkStatus();
}

Dims ShapeOf(const std::string& dims, const Labels& labels) {
  Dims shape;
  for (char label : dims) {
    auto it = labels.size.find(label);
    shape.push_back(label == '.' || it == labels.size.end() ? 1 : it->second);
  }
  return shape;
}

}  // namespace capstan::ops
