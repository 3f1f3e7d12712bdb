#include "runtime/cli/plan_report.h"

#include <algorithm>
#include <map>
#include <memory>

#include "runtime/exec/communicator.h"
#include "runtime/run/compose.h"
#include "runtime/run/trace.h"
#include "runtime/run/weights.h"
#include "runtime/status.h"

namespace capstan {
namespace {

constexpr const char* kRegions[] = {kParameters, kGradients, kOptimizerState, kState,
                                    kInputs,     kConstants, kArena};

// A reader of a matrix that uses whole rows of it as they are multiplies by nothing.
bool LooksUpRows(const std::string& kind) { return kind == "embedding" || kind == "gather"; }

// `whole`: the forward Program before any strategy cuts it. No update or gradient reads a parameter there.
ParameterCounts CountParameters(const Program& whole) {
  ParameterCounts counts;
  for (TensorId id = 0; id < whole.tensor_limit(); ++id) {
    if (!whole.TensorAlive(id) || whole.tensor(id).kind != CAPSTAN_PARAMETER) continue;
    const Tensor& t = whole.tensor(id);
    if (t.view_of != kNone) continue;
    const int64_t n = ElementCount(t.shape());
    bool looked_up = false, multiplied = false, in_layer = t.layer >= 0;
    for (const OpId user : whole.Users(id)) {
      (LooksUpRows(whole.op(user).kind()) ? looked_up : multiplied) = true;
      in_layer = in_layer || whole.op(user).layer >= 0;
    }
    counts.total += n;
    if (t.trainable) counts.trainable += n;
    if (t.shape().size() < 2) {
      counts.vectors += n;
    } else {
      if (multiplied) counts.in_products += n;
      (looked_up ? counts.embeddings : in_layer ? counts.layers : counts.head) += n;
    }
  }
  return counts;
}

absl::Status CountOps(const Program& train, const MemoryPlan& plan, PlanReport& report) {
  std::map<std::string, OpCount> kinds;
  std::vector<double> cost(train.op_limit(), 0);
  for (const Segment& segment : train.segments()) {
    for (const OpId id : segment.ops) {
      const Op& op = train.op(id);
      ++kinds[op.kind()].ops;
      CAPSTAN_ASSIGN_OR_RETURN(const OpCost of_op, train.Cost(id));
      cost[id] = of_op.flops;
      if (op.kind() != "reinterpret") continue;
      report.reinterprets.push_back(StrCat(segment.name, ": ", train.OpText(id), " to ",
                                           op.attrs.String("placement", "{}"), ", because ",
                                           op.attrs.String("reason", "(no reason given)")));
    }
  }
  for (const PlannedLaunch& launch : plan.launches(train)) {
    OpCount& kind = kinds[train.op(launch.op).kind()];
    ++kind.launches;
    kind.flops += cost[launch.op];
    report.step_flops += cost[launch.op];
  }
  for (auto& [name, count] : kinds) {
    count.kind = name;
    report.ops.push_back(std::move(count));
  }
  std::stable_sort(report.ops.begin(), report.ops.end(),
                   [](const OpCount& a, const OpCount& b) { return a.flops > b.flops; });
  return absl::OkStatus();
}

void CountCommunication(const Program& train, const MemoryPlan& plan, PlanReport& report) {
  std::map<std::pair<std::string, std::string>, CommCount> counts;
  for (const PlannedLaunch& launch : plan.launches(train)) {
    const Op& op = train.op(launch.op);
    if (!IsCommunication(op)) continue;
    const std::string axis = op.attrs.String("axis", "");
    const auto payload = static_cast<double>(CommunicatedBytes(train, op));
    const auto n = static_cast<double>(train.options().mesh.Size(axis));
    const bool message = !op.def->is(CAPSTAN_OP_COLLECTIVE);
    double share = (n - 1) / n;
    if (op.kind().find("reduce") != std::string::npos && op.kind() != "reduce_scatter") share *= 2;
    if (message) share = op.inputs.empty() ? 0 : 1;
    CommCount& count = counts[{axis, op.kind()}];
    count.axis = axis;
    count.kind = op.kind();
    ++count.launches;
    count.payload += payload;
    count.sent += share * payload;
  }
  for (auto& [key, count] : counts) report.communication.push_back(std::move(count));
}

void Describe(const Session& session, PlanReport& report) {
  const Ingredients& in = session.ingredients();
  report.model = in.model.id;
  report.precision = in.precision.id;
  for (const UpdateGroup& group : in.optimizers) {
    const std::string& id = group.optimizer.id;
    if (std::find(report.optimizers.begin(), report.optimizers.end(), id) ==
        report.optimizers.end()) {
      report.optimizers.push_back(id);
    }
  }
  for (const auto& strategy : in.strategies) report.strategies.push_back(strategy.id);
  report.micro_batch = in.micro_batch;
  report.microbatches = in.microbatches;
  report.sequence = in.sequence;
  report.tokens = in.micro_batch * in.microbatches * in.sequence;
  const Mesh& mesh = session.host().mesh();
  if (mesh.world() > 1) {
    report.rank = StrCat("rank ", session.host().ranks().rank, " of ", mesh.world(), ", mesh ",
                         mesh.ToString());
  }
}

// Chowdhery et al. 2022 (PaLM), appendix B: a token costs 6 operations a multiplied parameter, and
// 12 for each pair of positions, head and channel of attention (the full square, though a causal
// one needs half). Of this rank: an even share of what the `sharers` ranks that cut one copy of the model
// do for their tokens.
double RuleFlops(const PlanReport& report, const capstan_model_info& model, int64_t sharers) {
  const double attention = 12.0 * static_cast<double>(model.layers) *
                           static_cast<double>(model.heads * model.head_dim) *
                           static_cast<double>(report.sequence);
  return static_cast<double>(report.tokens) / static_cast<double>(sharers) *
         (6.0 * static_cast<double>(report.parameters.in_products) + attention);
}

}  // namespace

absl::StatusOr<PlanReport> MakePlanReport(Session& session, const std::string& config_path) {
  PlanReport report;
  report.config = config_path;
  Describe(session, report);
  CAPSTAN_ASSIGN_OR_RETURN(Device * device, session.device());
  report.device = StrCat(device->name(), " (", device->description(), ")");

  // The Programs that `train` would run, in its order; validation only where the config asks for
  // it.
  const RunConfig& run = session.config().run;
  MemoryPlan plan;
  const Ingredients& in = session.ingredients();
  const auto count = [&](const Program& program, const std::string& phase, bool before) {
    if (before && phase == kFirstCuttingPhase) report.parameters = CountParameters(program);
  };
  CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<Program> train, ComposeTrain(in, count));
  CAPSTAN_RETURN_IF_ERROR(plan.Add(*train, device, run.seed));
  CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<Program> eval, ComposeEval(in));
  if (run.validation_every > 0) CAPSTAN_RETURN_IF_ERROR(plan.Add(*eval, device, run.seed));
  CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<Program> init, ComposeInit(*train, run.weights.empty()));
  CAPSTAN_RETURN_IF_ERROR(plan.Add(*init, device, run.seed));
  report.programs = {"train"};
  if (run.validation_every > 0) report.programs.push_back("eval");
  report.programs.push_back("init");

  report.parameters.held = ParameterElements(*train);
  for (const char* region : kRegions) {
    const auto found = plan.region_bytes().find(region);
    report.regions.emplace_back(region, found == plan.region_bytes().end() ? 0 : found->second);
  }
  report.total = plan.total_bytes();
  report.peak = plan.arena_peak();
  CAPSTAN_RETURN_IF_ERROR(CountOps(*train, plan, report));
  CountCommunication(*train, plan, report);
  CAPSTAN_ASSIGN_OR_RETURN(report.model_flops,
                           ModelFlops(*eval, report.micro_batch * report.microbatches));
  report.rule_flops =
      RuleFlops(report, session.model_info(), session.host().mesh().world() / in.batch_ranks);
  CAPSTAN_ASSIGN_OR_RETURN(const capstan_memory_info memory, device->Memory());
  report.external = static_cast<int64_t>(memory.external_bytes);
  report.machine_total = static_cast<int64_t>(memory.total_bytes);
  report.machine_free = static_cast<int64_t>(memory.free_bytes);
  return report;
}

}  // namespace capstan
