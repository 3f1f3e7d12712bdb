// The memory plan: where every tensor of a run's Programs lies, before anything is allocated.
//
// Persistent tensors lie in regions of exact size, shared by all Programs of the run through their
// names. Values that live within a step share one arena: liveness over the linearised schedule
// gives each (tensor, microbatch) an offset. Every tensor starts at a multiple of 64 bytes; region
// sizes include that padding, and the device allocates exactly these bytes.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/exec/device.h"
#include "runtime/program/program.h"

namespace capstan {

inline constexpr int64_t kTensorAlignment = 64;

// Regions, in the order they are reported.
inline constexpr const char* kParameters = "parameters";
inline constexpr const char* kGradients = "gradients";
inline constexpr const char* kOptimizerState = "optimizer state";
inline constexpr const char* kState = "other state";  // KV caches, metrics, strategies' own
inline constexpr const char* kInputs = "inputs";
inline constexpr const char* kConstants = "constants";
inline constexpr const char* kArena = "activations";  // with workspace and communication buffers

// One launch of the linearised schedule.
struct PlannedLaunch {
  OpId op = kNone;
  int microbatch = -1;
  uint64_t accumulate = 0;  // bit j: output j is added to
  // Launches of communication that must be complete before this one: it reads what they write, or
  // writes what they read or write.
  std::vector<int> waits;
};

// What fills the arena at its peak, by use.
struct ArenaPeak {
  int64_t activations = 0, gradients_of_activations = 0, communication = 0, workspace = 0,
          padding = 0;
  // Of `activations`, what belongs to each microbatch in flight.
  std::map<int, int64_t> by_microbatch;
  std::string at;  // the launch, "backward/0.3 linear_dw(...)"
};

class MemoryPlan {
 public:
  struct Place {
    std::string region;
    int64_t offset = 0;
  };

  // Adds a Program. Kernels tell their workspace; pass nullptr to plan with no device (no
  // workspace).
  absl::Status Add(const Program& program, Device* device, uint64_t seed);

  const std::map<std::string, int64_t>& region_bytes() const { return region_bytes_; }
  int64_t total_bytes() const;
  // True for a region with operands of communication.
  bool communicates(const std::string& region) const { return communicates_.contains(region); }
  const ArenaPeak& arena_peak() const { return peak_; }  // of the Program with the largest arena

  const std::vector<PlannedLaunch>& launches(const Program& program) const;
  const std::vector<int>& unfinished(const Program& program) const;
  // Kernels by op id, made by Add for the executor to take over; empty when planned without device.
  std::vector<Kernel>& kernels(const Program& program);
  // Where (tensor, microbatch) lies; nullopt for outputs that nothing reads.
  std::optional<Place> Find(const Program& program, TensorId t, int microbatch) const;
  int64_t workspace_offset(const Program& program, size_t launch) const;  // in the arena

 private:
  struct Instance {  // a value in the arena
    int64_t bytes = 0;
    int first = 0, last = 0;  // launches
    int64_t offset = -1;
    int microbatch = -1;
    bool workspace = false, communication = false, backward = false;
    bool named = false;  // the host reads it when all launches are done
  };
  struct PlannedProgram {
    std::vector<TensorId> alias;  // of each tensor: the one whose memory it is, itself by default
    std::vector<int> unfinished;  // communication no launch waits for: complete at the step's end
    std::vector<PlannedLaunch> launches;
    std::vector<Kernel> kernels;
    std::vector<Instance> instances;
    // instance of (tensor, microbatch + 1), -1: none
    std::vector<std::vector<int>> instance_of;
    std::vector<int> workspace_of;  // by launch, -1: none
  };

  absl::Status Linearise(const Program& program, PlannedProgram& plan);
  absl::Status PlacePersistent(const Program& program);
  absl::Status FindLifetimes(const Program& program, PlannedProgram& plan);
  void ShareInPlace(const Program& program, PlannedProgram& plan, bool communication);
  void FindWaits(const Program& program, PlannedProgram& plan);
  absl::Status AddWorkspace(const Program& program, Device* device, uint64_t seed,
                            PlannedProgram& plan);
  void Pack(const Program& program, PlannedProgram& plan);

  std::map<std::string, int64_t> region_bytes_;
  std::set<std::string> communicates_;
  // By name, inputs by Program too: place and bytes.
  std::map<std::pair<const Program*, std::string>, std::pair<Place, int64_t>> persistent_;
  std::map<const Program*, PlannedProgram> programs_;
  ArenaPeak peak_;
};

// True when no later op or host reads output j of an op: its kernel may skip it.
std::vector<bool> UnwantedOutputs(const Program& program, OpId op);

// The region of a persistent or input tensor.
const char* RegionOf(const Tensor& tensor);

}  // namespace capstan
