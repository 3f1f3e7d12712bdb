// The file through which ranks meet: only its owner's eyes, never an old one's word.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <set>
#include <thread>

#include "runtime/launch/bootstrap.h"
#include "runtime/launch/rendezvous_file.h"
#include "runtime/status.h"
#include "tests/launch/harness.h"

namespace capstan {
namespace {

using launch_test::Folder;
using launch_test::RankOf;
using ::testing::HasSubstr;

const Rendezvous kPlace = {"10.0.0.7", 4711, std::string(64, 's')};

// Writes the file from a process that has ended by the time this returns: a crashed run's.
void LeaveBehind(const std::string& path, const Rendezvous& place) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(WriteRendezvous(path, place).ok() ? 0 : 1);
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_EQ(status, 0);
}

TEST(RendezvousFileTest, ReadsBackWhatWasWritten) {
  const Folder folder;
  const std::string path = RendezvousPath(folder.path(), "slurm-7-0");
  ASSERT_TRUE(WriteRendezvous(path, kPlace).ok());
  const absl::StatusOr<Rendezvous> read = ReadRendezvous(path);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->address, kPlace.address);
  EXPECT_EQ(read->port, kPlace.port);
  EXPECT_EQ(read->secret, kPlace.secret);
  EXPECT_EQ(folder.List().size(), 1u) << "no draft is left";
}

TEST(RendezvousFileTest, OnlyItsOwnerMayReadIt) {
  const Folder folder;
  const std::string path = RendezvousPath(folder.path(), "j");
  const mode_t before = ::umask(0);
  ASSERT_TRUE(WriteRendezvous(path, kPlace).ok());
  ::umask(before);
  struct stat file {};
  ASSERT_EQ(::stat(path.c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777, 0600u);
}

TEST(RendezvousFileTest, RefusesOneThatOthersCouldReadOrMade) {
  const Folder folder;
  const std::string path = RendezvousPath(folder.path(), "j");
  ASSERT_TRUE(WriteRendezvous(path, kPlace).ok());
  ASSERT_EQ(::chmod(path.c_str(), 0644), 0);
  EXPECT_EQ(StatusClass(ReadRendezvous(path).status()), CAPSTAN_USAGE);
  ::unlink(path.c_str());
  const std::string elsewhere = folder.path() + "/elsewhere";
  ASSERT_TRUE(WriteRendezvous(elsewhere, kPlace).ok());
  ASSERT_EQ(::symlink(elsewhere.c_str(), path.c_str()), 0);
  const absl::StatusOr<Rendezvous> linked = ReadRendezvous(path);
  ASSERT_FALSE(linked.ok());
  EXPECT_FALSE(IsRetryable(linked.status()));
  ::unlink(path.c_str());
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);  // opening must not wait for a writer
  EXPECT_FALSE(ReadRendezvous(path).ok());
}

TEST(RendezvousFileTest, NotThereYetIsRetryable) {
  const Folder folder;
  const absl::StatusOr<Rendezvous> read = ReadRendezvous(RendezvousPath(folder.path(), "j"));
  EXPECT_TRUE(IsRetryable(read.status()));
}

TEST(RendezvousFileTest, AnEndedProcesssFileIsPassedOver) {
  const Folder folder;
  const std::string path = RendezvousPath(folder.path(), "j");
  LeaveBehind(path, kPlace);
  const absl::StatusOr<Rendezvous> read = ReadRendezvous(path);
  ASSERT_FALSE(read.ok());
  EXPECT_TRUE(IsRetryable(read.status()));
  EXPECT_THAT(std::string(read.status().message()), HasSubstr("left over from an earlier run"));
}

TEST(RendezvousFileTest, AFileCutShortIsRefused) {
  const Folder folder;
  const std::string path = RendezvousPath(folder.path(), "j");
  ASSERT_TRUE(WriteRendezvous(path, kPlace).ok());
  std::ifstream in(path);
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  for (size_t n = 0; n < text.size(); n += 5) {
    ASSERT_EQ(::truncate(path.c_str(), static_cast<off_t>(n)), 0);
    EXPECT_FALSE(ReadRendezvous(path).ok()) << n;
    std::ofstream(path, std::ios::trunc) << text;
    ::chmod(path.c_str(), 0600);
  }
}

TEST(RendezvousFileTest, RemovesOnlyItsOwn) {
  const Folder folder;
  const std::string path = RendezvousPath(folder.path(), "j");
  ASSERT_TRUE(WriteRendezvous(path, kPlace).ok());
  Rendezvous other = kPlace;
  other.secret = std::string(64, 'o');
  RemoveRendezvous(path, other);
  EXPECT_EQ(folder.List().size(), 1u);
  RemoveRendezvous(path, kPlace);
  EXPECT_TRUE(folder.List().empty());
}

