// Row gather and scatter-add: the oracle of kernels/cpu/embedding.h.
#ifndef CAPSTAN_KERNELS_CPU_REFERENCE_EMBEDDING_H_
#define CAPSTAN_KERNELS_CPU_REFERENCE_EMBEDDING_H_

#include <cstdint>

#include "kernels/cpu/embedding.h"

namespace capstan::reference {

// The table's row for id i, or -1.
inline std::int64_t embedding_row(const cpu::EmbeddingParams& p, std::int32_t id) {
  return id >= p.vocab_start && id < p.vocab_start + p.vocab ? id - p.vocab_start : -1;
}

template <class T>
void embedding_forward(const cpu::EmbeddingParams& p, const std::int32_t* ids, const T* table,
                       T* out) {
  for (std::int64_t i = 0; i < p.rows; ++i) {
    const std::int64_t row = embedding_row(p, ids[i]);
    for (std::int64_t c = 0; c < p.channels; ++c) {
      out[i * p.channels + c] = row < 0 ? T(0) : table[row * p.channels + c];
    }
  }
}

// Adds to dtable.
template <class T>
void embedding_backward(const cpu::EmbeddingParams& p, const std::int32_t* ids, const T* dy,
                        T* dtable) {
  for (std::int64_t i = 0; i < p.rows; ++i) {
    const std::int64_t row = embedding_row(p, ids[i]);
    if (row < 0) continue;
    for (std::int64_t c = 0; c < p.channels; ++c) {
      dtable[row * p.channels + c] += dy[i * p.channels + c];
    }
  }
}

}  // namespace capstan::reference

#endif  // CAPSTAN_KERNELS_CPU_REFERENCE_EMBEDDING_H_
