// Reverse-mode differentiation of a Program: appends backward segments by each op's VJP rule.
#pragma once

#include "absl/status/status.h"
#include "runtime/program/program.h"

namespace capstan {

struct DifferentiateOptions {
  DType gradient_dtype = kF32;  // of parameter gradients; f64 programs get f64
};

// For every segment forward/<c> appends backward/<c>, whose ops give the gradient of every
// trainable parameter the losses depend on. Roots are the tensors marked loss_root, seeded with
// one. Gradients are persistent tensors "<parameter>.grad" that the ops accumulate into.
//
// A cotangent is typed: of P it is R, of S the same S, of R it is R or P; anything else is refused
// with the op and axis. Tensors marked save=no are produced again before first use in backward.
absl::Status Differentiate(Program& program, const DifferentiateOptions& options);

// Removes pure ops whose outputs nothing reads. Returns how many went.
int RemoveDeadOps(Program& program);

// Clones the op that makes `t` (and nothing else) to `at`; returns the new value of `t`. Refused
// for ops with effects. Random ops keep their key, so the clone draws the same numbers.
absl::StatusOr<TensorId> CloneProducer(Program& program, TensorId t, const InsertPoint& at);

}  // namespace capstan
