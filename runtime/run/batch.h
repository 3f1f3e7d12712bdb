// Batches: samples of a dataset laid into the input tensors of a Program.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "plugin_api/dataset.h"
#include "plugin_api/objective.h"
#include "runtime/exec/executor.h"
#include "runtime/run/owned.h"

namespace capstan {

using Dataset = Owned<capstan_dataset_v1>;
using Objective = Owned<capstan_objective_v1>;

// Fills the microbatch inputs of a Program from consecutive samples, and says their weight.
// Buffers are made once; Load does not allocate.
class BatchLoader {
 public:
  static absl::StatusOr<BatchLoader> Create(const Dataset* dataset, const Objective* objective,
                                            const Program* program, Storage* storage,
                                            int64_t ranks = 1, int64_t index = 0);

  // Reads this rank's samples of first .. first + ranks*microbatches*micro - 1 (row b of microbatch m
  // is sample first + (m*ranks + index)*micro + b, `ranks` being those the batch is divided among),
  // copies them to the device and gives their total weight, which also goes to the input "count".
  // DATA when no other rank has samples that could weigh more than nothing.
  absl::StatusOr<double> Load(int64_t first);
  // What is to be said when the samples of all ranks from `first` weigh nothing.
  absl::Status NothingToLearn(int64_t first) const;

 private:
  struct Field {
    std::string name;
    TensorId tensor = kNone;  // kNone: the Program has no use for it
    int64_t row_bytes = 0;
    std::vector<char> host;  // [micro, row]
  };
  const Dataset* dataset_ = nullptr;
  const Objective* objective_ = nullptr;
  const Program* program_ = nullptr;
  Storage* storage_ = nullptr;
  int64_t ranks_ = 1, index_ = 0;
  std::vector<Field> fields_;
  std::vector<const char*> names_;
  std::vector<void*> rows_;
  std::vector<int64_t> samples_;
  TensorId sample_ = kNone, count_ = kNone;
};

// Writes one scalar input (f32 or f64; i64); does nothing when the Program has no such input.
absl::Status SetScalar(const Program& program, Storage& storage, const std::string& name,
                       double value);
absl::Status SetScalar(const Program& program, Storage& storage, const std::string& name,
                       int64_t value);
// Reads a named f32 (or f64) scalar.
absl::StatusOr<double> GetScalar(const Program& program, const Storage& storage,
                                 const std::string& name);

}  // namespace capstan
