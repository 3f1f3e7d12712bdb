#include "runtime/run/trainer.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <optional>

#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "runtime/exec/comm_check.h"
#include "runtime/run/figures.h"
#include "runtime/run/files.h"
#include "runtime/run/progress.h"
#include "runtime/run/run_lock.h"
#include "runtime/run/trace.h"
#include "runtime/run/verify.h"
#include "runtime/status.h"

namespace capstan {
namespace {

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Set by the handlers below; the one place a signal handler can reach.
std::atomic<int> stop_signal{0};

// Catches stop requests for the length of a run, and the signals that would end it without a word;
// puts the old handlers back.
class StopRequests {
 public:
  // supervised: a launcher sees to it that a rank that does not stop ends, so requests may repeat.
  explicit StopRequests(bool supervised) : supervised_(supervised) {
    stop_signal = 0;
    // On a stack of their own. On the thread's, a SIGTERM in the middle of a step corrupted the heap in
    // 6 of 30 runs, in oneDNN's products; so, in none of 40.
    stack_t apart{};
    apart.ss_sp = stack_.data();
    apart.ss_size = stack_.size();
    sigaltstack(&apart, &before_stack_);
    struct sigaction action {};
    action.sa_handler = [](int s) { stop_signal = s; };
    sigemptyset(&action.sa_mask);
    action.sa_flags = SA_ONSTACK | (supervised ? 0 : SA_RESETHAND);  // else a second request kills
    for (size_t i = 0; i < std::size(kSignals); ++i) sigaction(kSignals[i], &action, &before_[i]);
    // Nobody reads standard output any more (`| head`): no reason to lose the run.
    action.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &action, &before_pipe_);
    action.sa_handler = &TellBusError;
    sigaction(SIGBUS, &action, &before_bus_);
  }
  ~StopRequests() {
    // The launcher passes a request on to ranks that have already ended the run in order.
    for (size_t i = 0; i < std::size(kSignals); ++i) {
      if (supervised_) before_[i].sa_handler = SIG_IGN;
      sigaction(kSignals[i], &before_[i], nullptr);
    }
    sigaction(SIGPIPE, &before_pipe_, nullptr);
    sigaction(SIGBUS, &before_bus_, nullptr);
    sigaltstack(&before_stack_, nullptr);
  }
  StopRequests(const StopRequests&) = delete;
  StopRequests& operator=(const StopRequests&) = delete;
  bool any() const { return stop_signal != 0; }

 private:
  // Shards are memory-mapped: one that is cut short or whose disk fails is met as this signal.
  static void TellBusError(int) {
    static constexpr char kMessage[] =
        "capstan: a memory-mapped file (token shards, plugins) became shorter or unreadable while "
        "the run used it; checkpoints are intact: restore the file and run the command again\n";
    const ssize_t ignored = ::write(STDERR_FILENO, kMessage, sizeof(kMessage) - 1);
    static_cast<void>(ignored);
    ::_exit(kExitFailed);
  }

  static constexpr int kSignals[] = {SIGTERM, SIGINT, SIGUSR1};
  const bool supervised_;
  struct sigaction before_[std::size(kSignals)];
  struct sigaction before_pipe_, before_bus_;
  std::vector<char> stack_ = std::vector<char>(256 << 10);
  stack_t before_stack_{};
};

class Trainer {
 public:
  Trainer(Session& session, const TrainOptions& options, const Ranks& ranks)
      : session_(session), run_(session.config().run), options_(options), ranks_(ranks) {}

