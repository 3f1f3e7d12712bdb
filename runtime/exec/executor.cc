#include "runtime/exec/executor.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "runtime/status.h"

namespace capstan {

absl::StatusOr<std::unique_ptr<Storage>> Storage::Allocate(Device* device, MemoryPlan* plan,
                                                           Communicator* communicator) {
  std::unique_ptr<Storage> storage(new Storage());
  storage->device_ = device;
  storage->plan_ = plan;
  storage->communicator_ = communicator;
  CAPSTAN_ASSIGN_OR_RETURN(capstan_memory_info before, device->Memory());
  storage->allocated_before_ = before.allocated_bytes;
  // The largest first: what is too large is refused before time goes into touching the rest.
  std::vector<std::pair<std::string, int64_t>> regions(plan->region_bytes().begin(),
                                                       plan->region_bytes().end());
  std::sort(regions.begin(), regions.end(),
            [](const auto& a, const auto& b) { return a.second > b.second; });
  const auto total = static_cast<uint64_t>(plan->total_bytes());
  if (total > before.free_bytes) {
    return ResourceError(
        "the run needs ", total, " bytes in all (", regions[0].second, " of them for ",
        regions[0].first, "), the device has ", before.free_bytes, " of its ", before.total_bytes,
        " free; lower batch.micro or data.sequence_length, or add strategy.recompute");
  }
  for (const auto& [region, bytes] : regions) {
    absl::StatusOr<DeviceMemory> memory = storage->AllocateRegion(region, bytes);
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

// Persistent tensors that ranks communicate lie where they can read each other's. The arena does not:
// kernels want its huge pages, which shared memory has none of.
absl::StatusOr<DeviceMemory> Storage::AllocateRegion(const std::string& region, int64_t bytes) {
  const auto size = static_cast<uint64_t>(bytes);
  const bool shared = communicator_ != nullptr && communicator_->registers() && region != kArena &&
                      plan_->communicates(region);
  if (!shared) return device_->Allocate(region, size);
  CAPSTAN_ASSIGN_OR_RETURN(Device::Shared made, device_->AllocateShared(region, size));
  if (made.fd < 0) return std::move(made.memory);
  void* const data = made.memory.data();
  const absl::Status registered = communicator_->Register(data, size, made.fd, made.offset);
  ::close(made.fd);
  CAPSTAN_RETURN_IF_ERROR(registered);
  registered_.push_back(data);
  return std::move(made.memory);
}

Storage::~Storage() {
  for (void* memory : registered_) communicator_->Unregister(memory);
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
  std::vector<Bound> starts;              // of every planned launch, by index
  for (size_t i = 0; i < launches.size(); ++i) {
    for (int before : launches[i].waits) executor->launches_.push_back(WaitFor(starts[before]));
    CAPSTAN_RETURN_IF_ERROR(executor->Bind(i, launches[i], starts));
    executor->launches_.push_back(starts.back());
  }
  for (int i : plan.unfinished(*program)) executor->launches_.push_back(WaitFor(starts[i]));
  return executor;
}

absl::Status Executor::Bind(size_t index, const PlannedLaunch& planned, std::vector<Bound>& made) {
  const Op& op = program_->op(planned.op);
  Bound bound{};
  bound.op = op.id;
  bound.microbatch = planned.microbatch;
  bound.args.struct_size = sizeof(capstan_kernel_args);
  void** const inputs = pointers_.data() + pointers_.size();
  for (TensorId t : op.inputs) {
    pointers_.push_back(t == kNone ? nullptr : storage_->Data(*program_, t, planned.microbatch));
  }
  void** const outputs = pointers_.data() + pointers_.size();
  for (TensorId t : op.outputs)
    pointers_.push_back(storage_->Data(*program_, t, planned.microbatch));
  bound.args.inputs = inputs;
  bound.args.outputs = outputs;
  bound.args.workspace = storage_->Workspace(*program_, index);
  bound.args.queue = storage_->device()->queue();
  bound.args.accumulate = planned.accumulate;
  if (op.when.guard != kNone) {
    bound.guard = reinterpret_cast<const uint8_t*>(
        storage_->Data(*program_, op.when.guard, planned.microbatch));
  }
  bound.when = op.when.EveryStep() ? nullptr : &op.when;
  if (IsCommunication(op)) {
    if (storage_->communicator() == nullptr) {
      return UsageError(program_->OpText(op.id),
                        " communicates, but the run has no communication backend; name one, for "
                        "example [comm] plugin = \"shm\"");
    }
    CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<CommOperation> operation,
                             storage_->communicator()->Prepare(
                                 *program_, op, std::span(inputs, op.inputs.size()),
                                 std::span(outputs, op.outputs.size()), planned.microbatch));
    bound.run = &CommOperation::Start;
    bound.state = operation.get();
    communication_.push_back(std::move(operation));
  } else {
    const capstan_kernel& kernel = kernels_[planned.op].get();
    if (kernel.run == nullptr)
      return BugError("no kernel was prepared for ", program_->OpText(op.id));
    bound.run = kernel.run;
    bound.state = kernel.state;
  }
  made.push_back(bound);
  return absl::OkStatus();
}

Executor::Bound Executor::WaitFor(const Bound& start) {
  Bound wait = start;
  wait.run = &CommOperation::Wait;
  wait.wait = true;
  return wait;
}

absl::Status Executor::Fail(const Bound& launch, capstan_status* status) const {
  const Op& op = program_->op(launch.op);
  std::string where = StrCat(launch.wait ? "waiting for " : "in ", program_->OpText(launch.op),
                             ", segment ", program_->segments()[op.segment].name);
  if (launch.microbatch >= 0) StrAppend(&where, ", microbatch ", launch.microbatch);
  return Annotate(FromC(status), where);
}

void Executor::Report(RankStatus* status) {
  status_ = status;
  if (status == nullptr) return;
  labels_.resize(program_->op_limit());
  for (const Bound& launch : launches_) labels_[launch.op] = OpLabel(program_->OpText(launch.op));
}

template <typename Around>
absl::Status Executor::Loop(int64_t step, Around&& around) {
  if (status_ != nullptr) status_->SetStep(step);
  for (const Bound& launch : launches_) {
    if (launch.when != nullptr && !launch.when->RunsAtStep(step)) continue;
    if (launch.guard != nullptr && *launch.guard == 0) continue;
    if (status_ != nullptr) {
      const RankState state = launch.wait                           ? RankState::kWaiting
                              : launch.run == &CommOperation::Start ? RankState::kCommunicating
                                                                    : RankState::kComputing;
      status_->SetOp(labels_[launch.op], launch.microbatch, state);
    }
    if (capstan_status* status = around(launch)) return Fail(launch, status);
  }
  CAPSTAN_RETURN_IF_ERROR(storage_->device()->Wait());
  // What comes between steps (data, a checkpoint) may take its time: this rank waits for nobody.
  if (status_ != nullptr) status_->SetOp(OpLabel(), -1, RankState::kComputing);
  return absl::OkStatus();
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
    times.push_back({l.op, l.microbatch, l.wait, begin, now()});
    return status;
  });
}

}  // namespace capstan
