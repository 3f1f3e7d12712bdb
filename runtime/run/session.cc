#include "runtime/run/session.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_join.h"
#include "runtime/run/learning_rate.h"
#include "runtime/status.h"

namespace capstan {
namespace {

constexpr double kMostSteps = 1e15;

template <typename Vtable>
const Vtable* VtableOf(const ComponentConfig& c) {
  return static_cast<const Vtable*>(c.component->vtable);
}

std::string Where(const ComponentConfig& c) {
  return StrCat("[", c.table, "] (", c.position.ToString(), ")");
}

template <typename Vtable>
absl::StatusOr<Owned<Vtable>> Make(const ComponentConfig& c, const capstan_host* host) {
  const auto* vtable = VtableOf<Vtable>(c);
  void* self = nullptr;
  CAPSTAN_RETURN_IF_ERROR(Annotate(FromC(vtable->create(host, &c.options.c(), &self)), Where(c)));
  return Owned<Vtable>(vtable, self);
}

}  // namespace

const capstan_host* Session::c_host() const { return host_->c_host(); }

Session::~Session() = default;

absl::StatusOr<std::unique_ptr<Session>> Session::Open(const std::string& config_path,
                                                       const std::vector<std::string>& overrides,
                                                       HostEnvironment* host) {
  std::unique_ptr<Session> session(new Session());
  session->host_ = host;
  CAPSTAN_ASSIGN_OR_RETURN(session->config_, LoadConfig(config_path, overrides, host->finder()));
  const RunConfig& run = session->config_.run;
  const std::vector<MeshAxis> axes = host->ranks().alone ? std::vector<MeshAxis>() : run.mesh;
  CAPSTAN_ASSIGN_OR_RETURN(Mesh mesh, Mesh::Layout(axes, host->ranks().world_size));
  if (host->ranks().rank >= mesh.world()) {
    return UsageError("rank ", host->ranks().rank, " does not exist: the mesh has ", mesh.world(),
                      " ranks, numbered from 0");
  }
  session->ingredients_.mesh = mesh.View(host->ranks().rank);
  host->SetRun(run.seed, std::move(mesh));
  CAPSTAN_RETURN_IF_ERROR(session->RegisterOps());
  CAPSTAN_RETURN_IF_ERROR(session->MakeModel());
  CAPSTAN_ASSIGN_OR_RETURN(session->objective_,
                           Make<capstan_objective_v1>(session->config_.objective, host->c_host()));
  CAPSTAN_ASSIGN_OR_RETURN(session->precision_,
                           Make<capstan_precision_v1>(session->config_.precision, host->c_host()));
  CAPSTAN_RETURN_IF_ERROR(session->MakeStrategies());
  CAPSTAN_RETURN_IF_ERROR(session->MakeOptimizers());

  Ingredients& in = session->ingredients_;
  in.ops = &session->ops_;
  in.model = {session->config_.model.id, session->model_.vtable(), session->model_.self()};
  in.objective = {session->config_.objective.id, session->objective_.vtable(),
                  session->objective_.self()};
  in.precision = {session->config_.precision.id, session->precision_.vtable(),
                  session->precision_.self()};
  in.device = session->config_.device.component->id;
  in.trainable = run.trainable;
  in.clip_norm = run.clip_norm;
  in.micro_batch = run.micro_batch;
  in.sequence = run.sequence_length;
  CAPSTAN_RETURN_IF_ERROR(session->DivideBatch());
  const int64_t longest = session->model_info_.max_sequence;
  if (longest > 0 && run.sequence_length > longest) {
    return UsageError("data.sequence_length = ", run.sequence_length, " is longer than the ",
                      longest, " positions of model '", in.model.id,
                      "'; lower it, or raise model.max_sequence");
  }
  return session;
}

// The global batch over the ranks along the axes that strategies shard it over.
absl::Status Session::DivideBatch() {
  Ingredients& in = ingredients_;
  const Mesh& mesh = host_->mesh();
  for (const auto& s : in.strategies) {
    for (const capstan_axis_use& use : AxisUses(s)) {
      const bool known =
          std::find(in.batch_axes.begin(), in.batch_axes.end(), use.axis) != in.batch_axes.end();
      if (use.role == CAPSTAN_AXIS_DATA && mesh.Size(use.axis) > 1 && !known) {
        in.batch_axes.emplace_back(use.axis);
      }
    }
  }
  for (const std::string& axis : in.batch_axes) {
    in.batch_index = in.batch_index * mesh.Size(axis) + mesh.Index(axis, host_->ranks().rank);
    in.batch_ranks *= mesh.Size(axis);
  }
  const RunConfig& run = config_.run;
  const int64_t at_once = run.micro_batch * in.batch_ranks;
  if (run.global_batch % at_once != 0) {
    return UsageError("batch.global is ", run.global_batch, ", but ", in.batch_ranks,
                      " ranks along ", absl::StrJoin(in.batch_axes, ", "),
                      " take batch.micro = ", run.micro_batch,
                      " each, so it must be a multiple of ", at_once, "; for example ",
                      (run.global_batch / at_once + 1) * at_once);
  }
  in.microbatches = run.global_batch / at_once;
  return absl::OkStatus();
}

// The standard catalogue, then the ops of every plugin the config has loaded.
absl::Status Session::RegisterOps() {
  CAPSTAN_RETURN_IF_ERROR(RegisterStandardOps(ops_));
  for (const Component* c : host_->registry().ListLoaded()) {
    if (std::string_view(c->definition->kind) != "ops") continue;
    const auto* table = c->vtable<capstan_ops_v1>();
    if (table->bind != nullptr) CAPSTAN_RETURN_IF_ERROR(FromC(table->bind(c_host())));
    for (size_t i = 0; const capstan_op_def* def = table->get(i); ++i) {
      CAPSTAN_RETURN_IF_ERROR(
          Annotate(RegisterPluginOp(ops_, def), StrCat("plugin ", c->plugin->path)));
    }
  }
  return absl::OkStatus();
}

absl::Status Session::MakeModel() {
  std::string config_json;
  if (!config_.run.weights.empty()) {
    CAPSTAN_ASSIGN_OR_RETURN(const Store* store, this->store());
    CAPSTAN_ASSIGN_OR_RETURN(config_json,
                             ReadBundleText(*store, config_.run.weights, "config.json"));
  }
  const auto* vtable = VtableOf<capstan_model_v1>(config_.model);
  void* self = nullptr;
  CAPSTAN_RETURN_IF_ERROR(Annotate(
      FromC(vtable->create(c_host(), &config_.model.options.c(),
                           config_.run.weights.empty() ? nullptr : config_json.c_str(), &self)),
      Where(config_.model)));
  model_ = Owned<capstan_model_v1>(vtable, self);
  model_info_.struct_size = sizeof(model_info_);
  return FromC(vtable->info(self, &model_info_));
}

absl::Status Session::MakeStrategies() {
  for (const ComponentConfig& c : config_.strategies) {
    CAPSTAN_ASSIGN_OR_RETURN(Owned<capstan_strategy_v1> strategy,
                             Make<capstan_strategy_v1>(c, c_host()));
    ingredients_.strategies.push_back({c.id, strategy.vtable(), strategy.self(), c.component->id});
    strategies_.push_back(std::move(strategy));
  }
  return absl::OkStatus();
}

absl::Status Session::MakeOptimizers() {
  for (size_t i = 0; i < config_.optimizer_groups.size(); ++i) {
    const OptimizerGroup& group = config_.optimizer_groups[i];
    CAPSTAN_ASSIGN_OR_RETURN(Owned<capstan_optimizer_v1> optimizer,
                             Make<capstan_optimizer_v1>(group.optimizer, c_host()));
    UpdateGroup update;
    update.optimizer = {group.optimizer.id, optimizer.vtable(), optimizer.self()};
    update.match = group.match;
    update.weight_decay = group.weight_decay;
    update.decay_all = group.weight_decay_set;
    const bool last = i + 1 == config_.optimizer_groups.size();
    update.lr_input = last ? "lr" : StrCat("lr.", i);
    ingredients_.optimizers.push_back(std::move(update));
    optimizers_.push_back(std::move(optimizer));
  }
  return absl::OkStatus();
}

absl::StatusOr<Device*> Session::device() {
  if (device_ == nullptr) {
    const ComponentConfig& c = config_.device;
    absl::StatusOr<std::unique_ptr<Device>> made =
        Device::Create(VtableOf<capstan_device_v1>(c), c_host(), &c.options.c(), c.component->id);
    if (!made.ok()) return Annotate(made.status(), Where(c));
    device_ = *std::move(made);
    ingredients_.fusions = device_->Fusions();
  }
  return device_.get();
}

absl::StatusOr<Communicator*> Session::communicator() {
  const Mesh& mesh = host_->mesh();
  if (communicator_ != nullptr || mesh.world() == 1) return communicator_.get();
  if (!config_.comm) {
    return UsageError("the mesh has ", mesh.world(),
                      " ranks, but the run has no communication backend; name one, for example "
                      "[comm] plugin = \"shm\"");
  }
  const ComponentConfig& c = *config_.comm;
  absl::StatusOr<std::unique_ptr<Communicator>> made =
      Communicator::Create(VtableOf<capstan_comm_v1>(c), c_host(), &c.options.c(), &mesh,
                           host_->ranks().rank, config_.run.comm_timeout_s);
  if (!made.ok()) return Annotate(made.status(), Where(c));
  communicator_ = *std::move(made);
  const std::lock_guard lock(aborting_);
  to_abort_ = communicator_.get();
  if (!abort_reason_.empty()) communicator_->Abort(abort_reason_);
  return communicator_.get();
}

void Session::AbortCommunication(const std::string& reason) {
  const std::lock_guard lock(aborting_);
  abort_reason_ = reason;
  if (to_abort_ != nullptr) to_abort_->Abort(reason);
}

absl::StatusOr<const Store*> Session::store() {
  if (!store_) {
    CAPSTAN_ASSIGN_OR_RETURN(store_, Make<capstan_store_v1>(config_.checkpoint, c_host()));
  }
  return &store_;
}

absl::StatusOr<Dataset> Session::OpenData(int split) const {
  const auto* vtable = VtableOf<capstan_dataset_v1>(config_.data);
  capstan_dataset_request request{};
  request.struct_size = sizeof(request);
  request.split = split;
  request.sequence_length = config_.run.sequence_length;
  request.vocabulary = model_info_.vocabulary;
  request.seed = config_.run.seed;
  void* self = nullptr;
  CAPSTAN_RETURN_IF_ERROR(
      Annotate(FromC(vtable->create(c_host(), &config_.data.options.c(), &request, &self)),
               Where(config_.data)));
  return Dataset(vtable, self);
}

absl::StatusOr<std::vector<Tracker>> Session::OpenTrackers(const std::string& directory,
                                                           int64_t resume_step) const {
  std::vector<Tracker> trackers;
  for (const ComponentConfig& c : config_.trackers) {
    const auto* vtable = VtableOf<capstan_tracker_v1>(c);
    void* self = nullptr;
    CAPSTAN_RETURN_IF_ERROR(Annotate(
        FromC(vtable->create(c_host(), &c.options.c(), directory.c_str(), resume_step, &self)),
        Where(c)));
    trackers.emplace_back(vtable, self);
  }
  return trackers;
}

absl::StatusOr<std::string> Session::ModelConfigJson() const {
  const char* text = nullptr;
  CAPSTAN_RETURN_IF_ERROR(FromC(model_->config_json(model_.self(), &text)));
  return std::string(text);
}

absl::StatusOr<int64_t> Session::Steps(int64_t epoch_size) const {
  const RunConfig& run = config_.run;
  if (run.steps) return *run.steps;
  if (run.tokens) {
    const int64_t per_step = run.global_batch * run.sequence_length;
    return std::max<int64_t>(1, (*run.tokens + per_step - 1) / per_step);
  }
  if (epoch_size <= 0) {
    return UsageError(
        "run.epochs is set, but the data has no end; set run.steps or run.tokens instead");
  }
  const double steps = std::ceil(*run.epochs * static_cast<double>(epoch_size) /
                                 static_cast<double>(run.global_batch));
  if (!(steps <= kMostSteps)) {
    return UsageError("run.epochs = ", *run.epochs, " is ", steps, " steps; give fewer epochs");
  }
  return std::max<int64_t>(1, static_cast<int64_t>(steps));
}

double Session::Rate(size_t group, int64_t step, int64_t steps) const {
  return LearningRate(config_.run.schedule, config_.optimizer_groups[group].lr, step, steps);
}

}  // namespace capstan