  absl::StatusOr<TrainResult> Run() {
    StopRequests stop(
        options_
            .supervised);  // from the first moment, so that a request never finds the run half made
    CAPSTAN_RETURN_IF_ERROR(OpenDirectory());
    CAPSTAN_RETURN_IF_ERROR(Prepare());
    CAPSTAN_RETURN_IF_ERROR(CheckCommunicationOf(*train_, "communication of a step"));
    if (validation_) {
      CAPSTAN_RETURN_IF_ERROR(CheckCommunicationOf(*eval_, "communication of validation"));
    }
    CAPSTAN_RETURN_IF_ERROR(Restore());
    CAPSTAN_RETURN_IF_ERROR(OpenTrackers());
    Progress progress(options_.terminal, options_.print_every > 0
                                             ? options_.print_every
                                             : std::max<int64_t>(1, steps_ / 50));
    progress_ = ranks_.lead() ? &progress : nullptr;
    Announce();
    const double start = Now();
    const int64_t first = step_;
    bool asked = stop.any() && ranks_.size() == 1;  // several ranks stop together, after a step
    const int64_t last = options_.stop_after > 0 ? std::min(steps_, options_.stop_after) : steps_;
    while (step_ < last && !asked) {
      CAPSTAN_ASSIGN_OR_RETURN(asked, Step(start, first, stop.any()));
      if (!options_.snapshot.empty() && records_.size() == 1) {
        CAPSTAN_RETURN_IF_ERROR(Snapshot(kFirstSnapshot));
      }
      CAPSTAN_RETURN_IF_ERROR(MaybeValidate());
      if (run_.checkpoint_every > 0 && step_ % run_.checkpoint_every == 0 && step_ < last) {
        Tell("checkpoint", RankState::kComputing);
        CAPSTAN_RETURN_IF_ERROR(Save());
      }
    }
    Tell("", RankState::kFinishing);
    if (!options_.snapshot.empty()) {
      CAPSTAN_RETURN_IF_ERROR(Snapshot(kLastSnapshot));
    } else if (step_ != saved_step_) {
      CAPSTAN_RETURN_IF_ERROR(Save());
    }
    for (Tracker& t : trackers_) CAPSTAN_RETURN_IF_ERROR(t->flush(t.self()));
    if (storage_->communicator() != nullptr) {
      CAPSTAN_RETURN_IF_ERROR(storage_->communicator()->CheckVolumes());
    }
    result_.step = step_;
    result_.stopped_on_request = asked && step_ < last;
    return result_;
  }

 private:
  // To the launcher: what this rank does between steps.
  void Tell(std::string_view what, RankState state) const {
    if (ranks_.status() != nullptr) ranks_.status()->SetOp(OpLabel(what), -1, state);
  }

  std::string CheckpointDirectory() const { return run_.dir + "/checkpoints"; }

  // What stands where a checkpoint later than the newest is to come would be in its way.
  absl::Status RefuseDamaged(const std::string& newest) const {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(CheckpointDirectory(), error)) {
      const std::string path = StrCat(CheckpointDirectory(), "/", entry.path().filename().string());
      if (!entry.path().filename().string().starts_with("step-") || path <= newest) continue;
      if (entry.is_directory(error) && std::filesystem::is_empty(entry.path(), error)) continue;
      return DataError(path,
                       " is not a complete checkpoint: its capstan.json is missing or it is no "
                       "directory; put back what it lacks, or remove it to resume from ",
                       newest.empty() ? "the start" : newest);
    }
    return absl::OkStatus();
  }

  // The lead keeps the directory to this run and says what is in it.
  absl::Status OpenDirectory() {
    CAPSTAN_ASSIGN_OR_RETURN(store_, session_.store());
    CAPSTAN_ASSIGN_OR_RETURN(
        checkpoint_, ranks_.FromLead("checkpoint", [&]() -> absl::StatusOr<std::string> {
          CAPSTAN_RETURN_IF_ERROR(MakeDirectories(CheckpointDirectory()));
          CAPSTAN_ASSIGN_OR_RETURN(RunLock lock, RunLock::Take(run_.dir));
          lock_.emplace(std::move(lock));
          CAPSTAN_RETURN_IF_ERROR(
              FromC((*store_)->clean(store_->self(), CheckpointDirectory().c_str())));
          CAPSTAN_ASSIGN_OR_RETURN(std::string newest,
                                   NewestCheckpoint(*store_, CheckpointDirectory()));
          CAPSTAN_RETURN_IF_ERROR(RefuseDamaged(newest));
          return newest;
        }));
    if (options_.fresh && !checkpoint_.empty()) {
      return UsageError("--fresh: ", run_.dir, " already holds a run (", checkpoint_,
                        "); move it away first, for example: mv ", run_.dir, " ", run_.dir, ".old");
    }
    return absl::OkStatus();
  }

  absl::Status OpenTrackers() {
    if (!ranks_.lead()) return absl::OkStatus();
    CAPSTAN_ASSIGN_OR_RETURN(trackers_, session_.OpenTrackers(run_.dir, resumed_ ? step_ : -1));
    return absl::OkStatus();
  }

