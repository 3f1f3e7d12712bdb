// Blockwise int8 quantisation against the reference and its error bound.
#include "kernels/cpu/quantize.h"

#include <limits>

#include "kernels/cpu/reference/quantize.h"
#include "tests/kernels/memory_bound_util.h"

namespace capstan::cpu {
namespace {

using namespace capstan::testing;  // NOLINT: the tests' vocabulary

TEST(Quantize, MatchesTheReferenceAndStaysWithinHalfAStep) {
  everywhere([] {
    for (std::int64_t n : {1, 3, 17, 65, 1000, 70001}) {
      for (std::int64_t block : {1, 16, 33, 64, 4096}) {
        const Floats x = random_floats(n, 1);
        const std::size_t blocks = static_cast<std::size_t>((n + block - 1) / block);
        std::vector<std::int8_t> codes(x.size()), codes_expected(x.size());
        Floats scales(blocks), scales_expected(blocks), y(x.size()), y_expected(x.size());
        quantize_int8(n, block, x.data(), codes.data(), scales.data());
        reference::quantize_int8<float>(n, block, x.data(), codes_expected.data(),
                                        scales_expected.data());
        EXPECT_EQ(codes, codes_expected);
        EXPECT_EQ(scales, scales_expected);
        dequantize_int8(n, block, codes.data(), scales.data(), y.data());
        reference::dequantize_int8<float>(n, block, codes.data(), scales.data(), y_expected.data());
        EXPECT_EQ(y, y_expected);
        for (std::size_t i = 0; i < x.size(); ++i) {
          ASSERT_LE(std::fabs(y[i] - x[i]), 0.5001f * scales[i / static_cast<std::size_t>(block)]);
        }
      }
    }
  });
}

TEST(Quantize, BlocksOfZerosAndOfBadValuesAreSafe) {
  Floats x(20, 0.0f), scales(2);
  x[13] = std::numeric_limits<float>::quiet_NaN();
  std::vector<std::int8_t> codes(20, 5);
  quantize_int8(20, 10, x.data(), codes.data(), scales.data());
  EXPECT_EQ(scales[0], 0.0f);
  EXPECT_TRUE(std::isnan(scales[1]));
  EXPECT_EQ(codes, std::vector<std::int8_t>(20, 0));
  x[13] = -std::numeric_limits<float>::infinity();
  quantize_int8(20, 10, x.data(), codes.data(), scales.data());
  EXPECT_TRUE(std::isinf(scales[1]));
  x[13] = 1e-38f;
  quantize_int8(20, 10, x.data(), codes.data(), scales.data());
  EXPECT_EQ(scales[1], 0.0f);
}

}  // namespace
}  // namespace capstan::cpu
