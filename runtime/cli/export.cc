// `capstan export`: the weights of a checkpoint as a folder in published (Hugging Face) form.
//
// A checkpoint's group "model" already has published names, shapes and orientation, so exporting is
// a copy of that group, in pieces, from one bundle to another. No Program is needed.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <vector>

#include "plugin_api/store.h"
#include "runtime/cli/cli.h"
#include "runtime/cli/run_directory.h"
#include "runtime/config/document.h"
#include "runtime/program/types.h"
#include "runtime/run/figures.h"
#include "runtime/run/host.h"
#include "runtime/run/weights.h"
#include "runtime/status.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;

constexpr const char* kModelGroup = "model";
constexpr const char* kModelConfig = "config.json";
constexpr int64_t kPieceBytes = int64_t{64} << 20;

struct StoredTensor {
  std::string name;
  DType dtype;
  Dims shape;
};

// An open bundle; closes itself.
struct OpenBundle {
  const Store& store;
  void* handle = nullptr;
  ~OpenBundle() {
    if (handle != nullptr) store->close(store.self(), handle);
  }
};

absl::StatusOr<std::vector<StoredTensor>> ModelTensors(const OpenBundle& bundle,
                                                       const std::string& path) {
  const Store& store = bundle.store;
  std::vector<StoredTensor> tensors;
  const size_t count = store->tensor_count(store.self(), bundle.handle);
  for (size_t i = 0; i < count; ++i) {
    capstan_store_tensor t{};
    t.struct_size = sizeof(t);
    CAPSTAN_RETURN_IF_ERROR(store->tensor(store.self(), bundle.handle, i, &t));
    if (std::string_view(t.group) != kModelGroup) continue;
    tensors.push_back({t.name, t.dtype, Dims(t.shape, t.shape + t.ndim)});
  }
  if (tensors.empty()) return DataError(path, " holds no weights; is it a checkpoint?");
  return tensors;
}

// Copies one tensor in blocks of rows that fit the buffer.
absl::Status CopyTensor(const OpenBundle& from, const Store& to, void* writer,
                        const StoredTensor& tensor, std::vector<char>& buffer) {
  Dims start(tensor.shape.size(), 0), extent = tensor.shape;
  const int64_t rows = tensor.shape.empty() ? 1 : tensor.shape[0];
  const int64_t bytes = ElementCount(tensor.shape) * DTypeBytes(tensor.dtype);
  const int64_t row_bytes = std::max<int64_t>(1, rows == 0 ? 0 : bytes / rows);
  const int64_t block = std::max<int64_t>(1, kPieceBytes / row_bytes);
  for (int64_t row = 0; row < rows; row += block) {
    const int64_t now = std::min(block, rows - row);
    if (!start.empty()) start[0] = row, extent[0] = now;
    buffer.resize(now * row_bytes);
    const capstan_store_slice slice{sizeof(capstan_store_slice),
                                    tensor.name.c_str(),
                                    kModelGroup,
                                    static_cast<int32_t>(start.size()),
                                    start.data(),
                                    extent.data(),
                                    buffer.data()};
    CAPSTAN_RETURN_IF_ERROR(from.store->get(from.store.self(), from.handle, &slice));
    CAPSTAN_RETURN_IF_ERROR(to->put(to.self(), writer, &slice));
  }
  return absl::OkStatus();
}

absl::Status WriteFolder(const OpenBundle& from, const Store& to, const std::string& output,
                         const std::vector<StoredTensor>& tensors, const std::string& config) {
  std::vector<capstan_store_tensor> declared;
  for (const StoredTensor& t : tensors) {
    declared.push_back({sizeof(capstan_store_tensor), t.name.c_str(), kModelGroup, t.dtype,
                        static_cast<int32_t>(t.shape.size()), t.shape.data()});
  }
  void* writer = nullptr;
  CAPSTAN_RETURN_IF_ERROR(
      to->begin(to.self(), output.c_str(), declared.data(), declared.size(), &writer));
  const auto write = [&]() -> absl::Status {
    std::vector<char> buffer;
    for (const StoredTensor& t : tensors) {
      CAPSTAN_RETURN_IF_ERROR(
          Annotate(CopyTensor(from, to, writer, t, buffer), StrCat("tensor '", t.name, "'")));
    }
    return FromC(to->put_text(to.self(), writer, kModelConfig, config.data(), config.size()));
  };
  if (absl::Status status = write(); !status.ok()) {
    to->abort(to.self(), writer);
    return Annotate(status, StrCat("exporting to ", output));
  }
  return Annotate(FromC(to->commit(to.self(), writer)), StrCat("exporting to ", output));
}

}  // namespace

absl::StatusOr<int> ExportCommand(const ExportArguments& arguments) {
  CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<HostEnvironment> host, HostEnvironment::Create());
  CAPSTAN_ASSIGN_OR_RETURN(const std::string plugin, StoreOfRun(arguments.run));
  CAPSTAN_ASSIGN_OR_RETURN(const Store source, OpenStore(*host, plugin));
  CAPSTAN_ASSIGN_OR_RETURN(const Store target, OpenStore(*host, "safetensors"));
  CAPSTAN_ASSIGN_OR_RETURN(const std::string checkpoint, FindCheckpoint(source, arguments.run));
  OpenBundle bundle{source};
  CAPSTAN_RETURN_IF_ERROR(
      Annotate(FromC(source->open(source.self(), checkpoint.c_str(), &bundle.handle)), checkpoint));
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<StoredTensor> tensors,
                           ModelTensors(bundle, checkpoint));
  const char* config = nullptr;
  size_t config_size = 0;
  CAPSTAN_RETURN_IF_ERROR(Annotate(
      FromC(source->get_text(source.self(), bundle.handle, kModelConfig, &config, &config_size)),
      checkpoint));
  CAPSTAN_RETURN_IF_ERROR(
      WriteFolder(bundle, target, arguments.output, tensors, std::string(config, config_size)));
  double bytes = 0;
  for (const StoredTensor& t : tensors) {
    bytes += static_cast<double>(ElementCount(t.shape) * DTypeBytes(t.dtype));
  }
  std::printf("exported %s: %zu tensors, %s, to %s\n", checkpoint.c_str(), tensors.size(),
              BytesText(bytes).c_str(), arguments.output.c_str());
  return kExitDone;
}

}  // namespace capstan
