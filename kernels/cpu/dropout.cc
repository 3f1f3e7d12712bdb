#include "kernels/cpu/dropout.h"

#include <algorithm>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/dropout.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/common/philox.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/philox-inl.h"
#include "kernels/cpu/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace capstan::cpu {
namespace HWY_NAMESPACE {

// Channels [first, first + count) of one token; x and y point at channel `first`, whose global
// index is `global`. Words are made a step at a time in L1; a cut inside a counter skips its first
// words.
void DropoutChannels(std::int64_t global, std::int64_t count, std::uint64_t sample,
                     std::uint32_t position, PhiloxKey key, std::uint32_t threshold, float scale,
                     const float* x, float* y) {
  const F32 d;
  const U32 du;
  constexpr std::int64_t kMaxWords = 16 * HWY_MAX_BYTES / 8 + HWY_MAX_BYTES;
  HWY_ALIGN std::uint32_t words[kMaxWords];
  const std::int64_t step = 4 * philox_step_counters();
  const auto bar = hn::Set(du, threshold);
  const VF factor = hn::Set(d, scale);
  std::int64_t skip = global % 4;
  std::uint64_t counter = static_cast<std::uint64_t>(position) << 32 |
                          (static_cast<std::uint64_t>(global / 4) & 0xffffffffu);
  for (std::int64_t c = 0; c < count;) {
    philox_step(counter, sample, key, words);
    const std::int64_t n = std::min(step - skip, count - c);
    for_each_vector(d, n, [&](std::int64_t i, auto access) HWY_ATTR {
      prefetch_store(y + c + i);
      // Reading past the words of a step stays inside the buffer, so the tail needs no care.
      const auto drop = hn::Lt(hn::LoadU(du, words + skip + i), bar);
      const VF v = hn::Mul(access.load(d, x + c + i), factor);
      access.store(hn::IfThenZeroElse(hn::RebindMask(d, drop), v), d, y + c + i);
    });
    counter += static_cast<std::uint64_t>(step / 4);
    c += n;
    skip = 0;
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace capstan::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace capstan::cpu {

HWY_EXPORT(DropoutChannels);

namespace {

void copy_or_zero(bool copy, std::int64_t n, const float* x, float* y) {
  parallel_ranges(n, 16, n * 8, [&](std::int64_t begin, std::int64_t end, int) {
    const std::size_t bytes = static_cast<std::size_t>(end - begin) * sizeof(float);
    if (!copy) {
      std::memset(y + begin, 0, bytes);
    } else if (x != y) {
      std::memcpy(y + begin, x + begin, bytes);
    }
  });
}

}  // namespace

void dropout(const DropoutParams& p, std::int64_t step, const std::int64_t* sample,
             const std::int32_t* position, const float* x, float* y) {
  const std::int64_t tokens = p.batch * p.seq;
  if (p.p <= 0.0 || p.p >= 1.0) return copy_or_zero(p.p <= 0.0, tokens * p.channels, x, y);
  const PhiloxKey key = derive_key(derive_key(p.seed, p.op_key), static_cast<std::uint64_t>(step));
  const std::uint32_t threshold = bernoulli_threshold(p.p);
  const float scale = static_cast<float>(1.0 / (1.0 - p.p));
  const std::int64_t bytes = tokens * p.channels * 8;
  parallel_ranges(tokens, 1, bytes, [&](std::int64_t begin, std::int64_t end, int) {
    const auto kernel = HWY_DYNAMIC_DISPATCH(DropoutChannels);
    for (std::int64_t token = begin; token < end; ++token) {
      const std::int64_t b = token / p.seq;
      const std::int32_t at = position[b * p.position_stride + token - b * p.seq];
      kernel(p.channel_offset, p.channels, static_cast<std::uint64_t>(sample[b]),
             static_cast<std::uint32_t>(at), key, threshold, scale, x + token * p.channels,
             y + token * p.channels);
    }
  });
}

}  // namespace capstan::cpu
#endif  // HWY_ONCE
