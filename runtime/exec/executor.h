// Memory of a run, and the step loop: a Program compiled to bound launches.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/exec/communicator.h"
#include "runtime/exec/device.h"
#include "runtime/exec/plan.h"
#include "runtime/launch/rank_status.h"
#include "runtime/program/program.h"

namespace capstan {

// All memory of a run: one device allocation a region, sized by the plan to the byte.
class Storage {
 public:
  // `communicator`: nullptr in a run of one rank. Must outlive the Storage.
  static absl::StatusOr<std::unique_ptr<Storage>> Allocate(Device* device, MemoryPlan* plan,
                                                           Communicator* communicator = nullptr);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  // Address of a tensor (device memory); nullptr for outputs that nothing reads.
  char* Data(const Program& program, TensorId t, int microbatch = -1) const;
  char* Workspace(const Program& program, size_t launch) const;
  Device* device() const { return device_; }
  Communicator* communicator() const { return communicator_; }
  MemoryPlan& plan() const { return *plan_; }
  // Checks that what the device says it allocated is what the plan predicted, by region and in all.
  absl::Status CheckLedger() const;

 private:
  Storage() = default;
  absl::StatusOr<DeviceMemory> AllocateRegion(const std::string& region, int64_t bytes);
  Device* device_ = nullptr;
  MemoryPlan* plan_ = nullptr;
  Communicator* communicator_ = nullptr;
  std::vector<void*> registered_;
  uint64_t allocated_before_ = 0;
  std::map<std::string, DeviceMemory> regions_;
};

// Time of one launch, for traces. Communication has two: its start and, where another launch needed
// it, the wait for it.
struct LaunchTime {
  OpId op = kNone;
  int microbatch = -1;
  bool wait = false;
  int64_t begin_ns = 0, end_ns = 0;  // steady clock
};

// One Program, ready to run. Keeps pointers into Storage and the Program; both must outlive it.
class Executor {
 public:
  static absl::StatusOr<std::unique_ptr<Executor>> Compile(const Program* program,
                                                           Storage* storage);
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Tells `status` (may be nullptr; must outlive the executor) about every launch, and that this rank
  // computes once all of a step are done.
  void Report(RankStatus* status);

  // Runs one step. On failure the message names the op, its segment and microbatch.
  absl::Status Run(int64_t step);
  absl::Status RunTimed(int64_t step, std::vector<LaunchTime>& times);

  size_t launch_count() const { return launches_.size(); }
  const Program& program() const { return *program_; }

 private:
  struct Bound {
    capstan_status* (*run)(void*, const capstan_kernel_args*);
    void* state;
    capstan_kernel_args args;
    const uint8_t* guard;  // nullptr: always
    const When* when;      // nullptr: every step
    OpId op;
    int microbatch;
    bool wait;  // for the communication of op
  };

  Executor() = default;
  absl::Status Bind(size_t index, const PlannedLaunch& planned, std::vector<Bound>& made);
  static Bound WaitFor(const Bound& start);
  absl::Status Fail(const Bound& launch, capstan_status* status) const;
  template <typename Around>
  absl::Status Loop(int64_t step, Around&& around);

  const Program* program_ = nullptr;
  Storage* storage_ = nullptr;
  std::vector<Kernel> kernels_;
  std::vector<std::unique_ptr<CommOperation>> communication_;
  std::vector<Bound> launches_;
  RankStatus* status_ = nullptr;
  std::vector<OpLabel> labels_;  // by op, where there is a status to tell
  std::vector<void*> pointers_;  // operands of all launches, one block
};

}  // namespace capstan
