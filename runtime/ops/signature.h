// The operands of an op as one line of text, in the notation of the catalogue (plugin_api/ops.h):
//
//   "x f *k, weight f nk, bias? f n -> y f *n, +dw f nk"
//
// Each operand is a name, a dtype and its dims. `?` after a name: optional; `...`: any number of
// them; `+` before an output: accumulated; `!`: updated. Every letter of the dims is a label, and
// equal labels have equal sizes. `*` stands for any leading dims (labels '0', '1', ...), `.` for a
// dim of one element, `?` for dims that the op works out itself.
//
// dtypes: f one of f16, bf16, f32, f64, the same for all f operands; w f64 where f is f64, else
// f32; r f32 or f64; x any float; t any dtype, the same for all t operands; d the attribute
// `dtype`; else a dtype by name.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/program/op_def.h"

namespace capstan::ops {

struct OperandSpec {
  std::string name;
  std::string dtype;
  std::string dims;
  bool optional = false;
  bool variadic = false;
  int effect = CAPSTAN_WRITE;  // outputs
};

struct Signature {
  std::vector<OperandSpec> inputs, outputs;

  size_t min_inputs() const;
  size_t max_inputs() const;
  // The spec of input i; the last one repeats when it is variadic.
  const OperandSpec& input(size_t i) const;
};

absl::StatusOr<Signature> ParseSignature(std::string_view text);

// The dims of the operands of one op at hand: one label a dim.
struct Labels {
  std::vector<std::string> in;  // "" for an omitted input
  std::vector<std::string> out;
  std::map<char, int64_t> size;       // of each label
  std::map<char, std::string> bound;  // who said so, for messages
  std::string lead;                   // what `*` stands for

  void Bind(char label, int64_t n, std::string who) {
    size[label] = n;
    bound[label] = std::move(who);
  }
};

// "@name" or "%id", as the dump prints it.
std::string Name(const Tensor& t);
// "weight @h.0.q.weight f32[192,384]"
std::string Describe(const OperandSpec& spec, const Tensor& t);

// The steps of type inference, in this order. Messages begin with ctx.op.
absl::Status CheckArity(const Signature& signature, const InferContext& ctx);
absl::StatusOr<std::vector<DType>> MatchDTypes(const Signature& signature, const InferContext& ctx);
absl::StatusOr<Labels> ExpandLabels(const Signature& signature, const InferContext& ctx);
// Binds labels to sizes over inputs and updated outputs, refusing unequal ones.
absl::Status MatchSizes(const Signature& signature, const InferContext& ctx, Labels& labels);
Dims ShapeOf(const std::string& dims, const Labels& labels);

}  // namespace capstan::ops
