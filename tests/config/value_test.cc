// runtime/config/value.h and toml_reader.h: TOML in, TOML out, with places.
#include "runtime/config/value.h"

#include <limits>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/config/toml_reader.h"

namespace capstan {
namespace {

std::shared_ptr<const Source> TestSource() {
  return std::make_shared<const Source>(Source{"a.toml", "", false});
}

Value Parse(const std::string& text) {
  absl::StatusOr<Value> value = ParseToml(text, TestSource());
  EXPECT_TRUE(value.ok()) << value.status();
  return value.ok() ? *value : Value();
}

TEST(ParseToml, KeepsTheOrderOfTheFile) {
  const Value table = Parse("zebra = 1\napple = 2\n[mesh]\npp = 2\ndp = 4\n");
  EXPECT_EQ(table.members[0].key, "zebra");
  EXPECT_EQ(table.members[1].key, "apple");
  EXPECT_EQ(table.Find("mesh")->members[0].key, "pp");
}

TEST(ParseToml, KnowsTheLineOfEveryKey) {
  const Value table = Parse("\n[run]\nsteps = 10\n\nseed = 1\n");
  EXPECT_EQ(table.FindPath("run.steps")->position.ToString(), "a.toml:3");
  EXPECT_EQ(table.FindPath("run.seed")->position.ToString(), "a.toml:5");
  EXPECT_EQ(table.Find("run")->position.ToString(), "a.toml:2");
}

TEST(ParseToml, NamesTheLineOfASyntaxError) {
  const absl::StatusOr<Value> value = ParseToml("[run]\nsteps = = 3\n", TestSource());
  EXPECT_THAT(std::string(value.status().message()),
              testing::StartsWith("a.toml:2: not valid TOML: "));
}

TEST(ParseToml, RefusesATableHeaderWithoutAKey) {
  for (const char* text : {"[= 1", "[", "[[", "[[=]]", "[.a]", "[a.=]"}) {
    EXPECT_FALSE(ParseToml(text, TestSource()).ok()) << text;
  }
}

TEST(ParseToml, RefusesLettersOutsideQuotesButNotWithin) {
  EXPECT_FALSE(ParseToml("\u022Cn", TestSource()).ok());
  EXPECT_FALSE(ParseToml("a = \u00E9", TestSource()).ok());
  EXPECT_EQ(Parse("a = \"\u00E9\" # \u00E9").Find("a")->text, "\u00E9");
  EXPECT_EQ(Parse("a = \"\"\"x\\\n \u00E9\"\"\"").Find("a")->text, "x\u00E9");
}

TEST(ParseToml, RefusesDuplicateKeys) {
  EXPECT_FALSE(ParseToml("a = 1\na = 2\n", TestSource()).ok());
}

TEST(ParseTomlValue, TakesOneValueOnOneLine) {
  EXPECT_EQ(ParseTomlValue("[0.9, 0.95]", TestSource())->items.size(), 2u);
  EXPECT_EQ(ParseTomlValue("true", TestSource())->kind, Value::Kind::kBool);
  EXPECT_FALSE(ParseTomlValue("1\nother = 2", TestSource()).ok());
  EXPECT_FALSE(ParseTomlValue("", TestSource()).ok());
}

TEST(ToToml, PrintsWhatParsesToTheSame) {
  const std::string text = R"(title = "a \"quoted\"\ttab\u0001"
list = [1, 2, 3]
mixed = [["x"], []]
half = 0.5
big = 1e+300
none = []
secret = {env = "TOKEN"}

[a]
x = true

[a.b]
y = 1

[[c]]
plugin = "p"

[[c.source]]
path = "one"

[[c.source]]
path = "two"
)";
  EXPECT_EQ(ToToml(Parse(text)), text);
}

TEST(FloatText, ReadsBackExactlyAndIsAlwaysAFloat) {
  for (const double value :
       {0.1, 1.0, -0.0, 6e-4, 1e300, 5e-324, 1.0 / 3, std::numeric_limits<double>::infinity()}) {
    const absl::StatusOr<Value> back = ParseTomlValue(FloatText(value), TestSource());
    ASSERT_TRUE(back.ok()) << FloatText(value);
    EXPECT_EQ(back->kind, Value::Kind::kFloat) << FloatText(value);
    EXPECT_EQ(back->real, value);
  }
}

TEST(KeyText, QuotesOnlyWhatMustBe) {
  EXPECT_EQ(KeyText("warmup_steps"), "warmup_steps");
  EXPECT_EQ(KeyText("a b"), "\"a b\"");
  EXPECT_EQ(KeyText(""), "\"\"");
}

TEST(Value, SetPathMakesTheTablesOnTheWay) {
  Value table = Value::Table();
  table.SetPath("a.b.c", Value::Int(1));
  table.SetPath("a.b.d", Value::Int(2));
  EXPECT_EQ(ToToml(table), "[a.b]\nc = 1\nd = 2\n");
}

TEST(Value, DescribesItselfForMessages) {
  EXPECT_EQ(Value::String("x").Describe(), "the string \"x\"");
  EXPECT_EQ(Value::Int(3).Describe(), "the integer 3");
  EXPECT_EQ(Parse("d = 1979-05-27").Find("d")->Describe(), "the date 1979-05-27");
  EXPECT_LT(Value::String(std::string(10000, 'x')).Describe().size(), 100u);
}

}  // namespace
}  // namespace capstan
