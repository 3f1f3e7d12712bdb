// Row gather and scatter-add against the reference, with bad ids and vocabulary shards.
#include "kernels/cpu/embedding.h"

#include "kernels/cpu/reference/embedding.h"
#include "tests/kernels/memory_bound_util.h"

namespace capstan::cpu {
namespace {

using namespace capstan::testing;  // NOLINT: the tests' vocabulary

std::vector<std::int32_t> some_ids(std::int64_t n, std::int32_t vocab) {
  std::mt19937 generator(5);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(n));
  for (std::int32_t& id : ids) id = static_cast<std::int32_t>(generator() % std::uint32_t(vocab));
  return ids;
}

TEST(Embedding, MatchesTheReference) {
  everywhere([] {
    for (std::int64_t channels : {1, 3, 17, 65, 768}) {
      for (std::int64_t rows : {1, 7, 300}) {
        EmbeddingParams p{rows, channels, 23, 0, 0};
        const auto ids = some_ids(rows, 23);
        const Floats table = random_floats(23 * channels, 1),
                     dy = random_floats(rows * channels, 2);
        Doubles out64(dy.size());
        reference::embedding_forward<double>(p, ids.data(), widen(table).data(), out64.data());
        Floats out(dy.size());
        EXPECT_EQ(embedding_forward(p, ids.data(), table.data(), out.data()), -1);
        expect_close(out, out64, 0.0, "forward");
        for (bool accumulate : {false, true}) {
          Floats dtable(table.size(), 0.25f);
          Doubles expected(table.size(), accumulate ? 0.25 : 0.0);
          reference::embedding_backward<double>(p, ids.data(), widen(dy).data(), expected.data());
          EXPECT_EQ(embedding_backward(p, ids.data(), dy.data(), dtable.data(), accumulate), -1);
          expect_close(dtable, expected, 1e-6, "backward");
        }
      }
    }
  });
}

TEST(Embedding, ReportsTheFirstBadIdAndSkipsIt) {
  const EmbeddingParams p{5, 4, 10, 0, 0};
  const std::vector<std::int32_t> ids = {3, 9, 10, -1, 2};
  const Floats table = random_floats(40, 1), dy(20, 1.0f);
  Floats out(20, 5.0f), dtable(40, 5.0f);
  EXPECT_EQ(embedding_forward(p, ids.data(), table.data(), out.data()), 2);
  for (std::size_t c = 8; c < 16; ++c) EXPECT_EQ(out[c], 0.0f);
  EXPECT_EQ(out[16], table[8]);
  EXPECT_EQ(embedding_backward(p, ids.data(), dy.data(), dtable.data(), false), 2);
  double sum = 0.0;
  for (float v : dtable) sum += v;
  EXPECT_EQ(sum, 12.0);  // three good ids of four channels
}

TEST(Embedding, ShardsSumToTheWhole) {
  const std::int64_t rows = 60, channels = 9;
  const auto ids = some_ids(rows, 25);
  const Floats table = random_floats(25 * channels, 1), dy = random_floats(rows * channels, 2);
  const EmbeddingParams whole{rows, channels, 25, 0, 0};
  Floats out(dy.size()), dtable(table.size()), sum(dy.size()), joined;
  embedding_forward(whole, ids.data(), table.data(), out.data());
  embedding_backward(whole, ids.data(), dy.data(), dtable.data(), false);
  for (std::int64_t start : {0, 10}) {
    const std::int64_t vocab = start == 0 ? 10 : 15;
    const EmbeddingParams shard{rows, channels, vocab, start, 25};
    Floats part(dy.size()), dpart(static_cast<std::size_t>(vocab * channels));
    EXPECT_EQ(embedding_forward(shard, ids.data(), table.data() + start * channels, part.data()),
              -1);
    EXPECT_EQ(embedding_backward(shard, ids.data(), dy.data(), dpart.data(), false), -1);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
    joined.insert(joined.end(), dpart.begin(), dpart.end());
  }
  EXPECT_EQ(sum, out);
  EXPECT_EQ(joined, dtable);
}

TEST(Embedding, AShardStillReportsIdsOutsideTheWholeVocabulary) {
  const EmbeddingParams shard{3, 2, 10, 10, 25};
  const std::vector<std::int32_t> ids = {0, 24, 25};
  Floats table(20), out(6);
  EXPECT_EQ(embedding_forward(shard, ids.data(), table.data(), out.data()), 2);
}

TEST(EmbeddingReference, TheGradientIsTheDerivative) {
  const EmbeddingParams p{4, 3, 5, 0, 0};
  const std::vector<std::int32_t> ids = {1, 4, 1, 0};
  Doubles table = widen(random_floats(15, 1)), out(12), dtable(15);
  const Doubles dy = widen(random_floats(12, 2));
  reference::embedding_backward<double>(p, ids.data(), dy.data(), dtable.data());
  const auto loss = [&] {
    reference::embedding_forward<double>(p, ids.data(), table.data(), out.data());
    return dot(out, dy);
  };
  expect_gradient(loss, table, dtable, "table");
}

}  // namespace
}  // namespace capstan::cpu
