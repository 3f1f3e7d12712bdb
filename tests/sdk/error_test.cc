#include "sdk/error.h"

#include <gtest/gtest.h>

#include <new>
#include <stdexcept>

namespace capstan::sdk {
namespace {

// What a status says, after releasing it.
Error taken(capstan_status* status) {
  EXPECT_NE(status, nullptr);
  try {
    check(status);
  } catch (const Error& error) {
    return error;
  }
  return bug_error("check did not throw");
}

TEST(Guard, GivesNullWhenTheBodyReturns) {
  EXPECT_EQ(guard([] {}), nullptr);
}

TEST(Guard, CarriesEveryPartOfAnError) {
  const Error error =
      taken(guard([] { throw Error(CAPSTAN_PEER_LOST, "rank 3 is gone", true, 3); }));
  EXPECT_EQ(error.code(), CAPSTAN_PEER_LOST);
  EXPECT_EQ(error.message(), "rank 3 is gone");
  EXPECT_TRUE(error.retryable());
  EXPECT_EQ(error.culprit_rank(), 3);
}

TEST(Guard, MapsForeignExceptionsToClasses) {
  EXPECT_EQ(taken(guard([] { throw std::bad_alloc(); })).code(), CAPSTAN_RESOURCE);
  const Error standard = taken(guard([] { throw std::runtime_error("broken"); }));
  EXPECT_EQ(standard.code(), CAPSTAN_BUG);
  EXPECT_NE(standard.message().find("broken"), std::string::npos);
  EXPECT_EQ(taken(guard([] { throw 7; })).code(), CAPSTAN_BUG);
}

TEST(Guard, OutOfMemoryMayBeReportedRepeatedly) {
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(taken(guard([] { throw std::bad_alloc(); })).message(), "out of memory");
  }
}

TEST(Check, ReleasesTheStatusOnce) {
  static int released = 0;
  capstan_status status = sized<capstan_status>();
  status.code = CAPSTAN_DATA;
  status.message = "bad";
  status.release = [](capstan_status*) { ++released; };
  EXPECT_THROW(check(&status), Error);
  EXPECT_EQ(released, 1);
}

TEST(Check, PassesSuccess) { EXPECT_NO_THROW(check(nullptr)); }

}  // namespace
}  // namespace capstan::sdk
