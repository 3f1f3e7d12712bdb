#include "runtime/exec/executor.h"

#include <chrono>
#include <utility>

#include "runtime/status.h"

namespace capstan {

absl::StatusOr<std::unique_ptr<Storage>> Storage::Allocate(Device* device, MemoryPlan* plan) {
  std::unique_ptr<Storage> storage(new Storage());
  storage->device_ = device;
  storage->plan_ = plan;
  CAPSTAN_ASSIGN_OR_RETURN(capstan_memory_info before, device->Memory());
  storage->allocated_before_ = before.allocated_bytes;
  for (const auto& [region, bytes] : plan->region_bytes()) {
    absl::StatusOr<DeviceMemory> memory = device->Allocate(region, static_cast<uint64_t>(bytes));
    if (!memory.ok()) {
      return Annotate(
          memory.status(),
          StrCat("allocating ", bytes, " bytes for ", region, " (the run needs ",
                 plan->total_bytes(),
                 " in all; lower batch.micro or data.sequence_length, or add strategy.recompute)"));
    }
    storage->regions_[region] = *std::move(memory);
  }
  return storage;
}

char* Storage::Data(const Program& program, TensorId t, int microbatch) const {
  const std::optional<MemoryPlan::Place> place = plan_->Find(program, t, microbatch);
  if (!place) return nullptr;
  return regions_.at(place->region).data() + place->offset;
}

char* Storage::Workspace(const Program& program, size_t launch) const {
  const int64_t offset = plan_->workspace_offset(program, launch);
  return offset < 0 ? nullptr : regions_.at(kArena).data() + offset;
}

absl::Status Storage::CheckLedger() const {
  for (const auto& [region, bytes] : plan_->region_bytes()) {
    const uint64_t held = regions_.at(region).bytes();
    if (held == static_cast<uint64_t>(bytes)) continue;
    return BugError("ledger: region ", region, " was planned at ", bytes, " bytes and holds ",
                    held);
  }
  CAPSTAN_ASSIGN_OR_RETURN(capstan_memory_info now, device_->Memory());
  const uint64_t allocated = now.allocated_bytes - allocated_before_;
  if (allocated != static_cast<uint64_t>(plan_->total_bytes())) {
    return BugError("ledger: ", plan_->total_bytes(), " bytes were planned, the device allocated ",
                    allocated);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Executor>> Executor::Compile(const Program* program,
                                                            Storage* storage) {
  std::unique_ptr<Executor> executor(new Executor());
  executor->program_ = program;
  executor->storage_ = storage;
  MemoryPlan& plan = storage->plan();
  executor->kernels_ = std::move(plan.kernels(*program));
  const std::vector<PlannedLaunch>& launches = plan.launches(*program);
  size_t operands = 0;
  for (const PlannedLaunch& l : launches) {
    operands += program->op(l.op).inputs.size() + program->op(l.op).outputs.size();
  }
  executor->pointers_.reserve(operands);  // never grows again: launches point into it
  for (size_t i = 0; i < launches.size(); ++i) {
    const PlannedLaunch& planned = launches[i];
    const Op& op = program->op(planned.op);
    const capstan_kernel& kernel = executor->kernels_[planned.op].get();
    if (kernel.run == nullptr)
      return BugError("no kernel was prepared for ", program->OpText(op.id));
    Bound bound{};
    bound.run = kernel.run;
    bound.state = kernel.state;
    bound.op = op.id;
    bound.microbatch = planned.microbatch;
    bound.args.struct_size = sizeof(capstan_kernel_args);
    void** const pointers = executor->pointers_.data();
    bound.args.inputs = pointers + executor->pointers_.size();
    for (TensorId t : op.inputs) {
      executor->pointers_.push_back(t == kNone ? nullptr
                                               : storage->Data(*program, t, planned.microbatch));
    }
    bound.args.outputs = pointers + executor->pointers_.size();
    for (TensorId t : op.outputs)
      executor->pointers_.push_back(storage->Data(*program, t, planned.microbatch));
    bound.args.workspace = storage->Workspace(*program, i);
    bound.args.queue = storage->device()->queue();
    bound.args.accumulate = planned.accumulate;
    if (op.when.guard != kNone) {
      bound.guard = reinterpret_cast<const uint8_t*>(
          storage->Data(*program, op.when.guard, planned.microbatch));
    }
    bound.when = op.when.EveryStep() ? nullptr : &op.when;
    executor->launches_.push_back(bound);
  }
  return executor;
}

absl::Status Executor::Fail(const Bound& launch, capstan_status* status) const {
  const Op& op = program_->op(launch.op);
  std::string where = StrCat("in ", program_->OpText(launch.op), ", segment ",
                             program_->segments()[op.segment].name);
  if (launch.microbatch >= 0) StrAppend(&where, ", microbatch ", launch.microbatch);
  return Annotate(FromC(status), where);
}

template <typename Around>
absl::Status Executor::Loop(int64_t step, Around&& around) {
  for (const Bound& launch : launches_) {
    if (launch.when != nullptr && !launch.when->RunsAtStep(step)) continue;
    if (launch.guard != nullptr && *launch.guard == 0) continue;
    if (capstan_status* status = around(launch)) return Fail(launch, status);
  }
  return storage_->device()->Wait();
}

absl::Status Executor::Run(int64_t step) {
  return Loop(step, [](const Bound& l) { return l.run(l.state, &l.args); });
}

absl::Status Executor::RunTimed(int64_t step, std::vector<LaunchTime>& times) {
  times.reserve(launches_.size());
  auto now = [] {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  };
  return Loop(step, [&](const Bound& l) {
    const int64_t begin = now();
    capstan_status* status = l.run(l.state, &l.args);
    times.push_back({l.op, l.microbatch, begin, now()});
    return status;
  });
}

}  // namespace capstan
