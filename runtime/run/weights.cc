#include "runtime/run/weights.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "runtime/run/bundle.h"
#include "runtime/run/compose.h"
#include "runtime/run/convert.h"
#include "runtime/status.h"
#include "sdk/program.h"

namespace capstan {
namespace {

constexpr const char* kModelGroup = "model";
constexpr const char* kOptimizerGroup = "optimizer";
constexpr const char* kManifest = "capstan.json";
constexpr const char* kCheckpointPrefix = "step-";
constexpr int64_t kMostSamples = int64_t{1} << 62;  // room for the samples still to come

bool Saved(const Tensor& t) {
  if (t.view_of != kNone) return false;
  if (t.kind == CAPSTAN_PARAMETER) return true;
  return t.kind == CAPSTAN_STATE && t.role != "metric" && t.role != "cache";
}

// In a snapshot every tensor keeps the Program's own name and orientation.
StoredSlice SnapshotSlice(const Program& program, const Tensor& t) {
  StoredSlice s;
  s.group = t.kind == CAPSTAN_PARAMETER  ? kSnapshotParameters
            : t.kind == CAPSTAN_GRADIENT ? kSnapshotGradients
                                         : kOptimizerGroup;
  s.name = t.kind == CAPSTAN_GRADIENT ? ParameterName(program, t.of) + ".grad" : t.name;
  s.shape = t.global_shape;
  s.start = t.slice_start;
  s.extent = t.shape();
  return s;
}

StoredSlice SliceOf(const Tensor& t) {
  StoredSlice s;
  s.group = t.kind == CAPSTAN_PARAMETER ? kModelGroup : kOptimizerGroup;
  s.name = t.name;
  s.shape = t.global_shape;
  s.start = t.slice_start;
  s.extent = t.shape();
  if (t.kind != CAPSTAN_PARAMETER || t.external.name.empty()) return s;
  s.name = t.external.name;
  if (t.external.shape.empty()) return s;
  s.transposed = t.external.transposed;
  s.shape = t.external.shape;
  if (s.transposed) {
    std::reverse(s.start.begin(), s.start.end());
    std::reverse(s.extent.begin(), s.extent.end());
  }
  for (size_t d = 0; d < s.start.size(); ++d) s.start[d] += t.external.start[d];
  return s;
}

std::vector<TensorId> SavedTensors(const Program& program, bool parameters_only) {
  std::vector<TensorId> list;
  for (TensorId t = 0; t < program.tensor_limit(); ++t) {
    if (!program.TensorAlive(t) || !Saved(program.tensor(t))) continue;
    if (parameters_only && program.tensor(t).kind != CAPSTAN_PARAMETER) continue;
    list.push_back(t);
  }
  return list;
}

std::vector<Placed> PublishedPlaces(const Program& program, bool parameters_only) {
  std::vector<Placed> list;
  for (TensorId id : SavedTensors(program, parameters_only)) {
    list.push_back({id, SliceOf(program.tensor(id))});
  }
  return list;
}

// An open bundle.
class Reader {
 public:
  static absl::StatusOr<std::unique_ptr<Reader>> Open(const Store& store, const std::string& path) {
    void* handle = nullptr;
    CAPSTAN_RETURN_IF_ERROR(store->open(store.self(), path.c_str(), &handle));
    std::unique_ptr<Reader> reader(new Reader(store, handle, path));
    for (size_t i = 0; i < store->tensor_count(store.self(), handle); ++i) {
      capstan_store_tensor t{};
      t.struct_size = sizeof(t);
      CAPSTAN_RETURN_IF_ERROR(store->tensor(store.self(), handle, i, &t));
      reader->tensors_[{t.group, t.name}] = {t.dtype, Dims(t.shape, t.shape + t.ndim), false};
    }
    return reader;
  }
  ~Reader() { store_->close(store_.self(), handle_); }

  absl::StatusOr<std::string> Text(const std::string& name) const {
    const char* text = nullptr;
    size_t size = 0;
    CAPSTAN_RETURN_IF_ERROR(store_->get_text(store_.self(), handle_, name.c_str(), &text, &size));
    return std::string(text, size);
  }

  // Published models name the same tensor with or without their outer module.
  absl::Status Resolve(StoredSlice& s) const {
    if (tensors_.contains({s.group, s.name})) return absl::OkStatus();
    if (s.group == kModelGroup) {
      for (const std::string prefix : {"transformer.", "model."}) {
        const std::string other =
            s.name.starts_with(prefix) ? s.name.substr(prefix.size()) : prefix + s.name;
        if (!tensors_.contains({s.group, other})) continue;
        s.name = other;
        return absl::OkStatus();
      }
    }
    if (s.group != kModelGroup) {
      return DataError(
          "optimizer state '", s.name, "' is not in ", path_,
          "; resume with the optimizer, groups and model.trainable it was written with, "
          "or start a new run from its weights (model.weights)");
    }
    return DataError("tensor '", s.name, "' is not in ", path_,
                     "; is this another model's weights?");
  }

