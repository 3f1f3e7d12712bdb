// Rows addressed by position: writing a key-value cache, picking one position of a sequence.
#ifndef CAPSTAN_KERNELS_CPU_CACHE_H_
#define CAPSTAN_KERNELS_CPU_CACHE_H_

#include <cstddef>
#include <cstdint>

namespace capstan::cpu {

struct CacheParams {
  std::int64_t batch = 0;     // B
  std::int64_t seq = 0;       // T: positions of src
  std::int64_t capacity = 0;  // Smax: rows of the cache for each sequence
  std::int64_t channels = 0;  // C
  std::size_t element_size = 4;
};

// cache[b, position[b] + t] = src[b, t]; cache [B, Smax, C], src [B, T, C], position int32 [B].
// Returns the first b whose rows do not fit, for which nothing is written, or -1. Threads: the
// OpenMP pool.
std::int64_t cache_write(const CacheParams& p, const void* src, const std::int32_t* position,
                         void* cache);

// out[b] = x[b, index[b]]; x [B, T, C], index int32 [B], out [B, C]; `capacity` unused. Returns the
// first b whose index is outside [0, T), whose row of out is zeroed, or -1. Threads: the OpenMP
// pool.
std::int64_t select_position(const CacheParams& p, const void* x, const std::int32_t* index,
                             void* out);

}  // namespace capstan::cpu

#endif  // CAPSTAN_KERNELS_CPU_CACHE_H_
