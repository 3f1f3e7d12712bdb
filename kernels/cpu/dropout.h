// Dropout (Srivastava et al. 2014), inverted form, with a mask that is a function of the global
// coordinate alone.
#ifndef CAPSTAN_KERNELS_CPU_DROPOUT_H_
#define CAPSTAN_KERNELS_CPU_DROPOUT_H_

#include <cstdint>

namespace capstan::cpu {

struct DropoutParams {
  std::int64_t batch = 0;            // B
  std::int64_t seq = 0;              // T
  std::int64_t channels = 0;         // C of this shard
  std::int64_t channel_offset = 0;   // global index of channel 0
  std::int64_t position_stride = 0;  // elements between batch rows of `position`; 0: shared by all
  double p = 0.0;                    // probability of dropping, [0, 1]
  std::uint64_t seed = 0;
  std::uint64_t op_key = 0;  // tells one dropout from another
};

// y = keep ? x / (1 - p) : 0 over x, y [B, T, C]; sample int64 [B] and position int32 [B, T] or [T]
// are the global coordinates of the rows. p = 0 copies, p = 1 zeroes.
//
// Unit (sample, position, channel) is dropped where word channel % 4 of Philox under the key
// derive_key(derive_key(seed, op_key), step), at the counter (channel / 4, position, sample low,
// sample high), is below p * 2^32. So any sharding of batch, sequence or channels drops the same
// units, and backward is this same function applied to dy. y may be x. Threads: the OpenMP pool.
void dropout(const DropoutParams& p, std::int64_t step, const std::int64_t* sample,
             const std::int32_t* position, const float* x, float* y);

}  // namespace capstan::cpu

#endif  // CAPSTAN_KERNELS_CPU_DROPOUT_H_