TEST(RendezvousFileTest, AnyJobIdMakesAFileName) {
  const Folder folder;
  std::set<std::string> paths;
  for (const std::string& job : {std::string("a/b"), std::string("a_b"), std::string("../../x"),
                                 std::string(5000, 'n'), std::string(4999, 'n'), std::string()}) {
    const std::string path = RendezvousPath(folder.path(), job);
    EXPECT_TRUE(paths.insert(path).second) << job;
    EXPECT_EQ(path.rfind('/'), folder.path().size());
    EXPECT_TRUE(WriteRendezvous(path, kPlace).ok()) << job;
  }
}

// ---- a crashed run's file and a new run ---------------------------------------------------------

TEST(StaleRendezvousTest, ANewRunIsNeverMixedWithIt) {
  const Folder folder;
  const std::string path = RendezvousPath(folder.path(), RankOf(0, 2).job);
  LeaveBehind(path, {"", 1, std::string(64, 'o')});
  // Rank 1 is there first, and finds the old file.
  std::unique_ptr<Bootstrap> one;
  std::thread late([&] {
    absl::StatusOr<std::unique_ptr<Bootstrap>> joined =
        Bootstrap::Join(RankOf(1, 2), {60, folder.path()});
    ASSERT_TRUE(joined.ok()) << joined.status();
    EXPECT_TRUE((*joined)->Barrier("b").ok());
    one = *std::move(joined);
  });
  absl::StatusOr<std::unique_ptr<Bootstrap>> zero =
      Bootstrap::Join(RankOf(0, 2), {60, folder.path()});
  ASSERT_TRUE(zero.ok()) << zero.status();
  EXPECT_TRUE((*zero)->Barrier("b").ok());
  late.join();
  ASSERT_NE(one, nullptr);
  EXPECT_EQ((*zero)->job(), one->job());
  EXPECT_TRUE(folder.List().empty());
}

// The old run's rank 0 lives and still waits for its rank 1; its file was replaced by the new rank 0.
TEST(StaleRendezvousTest, ALivingRunsFileIsReplaced) {
  const Folder folder;
  absl::StatusOr<std::unique_ptr<Bootstrap>> old =
      Bootstrap::Join(RankOf(0, 2), {60, folder.path()});
  ASSERT_TRUE(old.ok());
  absl::StatusOr<std::unique_ptr<Bootstrap>> zero =
      Bootstrap::Join(RankOf(0, 2), {60, folder.path()});
  ASSERT_TRUE(zero.ok());
  old->reset();
  EXPECT_EQ(folder.List().size(), 1u) << "the old one took only its own file along";
  absl::StatusOr<std::unique_ptr<Bootstrap>> one =
      Bootstrap::Join(RankOf(1, 2), {60, folder.path()});
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_EQ((*zero)->job(), (*one)->job());
}

TEST(StaleRendezvousTest, AFileWhoseListenerIsAnotherJobsIsReadAgain) {
  const Folder folder;
  const std::string path = RendezvousPath(folder.path(), RankOf(0, 2).job);
  absl::StatusOr<std::unique_ptr<Bootstrap>> zero =
      Bootstrap::Join(RankOf(0, 2), {60, folder.path()});
  ASSERT_TRUE(zero.ok());
  Rendezvous place = *ReadRendezvous(path);
  const Rendezvous right = place;
  place.secret = std::string(64, 'w');  // as if the port had gone to another job
  ASSERT_TRUE(WriteRendezvous(path, place).ok());
  const absl::StatusOr<std::unique_ptr<Bootstrap>> wrong =
      Bootstrap::Join(RankOf(1, 2), {0.3, folder.path()});
  EXPECT_THAT(std::string(wrong.status().message()), HasSubstr("does not know this job's secret"));
  ASSERT_TRUE(WriteRendezvous(path, right).ok());
  EXPECT_TRUE(Bootstrap::Join(RankOf(1, 2), {60, folder.path()}).ok());
}

TEST(StaleRendezvousTest, ADirectoryThatCannotBeWrittenIsASentence) {
  const absl::StatusOr<std::unique_ptr<Bootstrap>> zero =
      Bootstrap::Join(RankOf(0, 2), {60, "/proc/nowhere"});
  ASSERT_FALSE(zero.ok());
  EXPECT_EQ(StatusClass(zero.status()), CAPSTAN_RESOURCE);
  EXPECT_THAT(std::string(zero.status().message()), HasSubstr("run.dir"));
}

}  // namespace
}  // namespace capstan
