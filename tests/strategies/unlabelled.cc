// A dataset whose samples have targets up to number 35 and none from there on.
#include <string_view>

#include "sdk/dataset.h"

namespace capstan {
namespace {

class Unlabelled {
 public:
  Unlabelled(const sdk::Host&, const sdk::Options&, const capstan_dataset_request& request)
      : length_(request.sequence_length), vocabulary_(request.vocabulary) {}

  int64_t epoch_size() const noexcept { return 0; }
  const char* description() const noexcept { return "labels that run out"; }
  void read(const capstan_sample_request& request) const {
    for (size_t i = 0; i < request.field_count; ++i) {
      const bool targets = std::string_view(request.fields[i]) == "targets";
      auto* values = static_cast<int32_t*>(request.buffers[i]);
      for (int64_t t = 0; t < length_; ++t) {
        values[t] = targets && request.index > 35 ? -1 : static_cast<int32_t>(t % vocabulary_);
      }
    }
  }

 private:
  int64_t length_, vocabulary_;
};

}  // namespace
}  // namespace capstan

CAPSTAN_PLUGIN_ENTRY("unlabelled", "1.0.0", "Apache-2.0", "Samples without targets, for tests.",
                     capstan::sdk::dataset_component<capstan::Unlabelled>(
                         "unlabelled", "1.0.0", "36 samples with targets, then none."));
