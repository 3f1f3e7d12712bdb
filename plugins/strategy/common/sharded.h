// What zero1, zero2, zero3 and fsdp share: training states divided over the ranks of an axis that
// also share the batch (Rajbhandari et al. 2020, "ZeRO", section 5; Zhao et al. 2023, "PyTorch FSDP").
//
//                 optimizer states   gradients   parameters
//   kStates       a block a rank     whole       whole        (zero1)
//   kGradients    a block a rank     block       whole        (zero2)
//   kParameters   a block a rank     block       block        (zero3, fsdp)
//
// Blocks are rows of dim 0, uneven where the rows do not divide.
#ifndef CAPSTAN_PLUGINS_STRATEGY_COMMON_SHARDED_H_
#define CAPSTAN_PLUGINS_STRATEGY_COMMON_SHARDED_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "sdk/gradients.h"
#include "sdk/strategy.h"

namespace capstan::sharded {

enum class Level { kStates, kGradients, kParameters };

struct Settings {
  Level level = Level::kStates;
  sdk::MeshAxis axis;
  std::string replicas;  // a second batch axis that only sums gradients (hybrid sharding); "": none
  int64_t bucket_bytes = 0;
  // Of kParameters:
  int64_t unit_layers = 1;  // layers whose parameters are gathered together
  int64_t prefetch = 1;     // units gathered ahead of the one that computes
  bool reshard = true;      // free gathered parameters after the forward pass, gather them again
};

class Sharder {
 public:
  Sharder(sdk::Program& program, const Settings& settings)
      : program_(program), settings_(settings) {}

  // Phase "gradient".
  void divide();
  // Phase "publish": gathers updated parameters that every rank keeps whole.
  void publish();

 private:
  void divide_parameters();
  void gather_in(const std::string& segment);
  void divide_gradients();
  void scatter_whole(const sdk::Bucket& bucket);
  void scatter_transient(const std::vector<sdk::Bucket>& buckets);
  void sum_replicas();
  sdk::Tensor part_of_parameter(sdk::Tensor parameter);

  sdk::Program& program_;
  const Settings& settings_;
  std::map<sdk::Tensor, sdk::Block> divided_;  // parameters that are persistent as blocks
  std::map<sdk::Tensor, sdk::Tensor> kept_;    // parameter: gathered in forward, kept for backward
  std::vector<sdk::Tensor> gradients_;         // blocks, in the order they are completed
};

}  // namespace capstan::sharded

#endif  // CAPSTAN_PLUGINS_STRATEGY_COMMON_SHARDED_H_
