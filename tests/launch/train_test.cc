// `capstan train --ranks` and the variables of launchers, on the command line.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "runtime/status.h"
#include "tests/cli/process.h"

namespace capstan::cli_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A variable of the environment for the length of a test.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  ~Variable() { ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

TEST(TrainRanksTest, AMistakeInTheConfigIsSaidOnce) {
  const Folder folder;
  const std::string config = folder.Write("bad.toml", "[run]\nname = 7\nspeed = 1\n");
  const Outcome alone = Capstan({"train", config});
  const Outcome ranks = Capstan({"train", config, "--ranks", "3"});
  EXPECT_EQ(ranks.exit_code, kExitUsage);
  EXPECT_EQ(ranks.err, alone.err) << "word for word";
  EXPECT_EQ(ranks.out, "");
}

TEST(TrainRanksTest, AMissingFileIsSaidOnce) {
  const Outcome ranks = Capstan({"train", "nowhere.toml", "--ranks", "2"});
  EXPECT_EQ(ranks.exit_code, kExitUsage);
  EXPECT_EQ(ranks.err.find("nowhere.toml"), ranks.err.rfind("nowhere.toml")) << ranks.err;
}

TEST(TrainRanksTest, RanksUnderAnotherLauncherAreRefused) {
  const Variable rank("OMPI_COMM_WORLD_RANK", "1"), size("OMPI_COMM_WORLD_SIZE", "2"),
      local_rank("OMPI_COMM_WORLD_LOCAL_RANK", "1"), local_size("OMPI_COMM_WORLD_LOCAL_SIZE", "2");
  const Outcome outcome = Capstan({"train", "x.toml", "--ranks", "2"});
  EXPECT_EQ(outcome.exit_code, kExitUsage);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("--ranks 2"), HasSubstr("rank 1 of 2"),
                                 HasSubstr("mpirun of Open MPI"), HasSubstr("leave --ranks out")));
}

TEST(TrainRanksTest, ContradictingVariablesAreRefused) {
  const Variable rank("RANK", "2"), size("WORLD_SIZE", "2");
  const Outcome outcome = Capstan({"train", "x.toml"});
  EXPECT_EQ(outcome.exit_code, kExitUsage);
  EXPECT_THAT(outcome.err, HasSubstr("RANK is 2, but WORLD_SIZE is 2"));
}

TEST(TrainRanksTest, RestartsNeedOurLauncher) {
  const Outcome outcome = Capstan({"train", "x.toml", "--max-restarts", "2"});
  EXPECT_EQ(outcome.exit_code, kExitUsage);
  EXPECT_THAT(outcome.err, HasSubstr("--max-restarts needs --ranks"));
}

TEST(TrainRanksTest, TooManyRanksAreRefused) {
  const Outcome outcome = Capstan({"train", "x.toml", "--ranks", "1000000"});
  EXPECT_EQ(outcome.exit_code, kExitUsage);
  EXPECT_THAT(outcome.err, HasSubstr("1000000 ranks"));
}

}  // namespace
}  // namespace capstan::cli_test
