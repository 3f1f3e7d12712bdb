// Every launcher's variables give the same kind of answer; what contradicts itself gets a sentence.
#include "runtime/launch/world.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "runtime/status.h"

namespace capstan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Variables = std::map<std::string, std::string>;

absl::StatusOr<World> Detect(Variables variables) {
  return DetectWorld([variables](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional<std::string>(found->second);
  });
}

Variables With(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

Variables Without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

void ExpectWorld(const Variables& variables, Launcher launcher, int rank, int size, int local_rank,
                 int local_size) {
  const absl::StatusOr<World> world = Detect(variables);
  ASSERT_TRUE(world.ok()) << world.status();
  EXPECT_EQ(world->launcher, launcher);
  EXPECT_EQ(world->rank, rank);
  EXPECT_EQ(world->size, size);
  EXPECT_EQ(world->local_rank, local_rank);
  EXPECT_EQ(world->local_size, local_size);
}

template <typename Matcher>
void ExpectRefused(const Variables& variables, const Matcher& message) {
  const absl::StatusOr<World> world = Detect(variables);
  ASSERT_FALSE(world.ok());
  EXPECT_EQ(StatusClass(world.status()), CAPSTAN_USAGE);
  EXPECT_THAT(std::string(world.status().message()), message);
}

const Variables kEmbedded = {{"CAPSTAN_RANK", "2"},
                             {"CAPSTAN_WORLD_SIZE", "4"},
                             {"CAPSTAN_LOCAL_RANK", "2"},
                             {"CAPSTAN_LOCAL_SIZE", "4"},
                             {"CAPSTAN_RENDEZVOUS", "127.0.0.1:4711"},
                             {"CAPSTAN_JOB_SECRET", std::string(64, 'a')},
                             {"CAPSTAN_EPOCH", "3"},
                             {"CAPSTAN_STATUS_FD", "7"}};
const Variables kTorchrun = {{"RANK", "5"},
                             {"WORLD_SIZE", "8"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "4"},
                             {"MASTER_ADDR", "node0"},
                             {"MASTER_PORT", "29500"}};
const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                            {"OMPI_COMM_WORLD_SIZE", "4"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                            {"PMIX_NAMESPACE", "prterun-1234@1"}};
const Variables kMpich = {
    {"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};
const Variables kSlurm = {{"SLURM_JOB_ID", "77"},        {"SLURM_STEP_ID", "0"},
                          {"SLURM_PROCID", "3"},         {"SLURM_LOCALID", "0"},
                          {"SLURM_NODEID", "1"},         {"SLURM_NTASKS", "9"},
                          {"SLURM_STEP_NUM_TASKS", "5"}, {"SLURM_STEP_TASKS_PER_NODE", "3,2"}};

TEST(WorldTest, NoLauncherIsAWorldOfOne) {
  ExpectWorld({}, Launcher::kNone, 0, 1, 0, 1);
  ExpectWorld({{"PATH", "/bin"}, {"RANK", ""}}, Launcher::kNone, 0, 1, 0, 1);
}

TEST(WorldTest, EmbeddedLauncher) {
  ExpectWorld(kEmbedded, Launcher::kEmbedded, 2, 4, 2, 4);
  const absl::StatusOr<World> world = Detect(kEmbedded);
  EXPECT_EQ(world->address, "127.0.0.1");
  EXPECT_EQ(world->port, 4711);
  EXPECT_EQ(world->secret, std::string(64, 'a'));
  EXPECT_EQ(world->epoch, 3);
  EXPECT_EQ(world->status_fd, 7);
}

TEST(WorldTest, Torchrun) {
  ExpectWorld(kTorchrun, Launcher::kTorchrun, 5, 8, 1, 4);
  EXPECT_EQ(Detect(kTorchrun)->address, "node0");
}

TEST(WorldTest, TorchrunWithoutLocalSizeLeavesItToTheRendezvous) {
  ExpectWorld(Without(kTorchrun, "LOCAL_WORLD_SIZE"), Launcher::kTorchrun, 5, 8, 1, 0);
}

TEST(WorldTest, OpenMpi) { ExpectWorld(kOpenMpi, Launcher::kOpenMpi, 1, 4, 1, 2); }

TEST(WorldTest, Mpich) { ExpectWorld(kMpich, Launcher::kMpich, 3, 4, 1, 2); }

TEST(WorldTest, SlurmStep) { ExpectWorld(kSlurm, Launcher::kSlurm, 3, 5, 0, 2); }

TEST(WorldTest, SlurmTasksOfManyLikeNodes) {
  ExpectWorld(With(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", "2(x2),1"}, {"SLURM_NODEID", "2"}}),
              Launcher::kSlurm, 3, 5, 0, 1);
}

TEST(WorldTest, TheShellsOfSbatchAndSallocAreNoRanks) {
  ExpectWorld(Without(kSlurm, "SLURM_STEP_ID"), Launcher::kNone, 0, 1, 0, 1);
  ExpectWorld(With(kSlurm, {{"SLURM_STEP_ID", "4294967290"}}), Launcher::kNone, 0, 1, 0, 1);
  ExpectWorld(With(kSlurm, {{"SLURM_STEP_ID", "batch"}}), Launcher::kNone, 0, 1, 0, 1);
}

TEST(WorldTest, TheInnermostLauncherDecides) {
  // mpirun's daemons, one a machine, are a step of srun; torchrun is started by mpirun once a machine.
  ExpectWorld(With(kSlurm, kOpenMpi), Launcher::kOpenMpi, 1, 4, 1, 2);
  ExpectWorld(With(With(kOpenMpi, kTorchrun), {{"TORCHELASTIC_RUN_ID", "none"}}),
              Launcher::kTorchrun, 5, 8, 1, 4);
  ExpectWorld(With(With(kOpenMpi, kTorchrun), kEmbedded), Launcher::kEmbedded, 2, 4, 2, 4);
}

TEST(WorldTest, SlurmSpeakingHydrasProtocolIsSlurm) {
  ExpectWorld(With(kSlurm, {{"PMI_RANK", "3"}, {"PMI_SIZE", "5"}}), Launcher::kSlurm, 3, 5, 0, 2);
}

TEST(WorldTest, ExportedWorldSizeMayRepeatWhatMpirunSays) {
  ExpectWorld(With(kOpenMpi, {{"WORLD_SIZE", "4"}}), Launcher::kOpenMpi, 1, 4, 1, 2);
  ExpectRefused(With(kOpenMpi, {{"WORLD_SIZE", "1"}, {"RANK", "0"}}),
                AllOf(HasSubstr("RANK is 0"), HasSubstr("rank 1 of 4"), HasSubstr("Open MPI"),
                      HasSubstr("unset")));
}

TEST(WorldTest, RefusesARankBeyondTheWorld) {
  ExpectRefused(With(kTorchrun, {{"RANK", "8"}}),
                AllOf(HasSubstr("RANK is 8"), HasSubstr("WORLD_SIZE is 8"), HasSubstr("0 to 7")));
  ExpectRefused(With(kEmbedded, {{"CAPSTAN_RANK", "4"}}), HasSubstr("CAPSTAN_RANK is 4"));
  ExpectRefused(With(kTorchrun, {{"LOCAL_RANK", "4"}}),
                AllOf(HasSubstr("LOCAL_RANK is 4"), HasSubstr("LOCAL_WORLD_SIZE")));
  ExpectRefused(With(kTorchrun, {{"LOCAL_WORLD_SIZE", "9"}}), HasSubstr("a machine cannot hold"));
}

TEST(WorldTest, RefusesAMissingPartner) {
  ExpectRefused(Without(kTorchrun, "WORLD_SIZE"),
                AllOf(HasSubstr("RANK is set (5) but WORLD_SIZE is not"), HasSubstr("unset RANK")));
  ExpectRefused(Without(kTorchrun, "RANK"), HasSubstr("WORLD_SIZE is set (8) but RANK is not"));
  ExpectRefused(Without(kOpenMpi, "OMPI_COMM_WORLD_SIZE"), HasSubstr("OMPI_COMM_WORLD_SIZE"));
  ExpectRefused(Without(kMpich, "PMI_SIZE"), HasSubstr("PMI_SIZE"));
  ExpectRefused(Without(kTorchrun, "LOCAL_RANK"), HasSubstr("LOCAL_RANK"));
  for (const char* name :
       {"CAPSTAN_WORLD_SIZE", "CAPSTAN_LOCAL_SIZE", "CAPSTAN_RENDEZVOUS", "CAPSTAN_JOB_SECRET"}) {
    ExpectRefused(Without(kEmbedded, name), HasSubstr(name));
  }
}

TEST(WorldTest, RefusesWhatIsNoNumber) {
  for (const char* value : {"-1", "two", "1.5", "99999999999999999999"}) {
    ExpectRefused(With(kTorchrun, {{"RANK", value}}), AllOf(HasSubstr("RANK"), HasSubstr(value)));
  }
  ExpectRefused(With(kTorchrun, {{"WORLD_SIZE", "0"}}), HasSubstr("WORLD_SIZE"));
  ExpectRefused(With(kEmbedded, {{"CAPSTAN_RENDEZVOUS", "localhost"}}), HasSubstr("ADDRESS:PORT"));
}

TEST(WorldTest, ASecretNeedsAPlaceToMeetAndLength) {
  const Variables with_secret = With(kOpenMpi, {{"CAPSTAN_JOB_SECRET", std::string(32, 'x')}});
  ExpectRefused(with_secret, HasSubstr("MASTER_ADDR is not set"));
  ExpectRefused(With(with_secret, {{"MASTER_ADDR", "node0"}}), HasSubstr("MASTER_PORT is not set"));
  const absl::StatusOr<World> world =
      Detect(With(with_secret, {{"MASTER_ADDR", "node0"}, {"MASTER_PORT", "4000"}}));
  ASSERT_TRUE(world.ok()) << world.status();
  EXPECT_EQ(world->port, 4000);
  ExpectRefused(With(kOpenMpi, {{"CAPSTAN_JOB_SECRET", "short"}}), HasSubstr("fewer than 32"));
}

TEST(WorldTest, TorchrunsOwnPortIsNotOurs) {
  const Variables torchrun = With(kTorchrun, {{"CAPSTAN_JOB_SECRET", std::string(32, 'x')},
                                              {"TORCHELASTIC_RUN_ID", "r"},
                                              {"TORCHELASTIC_USE_AGENT_STORE", "True"}});
  ExpectRefused(torchrun, AllOf(HasSubstr("MASTER_PORT 29500"), HasSubstr("CAPSTAN_PORT")));
  const absl::StatusOr<World> world = Detect(With(torchrun, {{"CAPSTAN_PORT", "29501"}}));
  ASSERT_TRUE(world.ok()) << world.status();
  EXPECT_EQ(world->port, 29501);
}

// ---- --ranks -----------------------------------------------------------------------------------

TEST(StartsRanksTest, OnlyAProcessThatIsNoRank) {
  EXPECT_TRUE(*StartsRanks(*Detect({}), 4));
  EXPECT_FALSE(*StartsRanks(*Detect({}), 0));
  EXPECT_FALSE(*StartsRanks(*Detect({}), 1));
  EXPECT_FALSE(*StartsRanks(*Detect(kEmbedded), 4)) << "its command line still has --ranks";
  EXPECT_FALSE(*StartsRanks(*Detect(kTorchrun), 0));
}

TEST(StartsRanksTest, RefusedUnderAnotherLauncher) {
  for (const Variables& variables : {kTorchrun, kOpenMpi, kMpich, kSlurm}) {
    const absl::StatusOr<World> world = Detect(variables);
    ASSERT_TRUE(world.ok()) << world.status();
    const absl::StatusOr<bool> starts = StartsRanks(*world, 4);
    ASSERT_FALSE(starts.ok());
    EXPECT_EQ(StatusClass(starts.status()), CAPSTAN_USAGE);
    EXPECT_THAT(
        std::string(starts.status().message()),
        AllOf(HasSubstr("--ranks 4"), HasSubstr(world->source), HasSubstr("leave --ranks")));
  }
}

TEST(StartsRanksTest, AnSrunShellOfOneTaskMayStartRanks) {
  const absl::StatusOr<World> world = Detect({{"SLURM_STEP_ID", "0"},
                                              {"SLURM_PROCID", "0"},
                                              {"SLURM_LOCALID", "0"},
                                              {"SLURM_NTASKS", "1"}});
  ASSERT_TRUE(world.ok()) << world.status();
  EXPECT_TRUE(*StartsRanks(*world, 4));
}

}  // namespace
}  // namespace capstan
