// Element-wise reductions against exact conversions, over every 16-bit float; vectors of small tensors.
#include "plugins/comm/common/reduce.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/cpu/convert.h"
#include "plugins/comm/common/vector.h"
#include "sdk/program.h"

namespace capstan::comm {
namespace {

template <class T>
std::vector<T> EveryValue() {
  std::vector<T> all(1 << 16);
  for (uint32_t bits = 0; bits < all.size(); ++bits) all[bits] = {static_cast<uint16_t>(bits)};
  return all;
}

template <class T>
bool SameBits(T a, T b) {
  const bool both_nan = std::isnan(cpu::convert<double>(a)) && std::isnan(cpu::convert<double>(b));
  return both_nan || a.bits == b.bits;
}

// All 16-bit floats plus each of a few values: one rounding of the f32 sum.
template <class T>
void ExpectSumsRoundedOnce(capstan_dtype dtype) {
  const std::vector<T> all = EveryValue<T>();
  for (const double addend : {0.0, 1.0, -1e-7, 3.0e-5, 60000.0, -65504.0, 3e38,
                              std::numeric_limits<double>::infinity()}) {
    const std::vector<T> other(all.size(), cpu::convert<T>(addend));
    std::vector<T> out(all.size());
    const std::array<const void*, 2> sources = {all.data(), other.data()};
    reduce_in_order(dtype, CAPSTAN_COMM_SUM, sources, out.data(), all.size());
    for (size_t i = 0; i < all.size(); ++i) {
      const float sum = cpu::convert<float>(all[i]) + cpu::convert<float>(other[i]);
      ASSERT_TRUE(SameBits(out[i], cpu::convert<T>(sum)))
          << "bits " << i << " plus " << addend << " gives " << out[i].bits;
    }
  }
}

TEST(ReduceInOrder, SumsOfBf16AreRoundedOnce) { ExpectSumsRoundedOnce<cpu::Bf16>(sdk::kBF16); }
TEST(ReduceInOrder, SumsOfF16AreRoundedOnce) { ExpectSumsRoundedOnce<cpu::F16>(sdk::kF16); }

TEST(ReduceInOrder, AnAverageThatFitsDoesNotOverflowOnTheWay) {
  const cpu::F16 most = cpu::convert<cpu::F16>(65504.0);
  const std::array<const void*, 3> sources = {&most, &most, &most};
  cpu::F16 out{};
  reduce_in_order(sdk::kF16, CAPSTAN_COMM_AVERAGE, sources, &out, 1);
  EXPECT_EQ(out.bits, most.bits);
}

TEST(ReduceInOrder, AddsFromLeftToRight) {
  const float a = 1e8F, b = -1e8F, c = 1.0F;
  float out = 0;
  const std::array<const void*, 3> first = {&a, &b, &c}, second = {&a, &c, &b};
  reduce_in_order(sdk::kF32, CAPSTAN_COMM_SUM, first, &out, 1);
  EXPECT_EQ(out, 1.0F);
  reduce_in_order(sdk::kF32, CAPSTAN_COMM_SUM, second, &out, 1);
  EXPECT_EQ(out, 0.0F);
}

TEST(ReduceInOrder, AMaximumKeepsANaNOfAnyRank) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::array<float, 3> a = {nan, 1, 2}, b = {1, nan, 3};
  std::array<float, 3> out = {};
  const std::array<const void*, 2> sources = {a.data(), b.data()};
  reduce_in_order(sdk::kF32, CAPSTAN_COMM_MAX, sources, out.data(), 3);
  EXPECT_TRUE(std::isnan(out[0]));
  EXPECT_TRUE(std::isnan(out[1]));
  EXPECT_EQ(out[2], 3);
}

TEST(ReduceInOrder, IntegersWrapAndTheirMaximumIsSigned) {
  const int8_t a = 127, b = 1, c = -128;
  int8_t out = 0;
  const std::array<const void*, 2> sum = {&a, &b}, max = {&c, &b};
  constexpr capstan_dtype kI8 = {CAPSTAN_DTYPE_INT, 8, 1};
  reduce_in_order(kI8, CAPSTAN_COMM_SUM, sum, &out, 1);
  EXPECT_EQ(out, -128);
  reduce_in_order(kI8, CAPSTAN_COMM_MAX, max, &out, 1);
  EXPECT_EQ(out, 1);
}

TEST(ReduceInOrder, TheResultMayReplaceAnyOfTheSources) {
  constexpr size_t kCount = 5000;  // more than one block
  for (const size_t place : {0, 1, 2}) {
    std::array<std::vector<int32_t>, 3> data;
    std::array<const void*, 3> sources = {};
    for (size_t r = 0; r < 3; ++r) {
      data[r].assign(kCount, static_cast<int32_t>(r + 1));
      sources[r] = data[r].data();
    }
    reduce_in_order(sdk::kI32, CAPSTAN_COMM_SUM, sources, data[place].data(), kCount);
    EXPECT_EQ(data[place], std::vector<int32_t>(kCount, 6)) << place;
  }
}

Request RequestOf(std::vector<std::vector<float>>& tensors) {
  Request request;
  request.element = sizeof(float);
  for (std::vector<float>& tensor : tensors) {
    Item item;
    item.send = reinterpret_cast<const char*>(tensor.data());
    item.recv = reinterpret_cast<char*>(tensor.data());
    item.count = tensor.size();
    request.items.push_back(item);
  }
  return request;
}

TEST(Vectors, CoverEveryElementOnceAndStayBelowTheLimit) {
  std::vector<std::vector<float>> tensors;
  for (const size_t count : {1, 0, 300, 7, 64, 64, 1000, 2}) tensors.emplace_back(count, 1.0F);
  const Request request = RequestOf(tensors);
  constexpr uint64_t kMost = 400;
  for (const Vector& vector : vectors_of(request, kMost)) {
    EXPECT_LE(vector.bytes(), kMost);
    std::vector<float> room(vector.elements());
    vector.pack(reinterpret_cast<char*>(room.data()));
    for (float& x : room) x += 1;
    vector.unpack(reinterpret_cast<const char*>(room.data()));
  }
  for (const std::vector<float>& tensor : tensors) {
    EXPECT_EQ(tensor, std::vector<float>(tensor.size(), 2.0F));
  }
}

}  // namespace
}  // namespace capstan::comm