  absl::Status Prepare() {
    CAPSTAN_ASSIGN_OR_RETURN(data_, session_.OpenData(CAPSTAN_SPLIT_TRAIN));
    CAPSTAN_ASSIGN_OR_RETURN(steps_, session_.Steps(data_->epoch_size(data_.self())));
    CAPSTAN_ASSIGN_OR_RETURN(Device * device, session_.device());
    // Before the run's memory is there: measuring takes some of its own for a moment.
    CAPSTAN_ASSIGN_OR_RETURN(capstan_roofline roofline, device->Measure(kF32));
    peak_flops_ = roofline.matmul_flops;
    const auto count = [&](const Program& program, const std::string& phase, bool before) {
      if (before && phase == kFirstCuttingPhase) parameters_ = ParameterElements(program);
    };
    CAPSTAN_ASSIGN_OR_RETURN(train_, ComposeTrain(session_.ingredients(), count));
    CAPSTAN_RETURN_IF_ERROR(plan_.Add(*train_, device, run_.seed));
    if (run_.validation_every > 0) {
      CAPSTAN_ASSIGN_OR_RETURN(validation_, session_.OpenData(CAPSTAN_SPLIT_VALIDATION));
    }
    CAPSTAN_ASSIGN_OR_RETURN(eval_, ComposeEval(session_.ingredients()));
    if (validation_) CAPSTAN_RETURN_IF_ERROR(plan_.Add(*eval_, device, run_.seed));
    const bool from_scratch = checkpoint_.empty() && run_.weights.empty();
    CAPSTAN_ASSIGN_OR_RETURN(init_, ComposeInit(*train_, from_scratch));
    CAPSTAN_RETURN_IF_ERROR(plan_.Add(*init_, device, run_.seed));
    CAPSTAN_ASSIGN_OR_RETURN(Communicator * communicator, session_.communicator());
    CAPSTAN_ASSIGN_OR_RETURN(storage_, Storage::Allocate(device, &plan_, communicator));
    CAPSTAN_RETURN_IF_ERROR(storage_->CheckLedger());
    if (communicator != nullptr) communicator->Report(ranks_.status());
    CAPSTAN_ASSIGN_OR_RETURN(step_executor_, Executor::Compile(train_.get(), storage_.get()));
    step_executor_->Report(ranks_.status());
    const Ingredients& in = session_.ingredients();
    CAPSTAN_ASSIGN_OR_RETURN(BatchLoader loader,
                             BatchLoader::Create(&data_, &session_.objective(), train_.get(),
                                                 storage_.get(), in.batch_ranks, in.batch_index));
    train_loader_.emplace(std::move(loader));
    if (validation_) {
      CAPSTAN_ASSIGN_OR_RETURN(eval_executor_, Executor::Compile(eval_.get(), storage_.get()));
      eval_executor_->Report(ranks_.status());
      CAPSTAN_ASSIGN_OR_RETURN(BatchLoader v,
                               BatchLoader::Create(&validation_, &session_.objective(), eval_.get(),
                                                   storage_.get(), in.batch_ranks, in.batch_index));
      eval_loader_.emplace(std::move(v));
    }
    CAPSTAN_ASSIGN_OR_RETURN(flops_per_step_,
                             ModelFlops(*eval_, in.micro_batch * in.microbatches));  // this rank's
    return absl::OkStatus();
  }

