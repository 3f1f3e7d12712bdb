// One floating dtype for everything: parameters, activations, gradients, masters. float32, or
// float64 for tests that compare against exact arithmetic.
#include <string>

#include "sdk/precision.h"

namespace capstan {
namespace {

constexpr capstan_option kOptions[] = {
    sdk::string_option("dtype", "\"f32\"",
                       "Of parameters, activations, gradients and optimizer states.")
        .choices("f32|f64"),
};

class Fp32 {
 public:
  Fp32(const sdk::Host&, const sdk::Options& options)
      : dtype_(options.get_string("dtype") == "f64" ? sdk::kF64 : sdk::kF32) {}

  capstan_dtype dtype(int32_t) const noexcept { return dtype_; }

  // Persistent tensors of the model take the dtype; inference carries it through the activations.
  void rewrite(sdk::Program& program) {
    bool changed = false;
    for (const sdk::Tensor t : program.tensors()) {
      sdk::TensorInfo info = program.get(t);
      const bool of_model = info.kind == CAPSTAN_PARAMETER || info.kind == CAPSTAN_CONSTANT ||
                            (info.kind == CAPSTAN_STATE && info.role == "cache");
      if (!of_model || !sdk::is_floating(info.dtype) || sdk::same_dtype(info.dtype, dtype_))
        continue;
      info.dtype = dtype_;
      program.set(t, info);
      changed = true;
    }
    if (changed) program.infer();
  }

 private:
  capstan_dtype dtype_;
};

}  // namespace
}  // namespace capstan

CAPSTAN_PLUGIN_ENTRY("fp32", "1.0.0", "Apache-2.0", "Single (or double) precision throughout.",
                     capstan::sdk::precision_component<capstan::Fp32>(
                         "fp32", "1.0.0", "float32 everywhere, or float64 for tests.",
                         capstan::kOptions));
