// Conversions: every 16-bit float, rounding to nearest even, saturation.
#include "kernels/cpu/cast.h"

#include <bit>
#include <limits>

#include "kernels/cpu/convert.h"
#include "tests/kernels/memory_bound_util.h"

namespace capstan::cpu {
namespace {

using namespace capstan::testing;  // NOLINT: the tests' vocabulary

template <class To, class From>
std::vector<To> casted(ScalarType from, ScalarType to, const std::vector<From>& x) {
  std::vector<To> y(x.size());
  cast(from, to, static_cast<std::int64_t>(x.size()), x.data(), y.data());
  return y;
}

std::vector<std::uint16_t> every_half() {
  std::vector<std::uint16_t> bits(65536);
  for (std::size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<std::uint16_t>(i);
  return bits;
}

struct Half {
  ScalarType type;
  int mantissa;
  const char* name;
};
const Half kHalves[] = {{ScalarType::kBf16, 7, "bf16"}, {ScalarType::kF16, 10, "f16"}};

// Rounding to nearest even, stated without arithmetic on the formats: the result is the neighbour
// nearer to x in the sorted list of all finite values, the one with an even code on a tie.
std::uint16_t nearest_code(const Floats& values, std::uint16_t largest, float x) {
  std::uint16_t low = 0, high = largest;  // codes of non-negative finite values ascend
  while (high - low > 1) {
    const std::uint16_t middle = static_cast<std::uint16_t>((low + high) / 2);
    (values[middle] <= x ? low : high) = middle;
  }
  if (values[high] <= x) return high;
  const double below = double(x) - values[low], above = double(values[high]) - x;
  if (below != above) return below < above ? low : high;
  return low % 2 == 0 ? low : high;
}

TEST(Cast, WidensTheSixteenBitFloatsExactly) {
  const Floats bf16 = casted<float>(ScalarType::kBf16, ScalarType::kF32, every_half());
  const Floats f16 = casted<float>(ScalarType::kF16, ScalarType::kF32, every_half());
  for (std::uint32_t i = 0; i < 65536; ++i) {
    const float expected = std::bit_cast<float>(i << 16);
    ASSERT_TRUE(bf16[i] == expected || (std::isnan(bf16[i]) && std::isnan(expected))) << i;
    const int exponent = (i >> 10) & 31, fraction = i & 1023;
    const double magnitude = exponent == 31  ? (fraction != 0 ? NAN : INFINITY)
                             : exponent == 0 ? std::ldexp(fraction, -24)
                                             : std::ldexp(1024 + fraction, exponent - 25);
    const double half = (i & 0x8000) != 0 ? -magnitude : magnitude;
    ASSERT_TRUE(f16[i] == half || (std::isnan(f16[i]) && std::isnan(half))) << i;
  }
}

TEST(Cast, EverySixteenBitFloatSurvivesTheRoundTrip) {
  for (const Half& h : kHalves) {
    for (ScalarType wide : {ScalarType::kF32, ScalarType::kF64}) {
      std::vector<std::uint16_t> back;
      if (wide == ScalarType::kF32) {
        back = casted<std::uint16_t>(wide, h.type, casted<float>(h.type, wide, every_half()));
      } else {
        back = casted<std::uint16_t>(wide, h.type, casted<double>(h.type, wide, every_half()));
      }
      const Floats values = casted<float>(h.type, ScalarType::kF32, every_half());
      for (std::size_t i = 0; i < back.size(); ++i) {
        if (std::isnan(values[i])) continue;
        ASSERT_EQ(back[i], i) << h.name;
      }
    }
  }
}

TEST(Cast, RoundsToNearestEven) {
  everywhere([] {
    for (const Half& h : kHalves) {
      const Floats values = casted<float>(h.type, ScalarType::kF32, every_half());
      const std::uint16_t largest = h.mantissa == 7 ? 0x7f7f : 0x7bff;
      Floats x = random_floats(20003, 3, 0.0f, 4.0f);
      for (std::size_t i = 0; i < 5000; ++i) x.push_back(x[i] * 1e-6f);  // subnormal halves
      for (std::uint16_t code = 0; code + 1 < largest; code += 97) {     // exact ties
        const float middle = values[code] / 2 + values[code + 1] / 2;
        x.push_back(middle);
      }
      const auto narrow = casted<std::uint16_t>(ScalarType::kF32, h.type, x);
      const auto from_double =
          casted<std::uint16_t>(ScalarType::kF64, h.type, std::vector<double>(x.begin(), x.end()));
      for (std::size_t i = 0; i < x.size(); ++i) {
        ASSERT_EQ(narrow[i], nearest_code(values, largest, x[i])) << h.name << " of " << x[i];
        ASSERT_EQ(from_double[i], narrow[i]) << h.name << " of " << x[i];
      }
    }
  });
}

TEST(Cast, OverflowsToInfinityAndKeepsNanAndSign) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Floats x = {inf, -inf, -0.0f, 3.4e38f, -3.4e38f, nan, std::bit_cast<float>(0x7f800001u)};
  for (const Half& h : kHalves) {
    const Floats y =
        casted<float>(h.type, ScalarType::kF32, casted<std::uint16_t>(ScalarType::kF32, h.type, x));
    EXPECT_EQ(y[0], inf);
    EXPECT_EQ(y[1], -inf);
    EXPECT_TRUE(y[2] == 0.0f && std::signbit(y[2]));
    EXPECT_EQ(std::isinf(y[4]), h.mantissa == 10 || std::isinf(y[3]));
    EXPECT_TRUE(std::isnan(y[5]) && std::isnan(y[6])) << h.name;
  }
  EXPECT_EQ(casted<std::uint16_t>(ScalarType::kF32, ScalarType::kF16, Floats{65519.0f, 65520.0f}),
            (std::vector<std::uint16_t>{0x7bff, 0x7c00}));
}

TEST(Cast, FloatToIntegerTruncatesAndSaturates) {
  const Floats x = {1.9f,   -1.9f, 3e9f, -3e9f, std::numeric_limits<float>::quiet_NaN(),
                    300.0f, 1e20f};
  EXPECT_EQ(casted<std::int32_t>(ScalarType::kF32, ScalarType::kI32, x),
            (std::vector<std::int32_t>{1, -1, INT32_MAX, INT32_MIN, 0, 300, INT32_MAX}));
  EXPECT_EQ(casted<std::int64_t>(ScalarType::kF32, ScalarType::kI64, x),
            (std::vector<std::int64_t>{1, -1, 3000000000, -3000000000, 0, 300, INT64_MAX}));
  EXPECT_EQ(casted<std::uint8_t>(ScalarType::kF32, ScalarType::kU8, x),
            (std::vector<std::uint8_t>{1, 0, 255, 0, 0, 255, 255}));
}

TEST(Cast, IntegersKeepTheirValueOrSaturate) {
  const std::vector<std::int64_t> x = {0, -5, 255, 256, (std::int64_t{1} << 53) + 1, INT64_MIN};
  EXPECT_EQ(casted<std::int32_t>(ScalarType::kI64, ScalarType::kI32, x),
            (std::vector<std::int32_t>{0, -5, 255, 256, INT32_MAX, INT32_MIN}));
  EXPECT_EQ(casted<std::uint8_t>(ScalarType::kI64, ScalarType::kU8, x),
            (std::vector<std::uint8_t>{0, 0, 255, 255, 255, 0}));
  EXPECT_EQ(casted<std::int64_t>(ScalarType::kI64, ScalarType::kI64, x), x);
  EXPECT_EQ(casted<float>(ScalarType::kI64, ScalarType::kF32, x)[1], -5.0f);
}

TEST(Cast, BoolIsZeroOrOne) {
  const Floats x = {0.0f, -0.0f, 0.5f, std::numeric_limits<float>::quiet_NaN()};
  EXPECT_EQ(casted<std::uint8_t>(ScalarType::kF32, ScalarType::kBool, x),
            (std::vector<std::uint8_t>{0, 0, 1, 1}));
  EXPECT_EQ(casted<float>(ScalarType::kBool, ScalarType::kF32, std::vector<std::uint8_t>{0, 1, 7}),
            (Floats{0.0f, 1.0f, 1.0f}));
}

}  // namespace
}  // namespace capstan::cpu
