// Philox4x32-10 against the known answers published with the algorithm, and its helpers.
#include "kernels/common/philox.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace capstan {
namespace {

void expect_words(const Philox4& actual, std::uint32_t a, std::uint32_t b, std::uint32_t c,
                  std::uint32_t d) {
  EXPECT_EQ(actual.v[0], a);
  EXPECT_EQ(actual.v[1], b);
  EXPECT_EQ(actual.v[2], c);
  EXPECT_EQ(actual.v[3], d);
}

TEST(Philox, GivesThePublishedAnswerForZeros) {
  expect_words(philox4x32(Philox4{}, PhiloxKey{}), 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8);
}

TEST(Philox, GivesThePublishedAnswerForOnes) {
  const std::uint32_t ones = 0xffffffffu;
  expect_words(philox4x32(Philox4{{ones, ones, ones, ones}}, PhiloxKey{ones, ones}), 0x408f276d,
               0x41c83b0e, 0xa20bc7c6, 0x6d5451fd);
}

TEST(Philox, GivesThePublishedAnswerForDigitsOfPi) {
  expect_words(philox4x32(Philox4{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}},
                          PhiloxKey{0xa4093822, 0x299f31d0}),
               0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1);
}

TEST(Philox, IsUsableInConstantExpressions) {
  constexpr Philox4 r = philox4x32(philox_counter(0), PhiloxKey{});
  static_assert(r.v[0] == 0x6627e8d5u);
  EXPECT_EQ(r.v[3], 0x9b00dbd8u);
}

TEST(Philox, CounterPutsTheLowCoordinateFirst) {
  const Philox4 c = philox_counter(0x0000000200000001u, 0x0000000400000003u);
  expect_words(c, 1, 2, 3, 4);
}

TEST(DeriveKey, TellsSeedsPurposesAndChainsApart) {
  std::set<std::uint64_t> keys;
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    for (std::uint64_t purpose = 0; purpose < 30; ++purpose) {
      keys.insert(philox_key_bits(derive_key(seed, purpose)));
      keys.insert(philox_key_bits(derive_key(derive_key(seed, purpose), 7)));
    }
  }
  EXPECT_EQ(keys.size(), 2u * 30u * 30u);
}

TEST(PurposeHash, IsFnv1a) {
  EXPECT_EQ(purpose_hash(""), 0xcbf29ce484222325u);
  EXPECT_EQ(purpose_hash("a"), 0xaf63dc4c8601ec8cu);
  EXPECT_EQ(purpose_hash("foobar"), 0x85944171f73967e8u);
}

TEST(UniformFloat, CoversTheHalfOpenUnitInterval) {
  EXPECT_EQ(uniform_float(0), 0.0f);
  EXPECT_EQ(uniform_float(0xffffffffu), 1.0f - 0x1p-24f);
  EXPECT_EQ(uniform_double(0xffffffffu, 0xffffffffu), 1.0 - 0x1p-53);
  EXPECT_EQ(uniform_double(0x80000000u, 0), 0.5);
}

TEST(BernoulliThreshold, IsTheProbabilityInThirtyTwoBits) {
  EXPECT_EQ(bernoulli_threshold(0.0), 0u);
  EXPECT_EQ(bernoulli_threshold(0.25), 0x40000000u);
  EXPECT_EQ(bernoulli_threshold(1.0), 0xffffffffu);
}

TEST(NormalPair, HasTheMomentsOfAStandardNormal) {
  const PhiloxKey key = derive_key(1, 2);
  const int pairs = 200000;
  double sum = 0.0, square = 0.0, cross = 0.0, fourth = 0.0;
  for (int i = 0; i < pairs; ++i) {
    const Philox4 r = philox4x32(philox_counter(static_cast<std::uint64_t>(i)), key);
    const NormalPair n = normal_pair(r.v[0], r.v[1]);
    sum += n.a + n.b;
    square += double(n.a) * n.a + double(n.b) * n.b;
    cross += double(n.a) * n.b;
    fourth += std::pow(n.a, 4) + std::pow(n.b, 4);
  }
  EXPECT_NEAR(sum / (2 * pairs), 0.0, 0.01);
  EXPECT_NEAR(square / (2 * pairs), 1.0, 0.01);
  EXPECT_NEAR(cross / pairs, 0.0, 0.01);
  EXPECT_NEAR(fourth / (2 * pairs), 3.0, 0.1);
}

TEST(NormalPair, IsFiniteAtTheExtremes) {
  for (std::uint32_t bits : {0u, 0xffu, 0xffffffffu}) {
    const NormalPair n = normal_pair(bits, bits);
    EXPECT_TRUE(std::isfinite(n.a) && std::isfinite(n.b)) << bits;
  }
}

}  // namespace
}  // namespace capstan
