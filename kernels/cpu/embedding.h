// Row gather and scatter-add: embeddings, `gather`, and their gradients.
#ifndef CAPSTAN_KERNELS_CPU_EMBEDDING_H_
#define CAPSTAN_KERNELS_CPU_EMBEDDING_H_

#include <cstdint>

namespace capstan::cpu {

struct EmbeddingParams {
  std::int64_t rows = 0;      // M: number of ids
  std::int64_t channels = 0;  // C
  std::int64_t vocab = 0;     // V: rows of this (shard of the) table
  // A shard holds the rows [vocab_start, vocab_start + vocab) of a table of vocab_total rows; ids
  // of other shards give zero rows and no gradient. vocab_total 0: the table is whole.
  std::int64_t vocab_start = 0;
  std::int64_t vocab_total = 0;
};

// out[i] = table[ids[i] - vocab_start]. table [V, C], ids int32 [M], out [M, C].
// Returns the index into ids of the first id outside the whole vocabulary, whose row is zeroed, or
// -1. Threads: the OpenMP pool.
std::int64_t embedding_forward(const EmbeddingParams& p, const std::int32_t* ids,
                               const float* table, float* out);

// dtable[ids[i] - vocab_start] += dy[i]; rows no id names are zero, or untouched where
// `accumulate`. Returns as the forward; a bad id contributes nothing. Rows with equal ids are added
// in the order of i on any number of threads: the split is by columns.
std::int64_t embedding_backward(const EmbeddingParams& p, const std::int32_t* ids, const float* dy,
                                float* dtable, bool accumulate);

}  // namespace capstan::cpu

#endif  // CAPSTAN_KERNELS_CPU_EMBEDDING_H_