  absl::Status Restore() {
    CAPSTAN_ASSIGN_OR_RETURN(model_config_, session_.ModelConfigJson());
    CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<Executor> init,
                             Executor::Compile(init_.get(), storage_.get()));
    CAPSTAN_RETURN_IF_ERROR(init->Run(0));
    if (!checkpoint_.empty()) {
      CAPSTAN_ASSIGN_OR_RETURN(CheckpointInfo info,
                               LoadCheckpoint(*store_, ranks_, checkpoint_, *train_, *storage_));
      if (info.seed != run_.seed) {
        return UsageError(checkpoint_, " was written with run.seed = ", info.seed,
                          ", the config says ", run_.seed,
                          "; use the same seed, or another run.dir");
      }
      CAPSTAN_RETURN_IF_ERROR(CheckSameModel(info.model_config_json));
      step_ = info.step;
      samples_ = info.samples;
      saved_step_ = step_;
      resumed_ = true;
    } else if (!run_.weights.empty()) {
      CAPSTAN_ASSIGN_OR_RETURN(std::vector<std::string> unused,
                               LoadWeights(*store_, ranks_, run_.weights, *train_, *storage_));
      if (!unused.empty()) {
        notices_.push_back(StrCat("warning: ", unused.size(), " tensors of ", run_.weights,
                                  " are not used, the first is '", unused[0], "'"));
      }
    }
    if (!ranks_.lead()) return absl::OkStatus();
    return WriteFileAtomically(run_.dir + "/config.toml", session_.config().resolved_toml);
  }

  // The lead plays through what every rank will communicate; its verdict on all.
  absl::Status CheckCommunicationOf(const Program& program, std::string_view name) {
    if (ranks_.size() == 1) return absl::OkStatus();
    CAPSTAN_ASSIGN_OR_RETURN(const Ranks::Gathered scripts,
                             ranks_.ToLead(name, CommScript(program, plan_)));
    const auto check = [&]() -> absl::StatusOr<std::string> {
      CAPSTAN_RETURN_IF_ERROR(
          CheckCommunication(session_.host().mesh(), scripts.values, scripts.of));
      return std::string();
    };
    return ranks_.FromLead(StrCat("verdict on ", name), check).status();
  }

  // Two models may hold the same tensors and compute differently (heads, eps, rope_theta).
  absl::Status CheckSameModel(const std::string& written) const {
    const auto before = nlohmann::json::parse(written, nullptr, false);
    const auto now = nlohmann::json::parse(model_config_, nullptr, false);
    if (!before.is_object() || !now.is_object()) {
      return DataError(checkpoint_,
                       "/config.json is not a JSON object; remove the checkpoint to "
                       "resume from an older one");
    }
    for (const auto& [key, value] : now.items()) {
      const auto other = before.find(key);
      if (other == before.end() || *other == value) continue;
      if (key.find("drop") != std::string::npos) continue;  // training's, like the learning rate
      return UsageError(checkpoint_, " was written with ", key, " = ", other->dump(),
                        " in its config.json, this configuration makes it ", value.dump(),
                        "; use the same [model], or start another run.dir from these weights "
                        "(model.weights)");
    }
    return absl::OkStatus();
  }

  void Announce() {
    if (!ranks_.lead()) return;
    progress_->Line(absl::StrFormat(
        "%s: %s, %.2fM parameters, %d steps of %d x %d tokens, %s%.1f MB%s, device %s", run_.name,
        session_.ingredients().model.id, 1e-6 * static_cast<double>(parameters_), steps_,
        run_.global_batch, run_.sequence_length,
        ranks_.size() > 1 ? StrCat("mesh ", session_.host().mesh().ToString(), ", ") : "",
        1e-6 * plan_.total_bytes(), ranks_.size() > 1 ? " a rank" : "",
        storage_->device()->description()));
    if (resumed_) progress_->Line(StrCat("resumed from ", checkpoint_, " at step ", step_));
    if (step_ >= steps_) {
      progress_->Line(StrCat("nothing to do: all ", steps_, " steps of the run are made; raise ",
                             "run.steps to go on"));
    }
    for (const std::string& notice : notices_) progress_->Line(notice);
  }

  // Over all ranks, where the Program sums them; else this rank's.
  absl::StatusOr<double> Loss(const Program& program) const {
    const bool total = program.FindTensor(kTotalLoss) != kNone;
    return GetScalar(program, *storage_, total ? kTotalLoss : kMetricLoss);
  }
  absl::StatusOr<double> Weight(const Program& program, double own) const {
    if (program.FindTensor(kTotalCount) == kNone) return own;
    return GetScalar(program, *storage_, kTotalCount);
  }

  // One step; whether the run should stop after it, which all ranks agree on.
  absl::StatusOr<bool> Step(double start, int64_t first, bool stop) {
    const double begin = Now();
    CAPSTAN_ASSIGN_OR_RETURN(const double own_weight, train_loader_->Load(samples_));
    CAPSTAN_RETURN_IF_ERROR(SetScalar(*train_, *storage_, kInputStop, stop ? 1.0 : 0.0));
    const auto& groups = session_.ingredients().optimizers;
    for (size_t g = 0; g < groups.size(); ++g) {
      const double rate = session_.Rate(g, step_, steps_);
      CAPSTAN_RETURN_IF_ERROR(SetScalar(*train_, *storage_, groups[g].lr_input, rate));
    }
    CAPSTAN_RETURN_IF_ERROR(SetScalar(*train_, *storage_, kInputStep, step_ + 1));
    if (options_.trace && step_ + 1 == steps_) {
      CAPSTAN_RETURN_IF_ERROR(TracedStep());
    } else {
      CAPSTAN_RETURN_IF_ERROR(step_executor_->Run(step_));
    }
    CAPSTAN_ASSIGN_OR_RETURN(const double loss, Loss(*train_));
    CAPSTAN_ASSIGN_OR_RETURN(const double norm, GetScalar(*train_, *storage_, kGradNorm));
    CAPSTAN_ASSIGN_OR_RETURN(const double weight, Weight(*train_, own_weight));
    if (!(weight > 0)) return train_loader_->NothingToLearn(samples_);
    if (train_->FindTensor(kTotalStop) != kNone) {
      CAPSTAN_ASSIGN_OR_RETURN(const double asked, GetScalar(*train_, *storage_, kTotalStop));
      stop = asked > 0;
    }
    if (!std::isfinite(loss) || !std::isfinite(norm)) {
      return DataError("step ", step_ + 1, ": loss is ", loss, " and the gradient norm ", norm,
                       " (samples ", samples_, " to ", samples_ + run_.global_batch - 1,
                       "); no checkpoint was written from it",
                       checkpoint_.empty() ? "" : StrCat(", ", checkpoint_, " is intact"),
                       "; lower optimizer.lr, lengthen optimizer.schedule.warmup_steps or set "
                       "optimizer.clip_norm");
    }
    if (!options_.snapshot.empty()) records_.push_back({loss, norm});
    ++step_;
    samples_ += run_.global_batch;
    tokens_ = samples_ * run_.sequence_length;
    result_.last_loss = loss;
    const double seconds = std::max(1e-9, Now() - begin);
    StepReport report;
    report.step = step_;
    report.steps = steps_;
    report.loss = loss;
    report.grad_norm = norm;
    report.lr = session_.Rate(groups.size() - 1, step_ - 1, steps_);
    report.tokens_per_s = static_cast<double>(run_.global_batch * run_.sequence_length) / seconds;
    report.mfu = peak_flops_ > 0 ? flops_per_step_ / seconds / peak_flops_ : 0;
    report.eta_s =
        (Now() - start) / static_cast<double>(step_ - first) * static_cast<double>(steps_ - step_);
    if (progress_ != nullptr) progress_->Step(report);
    CAPSTAN_RETURN_IF_ERROR(Track(report, weight));
    return stop;
  }

  absl::Status Track(const StepReport& r, double weight) {
    const size_t size = sizeof(capstan_metric);
    const capstan_metric metrics[] = {
        {size, "loss", r.loss, 0, 0},   {size, "grad_norm", r.grad_norm, 0, 0},
        {size, "lr", r.lr, 0, 0},       {size, "tokens", static_cast<double>(tokens_), 1, 0},
        {size, "weight", weight, 1, 0}, {size, "tokens_per_s", r.tokens_per_s, 0, 0},
        {size, "mfu", r.mfu, 0, 0},
    };
    for (Tracker& t : trackers_) {
      CAPSTAN_RETURN_IF_ERROR(t->metrics(t.self(), "train", r.step, metrics, std::size(metrics)));
    }
    return absl::OkStatus();
  }

  absl::Status TracedStep() {
    std::vector<LaunchTime> times;
    CAPSTAN_RETURN_IF_ERROR(step_executor_->RunTimed(step_, times));
    CAPSTAN_RETURN_IF_ERROR(MakeDirectories(run_.dir + "/trace"));
    const std::string rank = ranks_.size() == 1 ? "" : StrCat("-rank-", ranks_.rank());
    const std::string path =
        absl::StrFormat("%s/trace/step-%08d%s.json", run_.dir, step_ + 1, rank);
    if (progress_ != nullptr) progress_->Line(StrCat("trace: ", path));
    return WriteFileAtomically(path, TraceJson(*train_, times, ranks_.rank(), ranks_.size()));
  }

  absl::Status MaybeValidate() {
    if (!validation_ || (step_ % run_.validation_every != 0 && step_ != steps_))
      return absl::OkStatus();
    double sum = 0, total = 0;
    const int64_t at_once = run_.micro_batch * session_.ingredients().batch_ranks;
    const int64_t loads =
        std::max<int64_t>(1, run_.validation_batches * run_.global_batch / at_once);
    for (int64_t i = 0; i < loads; ++i) {
      CAPSTAN_ASSIGN_OR_RETURN(const double own_weight, eval_loader_->Load(i * at_once));
      CAPSTAN_RETURN_IF_ERROR(eval_executor_->Run(step_));
      CAPSTAN_ASSIGN_OR_RETURN(const double loss, Loss(*eval_));
      CAPSTAN_ASSIGN_OR_RETURN(const double weight, Weight(*eval_, own_weight));
      if (!(weight > 0)) return eval_loader_->NothingToLearn(i * at_once);
      sum += loss * weight;
      total += weight;
    }
    const double loss = sum / total;
    if (progress_ == nullptr) return absl::OkStatus();
    progress_->Line(absl::StrFormat("step %d  validation loss %.4f  (perplexity %.2f)", step_, loss,
                                    std::exp(loss)));
    const capstan_metric metric{sizeof(capstan_metric), "loss", loss, 0, 0};
    for (Tracker& t : trackers_)
      CAPSTAN_RETURN_IF_ERROR(t->metrics(t.self(), "validation", step_, &metric, 1));
    return absl::OkStatus();
  }

  absl::Status Snapshot(const char* suffix) {
    return WriteSnapshot(*store_, ranks_, options_.snapshot + suffix, *train_, *storage_, records_);
  }

  // Records first, so that a resume finds those of every step it does not repeat. But a disk that
  // takes no records is no reason to lose the steps as well.
  absl::Status Save() {
    absl::Status flushed;
    for (Tracker& t : trackers_) flushed.Update(FromC(t->flush(t.self())));
    CheckpointInfo info;
    info.step = step_;
    info.samples = samples_;
    info.seed = run_.seed;
    info.config_toml = session_.config().resolved_toml;
    info.model_config_json = model_config_;
    const double begin = Now();
    CAPSTAN_ASSIGN_OR_RETURN(
        const int64_t bytes,
        SaveCheckpoint(*store_, ranks_, CheckpointDirectory(), *train_, *storage_, info));
    saved_step_ = step_;
    checkpoint_ = CheckpointPath(CheckpointDirectory(), step_);
    if (progress_ != nullptr) {
      progress_->Line(absl::StrFormat("checkpoint: %s (%s in %.2f s)", checkpoint_,
                                      BytesText(static_cast<double>(bytes)), Now() - begin));
    }
    if (ranks_.lead()) {
      CAPSTAN_RETURN_IF_ERROR(
          RemoveOldCheckpoints(*store_, CheckpointDirectory(), run_.checkpoint_keep));
    }
    return flushed;
  }

  Session& session_;
  const RunConfig& run_;
  const TrainOptions& options_;
  const Ranks& ranks_;
  std::optional<RunLock> lock_;
  const Store* store_ = nullptr;
  std::string checkpoint_;
  bool resumed_ = false;
  Dataset data_, validation_;
  std::unique_ptr<Program> train_, eval_, init_;
  MemoryPlan plan_;
  std::unique_ptr<Storage> storage_;
  std::unique_ptr<Executor> step_executor_, eval_executor_;
  std::optional<BatchLoader> train_loader_, eval_loader_;
  std::vector<Tracker> trackers_;
  std::vector<std::string> notices_;
  std::vector<StepRecord> records_;
  std::string model_config_;
  Progress* progress_ = nullptr;
  int64_t parameters_ = 0;  // elements, of the whole model
  int64_t step_ = 0, steps_ = 0, samples_ = 0, tokens_ = 0;
  int64_t saved_step_ = -1;  // of the newest checkpoint; a second one of it would be refused
  double flops_per_step_ = 0, peak_flops_ = 0;
  TrainResult result_;
};

}  // namespace

absl::StatusOr<TrainResult> Train(Session& session, const TrainOptions& options,
                                  const Ranks& ranks) {
  return Trainer(session, options, ranks).Run();
}

}  // namespace capstan
