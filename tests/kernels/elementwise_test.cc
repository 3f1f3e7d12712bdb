// Element-wise arithmetic, broadcasting, accumulation, fill and copy.
#include "kernels/cpu/elementwise.h"

#include "kernels/cpu/reference/elementwise.h"
#include "tests/kernels/memory_bound_util.h"

namespace capstan::cpu {
namespace {

using namespace capstan::testing;  // NOLINT: the tests' vocabulary

TEST(Binary, MatchesTheReferenceForEveryBroadcast) {
  everywhere([] {
    for (Binary op : {Binary::kAdd, Binary::kSub, Binary::kMul, Binary::kDiv}) {
      for (BroadcastB broadcast : {BroadcastB::kNone, BroadcastB::kLeading, BroadcastB::kScalar}) {
        for (const auto& [outer, inner] :
             {std::pair<std::int64_t, std::int64_t>{1, 1}, {3, 17}, {65, 5}, {200, 300}}) {
          const BinaryParams p{op, broadcast, outer, inner};
          const std::int64_t other = broadcast == BroadcastB::kNone      ? outer * inner
                                     : broadcast == BroadcastB::kLeading ? inner
                                                                         : 1;
          const Floats a = random_floats(outer * inner, 1), b = random_floats(other, 2, 0.5f, 2.0f);
          Floats y(a.size()), in_place = a;
          Doubles expected(a.size());
          binary(p, a.data(), b.data(), y.data());
          binary(p, in_place.data(), b.data(), in_place.data());
          reference::binary<double>(p, widen(a).data(), widen(b).data(), expected.data());
          expect_close(y, expected, 1e-6, "binary");
          EXPECT_EQ(y, in_place);
        }
      }
    }
  });
}

TEST(Accumulate, AddsOrOverwritesTheScaledValue) {
  everywhere([] {
    for (std::int64_t n : {0, 1, 3, 17, 65, 50001}) {
      const Floats x = random_floats(n, 1);
      Floats y(x.size(), 1.0f), z(x.size(), 1.0f);
      accumulate(n, 0.5f, x.data(), y.data(), true);
      scale(n, 0.5f, x.data(), z.data());
      for (std::size_t i = 0; i < x.size(); ++i) {
        ASSERT_EQ(y[i], std::fma(x[i], 0.5f, 1.0f));
        ASSERT_EQ(z[i], x[i] * 0.5f);
      }
    }
  });
}

TEST(Fill, WritesEveryElementOfAnySize) {
  everywhere([] {
    for (std::int64_t n : {1, 17, 100003}) {
      const std::uint64_t value = 0x1122334455667788u;
      for (std::size_t size : {1u, 2u, 4u, 8u}) {
        std::vector<std::uint8_t> out(static_cast<std::size_t>(n) * size + 1, 9);
        fill(n, size, &value, out.data());
        const auto* bytes = reinterpret_cast<const std::uint8_t*>(&value);
        for (std::size_t i = 0; i + 1 < out.size(); ++i) ASSERT_EQ(out[i], bytes[i % size]);
        ASSERT_EQ(out.back(), 9);
      }
    }
  });
}

TEST(Copy, MovesEveryByte) {
  everywhere([] {
    for (std::int64_t n : {0, 1, 65, 300001}) {
      std::vector<std::uint8_t> from(static_cast<std::size_t>(n)), to(from.size() + 1, 9);
      for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::uint8_t>(i * 31);
      copy(n, from.data(), to.data());
      EXPECT_TRUE(std::equal(from.begin(), from.end(), to.begin()));
      EXPECT_EQ(to.back(), 9);
    }
  });
}

}  // namespace
}  // namespace capstan::cpu