  absl::Status Get(const Program& program, Storage& storage, TensorId id) {
    const Tensor& t = program.tensor(id);
    StoredSlice s = SliceOf(t);
    CAPSTAN_RETURN_IF_ERROR(Resolve(s));
    Stored& stored = tensors_[{s.group, s.name}];
    stored.used = true;
    if (stored.shape != s.shape) {
      return DataError("tensor '", s.name, "' in ", path_, " has shape ", ShapeString(stored.shape),
                       ", the model's '", t.name, "' needs ", ShapeString(s.shape),
                       "; check the model's options against the weights");
    }
    for (Piece& piece : PiecesOf(t, SliceOf(t))) {
      piece.stored.name = s.name;
      CAPSTAN_RETURN_IF_ERROR(GetPiece(program, storage, id, piece, stored.dtype));
    }
    return absl::OkStatus();
  }

  // Tensors that no rank has read. All ranks call it.
  absl::StatusOr<std::vector<std::string>> Unused(const Ranks& ranks) const {
    std::string mine;  // a letter a tensor, in the order of the map
    for (const auto& [key, stored] : tensors_) mine += stored.used ? 'u' : '-';
    CAPSTAN_ASSIGN_OR_RETURN(const std::vector<std::string> all, ranks.Exchange("unused", mine));
    std::vector<std::string> names;
    size_t i = 0;
    for (const auto& [key, stored] : tensors_) {
      const bool used = std::any_of(all.begin(), all.end(), [&](const std::string& letters) {
        return i < letters.size() && letters[i] == 'u';
      });
      if (!used) names.push_back(key.second);
      ++i;
    }
    return names;
  }

 private:
  struct Stored {
    DType dtype;
    Dims shape;
    bool used = false;
  };
  absl::Status GetPiece(const Program& program, Storage& storage, TensorId id, const Piece& piece,
                        DType stored) {
    const Tensor& t = program.tensor(id);
    const int64_t size = DTypeBytes(t.dtype());
    char* data = read_.Get(piece.elements * DTypeBytes(stored));
    const capstan_store_slice slice = CSlice(piece.stored, data);
    CAPSTAN_RETURN_IF_ERROR(store_->get(store_.self(), handle_, &slice));
    if (!SameDType(stored, t.dtype())) {
      char* const converted = converted_.Get(piece.elements * size);
      CAPSTAN_RETURN_IF_ERROR(Annotate(Convert(data, stored, converted, t.dtype(), piece.elements),
                                       StrCat("tensor '", piece.stored.name, "' in ", path_)));
      data = converted;
    }
    if (piece.stored.transposed) {
      char* const turned = turned_.Get(piece.elements * size);
      const int64_t rows = piece.end - piece.begin;
      Transpose(data, rows, t.shape()[1], rows, size, turned);
      data = turned;
    }
    return storage.device()->Copy(storage.Data(program, id) + piece.offset * size, data,
                                  piece.elements * size);
  }

  Reader(const Store& store, void* handle, std::string path)
      : store_(store), handle_(handle), path_(std::move(path)) {}
  const Store& store_;
  void* handle_;
  std::string path_;
  std::map<std::pair<std::string, std::string>, Stored> tensors_;
  HostBuffer read_, converted_, turned_;
};

// Names of the complete checkpoints, oldest first. Other bundles there are someone else's: they are
// neither resumed from nor removed.
absl::StatusOr<std::vector<std::string>> CheckpointNames(const Store& store,
                                                         const std::string& directory) {
  const char* const* names = nullptr;
  size_t count = 0;
  CAPSTAN_RETURN_IF_ERROR(store->list(store.self(), directory.c_str(), &names, &count));
  std::vector<std::string> checkpoints;
  for (size_t i = 0; i < count; ++i) {
    if (std::string_view(names[i]).starts_with(kCheckpointPrefix)) checkpoints.push_back(names[i]);
  }
  return checkpoints;
}

// Which meaning of each op a Program was built with.
std::map<std::string, int> OpVersions(const Program& program) {
  std::map<std::string, int> versions;
  for (const Segment& s : program.segments()) {
    for (OpId o : s.ops) versions[program.op(o).kind()] = program.op(o).def->semantics_version;
  }
  return versions;
}

// A resumed run must go on as it began, so an op may not have changed its meaning in between.
absl::Status CheckOpVersions(const Reader& reader, const std::string& path,
                             const Program& program) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::string manifest, reader.Text(kManifest));
  const nlohmann::json json = nlohmann::json::parse(manifest, nullptr, false);
  if (!json.is_object() || !json.contains("ops") || !json["ops"].is_object())
    return absl::OkStatus();
  for (const auto& [kind, version] : OpVersions(program)) {
    const auto written = json["ops"].find(kind);
    if (written == json["ops"].end() || *written == version) continue;
    return DataError(path, " was trained with version ", written->dump(), " of op '", kind,
                     "', this host and its plugins have version ", version,
                     "; resume with the release that wrote it, or start a new run from its weights "
                     "(model.weights)");
  }
  return absl::OkStatus();
}

