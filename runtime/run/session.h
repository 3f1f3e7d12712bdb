// A configured run before its first step: components made, Programs composed.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "plugin_api/tracker.h"
#include "runtime/config.h"
#include "runtime/exec/communicator.h"
#include "runtime/exec/device.h"
#include "runtime/exec/executor.h"
#include "runtime/run/batch.h"
#include "runtime/run/compose.h"
#include "runtime/run/host.h"
#include "runtime/run/owned.h"
#include "runtime/run/weights.h"

namespace capstan {

using Tracker = Owned<capstan_tracker_v1>;

// Owns what a run needs, in the order in which it may be destroyed. [main thread]
class Session {
 public:
  // Loads the config and the plugins it names, and makes model, objective, precision, strategies
  // and optimizers. Nothing is allocated on a device and no data is opened.
  static absl::StatusOr<std::unique_ptr<Session>> Open(const std::string& config_path,
                                                       const std::vector<std::string>& overrides,
                                                       HostEnvironment* host);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const Config& config() const { return config_; }
  const Ingredients& ingredients() const { return ingredients_; }
  const capstan_model_info& model_info() const { return model_info_; }
  HostEnvironment& host() const { return *host_; }
  const capstan_host* c_host() const;

  absl::StatusOr<Device*> device();  // made at the first call
  // Of the backend [comm] names, made at the first call; nullptr in a run of one rank. All ranks call
  // it together.
  absl::StatusOr<Communicator*> communicator();
  // Wakes this rank wherever it waits for others. [any thread]
  void AbortCommunication(const std::string& reason);
  absl::StatusOr<const Store*> store();
  absl::StatusOr<Dataset> OpenData(int split) const;
  absl::StatusOr<std::vector<Tracker>> OpenTrackers(const std::string& directory,
                                                    int64_t resume_step) const;
  absl::StatusOr<std::string> ModelConfigJson() const;
  const Objective& objective() const { return objective_; }

  // Steps of the whole run; `epoch_size` samples make an epoch.
  absl::StatusOr<int64_t> Steps(int64_t epoch_size) const;
  // Rate of an optimizer group at a 0-based step.
  double Rate(size_t group, int64_t step, int64_t steps) const;

 private:
  Session() = default;
  absl::Status MakeModel();
  absl::Status MakeStrategies();
  absl::Status MakeOptimizers();
  absl::Status DivideBatch();
  absl::Status RegisterOps();

  HostEnvironment* host_ = nullptr;
  Config config_;
  OpRegistry ops_;
  Ingredients ingredients_;
  capstan_model_info model_info_{};
  Store store_;
  Owned<capstan_model_v1> model_;
  Objective objective_;
  Owned<capstan_precision_v1> precision_;
  std::vector<Owned<capstan_strategy_v1>> strategies_;
  std::vector<Owned<capstan_optimizer_v1>> optimizers_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Communicator> communicator_;
  std::mutex aborting_;  // guards the two below
  Communicator* to_abort_ = nullptr;
  std::string abort_reason_;
};

}  // namespace capstan
