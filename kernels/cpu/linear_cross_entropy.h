// Language-model head and cross-entropy fused: logits = h W^T exist only for a chunk of rows.
//
// loss = (1 / N) sum over rows with a target of (logsumexp(logits) - logits[target]), where N is
// the global number of target tokens of the step, given as a scalar tensor: microbatches and
// data-parallel ranks then add their losses and gradients. With N = 0 loss and gradients are 0;
// differentiation passes N / d for gradients scaled by d, so N may be negative.
//
// All tensors are dense, row-major float32 (targets int32) in caller-owned memory; outputs never
// alias inputs. Rows whose target is negative are ignored and cost nothing: the others are gathered
// before the products. A target that is no word of the (valid) vocabulary makes the loss NaN.
// Losses are summed in double in row order, so they do not depend on the thread count. Functions
// use up to omp_get_max_threads() threads and must not be called from inside a parallel region.
// Workspaces are the caller's, 64-byte aligned, and hold nothing between calls. Throws
// std::runtime_error if oneDNN fails (out of memory).
#ifndef CAPSTAN_KERNELS_CPU_LINEAR_CROSS_ENTROPY_H_
#define CAPSTAN_KERNELS_CPU_LINEAR_CROSS_ENTROPY_H_

#include <cstddef>
#include <cstdint>

namespace capstan::cpu {

struct LinearCrossEntropyParams {
  std::int64_t M = 0;  // rows (tokens)
  std::int64_t K = 0;  // features
  std::int64_t V = 0;  // rows of the weight at hand (a shard's, when the vocabulary is cut)
  // Global vocabulary rows from here on are padding: no logit, zero gradient. Negative: none are.
  std::int64_t valid_vocab = -1;
  std::int64_t vocab_start = 0;  // global id of weight row 0
  std::int64_t chunk_rows = 0;   // rows of logits at once; 0: a size that suits V
};

// Bytes of workspace of every function below that takes one.
std::size_t linear_cross_entropy_workspace(const LinearCrossEntropyParams& params);

// loss[1] from h [M, K], weight [V, K], targets [M], total_weight [1] (N).
void linear_cross_entropy_loss(const LinearCrossEntropyParams& params, const float* h,
                               const float* weight, const std::int32_t* targets,
                               const float* total_weight, float* loss, void* workspace);

// The loss, and in the same pass dh [M, K] (overwritten) and dweight [V, K] (overwritten, or added
// to when `accumulate`). `grad_scale` [1] multiplies the gradients but not the loss; null means 1.
void linear_cross_entropy(const LinearCrossEntropyParams& params, const float* h,
                          const float* weight, const std::int32_t* targets,
                          const float* total_weight, const float* grad_scale, bool accumulate,
                          float* loss, float* dh, float* dweight, void* workspace);

// ---- vocabulary cut over R shards: stats on each, all-gather, merge, grad on each
// ----------------

// stats [M, 3] of this shard's logits: maximum, sum of exponentials relative to it, and the
// target's logit (0 when the target belongs to another shard). An empty or ignored row has (-inf,
// 0, 0).
void lce_stats(const LinearCrossEntropyParams& params, const float* h, const float* weight,
               const std::int32_t* targets, float* stats, void* workspace);

// The same from logits [M, V] that exist; K is not used.
void ce_stats(const LinearCrossEntropyParams& params, const float* logits,
              const std::int32_t* targets, float* stats);

// stats [R, M, 3] -> loss[1] and the log-sum-exp over all shards lse [M] (0 for ignored rows).
void lce_merge(std::int64_t R, std::int64_t M, const float* stats, const std::int32_t* targets,
               const float* total_weight, float* loss, float* lse);

// This shard's part of dh [M, K] (overwritten; the sum over shards is the gradient) and its dweight
// [V, K] (overwritten, or added to when `accumulate`), from the global lse. `logits` [M, V]: as they
// were; null: computed again, a chunk at a time.
void lce_grad(const LinearCrossEntropyParams& params, const float* h, const float* weight,
              const std::int32_t* targets, const float* lse, const float* total_weight,
              const float* grad_scale, const float* logits, bool accumulate, float* dh,
              float* dweight, void* workspace);

// ---- cross-entropy of logits that exist
// ----------------------------------------------------------

struct CrossEntropyParams {
  std::int64_t M = 0;
  std::int64_t V = 0;
  std::int64_t valid_vocab = -1;  // as above
};

// loss[1] and lse [M] (0 for ignored rows) from logits [M, V].
void cross_entropy_forward(const CrossEntropyParams& params, const float* logits,
                           const std::int32_t* targets, const float* total_weight, float* loss,
                           float* lse);

// dlogits [M, V], overwritten; may be `logits` itself.
void cross_entropy_backward(const CrossEntropyParams& params, const float* logits,
                            const std::int32_t* targets, const float* lse,
                            const float* total_weight, const float* grad_scale, float* dlogits);

}  // namespace capstan::cpu

#endif  // CAPSTAN_KERNELS_CPU_LINEAR_CROSS_ENTROPY_H_
