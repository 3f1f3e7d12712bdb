// A small Program on a paper mesh, for tests of the standard ops.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "runtime/ops/placement_rules.h"
#include "runtime/program/program.h"

namespace capstan {

class PaperWorld {
 public:
  explicit PaperWorld(std::vector<std::pair<std::string, int64_t>> axes = {})
      : program_(Registry(), {.mesh = {std::move(axes), {}}}) {}

  static const OpRegistry* Registry() {
    static const OpRegistry* registry = [] {
      auto* made = new OpRegistry;
      const absl::Status s = RegisterStandardOps(*made);
      EXPECT_TRUE(s.ok()) << s;
      return made;
    }();
    return registry;
  }

  Program& program() { return program_; }

  TensorId Add(int kind, std::string name, const std::string& dtype, Dims shape,
               const std::string& placement) {
    Tensor t;
    t.name = std::move(name);
    t.kind = kind;
    t.trainable = kind == CAPSTAN_PARAMETER;
    t.type = {*ParseDType(dtype), std::move(shape), *ops::ParsePlacement(placement)};
    return *program_.AddTensor(std::move(t));
  }
  // Placements are text: "{tp:S(0)}".
  TensorId Parameter(std::string name, Dims shape, const std::string& placement = "",
                     const std::string& dtype = "f32") {
    return Add(CAPSTAN_PARAMETER, std::move(name), dtype, std::move(shape), placement);
  }
  TensorId Input(std::string name, Dims shape, const std::string& placement = "",
                 const std::string& dtype = "f32") {
    return Add(CAPSTAN_INPUT, std::move(name), dtype, std::move(shape), placement);
  }

  absl::StatusOr<OpId> TryOp(std::string kind, std::vector<TensorId> inputs, Attrs attrs = {},
                             std::vector<TensorId> outputs = {}) {
    return program_.AddOp({"forward/0"}, {.kind = std::move(kind),
                                          .inputs = std::move(inputs),
                                          .attrs = std::move(attrs),
                                          .outputs = std::move(outputs)});
  }
  // All outputs of an op that must be accepted.
  std::vector<TensorId> Op(std::string kind, std::vector<TensorId> inputs, Attrs attrs = {},
                           std::vector<TensorId> outputs = {}) {
    absl::StatusOr<OpId> op = TryOp(kind, std::move(inputs), std::move(attrs), std::move(outputs));
    if (op.ok()) return program_.op(*op).outputs;
    ADD_FAILURE() << kind << ": " << op.status();
    return std::vector<TensorId>(4, 0);
  }
  // The message with which an op is refused.
  std::string Refusal(std::string kind, std::vector<TensorId> inputs, Attrs attrs = {},
                      std::vector<TensorId> outputs = {}) {
    absl::StatusOr<OpId> op = TryOp(kind, std::move(inputs), std::move(attrs), std::move(outputs));
    if (op.ok())
      return "accepted: " + program_.OpText(*op) + " -> " + Type(program_.op(*op).outputs[0]);
    EXPECT_EQ(op.status().code(), absl::StatusCode::kInvalidArgument) << op.status();
    return std::string(op.status().message());
  }

  // "f32[2,3] {tp:S(0)}"
  std::string Type(TensorId t) const {
    const Tensor& x = program_.tensor(t);
    return DTypeName(x.dtype()) + ShapeString(x.shape()) + " " + PlacementString(x.placement());
  }

 private:
  Program program_;
};

}  // namespace capstan
