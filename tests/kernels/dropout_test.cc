// Dropout against the reference, and the same units dropped under any sharding.
#include "kernels/cpu/dropout.h"

#include "kernels/cpu/reference/dropout.h"
#include "tests/kernels/memory_bound_util.h"

namespace capstan::cpu {
namespace {

using namespace capstan::testing;  // NOLINT: the tests' vocabulary

DropoutParams params(std::int64_t batch, std::int64_t seq, std::int64_t channels, double p) {
  DropoutParams d;
  d.batch = batch, d.seq = seq, d.channels = channels, d.p = p;
  d.seed = 1234, d.op_key = purpose_hash("h.3.drop");
  return d;
}

TEST(Dropout, MatchesTheReference) {
  everywhere([] {
    for (std::int64_t channels : {1, 3, 4, 17, 65, 130, 768}) {
      for (double p : {0.0, 0.1, 0.5, 1.0}) {
        for (std::int64_t offset : {0, 1, 6, 64}) {
          DropoutParams d = params(2, 5, channels, p);
          d.channel_offset = offset;
          const std::vector<std::int64_t> sample = {7, (std::int64_t{1} << 40) + 3};
          const std::vector<std::int32_t> position = {0, 1, 2, 3, 1000};
          const Floats x = random_floats(10 * channels, 1);
          Floats y(x.size());
          Doubles expected(x.size());
          dropout(d, 17, sample.data(), position.data(), x.data(), y.data());
          reference::dropout<double>(d, 17, sample.data(), position.data(), widen(x).data(),
                                     expected.data());
          expect_close(y, expected, 1e-7, "channels " + std::to_string(channels));
        }
      }
    }
  });
}

TEST(Dropout, DropsTheSameUnitsUnderAnySharding) {
  const DropoutParams whole = params(3, 6, 50, 0.3);
  const std::vector<std::int64_t> sample = {5, 9, 2};
  std::vector<std::int32_t> position(18);
  for (std::size_t i = 0; i < 18; ++i) position[i] = static_cast<std::int32_t>(i % 6);
  DropoutParams strided = whole;
  strided.position_stride = 6;
  const Floats x(3 * 6 * 50, 1.0f);
  Floats y(x.size());
  dropout(strided, 4, sample.data(), position.data(), x.data(), y.data());
  // One batch row, two positions, a range of channels that starts inside a counter.
  DropoutParams part = whole;
  part.batch = 1, part.seq = 2, part.channels = 21, part.channel_offset = 13;
  Floats shard(2 * 21);
  dropout(part, 4, &sample[1], &position[3], x.data(), shard.data());
  for (std::size_t t = 0; t < 2; ++t) {
    for (std::size_t c = 0; c < 21; ++c) {
      ASSERT_EQ(shard[t * 21 + c], y[(6 + 3 + t) * 50 + 13 + c]) << t << " " << c;
    }
  }
}

TEST(Dropout, DropsTheShareAskedForAndKeepsTheMean) {
  const DropoutParams d = params(4, 64, 768, 0.1);
  const std::vector<std::int64_t> sample = {0, 1, 2, 3};
  std::vector<std::int32_t> position(64);
  for (std::size_t i = 0; i < 64; ++i) position[i] = static_cast<std::int32_t>(i);
  const Floats x(4 * 64 * 768, 1.0f);
  Floats y(x.size());
  dropout(d, 1, sample.data(), position.data(), x.data(), y.data());
  const double zeros = static_cast<double>(std::count(y.begin(), y.end(), 0.0f));
  EXPECT_NEAR(zeros / static_cast<double>(y.size()), 0.1, 0.003);
}

TEST(Dropout, ChangesWithStepKeyAndSeedAndWorksInPlace) {
  const DropoutParams d = params(1, 3, 200, 0.5);
  const std::int64_t sample = 3;
  const std::vector<std::int32_t> position = {0, 1, 2};
  const Floats x(600, 1.0f);
  Floats base(600), other(600), in_place = x;
  dropout(d, 1, &sample, position.data(), x.data(), base.data());
  dropout(d, 1, &sample, position.data(), in_place.data(), in_place.data());
  EXPECT_EQ(base, in_place);
  dropout(d, 2, &sample, position.data(), x.data(), other.data());
  EXPECT_NE(base, other);
  DropoutParams changed = d;
  changed.op_key += 1;
  dropout(changed, 1, &sample, position.data(), x.data(), other.data());
  EXPECT_NE(base, other);
  changed = d;
  changed.seed += 1;
  dropout(changed, 1, &sample, position.data(), x.data(), other.data());
  EXPECT_NE(base, other);
}

}  // namespace
}  // namespace capstan::cpu
