// Counter-based random numbers, shared by CPU and CUDA kernels.
//
// Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3"
// (SC'11): a keyed bijection of a 128-bit counter. It has no state, so a value is a pure function
// of (key, counter), and any rank, thread or lane can produce the value of any coordinate by
// itself.
//
// C++17, header-only, no dependency: it compiles in host and in device code.
#ifndef CAPSTAN_KERNELS_COMMON_PHILOX_H_
#define CAPSTAN_KERNELS_COMMON_PHILOX_H_

#include <cmath>
#include <cstdint>

#if defined(__CUDACC__)
#define CAPSTAN_HOST_DEVICE __host__ __device__
#else
#define CAPSTAN_HOST_DEVICE
#endif

namespace capstan {

// Round multipliers and Weyl key increments of Philox4x32 (Salmon 2011, table 2).
constexpr std::uint32_t kPhiloxM0 = 0xD2511F53u;
constexpr std::uint32_t kPhiloxM1 = 0xCD9E8D57u;
constexpr std::uint32_t kPhiloxW0 = 0x9E3779B9u;
constexpr std::uint32_t kPhiloxW1 = 0xBB67AE85u;
constexpr int kPhiloxRounds = 10;

struct PhiloxKey {
  std::uint32_t k0 = 0;
  std::uint32_t k1 = 0;
};

// Four 32-bit words: a counter on the way in, random bits on the way out.
struct Philox4 {
  std::uint32_t v[4] = {0, 0, 0, 0};
};

CAPSTAN_HOST_DEVICE constexpr PhiloxKey philox_key(std::uint64_t key) {
  return PhiloxKey{static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32)};
}

CAPSTAN_HOST_DEVICE constexpr std::uint64_t philox_key_bits(PhiloxKey key) {
  return static_cast<std::uint64_t>(key.k0) | static_cast<std::uint64_t>(key.k1) << 32;
}

// A counter from two 64-bit coordinates; `low` varies fastest by convention.
CAPSTAN_HOST_DEVICE constexpr Philox4 philox_counter(std::uint64_t low, std::uint64_t high = 0) {
  return Philox4{{static_cast<std::uint32_t>(low), static_cast<std::uint32_t>(low >> 32),
                  static_cast<std::uint32_t>(high), static_cast<std::uint32_t>(high >> 32)}};
}

// The bijection: 128 random bits for one counter.
CAPSTAN_HOST_DEVICE constexpr Philox4 philox4x32(Philox4 counter, PhiloxKey key) {
  std::uint32_t c0 = counter.v[0], c1 = counter.v[1], c2 = counter.v[2], c3 = counter.v[3];
  std::uint32_t k0 = key.k0, k1 = key.k1;
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const std::uint64_t p0 = static_cast<std::uint64_t>(kPhiloxM0) * c0;
    const std::uint64_t p1 = static_cast<std::uint64_t>(kPhiloxM1) * c2;
    c0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<std::uint32_t>(p1);
    c2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<std::uint32_t>(p0);
    k0 += kPhiloxW0;
    k1 += kPhiloxW1;
  }
  return Philox4{{c0, c1, c2, c3}};
}

// Key of one purpose under a seed. `purpose` is a 64-bit hash of a name ("init/h.0.q.weight",
// an op's key, ...). Philox itself mixes the two, so that seeds 1, 2, 3 and related hashes give
// unrelated streams. Derivations chain: derive_key(derive_key(seed, op), step).
CAPSTAN_HOST_DEVICE constexpr PhiloxKey derive_key(std::uint64_t seed, std::uint64_t purpose) {
  // The high words set derivation apart from any data stream drawn under the bare seed.
  const Philox4 r = philox4x32(philox_counter(purpose, 0x6b65792d64657276u), philox_key(seed));
  return PhiloxKey{r.v[0], r.v[1]};
}

CAPSTAN_HOST_DEVICE constexpr PhiloxKey derive_key(PhiloxKey parent, std::uint64_t purpose) {
  return derive_key(philox_key_bits(parent), purpose);
}

// 64-bit FNV-1a hash of a name, for `purpose` (Fowler, Noll and Vo).
constexpr std::uint64_t purpose_hash(const char* name) {
  std::uint64_t h = 0xcbf29ce484222325u;
  for (; *name != '\0'; ++name) {
    h ^= static_cast<unsigned char>(*name);
    h *= 0x100000001b3u;
  }
  return h;
}

// Uniform in [0, 1), a multiple of 2^-24, so exact in float.
CAPSTAN_HOST_DEVICE constexpr float uniform_float(std::uint32_t bits) {
  return static_cast<float>(bits >> 8) * 0x1p-24f;
}

// Uniform in [0, 1) with 53 bits.
CAPSTAN_HOST_DEVICE constexpr double uniform_double(std::uint32_t high, std::uint32_t low) {
  const std::uint64_t bits = static_cast<std::uint64_t>(high) << 32 | low;
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

// The threshold of a Bernoulli draw: true with probability p when bits < threshold. p in [0, 1];
// p = 1 saturates at 2^32 - 1 (wrong once in 2^32), so callers treat p >= 1 apart.
CAPSTAN_HOST_DEVICE inline std::uint32_t bernoulli_threshold(double p) {
  const double scaled = p * 4294967296.0;
  return scaled >= 4294967295.0 ? 0xffffffffu : static_cast<std::uint32_t>(scaled);
}

struct NormalPair {
  float a;
  float b;
};

// Two independent standard normals (Box and Muller 1958): radius from (0, 1], so log never sees 0.
CAPSTAN_HOST_DEVICE inline NormalPair normal_pair(std::uint32_t bits_radius,
                                                  std::uint32_t bits_angle) {
  const float u = static_cast<float>((bits_radius >> 8) + 1u) * 0x1p-24f;
  const float angle = 6.283185307179586f * uniform_float(bits_angle);
  const float radius = std::sqrt(-2.0f * std::log(u));
  return NormalPair{radius * std::cos(angle), radius * std::sin(angle)};
}

}  // namespace capstan

#endif  // CAPSTAN_KERNELS_COMMON_PHILOX_H_
