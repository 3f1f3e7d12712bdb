// Leaves of a forward graph what one stage runs: its chunks, and messages at their borders.
#ifndef CAPSTAN_PLUGINS_STRATEGY_PP_CUT_H_
#define CAPSTAN_PLUGINS_STRATEGY_PP_CUT_H_

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "plugins/strategy/pp/schedules.h"
#include "sdk/gradients.h"
#include "sdk/strategy.h"

namespace capstan::pp {

inline std::string forward_segment(int64_t chunk) { return sdk::text("forward/", chunk); }

// A tensor's placement as attributes of ops have it, "{dp:S(0)[0:4], tp:P}"; "" for a replicated one.
std::string placement_text(const sdk::TensorInfo& info);

// A parameter that several stages hold.
struct TiedParameter {
  std::vector<int64_t> stages;  // the owner first
  // The i-th of the others sends and receives its gradient on channel + i; the same on every stage.
  int64_t channel = 0;
  bool held_by(int64_t stage) const {
    return std::find(stages.begin(), stages.end(), stage) != stages.end();
  }
};
using Tied = std::map<std::string, TiedParameter>;  // by name

class Cutter {
 public:
  // `chunk_of`: of each op of forward/0, in order, never falling.
  Cutter(sdk::Program& program, sdk::MeshAxis axis, int64_t chunks, std::vector<int64_t> chunk_of);

  // Gives the parameters that several stages hold, this one or not.
  Tied run();

 private:
  int64_t stage_of(int64_t chunk) const { return chunk % axis_.size; }
  bool mine(int64_t chunk) const { return stage_of(chunk) == axis_.index; }
  void find_gradients();
  void find_crossings();
  bool repeatable(sdk::Op op, const sdk::OpInfo& info) const;
  bool needs_gradient(const sdk::OpInfo& info) const;
  void move_own_ops();
  void receive(int64_t chunk);
  void send(int64_t chunk);
  void repeat_cheap(int64_t chunk);
  void replace_in(int64_t chunk, sdk::Tensor from, sdk::Tensor to);
  void drop_foreign_ops();
  Tied drop_foreign_parameters();
  void share_metric();

  struct Crossing {  // a value that later chunks read
    sdk::Tensor value;
    int64_t from = 0, until = 0;  // chunk that makes it, last chunk that reads it
    bool cheap = false;           // made of inputs alone: every chunk makes it itself
    bool gradient = false;
  };

  sdk::Program& program_;
  sdk::MeshAxis axis_;
  int64_t chunks_;
  std::vector<sdk::Op> ops_;
  std::vector<sdk::OpInfo> infos_;
  std::vector<int64_t> chunk_of_;
  std::vector<Crossing> crossings_;
  std::set<sdk::Tensor> gradients_;  // values that depend on trainable parameters, a loss on them
  std::map<sdk::Tensor, sdk::Tensor> here_;  // crossing value: what this chunk has of it
};

}  // namespace capstan::pp

#endif  // CAPSTAN_PLUGINS_STRATEGY_PP_CUT_H_
