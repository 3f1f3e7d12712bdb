// runtime/strings.h: both kinds of views can be joined.
#include "runtime/strings.h"

#include "gtest/gtest.h"

namespace capstan {
namespace {

TEST(Strings, JoinStandardAndAbslViews) {
  EXPECT_EQ(StrCat(std::string_view("a"), absl::string_view("b"), std::string("c"), 1, "d"),
            "abc1d");
  std::string text = "x";
  StrAppend(&text, std::string_view("y"), 2);
  EXPECT_EQ(text, "xy2");
}

TEST(Strings, ViewsCrossOver) { EXPECT_EQ(ToStd(ToAbsl(std::string_view("abc", 2))), "ab"); }

}  // namespace
}  // namespace capstan
