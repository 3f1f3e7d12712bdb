// Gradients of a small f64 Program, by the host's differentiation and by central differences, both
// run on the cpu device.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/exec/executor.h"
#include "tests/ops/world.h"

namespace capstan {

// The cpu device with its plain f64 kernels, one for the process.
Device* TestDevice();

class GradientWorld : public PaperWorld {
 public:
  // A trainable parameter with random values in [low, high).
  TensorId P(const std::string& name, const Dims& shape, double low = -1, double high = 1);
  // Random values of magnitude [0.2, 1.2) and either sign: away from kinks at zero.
  TensorId AwayFromZero(const std::string& name, const Dims& shape);
  // A fixed input of the same kind.
  TensorId Fixed(const std::string& name, const Dims& shape, double low = -1, double high = 1);
  TensorId Integers(const std::string& name, const std::string& dtype, const Dims& shape,
                    std::vector<int64_t> values);
  // Random ids in [low, high).
  TensorId Ids(const std::string& name, const Dims& shape, int64_t low, int64_t high);

  // The loss is a random weighted sum of y's elements.
  void SumToLoss(TensorId y);
  void MarkLoss(TensorId loss);  // of one element

  // Differentiates, runs, and compares every parameter's gradient with central differences.
  void Check(double tolerance = 1e-7);
  // Kinds of the forward ops, before differentiation.
  std::vector<std::string> Kinds() const;

 private:
  struct Value {
    TensorId tensor;
    std::vector<char> bytes;
  };
  double Random();
  std::vector<double> RandomValues(const Dims& shape, double low, double high);
  TensorId Store(TensorId t, const std::vector<double>& values);
  void Compile();
  double Loss();  // one step
  double* Data(TensorId t);

  uint64_t state_ = 0x9e3779b97f4a7c15u;
  std::vector<Value> values_;
  std::vector<TensorId> parameters_;
  TensorId loss_ = kNone;
  MemoryPlan plan_;
  std::unique_ptr<Storage> storage_;
  std::unique_ptr<Executor> executor_;
};

}  // namespace capstan
