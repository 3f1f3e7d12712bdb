// Dropout unit by unit: the oracle of kernels/cpu/dropout.h.
#ifndef CAPSTAN_KERNELS_CPU_REFERENCE_DROPOUT_H_
#define CAPSTAN_KERNELS_CPU_REFERENCE_DROPOUT_H_

#include <cstdint>

#include "kernels/common/philox.h"
#include "kernels/cpu/dropout.h"

namespace capstan::reference {

// Whether the unit at a global coordinate is dropped.
inline bool dropout_drops(const cpu::DropoutParams& p, std::int64_t step, std::int64_t sample,
                          std::int32_t position, std::int64_t channel) {
  const PhiloxKey key = derive_key(derive_key(p.seed, p.op_key), static_cast<std::uint64_t>(step));
  const std::uint64_t s = static_cast<std::uint64_t>(sample);
  const Philox4 counter{{static_cast<std::uint32_t>(channel / 4),
                         static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(s),
                         static_cast<std::uint32_t>(s >> 32)}};
  return philox4x32(counter, key).v[channel % 4] < bernoulli_threshold(p.p);
}

template <class T>
void dropout(const cpu::DropoutParams& p, std::int64_t step, const std::int64_t* sample,
             const std::int32_t* position, const T* x, T* y) {
  for (std::int64_t b = 0; b < p.batch; ++b) {
    for (std::int64_t t = 0; t < p.seq; ++t) {
      for (std::int64_t c = 0; c < p.channels; ++c) {
        const std::int64_t i = (b * p.seq + t) * p.channels + c;
        const bool drop =
            p.p >= 1.0 || dropout_drops(p, step, sample[b], position[b * p.position_stride + t],
                                        p.channel_offset + c);
        y[i] = p.p <= 0.0 ? x[i] : drop ? T(0) : x[i] / T(1.0 - p.p);
      }
    }
  }
}

}  // namespace capstan::reference

#endif  // CAPSTAN_KERNELS_CPU_REFERENCE_DROPOUT_H_