absl::StatusOr<CheckpointInfo> ParseInfo(const Reader& reader, const std::string& path) {
  CheckpointInfo info;
  CAPSTAN_ASSIGN_OR_RETURN(std::string manifest, reader.Text(kManifest));
  const nlohmann::json json = nlohmann::json::parse(manifest, nullptr, false);
  auto integer = [&](const char* key) {
    return json.contains(key) && json[key].is_number_integer();
  };
  if (!json.is_object() || !integer("step") || !integer("samples") || !integer("seed") ||
      !integer("format")) {
    return DataError(
        path, "/", kManifest,
        " is not a checkpoint's manifest; remove the directory to resume from an older checkpoint");
  }
  if (json["format"] != 1) {
    return DataError(path, " was written in format ", json["format"].dump(),
                     "; this host reads format 1, use the release that wrote it");
  }
  info.step = json["step"].get<int64_t>();
  info.samples = json["samples"].get<int64_t>();
  info.seed = json["seed"].get<uint64_t>();
  if (json["seed"] < 0 || info.step < 0 || info.samples < 0 || info.samples > kMostSamples) {
    return DataError(
        path, "/", kManifest,
        " has an impossible step, seed or sample count; remove the directory to resume "
        "from an older checkpoint");
  }
  // A copied or renamed directory would count steps that were never made.
  const std::string name = path.substr(path.rfind('/') + 1);
  if (name.starts_with(kCheckpointPrefix) && CheckpointPath("", info.step) != "/" + name) {
    return DataError(
        path, "/", kManifest, " is of step ", info.step,
        ", which is not what the directory is called; give it back its name, or remove "
        "it to resume from an older checkpoint");
  }
  CAPSTAN_ASSIGN_OR_RETURN(info.config_toml, reader.Text("config.toml"));
  CAPSTAN_ASSIGN_OR_RETURN(info.model_config_json, reader.Text("config.json"));
  return info;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Program>> ComposeInit(const Program& like, bool parameters) {
  Program::Options options = like.options();
  options.name = "init";
  options.microbatches = 1;
  auto program = std::make_unique<Program>(&like.registry(), options);
  program->AddSegment("begin");
  for (TensorId id = 0; id < like.tensor_limit(); ++id) {
    if (!like.TensorAlive(id)) continue;
    Tensor t = like.tensor(id);
    if (!t.persistent() || t.kind == CAPSTAN_GRADIENT || t.view_of != kNone) continue;
    if (t.kind == CAPSTAN_PARAMETER && !parameters) continue;
    if (t.init.kind == CAPSTAN_INIT_ZEROS) continue;  // device memory starts zeroed
    t.of = kNone;  // shares storage by name with the Program it initialises
    CAPSTAN_ASSIGN_OR_RETURN(TensorId made, program->AddTensor(t));
    NewOp op{.kind = "fill", .inputs = {}};
    op.outputs = {made};
    op.attrs = Attrs{{"shape", t.shape()}, {"dtype", DTypeName(t.dtype())}};
    if (!t.placement().empty()) op.attrs.Set("placement", PlacementString(t.placement()));
    if (t.init.kind == CAPSTAN_INIT_CONSTANT) {
      op.attrs.Set("value", t.init.a);
    } else {
      const bool normal = t.init.kind == CAPSTAN_INIT_NORMAL;
      op.kind = normal ? "random_normal" : "random_uniform";
      op.attrs.Set("key", sdk::rng_key(StrCat("init/", t.name)));
      op.attrs.Set(normal ? "mean" : "low", t.init.a);
      op.attrs.Set(normal ? "std" : "high", t.init.b);
      op.attrs.Set("global_shape", t.global_shape);
      op.attrs.Set("start", t.slice_start);
    }
    CAPSTAN_RETURN_IF_ERROR(program->AddOp({"begin"}, std::move(op)).status());
  }
  program->SetDefaultSchedule();
  return program;
}

absl::StatusOr<std::vector<std::string>> LoadWeights(const Store& store, const Ranks& ranks,
                                                     const std::string& folder,
                                                     const Program& program, Storage& storage) {
  std::unique_ptr<Reader> reader;
  const auto read = [&]() -> absl::Status {
    CAPSTAN_ASSIGN_OR_RETURN(reader, Reader::Open(store, folder));
    for (TensorId id : SavedTensors(program, true)) {
      CAPSTAN_RETURN_IF_ERROR(reader->Get(program, storage, id));
    }
    return absl::OkStatus();
  };
  CAPSTAN_RETURN_IF_ERROR(ranks.Agree("weights", read()));
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<std::string> all, reader->Unused(ranks));
  std::vector<std::string> unused;
  for (const std::string& name : all) {
    // Buffers that older files carry, and the second name of a tied head.
    const bool known = name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
                       name.ends_with("rotary_emb.inv_freq") || name == "lm_head.weight";
    if (!known) unused.push_back(name);
  }
  return unused;
}

