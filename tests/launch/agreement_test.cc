// Ranks with different configurations or plugins are told which, in what, and how.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/launch/bootstrap.h"
#include "runtime/launch/rendezvous_file.h"
#include "runtime/status.h"
#include "tests/launch/harness.h"

namespace capstan {
namespace {

using launch_test::Folder;
using launch_test::OnEveryRank;
using launch_test::RankOf;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// What each rank is told when rank r has facts[r].
std::vector<absl::Status> Compare(const std::vector<std::vector<Fact>>& facts) {
  const Folder folder;
  const int size = static_cast<int>(facts.size());
  std::vector<absl::Status> results(facts.size());
  OnEveryRank(size, [&](int r) {
    absl::StatusOr<std::unique_ptr<Bootstrap>> b =
        Bootstrap::Join(RankOf(r, size), {60, folder.path()});
    ASSERT_TRUE(b.ok()) << b.status();
    results[r] = RequireSameFacts(**b, "configuration", facts[r]);
    EXPECT_TRUE((*b)->Finish().ok());
  });
  return results;
}

std::string Text(const absl::Status& status) { return std::string(status.message()); }

TEST(AgreementTest, EqualFactsAgree) {
  const std::vector<Fact> facts = {{"run.seed", "1"}, {"plugin comm/shm", "1.0.0"}};
  for (const absl::Status& s : Compare({facts, facts, facts})) EXPECT_TRUE(s.ok()) << s;
}

TEST(AgreementTest, NamesTheOddRankOnEveryRank) {
  const std::vector<Fact> common = {{"optimizer.lr", "1e-3"}, {"run.seed", "1"}};
  const std::vector<Fact> odd = {{"optimizer.lr", "2e-3"}, {"run.seed", "1"}};
  for (const absl::Status& s : Compare({common, common, odd, common})) {
    EXPECT_EQ(StatusClass(s), CAPSTAN_USAGE);
    EXPECT_EQ(CulpritRank(s), 2);
    EXPECT_THAT(Text(s), AllOf(HasSubstr("rank 2 differs from the others in configuration"),
                               HasSubstr("rank 2 has optimizer.lr = 2e-3"),
                               HasSubstr("ranks 0, 1 and 3 have 1e-3"), Not(HasSubstr("seed"))));
  }
}

TEST(AgreementTest, Rank0MayBeTheOddOne) {
  const absl::Status s = Compare({{{"k", "x"}}, {{"k", "y"}}, {{"k", "y"}}})[1];
  EXPECT_EQ(CulpritRank(s), 0);
}

TEST(AgreementTest, OfTwoRank0IsTheMeasure) {
  const absl::Status s =
      Compare({{{"plugin comm/shm", "1.0.0"}}, {{"plugin comm/shm", "1.1.0"}}})[0];
  EXPECT_EQ(CulpritRank(s), 1);
  EXPECT_THAT(Text(s), HasSubstr("rank 1 has plugin comm/shm = 1.1.0, rank 0 has 1.0.0"));
}

TEST(AgreementTest, AFactThatIsMissingIsADifference) {
  const absl::Status s = Compare({{{"strategy.tp", "1.0.0"}}, {}})[0];
  EXPECT_THAT(Text(s), HasSubstr("rank 1 has strategy.tp = not there"));
}

TEST(AgreementTest, ManyDifferencesAreCounted) {
  std::vector<Fact> a, b;
  for (int i = 0; i < 20; ++i) {
    a.push_back({StrCat("key", i), "a"});
    b.push_back({StrCat("key", i), "b"});
  }
  EXPECT_THAT(Text(Compare({a, b})[0]), HasSubstr("and 15 more"));
}

TEST(FactsOfTomlTest, OneALineWithItsTable) {
  const std::vector<Fact> facts = FactsOfToml(
      "top = 1\n\n[run]\nname = \"a = b\"\n# a comment\n[optimizer.schedule]\nkind = \"cosine\"\n"
      "[[strategy]]\nplugin = \"dp\"\n[[strategy]]\nplugin = \"tp\"\n");
  std::vector<std::string> lines;
  for (const Fact& f : facts) lines.push_back(f.name + " | " + f.value);
  EXPECT_EQ(lines, (std::vector<std::string>{
                       "top | 1", "run.name | \"a = b\"", "optimizer.schedule.kind | \"cosine\"",
                       "strategy[0].plugin | \"dp\"", "strategy[1].plugin | \"tp\""}));
}

// ---- machines ----------------------------------------------------------------------------------

TEST(MachinesTest, RanksOfOneMachineCountThemselves) {
  const Folder folder;
  OnEveryRank(3, [&](int r) {
    World world = RankOf(r, 3);
    absl::StatusOr<std::unique_ptr<Bootstrap>> b = Bootstrap::Join(world, {60, folder.path()});
    ASSERT_TRUE(b.ok()) << b.status();
    world.local_rank = world.local_size = 0;  // as a launcher that does not tell
    ASSERT_TRUE(LearnMachines(**b, &world).ok());
    EXPECT_EQ(world.local_rank, r);
    EXPECT_EQ(world.local_size, 3);
    EXPECT_TRUE((*b)->Finish().ok());
  });
  EXPECT_FALSE(MachineId().empty());
}

}  // namespace
}  // namespace capstan
