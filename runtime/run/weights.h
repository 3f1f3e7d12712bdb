// Persistent tensors at the start of a run and at rest: initial values, weights of published
// models, and checkpoints. Tensors move by slice; none is gathered.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/exec/executor.h"
#include "runtime/program/program.h"
#include "runtime/run/bundle.h"
#include "runtime/run/ranks.h"

namespace capstan {

// A Program that fills states and constants of `like`, and its parameters where asked, with their
// initial values. Random draws depend on (seed, tensor name, global index) alone, so any mesh
// starts alike.
absl::StatusOr<std::unique_ptr<Program>> ComposeInit(const Program& like, bool parameters);

// Loads parameters from a folder in published form. Every parameter must be there, with its shape;
// f16, bf16, f32 and f64 are converted. Tensors of the folder that nothing uses are returned.
// All ranks call it; each reads its own slices.
absl::StatusOr<std::vector<std::string>> LoadWeights(const Store& store, const Ranks& ranks,
                                                     const std::string& folder,
                                                     const Program& program, Storage& storage);

// What a checkpoint knows besides tensors.
struct CheckpointInfo {
  int64_t step = 0;     // updates done
  int64_t samples = 0;  // sequences consumed
  uint64_t seed = 0;
  std::string config_toml;
  std::string model_config_json;
};

// <directory>/step-<8 digits>.
std::string CheckpointPath(const std::string& directory, int64_t step);

// Writes the bundle CheckpointPath names, whole or not at all. Refused where it is there already. All
// ranks call it; each writes its own slices, none gathers. Returns the bytes of tensors in it, of all
// ranks together.
absl::StatusOr<int64_t> SaveCheckpoint(const Store& store, const Ranks& ranks,
                                       const std::string& directory, const Program& program,
                                       Storage& storage, const CheckpointInfo& info);

// Removes all but the `keep` newest; 0 keeps all. One rank calls it.
absl::Status RemoveOldCheckpoints(const Store& store, const std::string& directory, int64_t keep);

// Groups of a snapshot besides "optimizer", as a checkpoint has it.
inline constexpr const char* kSnapshotParameters = "parameter";
inline constexpr const char* kSnapshotGradients = "gradient";

// Parameters, states and the gradients of the last step under the Program's own names, so that two
// runs can be compared tensor by tensor. Gradients are named <parameter>.grad. All ranks call it.
absl::Status SaveSnapshot(const Store& store, const Ranks& ranks, const std::string& path,
                          const Program& program, Storage& storage,
                          const std::vector<NamedText>& texts);

// Path of the newest complete checkpoint, "" when there is none.
absl::StatusOr<std::string> NewestCheckpoint(const Store& store, const std::string& directory);

// Reads everything a checkpoint holds into storage. Refuses one whose tensors do not fit, and one
// with tensors that no rank has a use for. All ranks call it; each reads its own slices.
absl::StatusOr<CheckpointInfo> LoadCheckpoint(const Store& store, const Ranks& ranks,
                                              const std::string& path, const Program& program,
                                              Storage& storage);

// The texts of a checkpoint, without its tensors.
absl::StatusOr<CheckpointInfo> ReadCheckpointInfo(const Store& store, const std::string& path);

// Text file of a bundle.
absl::StatusOr<std::string> ReadBundleText(const Store& store, const std::string& path,
                                           const std::string& name);

// Writes the parameters alone as a folder in published form.
absl::Status ExportWeights(const Store& store, const std::string& folder, const Program& program,
                           Storage& storage, const std::string& model_config_json);

}  // namespace capstan
