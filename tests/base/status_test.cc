// runtime/status.h: classes survive the way through absl::Status and back over the C boundary.
#include "runtime/status.h"

#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace capstan {
namespace {

struct StatusCase {
  int32_t status_class;
  int exit_code;
  const char* name;
};

class EveryClass : public testing::TestWithParam<StatusCase> {};

TEST_P(EveryClass, SurvivesTheRoundTripThroughC) {
  const absl::Status made = MakeStatus(GetParam().status_class, "rank 3 is gone", true, 3);
  const absl::Status back = FromC(ToC(made));
  EXPECT_EQ(StatusClass(back), GetParam().status_class);
  EXPECT_TRUE(IsRetryable(back));
  EXPECT_EQ(CulpritRank(back), 3);
  EXPECT_EQ(back.message(), "rank 3 is gone");
  EXPECT_EQ(back, made);
}

TEST_P(EveryClass, HasItsExitCodeAndName) {
  const absl::Status status = MakeStatus(GetParam().status_class, "x");
  EXPECT_EQ(ExitCode(status), GetParam().exit_code);
  EXPECT_EQ(StatusClassName(GetParam().status_class), GetParam().name);
}

INSTANTIATE_TEST_SUITE_P(Status, EveryClass,
                         testing::Values(StatusCase{CAPSTAN_USAGE, 2, "usage"},
                                         StatusCase{CAPSTAN_DATA, 1, "data"},
                                         StatusCase{CAPSTAN_RESOURCE, 1, "resource"},
                                         StatusCase{CAPSTAN_TIMEOUT, 4, "timeout"},
                                         StatusCase{CAPSTAN_PEER_LOST, 4, "peer_lost"},
                                         StatusCase{CAPSTAN_DEVICE_LOST, 4, "device_lost"},
                                         StatusCase{CAPSTAN_PREEMPTED, 3, "preempted"},
                                         StatusCase{CAPSTAN_UNSUPPORTED, 2, "unsupported"},
                                         StatusCase{CAPSTAN_BUG, 1, "bug"}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Status, OkIsNullInC) {
  EXPECT_EQ(ToC(absl::OkStatus()), nullptr);
  EXPECT_TRUE(FromC(nullptr).ok());
  EXPECT_EQ(ExitCode(absl::OkStatus()), 0);
}

TEST(Status, RetryableFailureExitsWithRetry) {
  EXPECT_EQ(ExitCode(MakeStatus(CAPSTAN_RESOURCE, "disk full", /*retryable=*/true)), 4);
}

TEST(Status, PlainAbslStatusesGetAClass) {
  EXPECT_EQ(StatusClass(absl::InvalidArgumentError("x")), CAPSTAN_USAGE);
  EXPECT_EQ(StatusClass(absl::InternalError("x")), CAPSTAN_BUG);
  EXPECT_EQ(CulpritRank(absl::InternalError("x")), -1);
}

TEST(Status, AnnotateKeepsClassAndCulprit) {
  const absl::Status status =
      Annotate(MakeStatus(CAPSTAN_PEER_LOST, "rank 1 is gone", false, 1), "while reducing wte");
  EXPECT_EQ(status.message(), "while reducing wte: rank 1 is gone");
  EXPECT_EQ(StatusClass(status), CAPSTAN_PEER_LOST);
  EXPECT_EQ(CulpritRank(status), 1);
  EXPECT_TRUE(Annotate(absl::OkStatus(), "x").ok());
}

int released = 0;

TEST(Status, FromCReleasesExactlyOnce) {
  released = 0;
  capstan_status raw = {sizeof(capstan_status),
                        CAPSTAN_DATA,
                        0,
                        -1,
                        0,
                        "bad shard",
                        [](capstan_status*) { ++released; }};
  EXPECT_EQ(StatusClass(FromC(&raw)), CAPSTAN_DATA);
  EXPECT_EQ(released, 1);
}

TEST(Status, AClassFromTheFutureIsKept) {
  EXPECT_EQ(StatusClass(FromC(ToC(MakeStatus(77, "x")))), 77);
  EXPECT_EQ(ExitCode(MakeStatus(77, "x")), 1);
}

absl::StatusOr<std::unique_ptr<int>> Half(int value) {
  if (value % 2 != 0) return UsageError(value, " is odd");
  return std::make_unique<int>(value / 2);
}

absl::Status Quarter(int value, int* out) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<int> half, Half(value));
  std::unique_ptr<int> quarter;
  CAPSTAN_ASSIGN_OR_RETURN(quarter, Half(*half));
  CAPSTAN_RETURN_IF_ERROR(absl::OkStatus());
  CAPSTAN_RETURN_IF_ERROR(static_cast<capstan_status*>(nullptr));
  *out = *quarter;
  return absl::OkStatus();
}

TEST(StatusMacros, AssignOrReturnTheFailure) {
  int out = 0;
  EXPECT_TRUE(Quarter(12, &out).ok());
  EXPECT_EQ(out, 3);
  EXPECT_EQ(Quarter(6, &out).message(), "3 is odd");
}

absl::Status Pass(const absl::Status& status) {
  CAPSTAN_RETURN_IF_ERROR(ToC(status));
  return BugError("not reached on failure");
}

TEST(StatusMacros, ReturnIfErrorTakesAPluginsStatus) {
  EXPECT_EQ(Pass(DataError("bad")), DataError("bad"));
}

}  // namespace
}  // namespace capstan