std::string CheckpointPath(const std::string& directory, int64_t step) {
  return absl::StrFormat("%s/%s%08d", directory, kCheckpointPrefix, step);
}

absl::StatusOr<int64_t> SaveCheckpoint(const Store& store, const Ranks& ranks,
                                       const std::string& directory, const Program& program,
                                       Storage& storage, const CheckpointInfo& info) {
  nlohmann::ordered_json manifest;
  manifest["format"] = 1;
  manifest["step"] = info.step;
  manifest["samples"] = info.samples;
  manifest["seed"] = info.seed;
  manifest["ops"] = OpVersions(program);
  return WriteBundle(store, ranks, CheckpointPath(directory, info.step), program, storage,
                     PublishedPlaces(program, false),
                     {{"config.json", info.model_config_json},
                      {"config.toml", info.config_toml},
                      {kManifest, manifest.dump(1) + "\n"}});
}

absl::Status RemoveOldCheckpoints(const Store& store, const std::string& directory, int64_t keep) {
  if (keep <= 0) return absl::OkStatus();
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<std::string> names, CheckpointNames(store, directory));
  for (size_t i = 0; i + keep < names.size(); ++i) {
    CAPSTAN_RETURN_IF_ERROR(store->remove(store.self(), StrCat(directory, "/", names[i]).c_str()));
  }
  return absl::OkStatus();
}

absl::Status SaveSnapshot(const Store& store, const Ranks& ranks, const std::string& path,
                          const Program& program, Storage& storage,
                          const std::vector<NamedText>& texts) {
  std::vector<Placed> list;
  for (TensorId id : SavedTensors(program, false)) {
    list.push_back({id, SnapshotSlice(program, program.tensor(id))});
  }
  for (TensorId id : UpdatedGradients(program)) {
    list.push_back({id, SnapshotSlice(program, program.tensor(id))});
  }
  return WriteBundle(store, ranks, path, program, storage, list, texts).status();
}

absl::StatusOr<std::string> NewestCheckpoint(const Store& store, const std::string& directory) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<std::string> names, CheckpointNames(store, directory));
  return names.empty() ? std::string() : StrCat(directory, "/", names.back());
}

absl::StatusOr<CheckpointInfo> LoadCheckpoint(const Store& store, const Ranks& ranks,
                                              const std::string& path, const Program& program,
                                              Storage& storage) {
  std::unique_ptr<Reader> reader;
  CheckpointInfo info;
  const auto read = [&]() -> absl::Status {
    CAPSTAN_ASSIGN_OR_RETURN(reader, Reader::Open(store, path));
    CAPSTAN_ASSIGN_OR_RETURN(info, ParseInfo(*reader, path));
    CAPSTAN_RETURN_IF_ERROR(CheckOpVersions(*reader, path, program));
    for (TensorId id : SavedTensors(program, false)) {
      CAPSTAN_RETURN_IF_ERROR(reader->Get(program, storage, id));
    }
    return absl::OkStatus();
  };
  CAPSTAN_RETURN_IF_ERROR(ranks.Agree("checkpoint read", read()));
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<std::string> unused, reader->Unused(ranks));
  // The next checkpoint would be without them.
  if (!unused.empty()) {
    return DataError(
        path, " holds '", unused[0], "'",
        unused.size() == 1 ? "" : StrCat(" and ", unused.size() - 1, " more tensors"),
        " that this configuration has no use for; resume with the model, optimizer and "
        "model.trainable it was written with, or start a new run from its weights "
        "(model.weights)");
  }
  return info;
}

absl::StatusOr<CheckpointInfo> ReadCheckpointInfo(const Store& store, const std::string& path) {
  CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<Reader> reader, Reader::Open(store, path));
  return ParseInfo(*reader, path);
}

absl::StatusOr<std::string> ReadBundleText(const Store& store, const std::string& path,
                                           const std::string& name) {
  CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<Reader> reader, Reader::Open(store, path));
  return reader->Text(name);
}

absl::Status ExportWeights(const Store& store, const std::string& folder, const Program& program,
                           Storage& storage, const std::string& model_config_json) {
  return WriteBundle(store, Ranks(), folder, program, storage, PublishedPlaces(program, true),
                     {{"config.json", model_config_json}})
      .status();
}

}  // namespace capstan
