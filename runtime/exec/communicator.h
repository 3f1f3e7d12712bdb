// Communication of a run: groups of ranks by mesh axis, and the operations of a Program's collectives
// and messages, prepared once, started and waited for in the step loop.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "plugin_api/comm.h"
#include "plugin_api/device.h"
#include "runtime/launch/rank_status.h"
#include "runtime/mesh.h"
#include "runtime/program/program.h"

namespace capstan {

class Communicator;

// One prepared operation, released with it. The thunks have a kernel's signature, so that the step
// loop calls starts and waits as it calls kernels; `state` is the CommOperation.
class CommOperation {
 public:
  // counted: where each start adds `bytes`.
  CommOperation(Communicator* owner, void* group, void* handle, uint64_t* counted, uint64_t bytes)
      : owner_(owner), group_(group), handle_(handle), counted_(counted), bytes_(bytes) {}
  ~CommOperation();
  CommOperation(const CommOperation&) = delete;
  CommOperation& operator=(const CommOperation&) = delete;

  static capstan_status* Start(void* state, const capstan_kernel_args* args);
  static capstan_status* Wait(void* state, const capstan_kernel_args* args);

 private:
  Communicator* owner_;
  void* group_;
  void* handle_;
  uint64_t* counted_;
  uint64_t bytes_;
};

// [main thread]
class Communicator {
 public:
  // `timeout_s`: how long a wait may last before it fails, naming the ranks waited for. Refuses a mesh
  // with groups larger than the backend makes.
  static absl::StatusOr<std::unique_ptr<Communicator>> Create(const capstan_comm_v1* vtable,
                                                              const capstan_host* host,
                                                              const capstan_options* options,
                                                              const Mesh* mesh, int64_t rank,
                                                              double timeout_s);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // Memory that collectives touch, where the device can share it (fd from export_memory).
  absl::Status Register(void* memory, uint64_t bytes, int32_t fd, uint64_t offset);
  void Unregister(void* memory);
  bool registers() const { return vtable_->memory_register != nullptr; }

  // Tells `status` (must outlive this object) during long waits whom they are for.
  void Report(RankStatus* status);

  // The op bound to operands in memory.
  absl::StatusOr<std::unique_ptr<CommOperation>> Prepare(const Program& program, const Op& op,
                                                         std::span<void* const> inputs,
                                                         std::span<void* const> outputs,
                                                         int microbatch);
  // Between the ranks of an axis, outside of Programs, complete on return. `label` is for messages, the
  // same on every rank.
  int64_t AxisSize(const std::string& axis) const { return mesh_->Size(axis); }
  int64_t AxisIndex(const std::string& axis) const { return mesh_->Index(axis, rank_); }
  bool Moves(DType dtype) const;  // the backend does
  // `part` of `count` elements on each rank, all of them in `all`.
  absl::Status AllGather(const std::string& axis, const std::string& label, DType dtype,
                         const void* part, size_t count, void* all);
  // sends[j] bytes go to rank j, receives[i] come from rank i; in both buffers one behind the other.
  absl::Status AllToAll(const std::string& axis, const std::string& label, const void* sent,
                        const std::vector<uint64_t>& sends, void* received,
                        const std::vector<uint64_t>& receives);

  // Checks that every group's backend has finished, by operation, the bytes that the Programs' launches
  // so far were planned to move. Nothing may be in flight.
  absl::Status CheckVolumes() const;
  // Every group gives up: waiting ranks return at once. [any thread]
  void Abort(const std::string& reason);

 private:
  friend class CommOperation;
  using Volumes = std::array<uint64_t, CAPSTAN_COMM_OPERATIONS>;  // bytes by operation
  struct Joined {
    void* handle = nullptr;
    Volumes planned{};  // of what was started
  };
  Communicator() = default;
  absl::Status ReadCapabilities();
  absl::Status RequireDType(DType dtype, const std::string& label) const;
  absl::StatusOr<Joined*> Group(const std::string& axis);
  absl::Status Perform(const std::string& axis, capstan_comm_request request,
                       const capstan_comm_item& item, uint64_t bytes);
  void Watch();

  const capstan_comm_v1* vtable_ = nullptr;
  void* self_ = nullptr;
  const Mesh* mesh_ = nullptr;
  int64_t rank_ = 0;
  double timeout_s_ = 0;
  capstan_comm_capabilities capabilities_{};  // what it points to is the backend's

  mutable std::mutex mutex_;  // of all below
  // By members: axes of the same ranks share one. Only the main thread adds to it.
  std::map<std::vector<int32_t>, Joined> groups_;
  std::string aborted_;  // why; "": not aborted

  // The watch of long waits.
  std::atomic<void*> awaited_{nullptr};  // the group that the main thread waits for
  RankStatus* status_ = nullptr;
  bool stop_ = false;  // under mutex_
  std::condition_variable stopped_;
  std::thread watch_;
};

// True for ops that the host executes through a Communicator.
bool IsCommunication(const Op& op);
// Refuses communication that no backend has an operation for.
absl::Status CheckCommunicable(const Program& program, const Op& op);
// Bytes of the tensors a launch communicates, whole where ranks have parts.
uint64_t CommunicatedBytes(const Program& program, const Op& op);
// The channel of a message: cotangents have their own beside that of the values.
int32_t ChannelOf(const Op& op);
// True for ops that only say something about their operand: the output is the input's memory.
bool IsAlias(const Op& op);

}  // namespace capstan
