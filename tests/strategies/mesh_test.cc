// Ranks on named axes: coordinates, groups, what does not factor.
#include "runtime/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "runtime/status.h"

namespace capstan {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Mesh Lay(std::vector<MeshAxis> axes, int64_t world = 0) {
  absl::StatusOr<Mesh> mesh = Mesh::Layout(std::move(axes), world);
  EXPECT_TRUE(mesh.ok()) << mesh.status();
  return mesh.ok() ? *std::move(mesh) : Mesh();
}

// The message of a refusal, which is a mistake of the user's.
std::string Refusal(std::vector<MeshAxis> axes, int64_t world) {
  const absl::StatusOr<Mesh> mesh = Mesh::Layout(std::move(axes), world);
  EXPECT_FALSE(mesh.ok());
  EXPECT_EQ(ExitCode(mesh.status()), kExitUsage) << mesh.status();
  return std::string(mesh.status().message());
}

TEST(MeshLayout, NoAxesAreOneRank) {
  const Mesh mesh = Lay({}, 1);
  EXPECT_EQ(mesh.world(), 1);
  EXPECT_EQ(mesh.Size("dp"), 1);
  EXPECT_EQ(mesh.Index("dp", 0), 0);
  EXPECT_THAT(mesh.Group({"dp"}, 0), ElementsAre(0));
  EXPECT_EQ(mesh.ToString(), "1 rank");
}

TEST(MeshLayout, TheFirstAxisIsInnermost) {
  const Mesh mesh = Lay({{"tp", 2}, {"dp", 3}}, 6);
  std::vector<int64_t> tp, dp;
  for (int64_t r = 0; r < 6; ++r) {
    tp.push_back(mesh.Index("tp", r));
    dp.push_back(mesh.Index("dp", r));
  }
  EXPECT_THAT(tp, ElementsAre(0, 1, 0, 1, 0, 1));
  EXPECT_THAT(dp, ElementsAre(0, 0, 1, 1, 2, 2));
}

TEST(MeshLayout, GroupsAreTheRanksThatDifferAlongTheirAxesAtMost) {
  const Mesh mesh = Lay({{"tp", 2}, {"dp", 2}, {"pp", 2}}, 8);
  EXPECT_THAT(mesh.Group({"tp"}, 5), ElementsAre(4, 5));
  EXPECT_THAT(mesh.Group({"dp"}, 5), ElementsAre(5, 7));
  EXPECT_THAT(mesh.Group({"pp"}, 5), ElementsAre(1, 5));
  EXPECT_THAT(mesh.Group({"tp", "dp"}, 5), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(mesh.Group({"pp", "tp"}, 6), ElementsAre(2, 3, 6, 7));
  EXPECT_THAT(mesh.Group({"tp", "dp", "pp"}, 3), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(mesh.Group({}, 3), ElementsAre(3));
  EXPECT_THAT(mesh.Group({"cp"}, 3), ElementsAre(3)) << "an axis it does not have";
}

// Every set of axes cuts the world into equal groups, whose members agree on who they are.
TEST(MeshLayout, GroupsPartitionTheWorld) {
  const std::vector<MeshAxis> all = {{"a", 3}, {"b", 1}, {"c", 4}, {"d", 2}};
  const Mesh mesh = Lay(all, 24);
  for (unsigned subset = 0; subset < 16; ++subset) {
    std::vector<std::string> axes;
    int64_t size = 1;
    for (size_t i = 0; i < all.size(); ++i) {
      if ((subset >> i & 1) == 0) continue;
      axes.push_back(all[i].name);
      size *= all[i].size;
    }
    for (int64_t r = 0; r < mesh.world(); ++r) {
      const std::vector<int32_t> group = mesh.Group(axes, r);
      EXPECT_EQ(static_cast<int64_t>(group.size()), size);
      EXPECT_TRUE(std::is_sorted(group.begin(), group.end()));
      EXPECT_TRUE(std::count(group.begin(), group.end(), r) == 1) << r;
      for (const int32_t member : group) EXPECT_EQ(mesh.Group(axes, member), group) << r;
    }
  }
}

TEST(MeshLayout, OrderWithinAGroupOfOneAxisIsThatOfItsCoordinates) {
  const Mesh mesh = Lay({{"tp", 3}, {"dp", 4}}, 12);
  for (int64_t r = 0; r < 12; ++r) {
    const std::vector<int32_t> group = mesh.Group({"dp"}, r);
    for (size_t i = 0; i < group.size(); ++i) {
      EXPECT_EQ(mesh.Index("dp", group[i]), static_cast<int64_t>(i));
    }
  }
}

TEST(MeshLayout, CoordinatesNameARank) {
  const Mesh mesh = Lay({{"tp", 2}, {"dp", 3}, {"pp", 4}}, 24);
  std::set<std::vector<int64_t>> seen;
  for (int64_t r = 0; r < 24; ++r) seen.insert(mesh.View(r).indices);
  EXPECT_EQ(seen.size(), 24u);
}

TEST(MeshLayout, TheViewOfARankIsSizesAndItsPlace) {
  const MeshView view = Lay({{"tp", 2}, {"dp", 3}}, 6).View(5);
  EXPECT_EQ(view.Size("tp"), 2);
  EXPECT_EQ(view.Size("dp"), 3);
  EXPECT_EQ(view.Index("tp"), 1);
  EXPECT_EQ(view.Index("dp"), 2);
  EXPECT_EQ(view.Size("pp"), 1);
}

TEST(MeshLayout, AutoTakesWhatTheOthersLeave) {
  const Mesh mesh = Lay({{"tp", 2}, {"dp", 0}}, 12);
  EXPECT_EQ(mesh.Size("dp"), 6);
  EXPECT_EQ(mesh.ToString(), "tp=2 dp=6");
  EXPECT_EQ(Lay({{"tp", 2}, {"dp", 0}}, 2).Size("dp"), 1);
}

TEST(MeshLayout, WithoutRanksTheAxesSayHowMany) {
  EXPECT_EQ(Lay({{"tp", 2}, {"dp", 3}}).world(), 6);
  const Mesh open = Lay({{"tp", 2}, {"dp", 0}});
  EXPECT_EQ(open.world(), 2);
  EXPECT_EQ(open.Size("dp"), 1);
}

TEST(MeshLayoutMistakes, AWorldThatIsNotTheProductSaysBothNumbers) {
  EXPECT_THAT(Refusal({{"tp", 2}, {"dp", 4}}, 6),
              AllOf(HasSubstr("tp = 2 x dp = 4"), HasSubstr("makes 8 ranks"),
                    HasSubstr("this run has 6"), HasSubstr("--ranks 8")));
}

TEST(MeshLayoutMistakes, AWorldThatAutoCannotTakeNamesTheNextThatFits) {
  EXPECT_THAT(Refusal({{"tp", 4}, {"dp", 0}}, 6),
              AllOf(HasSubstr("make 4 ranks"), HasSubstr("6 ranks are no multiple"),
                    HasSubstr("start 8 ranks")));
}

TEST(MeshLayoutMistakes, ManyRanksWithoutAMeshAreToldOfAuto) {
  EXPECT_THAT(Refusal({}, 4), AllOf(HasSubstr("one rank, this run has 4"), HasSubstr("auto")));
}

TEST(MeshLayoutMistakes, MoreRanksThanTheAbiCountsAreRefused) {
  EXPECT_THAT(Refusal({{"tp", int64_t{1} << 20}, {"dp", int64_t{1} << 20}}, 0),
              HasSubstr("more than 2^31 ranks"));
  EXPECT_THAT(Refusal({{"tp", int64_t{1} << 40}, {"dp", int64_t{1} << 40}}, 0),
              HasSubstr("more than 2^31 ranks"));
}

}  // namespace
}  // namespace capstan
