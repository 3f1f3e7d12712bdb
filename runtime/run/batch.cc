#include "runtime/run/batch.h"

#include "runtime/run/compose.h"
#include "runtime/status.h"

namespace capstan {

absl::StatusOr<BatchLoader> BatchLoader::Create(const Dataset* dataset, const Objective* objective,
                                                const Program* program, Storage* storage,
                                                int64_t ranks, int64_t index) {
  BatchLoader loader;
  loader.dataset_ = dataset;
  loader.objective_ = objective;
  loader.program_ = program;
  loader.storage_ = storage;
  loader.ranks_ = ranks;
  loader.index_ = index;
  const Program::Options& options = program->options();
  for (size_t i = 0;; ++i) {
    const capstan_field* field = (*objective)->field(objective->self(), i);
    if (field == nullptr) break;
    Field f;
    f.name = field->name;
    f.tensor = program->FindTensor(field->name);
    const int64_t elements = field->per_position != 0 ? options.sequence_length : 1;
    f.row_bytes = elements * DTypeBytes(field->dtype);
    f.host.resize(f.row_bytes * options.micro_batch_size);
    loader.fields_.push_back(std::move(f));
  }
  loader.rows_.resize(loader.fields_.size());
  loader.samples_.resize(options.micro_batch_size);
  loader.sample_ = program->FindTensor(kInputSample);
  loader.count_ = program->FindTensor(kInputCount);
  return loader;
}

absl::StatusOr<double> BatchLoader::Load(int64_t first) {
  const Program::Options& options = program_->options();
  names_.clear();
  for (const Field& f : fields_) names_.push_back(f.name.c_str());
  double weight = 0;
  for (int m = 0; m < options.microbatches; ++m) {
    for (int64_t b = 0; b < options.micro_batch_size; ++b) {
      for (size_t i = 0; i < fields_.size(); ++i)
        rows_[i] = fields_[i].host.data() + b * fields_[i].row_bytes;
      samples_[b] = first + (m * ranks_ + index_) * options.micro_batch_size + b;
      const capstan_sample_request request{sizeof(capstan_sample_request), samples_[b],
                                           fields_.size(), names_.data(), rows_.data()};
      CAPSTAN_RETURN_IF_ERROR((*dataset_)->read(dataset_->self(), &request));
      weight += (*objective_)->weight(objective_->self(), rows_.data(), options.sequence_length);
    }
    for (const Field& f : fields_) {
      if (f.tensor == kNone) continue;
      CAPSTAN_RETURN_IF_ERROR(storage_->device()->Copy(storage_->Data(*program_, f.tensor, m),
                                                       f.host.data(), f.host.size()));
    }
    if (sample_ != kNone) {
      CAPSTAN_RETURN_IF_ERROR(storage_->device()->Copy(storage_->Data(*program_, sample_, m),
                                                       samples_.data(),
                                                       samples_.size() * sizeof(int64_t)));
    }
  }
  if (!(weight > 0) && ranks_ == 1) return NothingToLearn(first);
  if (count_ != kNone)
    CAPSTAN_RETURN_IF_ERROR(SetScalar(*program_, *storage_, kInputCount, weight));
  return weight;
}

absl::Status BatchLoader::NothingToLearn(int64_t first) const {
  const Program::Options& options = program_->options();
  return DataError("samples ", first, " to ",
                   first + ranks_ * options.microbatches * options.micro_batch_size - 1,
                   " have no ", std::string((*objective_)->unit(objective_->self())),
                   "; nothing to learn from");
}

absl::Status SetScalar(const Program& program, Storage& storage, const std::string& name,
                       double value) {
  const TensorId t = program.FindTensor(name);
  if (t == kNone) return absl::OkStatus();
  if (SameDType(program.tensor(t).dtype(), kF64)) {
    return storage.device()->Copy(storage.Data(program, t), &value, sizeof(value));
  }
  const auto narrow = static_cast<float>(value);
  return storage.device()->Copy(storage.Data(program, t), &narrow, sizeof(narrow));
}

absl::Status SetScalar(const Program& program, Storage& storage, const std::string& name,
                       int64_t value) {
  const TensorId t = program.FindTensor(name);
  if (t == kNone) return absl::OkStatus();
  return storage.device()->Copy(storage.Data(program, t), &value, sizeof(value));
}

absl::StatusOr<double> GetScalar(const Program& program, const Storage& storage,
                                 const std::string& name) {
  const TensorId t = program.FindTensor(name);
  if (t == kNone)
    return BugError("program '", program.options().name, "' has no value '", name, "'");
  if (SameDType(program.tensor(t).dtype(), kF64)) {
    double value = 0;
    CAPSTAN_RETURN_IF_ERROR(
        storage.device()->Copy(&value, storage.Data(program, t), sizeof(value)));
    return value;
  }
  float value = 0;
  CAPSTAN_RETURN_IF_ERROR(storage.device()->Copy(&value, storage.Data(program, t), sizeof(value)));
  return value;
}

}  // namespace capstan
