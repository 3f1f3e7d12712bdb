// Sampling from a model with a KV cache: a prefill Program reads the prompt, a decode Program
// extends it one token at a time. Both share the parameters and the cache.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/run/session.h"

namespace capstan {

struct SamplingOptions {
  double temperature = 0.8;  // 0: the likeliest
  int64_t top_k = 0;         // 0: all
  double top_p = 1.0;
  uint64_t seed = 0;
};

// Draws an id from logits [count]. `order` is scratch.
int32_t SampleToken(const float* logits, int64_t count, const SamplingOptions& options,
                    std::mt19937_64& random, std::vector<int32_t>& order);

class Generator {
 public:
  // `folder`: weights in published form (a checkpoint is one). `prompt_length` and `new_tokens`
  // size the cache, up to the model's context; past it the newer half of the context is read again.
  static absl::StatusOr<std::unique_ptr<Generator>> Create(Session* session,
                                                           const std::string& folder,
                                                           int64_t prompt_length,
                                                           int64_t new_tokens);

  // Calls `emit` with every new token until it returns false. Ids at or above `vocabulary` are
  // never drawn.
  absl::Status Run(std::vector<int32_t> tokens, int64_t new_tokens, int64_t vocabulary,
                   const SamplingOptions& options, const std::function<bool(int32_t)>& emit);

  // Reads given tokens: calls `logits` with the prediction after the prompt's length of them, then
  // after each further one.
  absl::Status Score(const std::vector<int32_t>& tokens,
                     const std::function<void(const std::vector<float>&)>& logits);

 private:
  struct Stage {
    std::unique_ptr<Program> program;
    std::unique_ptr<Executor> executor;
  };
  Generator() = default;
  absl::StatusOr<Stage> MakeStage(int mode, int64_t tokens);
  // Runs a stage on `count` tokens after `cached` ones; logits_ holds the last position's.
  absl::Status Feed(Stage& stage, const int32_t* tokens, int64_t count, int64_t cached);

  Session* session_ = nullptr;
  int64_t context_ = 0, window_ = 0;
  MemoryPlan plan_;
  Stage prompt_, reread_, decode_;
  std::unique_ptr<Storage> storage_;
  std::vector<float> logits_;
};

}  // namespace capstan
