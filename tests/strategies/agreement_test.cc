// How the ranks of a run come to know the same: ranks as threads of this process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "runtime/launch/bootstrap.h"
#include "runtime/run/shares.h"
#include "runtime/status.h"
#include "tests/cli/process.h"

namespace capstan::strategies_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// `body` on every rank of a job.
void OnRanks(int size, const std::function<void(const Ranks&)>& body) {
  const cli_test::Folder folder;
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      World world;
      world.rank = world.local_rank = r;
      world.size = world.local_size = size;
      world.launcher = Launcher::kTorchrun;
      world.job = "agreement";
      absl::StatusOr<std::unique_ptr<Bootstrap>> joined =
          Bootstrap::Join(world, {20, folder.path()});
      ASSERT_TRUE(joined.ok()) << joined.status();
      body(Ranks(joined->get(), nullptr));
      EXPECT_TRUE((*joined)->Finish().ok());
    });
  }
  for (std::thread& t : threads) t.join();
}

TEST(RanksAgree, TheLeadGetsEachDifferentValueOnce) {
  OnRanks(5, [](const Ranks& ranks) {
    for (int round = 0; round < 3; ++round) {  // under one name, as checkpoints do
      const std::string mine = StrCat("value ", ranks.rank() % 2 + round);
      const absl::StatusOr<Ranks::Gathered> gathered = ranks.ToLead("values", mine);
      ASSERT_TRUE(gathered.ok()) << gathered.status();
      if (ranks.lead()) {
        EXPECT_THAT(gathered->values,
                    ElementsAre(StrCat("value ", round), StrCat("value ", round + 1)));
        EXPECT_THAT(gathered->of, ElementsAre(0, 1, 0, 1, 0));
      } else {
        EXPECT_THAT(gathered->values, IsEmpty());
      }
    }
  });
}

TEST(RanksAgree, OneRankByItselfLeads) {
  const absl::StatusOr<Ranks::Gathered> gathered = Ranks().ToLead("values", "mine");
  ASSERT_TRUE(gathered.ok()) << gathered.status();
  EXPECT_THAT(gathered->values, ElementsAre("mine"));
  EXPECT_THAT(gathered->of, ElementsAre(0));
}

// Rows `from` to `to` of an 8 x 3 tensor.
std::pair<StoredSlice, DType> Rows(const std::string& name, int64_t from, int64_t to) {
  return {StoredSlice{name, "model", {8, 3}, {from, 0}, {to - from, 3}}, kF32};
}

// Ranks 0 and 1 hold the first half of w, ranks 2 and 3 the other; b is everybody's, and so is what
// only rank 3 has.
TEST(RanksAgree, SharesFollowTheRanksThatHoldASlice) {
  OnRanks(4, [](const Ranks& ranks) {
    const bool first = ranks.rank() < 2;
    std::vector<std::pair<StoredSlice, DType>> mine = {
        first ? Rows("w", 0, 4) : Rows("w", 4, 8),
        {StoredSlice{"b", "model", {5}, {0}, {5}}, kF32}};
    if (ranks.rank() == 3) mine.push_back({StoredSlice{"own", "optimizer", {2}, {0}, {2}}, kF32});
    for (int round = 0; round < 2; ++round) {
      const absl::StatusOr<Shares> shares = ShareOut(ranks, "shares", mine);
      ASSERT_TRUE(shares.ok()) << shares.status();
      std::vector<std::string> names;
      for (const BundleTensor& t : shares->tensors) {
        names.push_back(StrCat(t.group, "/", t.name, ShapeString(t.shape), DTypeName(t.dtype)));
      }
      EXPECT_THAT(names, ElementsAre("model/b[5]f32", "model/w[8,3]f32", "optimizer/own[2]f32"));
      const Shares::Share w = shares->Of(mine[0].first), b = shares->Of(mine[1].first);
      EXPECT_EQ(w.index, ranks.rank() % 2);
      EXPECT_EQ(w.count, 2);
      EXPECT_EQ(b.index, ranks.rank());
      EXPECT_EQ(b.count, 4);
      if (ranks.rank() == 3) {
        EXPECT_EQ(shares->Of(mine[2].first).count, 1);
      }
    }
  });
}

TEST(RanksAgree, PartsThatDoNotMakeAWholeAreRefusedOnEveryRank) {
  OnRanks(3, [](const Ranks& ranks) {
    const absl::StatusOr<Shares> shares = ShareOut(ranks, "shares", {Rows("w", 0, 4)});
    EXPECT_EQ(StatusClass(shares.status()), CAPSTAN_BUG);
    EXPECT_THAT(std::string(shares.status().message()),
                HasSubstr("has 24 elements, and the 3 ranks together hold 12"));
  });
  OnRanks(2, [](const Ranks& ranks) {
    auto part = Rows("w", 4 * ranks.rank(), 4 * ranks.rank() + 4);
    if (ranks.rank() == 1) part.second = kF64;
    const absl::StatusOr<Shares> shares = ShareOut(ranks, "shares", {part});
    EXPECT_THAT(std::string(shares.status().message()), HasSubstr("dtype f64 on rank 1, but"));
  });
}

}  // namespace
}  // namespace capstan::strategies_test
