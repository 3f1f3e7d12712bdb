// The train Program and the memory plan of any rank of any world, in this process: what `capstan plan`
// and `capstan dump` look at.
#pragma once

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "runtime/exec/plan.h"
#include "runtime/run/host.h"
#include "runtime/run/session.h"
#include "tests/cli/process.h"

namespace capstan::strategies_test {

// A model as [model] says it, and a batch that 1, 2, 3, 4, 6 and 8 ranks can share.
struct ModelCase {
  const char* name;
  const char* toml;  // of [model]
};
inline void PrintTo(const ModelCase& model, std::ostream* out) { *out << model.name; }
// Rows that neither 2, 3, 4 nor 8 ranks share evenly, and some (llama's 2 of a key head) that are
// fewer than the ranks.
extern const ModelCase kGpt2Uneven, kLlamaUneven;
// Rows that 2, 4 and 8 ranks share evenly.
extern const ModelCase kGpt2Even, kLlamaEven, kLlamaTied;

// A whole configuration: the model, [mesh] dp = "auto", AdamW, and the strategies' tables as text.
// One with no strategy leaves the mesh out. Data are in data/ beside the file.
std::string ConfigText(const ModelCase& model, const std::string& strategies);
// The table of one strategy: `[[strategy]] plugin = NAME` and more lines.
std::string Strategy(const std::string& name, const std::string& lines = "");

// A rank's session, and what it composes.
class Rank {
 public:
  // Opens `config` (a path) as rank `rank` of `world`. Failures of opening are kept in status().
  Rank(const std::string& config, int64_t rank, int64_t world,
       const std::vector<std::string>& overrides = {});

  const absl::Status& status() const { return status_; }
  Session& session() { return *session_; }
  // Composes the train Program, with changes to its ingredients; what goes wrong is in status().
  void Compose(const std::function<void(Ingredients&)>& change = {});
  const Program& program() const { return *program_; }
  Program& mutable_program() { return *program_; }
  // Planned with the session's device, as a run plans it; what goes wrong fails the test.
  MemoryPlan& plan();
  int64_t region(const std::string& name);

 private:
  absl::Status status_;
  std::unique_ptr<HostEnvironment> host_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<Ingredients> ingredients_;
  std::unique_ptr<Program> program_;
  std::unique_ptr<MemoryPlan> plan_;
};

// Rank `rank` of `world` with its Program composed; a failure fails the test.
std::unique_ptr<Rank> Composed(const std::string& config, int64_t rank, int64_t world,
                               const std::vector<std::string>& overrides = {});

// How often a step runs each op.
std::vector<int64_t> LaunchesByOp(Rank& rank);

}  // namespace capstan::strategies_test
