#include "sdk/options.h"

#include <gtest/gtest.h>

#include <vector>

namespace capstan::sdk {
namespace {

constexpr capstan_option kDeclared[] = {
    int_option("layers", "12", "Blocks.").range(1, 96),
    string_option("policy", "\"full\"", "What to drop.").choices("full|selective"),
    path_option("source[].path", nullptr, "A file.").need(),
};

TEST(Declaration, IsConstantData) {
  static_assert(kDeclared[0].has_range == 1 && kDeclared[0].maximum == 96);
  static_assert(kDeclared[2].required == 1 && kDeclared[2].default_value == nullptr);
  EXPECT_STREQ(kDeclared[1].choices, "full|selective");
  EXPECT_EQ(kDeclared[1].struct_size, sizeof(capstan_option));
}

// A value of a host whose struct is larger than ours, as a later minor version has it.
struct LaterValue {
  capstan_option_value base;
  double appended;
};

class OptionsTest : public testing::Test {
 protected:
  LaterValue& add(const char* key, int32_t type) {
    LaterValue value{};
    value.base.struct_size = sizeof(LaterValue);
    value.base.key = key;
    value.base.type = type;
    values_.push_back(value);
    return values_.back();
  }
  Options options() {
    raw_ = sized<capstan_options>();
    raw_.count = values_.size();
    raw_.values = &values_.data()->base;
    return Options(&raw_);
  }

 private:
  std::vector<LaterValue> values_;
  capstan_options raw_{};
};

TEST_F(OptionsTest, ReadsByKeyFromALargerHostStruct) {
  add("layers", CAPSTAN_OPTION_INT).base.i = 6;
  add("eps", CAPSTAN_OPTION_FLOAT).base.f = 0.5;
  add("tied", CAPSTAN_OPTION_BOOL).base.i = 1;
  add("name", CAPSTAN_OPTION_STRING).base.s = "x";
  EXPECT_EQ(options().get_int("layers"), 6);
  EXPECT_EQ(options().get_float("eps"), 0.5);
  EXPECT_TRUE(options().get_bool("tied"));
  EXPECT_EQ(options().get_string("name"), "x");
}

TEST_F(OptionsTest, ReadsLists) {
  const int64_t ints[] = {1, 2, 3};
  const double floats[] = {0.9, 0.95};
  const char* strings[] = {"a", "b"};
  auto& a = add("ints", CAPSTAN_OPTION_INTS).base;
  a.count = 3;
  a.ints = ints;
  auto& b = add("floats", CAPSTAN_OPTION_FLOATS).base;
  b.count = 2;
  b.floats = floats;
  auto& c = add("strings", CAPSTAN_OPTION_STRINGS).base;
  c.count = 2;
  c.strings = strings;
  EXPECT_EQ(options().get_ints("ints"), (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(options().get_floats("floats"), (std::vector<double>{0.9, 0.95}));
  EXPECT_EQ(options().get_strings("strings"), (std::vector<std::string>{"a", "b"}));
}

TEST_F(OptionsTest, CountsTablesOfAList) {
  add("source.0.path", CAPSTAN_OPTION_PATH).base.s = "a.bin";
  add("source.1.path", CAPSTAN_OPTION_PATH).base.s = "b.bin";
  add("sourcery", CAPSTAN_OPTION_INT);
  EXPECT_EQ(options().size("source"), 2u);
  EXPECT_EQ(options().size("other"), 0u);
  EXPECT_EQ(options().get_string(Options::key("source", 1, "path")), "b.bin");
}

TEST_F(OptionsTest, TellsUsersValuesFromDefaults) {
  add("a", CAPSTAN_OPTION_INT).base.from_user = 1;
  add("b", CAPSTAN_OPTION_INT);
  EXPECT_TRUE(options().from_user("a"));
  EXPECT_FALSE(options().from_user("b"));
  EXPECT_FALSE(options().from_user("absent"));
  EXPECT_FALSE(options().has("absent"));
}

TEST_F(OptionsTest, RefusesAnAbsentKeyAndAWrongType) {
  add("layers", CAPSTAN_OPTION_INT);
  EXPECT_THROW(options().get_int("width"), Error);
  EXPECT_THROW(options().get_string("layers"), Error);
  EXPECT_THROW(options().get_bool("layers"), Error);
  EXPECT_NO_THROW(options().get_float("layers")) << "an integer is a number";
}

}  // namespace
}  // namespace capstan::sdk
