// What a configured run takes before anything is allocated: memory by region, parameters, floating-
// point operations, and the ops they are in.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/cli/plan_gpus.h"
#include "runtime/exec/plan.h"
#include "runtime/run/session.h"

namespace capstan {

// Of the whole model, however it is cut, but for `held`.
struct ParameterCounts {
  int64_t total = 0, trainable = 0;
  int64_t held = 0;         // by this rank
  int64_t embeddings = 0;   // tables read by row; a head tied to one is the same parameter
  int64_t layers = 0;       // matrices of the layers
  int64_t head = 0;         // other matrices outside the layers
  int64_t vectors = 0;      // norms and biases
  int64_t in_products = 0;  // N of the 6 N rule: elements of matrices that are multiplied by
};

struct OpCount {
  std::string kind;
  int64_t ops = 0;       // in the train Program
  int64_t launches = 0;  // in one step
  double flops = 0;      // of those launches
};

// What one kind of communication moves over one axis in a step of this rank.
struct CommCount {
  std::string axis, kind;
  int64_t launches = 0;
  double payload = 0;  // bytes of the tensors, whole where ranks have parts
  double sent =
      0;  // bytes this rank must send at least: 2 (n-1)/n of an all-reduce's, (n-1)/n of a
          // gather's or scatter's, all of a message's
};

struct PlanReport {
  std::string config, model, device, precision;
  std::string rank;  // "rank 3 of 8, mesh dp=8"; "" in a run of one
  std::vector<std::string> optimizers, strategies;
  std::vector<std::string> programs;  // those that share the memory
  int64_t micro_batch = 0, microbatches = 0, sequence = 0,
          tokens = 0;  // tokens: of this rank's step

  ParameterCounts parameters;

  std::vector<std::pair<std::string, int64_t>> regions;  // bytes, in the order of plan.h
  int64_t total = 0;
  int64_t external = 0;  // bound on what the device's libraries take besides
  ArenaPeak peak;

  double step_flops = 0;   // every launch of one step
  double model_flops = 0;  // three forward passes: what MFU counts
  double rule_flops =
      0;  // (6 N + 12 L H D T) a token, this rank's share of the ranks that cut the model
  std::vector<OpCount> ops;  // most operations first
  std::vector<std::string> reinterprets;
  std::vector<CommCount> communication;  // by axis, then kind

  int64_t machine_total = 0, machine_free = 0;
  std::optional<Gpu> gpu;

  double needed() const { return static_cast<double>(total + external); }
};

// Composes the run's Programs and plans their memory with the session's device. Opens no data.
absl::StatusOr<PlanReport> MakePlanReport(Session& session, const std::string& config_path);

std::string PlanText(const PlanReport& report);
std::string PlanJson(const PlanReport& report);  // one object, indented

}  // namespace capstan
