// [mesh]: axes, their order, "auto".
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/config/fake_components.h"

namespace capstan::testing_config {
namespace {

using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;

auto Axis(const std::string& name, int64_t size) {
  return testing::AllOf(Field(&MeshAxis::name, name), Field(&MeshAxis::size, size));
}

std::vector<MeshAxis> Mesh(const std::string& text) {
  const absl::StatusOr<Config> config = LoadWith("[mesh]\n" + text);
  EXPECT_TRUE(config.ok()) << config.status();
  return config.ok() ? config->run.mesh : std::vector<MeshAxis>{};
}

std::string MeshProblem(const std::string& text) { return Problem(LoadWith("[mesh]\n" + text)); }

TEST(Mesh, AxesComeInnermostFirstWhateverTheFileSays) {
  EXPECT_THAT(Mesh("pp = 2\ndp = 4\ntp = 2\n"),
              ElementsAre(Axis("tp", 2), Axis("dp", 4), Axis("pp", 2)));
}

TEST(Mesh, OrderIsTheUsers) {
  EXPECT_THAT(Mesh("tp = 2\ndp = 4\norder = [\"dp\", \"tp\"]\n"),
              ElementsAre(Axis("dp", 4), Axis("tp", 2)));
}

TEST(Mesh, AutoIsZero) { EXPECT_THAT(Mesh("dp = \"auto\"\n"), ElementsAre(Axis("dp", 0))); }

TEST(Mesh, AxesOfStrategiesComeOutermostByDefault) {
  EXPECT_THAT(Mesh("ring = 2\ndp = 2\n"), ElementsAre(Axis("dp", 2), Axis("ring", 2)));
}

TEST(Mesh, SetReplacesASize) {
  const absl::StatusOr<Config> config = LoadWith("[mesh]\ndp = 2\n", {"mesh.dp=8", "mesh.tp=auto"});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(config->run.mesh, ElementsAre(Axis("tp", 0), Axis("dp", 8)));
}

TEST(MeshMistakes, OneAxisMayBeAuto) {
  EXPECT_EQ(MeshProblem("dp = \"auto\"\ntp = \"auto\"\n"),
            "/cfg/run.toml:15: mesh.dp and mesh.tp are both \"auto\"; give one of them a size.");
}

TEST(MeshMistakes, SizesAreNumbersFromOne) {
  for (const char* text : {"dp = 0\n", "dp = -2\n", "dp = 1.5\n", "dp = \"all\"\n"}) {
    EXPECT_THAT(MeshProblem(text),
                HasSubstr("mesh.dp must be a number of ranks from 1, or \"auto\""))
        << text;
  }
}

TEST(MeshMistakes, OrderNamesEveryAxisOnce) {
  EXPECT_EQ(MeshProblem("dp = 2\ntp = 2\norder = [\"tp\"]\n"),
            "/cfg/run.toml:16: mesh.order leaves out the axis \"dp\"; add it where its link speed "
            "belongs, innermost first.");
  EXPECT_EQ(MeshProblem("dp = 2\norder = [\"dp\", \"dp\"]\n"),
            "/cfg/run.toml:15: mesh.order names \"dp\" twice; keep one of them.");
  EXPECT_THAT(MeshProblem("order = 3\n"), HasSubstr("mesh.order must be a list of strings"));
}

TEST(MeshMistakes, AxisNamesAreWords) {
  EXPECT_THAT(MeshProblem("\"a b\" = 2\n"), HasSubstr("mesh.\"a b\" is not an axis name"));
}

}  // namespace
}  // namespace capstan::testing_config
