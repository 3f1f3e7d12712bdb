// Philox4x32-10 in SIMD: the words of consecutive counters, in the order kernels/common/philox.h
// gives them. Compiled once for each SIMD target.
#if defined(CAPSTAN_KERNELS_CPU_PHILOX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CAPSTAN_KERNELS_CPU_PHILOX_INL_H_
#undef CAPSTAN_KERNELS_CPU_PHILOX_INL_H_
#else
#define CAPSTAN_KERNELS_CPU_PHILOX_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"
#include "kernels/common/philox.h"

HWY_BEFORE_NAMESPACE();
namespace capstan::cpu {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

// One lane: the plain function, four counters a step.
HWY_INLINE std::int64_t philox_step_counters() { return 4; }

HWY_INLINE void philox_step(std::uint64_t low, std::uint64_t high, PhiloxKey key,
                            std::uint32_t* HWY_RESTRICT words) {
  for (std::uint64_t i = 0; i < 4; ++i) {
    const Philox4 r = philox4x32(philox_counter(low + i, high), key);
    for (int w = 0; w < 4; ++w) words[4 * i + w] = r.v[w];
  }
}

#else

namespace philox_internal {

namespace hn = hwy::HWY_NAMESPACE;
using D64 = hn::ScalableTag<std::uint64_t>;
using D32 = hn::Repartition<std::uint32_t, D64>;
using V64 = hn::Vec<D64>;
using V32 = hn::Vec<D32>;

// One counter in each 64-bit lane: `x` holds words 0 (low half) and 1, `y` words 2 and 3. In this
// layout a round is two widening products, with no shuffle to bring high and low halves together.
struct Lanes {
  V64 x;
  V64 y;
};

HWY_INLINE V64 swap_halves(V64 v) {
  return hn::BitCast(D64(), hn::Shuffle2301(hn::BitCast(D32(), v)));
}

HWY_INLINE Lanes round(Lanes s, V64 k0, V64 k1, V32 m0, V32 m1) {
  const V64 p0 = hn::MulEven(hn::BitCast(D32(), s.x), m0);
  const V64 p1 = hn::MulEven(hn::BitCast(D32(), s.y), m1);
  return Lanes{hn::Xor3(swap_halves(p1), hn::ShiftRight<32>(s.x), k0),
               hn::Xor3(swap_halves(p0), hn::ShiftRight<32>(s.y), k1)};
}

}  // namespace philox_internal

// Counters a call of philox_step turns into words: four registers of them hide the latency.
HWY_INLINE std::int64_t philox_step_counters() {
  return 4 * static_cast<std::int64_t>(hwy::HWY_NAMESPACE::Lanes(philox_internal::D64()));
}

// Writes the 4 * philox_step_counters() words of counters `low`, `low + 1`, ... (64-bit add into
// the low half of the counter, high half fixed) to `words`, aligned to a vector.
HWY_INLINE void philox_step(std::uint64_t low, std::uint64_t high, PhiloxKey key,
                            std::uint32_t* HWY_RESTRICT words) {
  using namespace philox_internal;  // NOLINT: one function's vocabulary
  const D64 d64;
  const D32 d32;
  const std::uint64_t lanes = hn::Lanes(d64);
  // Lane 2j of a register pair holds counter j and lane 2j+1 counter j + lanes/2: the interleaves
  // below gather even and odd lanes of each 128-bit block and so leave the words in counter order.
  const V64 iota = hn::Iota(d64, 0);
  const V64 odd = hn::Sub(hn::Zero(d64), hn::And(iota, hn::Set(d64, 1)));
  const V64 offset = hn::Add(hn::ShiftRight<1>(iota), hn::And(odd, hn::Set(d64, lanes / 2)));
  const V64 y = hn::Set(d64, high);
  Lanes s[4];
  for (int i = 0; i < 4; ++i) {
    s[i] = Lanes{hn::Add(hn::Set(d64, low + static_cast<std::uint64_t>(i) * lanes), offset), y};
  }
  const V32 m0 = hn::Set(d32, kPhiloxM0);
  const V32 m1 = hn::Set(d32, kPhiloxM1);
  std::uint32_t k0 = key.k0, k1 = key.k1;
  for (int r = 0; r < kPhiloxRounds; ++r) {
    const V64 v0 = hn::Set(d64, k0);
    const V64 v1 = hn::Set(d64, k1);
    for (int i = 0; i < 4; ++i) s[i] = round(s[i], v0, v1, m0, m1);
    k0 += kPhiloxW0;
    k1 += kPhiloxW1;
  }
  for (int i = 0; i < 4; ++i) {
    const V64 even = hn::InterleaveLower(d64, s[i].x, s[i].y);
    const V64 upper = hn::InterleaveUpper(d64, s[i].x, s[i].y);
    std::uint32_t* out = words + static_cast<std::uint64_t>(i) * 4 * lanes;
    hn::Store(hn::BitCast(d32, even), d32, out);
    hn::Store(hn::BitCast(d32, upper), d32, out + 2 * lanes);
  }
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace HWY_NAMESPACE
}  // namespace capstan::cpu
HWY_AFTER_NAMESPACE();

#endif  // CAPSTAN_KERNELS_CPU_PHILOX_INL_H_
