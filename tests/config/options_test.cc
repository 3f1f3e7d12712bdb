// Options against their declarations: every mistake is a sentence with key, place and remedy.
#include "runtime/config/options.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/config/toml_reader.h"
#include "tests/config/fake_components.h"

namespace capstan {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing_config::Choices;
using testing_config::Option;
using testing_config::Range;
using testing_config::Required;

class OptionsTest : public testing::Test {
 protected:
  // Reads `text` as the table [plug] of /c/a.toml, keys from line 1.
  OptionSet Read(const std::vector<capstan_option>& declared, const std::string& text,
                 bool check_unknown = true) {
    problems_ = Problems();
    const auto source = std::make_shared<const Source>(Source{"/c/a.toml", "/c", false});
    absl::StatusOr<Value> parsed = ParseToml(text, source);
    EXPECT_TRUE(parsed.ok()) << parsed.status();
    if (!parsed.ok()) return OptionSet();
    table_ = *parsed;
    TableContext context;
    context.path = "plug";
    context.owner = "plugin \"plug\"";
    context.position = {source, 0};
    context.directory = "/c";
    const OptionTable table(declared.data(), declared.size());
    const OptionSet set = ReadOptions(table, &table_, context, &problems_);
    std::vector<std::string> known;
    for (const capstan_option& option : declared) known.push_back(option.name);
    if (check_unknown) ReportUnknownKeys(known, table_, context, &problems_);
    return set;
  }
  std::string Problem(const std::vector<capstan_option>& declared, const std::string& text) {
    Read(declared, text);
    return problems_.lines().empty() ? "" : problems_.lines().front();
  }

  Problems problems_;
  Value table_;
};

TEST_F(OptionsTest, EveryTypeArrivesInItsField) {
  const OptionSet set = Read(
      {Option(CAPSTAN_OPTION_BOOL, "b", nullptr), Option(CAPSTAN_OPTION_INT, "i", nullptr),
       Option(CAPSTAN_OPTION_FLOAT, "f", nullptr), Option(CAPSTAN_OPTION_STRING, "s", nullptr),
       Option(CAPSTAN_OPTION_INTS, "is", nullptr), Option(CAPSTAN_OPTION_FLOATS, "fs", nullptr),
       Option(CAPSTAN_OPTION_STRINGS, "ss", nullptr)},
      "b = true\ni = -3\nf = 2\ns = \"x\"\nis = [1, 2]\nfs = [1, 2.5]\nss = [\"p\", \"q\"]\n");
  ASSERT_TRUE(problems_.empty()) << problems_.ToStatus();
  const capstan_options& c = set.c();
  ASSERT_EQ(c.count, 7u);
  EXPECT_EQ(c.values[0].i, 1);
  EXPECT_EQ(c.values[1].i, -3);
  EXPECT_EQ(c.values[1].f, -3.0);  // integers are numbers too
  EXPECT_EQ(c.values[2].f, 2.0);
  EXPECT_STREQ(c.values[3].s, "x");
  ASSERT_EQ(c.values[4].count, 2u);
  EXPECT_EQ(c.values[4].ints[1], 2);
  EXPECT_EQ(c.values[5].floats[1], 2.5);
  EXPECT_STREQ(c.values[6].strings[1], "q");
  for (size_t i = 0; i < c.count; ++i) EXPECT_EQ(c.values[i].from_user, 1);
}

TEST_F(OptionsTest, DefaultsFillInAndAreMarked) {
  const OptionSet set = Read({Option(CAPSTAN_OPTION_FLOATS, "betas", "[0.9, 0.95]"),
                              Option(CAPSTAN_OPTION_STRING, "none", nullptr)},
                             "");
  ASSERT_EQ(set.c().count, 1u);
  EXPECT_EQ(set.c().values[0].from_user, 0);
  EXPECT_EQ(set.c().values[0].floats[1], 0.95);
}

TEST_F(OptionsTest, ArraysLiveAsLongAsAnyCopy) {
  OptionSet copy;
  {
    const OptionSet set = Read({Option(CAPSTAN_OPTION_STRINGS, "ss", nullptr)},
                               "ss = [\"a long string that is not stored inline\"]\n");
    copy = set;
  }
  EXPECT_STREQ(copy.c().values[0].strings[0], "a long string that is not stored inline");
}

TEST_F(OptionsTest, ValuesComeAsDeclaredWithIndexesInLists) {
  const OptionSet set = Read({Option(CAPSTAN_OPTION_STRING, "source[].path", nullptr),
                              Option(CAPSTAN_OPTION_FLOAT, "source[].weight", "1.0"),
                              Option(CAPSTAN_OPTION_INT, "validation.every", "5")},
                             "[[source]]\npath = \"a\"\n[[source]]\npath = \"b\"\nweight = 2\n");
  ASSERT_TRUE(problems_.empty()) << problems_.ToStatus();
  std::vector<std::string> keys;
  for (const OptionEntry& entry : set.entries()) keys.push_back(entry.key);
  EXPECT_THAT(keys, ElementsAre("source.0.path", "source.1.path", "source.0.weight",
                                "source.1.weight", "validation.every"));
  EXPECT_EQ(set.Float("source.0.weight"), 1.0);
  EXPECT_EQ(set.Float("source.1.weight"), 2.0);
}

TEST_F(OptionsTest, ListsOfTablesNest) {
  const OptionSet set = Read({Option(CAPSTAN_OPTION_INT, "a[].b[].c", nullptr)},
                             "[[a]]\n[[a]]\n[[a.b]]\nc = 1\n[[a.b]]\nc = 2\n");
  ASSERT_TRUE(problems_.empty()) << problems_.ToStatus();
  EXPECT_EQ(set.Int("a.1.b.1.c"), 2);
}

TEST_F(OptionsTest, AWrongTypeSaysBothTypesAndAnExample) {
  EXPECT_EQ(Problem({Option(CAPSTAN_OPTION_INT, "layers", "12")}, "\nlayers = \"many\"\n"),
            "/c/a.toml:2: plug.layers must be an integer, but is the string \"many\"; for example "
            "layers = 12.");
  EXPECT_EQ(Problem({Option(CAPSTAN_OPTION_INT, "layers", nullptr)}, "layers = 2e3\n"),
            "/c/a.toml:1: plug.layers must be an integer, but is the number 2000.0; for example "
            "layers = 1.");
  EXPECT_EQ(Problem({Option(CAPSTAN_OPTION_BOOL, "tied", nullptr)}, "tied = 1\n"),
            "/c/a.toml:1: plug.tied must be true or false, but is the integer 1; for example tied "
            "= true.");
  EXPECT_EQ(Problem({Option(CAPSTAN_OPTION_FLOATS, "betas", "[0.9]")}, "betas = 0.9\n"),
            "/c/a.toml:1: plug.betas must be a list of numbers, but is the number 0.9; for example "
            "betas = [0.9].");
  EXPECT_EQ(Problem({Option(CAPSTAN_OPTION_INTS, "cuts", nullptr)}, "cuts = [1, \"x\"]\n"),
            "/c/a.toml:1: plug.cuts must be a list of integers, but holds the string \"x\"; for "
            "example cuts = [1].");
}

TEST_F(OptionsTest, OutOfRangeSaysTheRange) {
  const auto ratio = Range(0, 1, Option(CAPSTAN_OPTION_FLOAT, "ratio", nullptr));
  EXPECT_EQ(Problem({ratio}, "ratio = 1.5\n"),
            "/c/a.toml:1: plug.ratio is 1.5, but must be between 0 and 1.");
  EXPECT_THAT(Problem({ratio}, "ratio = nan\n"), HasSubstr("must be between 0 and 1"));
  EXPECT_EQ(Problem({ratio}, "ratio = 1\n"), "");
  const auto open = Range(1, 1e300, Option(CAPSTAN_OPTION_INT, "n", nullptr));
  EXPECT_EQ(Problem({open}, "n = 0\n"), "/c/a.toml:1: plug.n is 0, but must be at least 1.");
  const auto list = Range(0, 1, Option(CAPSTAN_OPTION_FLOATS, "betas", nullptr));
  EXPECT_THAT(Problem({list}, "betas = [0.5, 2.0]\n"), HasSubstr("plug.betas is 2, but must be"));
}

TEST_F(OptionsTest, ABadChoiceListsTheChoicesAndSuggests) {
  const auto kind =
      Choices("constant|linear|cosine", Option(CAPSTAN_OPTION_STRING, "kind", "\"constant\""));
  EXPECT_EQ(Problem({kind}, "kind = \"cosin\"\n"),
            "/c/a.toml:1: plug.kind is \"cosin\", but must be one of constant, linear, cosine; did "
            "you mean \"cosine\"?");
  EXPECT_EQ(Problem({kind}, "kind = \"cosine\"\n"), "");
}

TEST_F(OptionsTest, AnUnknownKeySuggestsTheNearest) {
  const std::vector<capstan_option> declared = {
      Option(CAPSTAN_OPTION_FLOATS, "betas", nullptr),
      Option(CAPSTAN_OPTION_STRING, "schedule.kind", nullptr),
      Option(CAPSTAN_OPTION_STRING, "source[].path", nullptr)};
  EXPECT_EQ(
      Problem(declared, "\n\nbeta = 1\n"),
      "/c/a.toml:3: [plug] has no option \"beta\" (plugin \"plug\"); did you mean \"betas\"?");
  EXPECT_EQ(Problem(declared, "[schedule]\nkid = 1\n"),
            "/c/a.toml:2: [plug] has no option \"schedule.kid\" (plugin \"plug\"); did you mean "
            "\"kind\"?");
  EXPECT_EQ(Problem(declared, "[[source]]\npaths = \"x\"\n"),
            "/c/a.toml:2: [plug] has no option \"source.0.paths\" (plugin \"plug\"); did you mean "
            "\"path\"?");
  EXPECT_EQ(Problem(declared, "zzz = 1\n"),
            "/c/a.toml:1: [plug] has no option \"zzz\" (plugin \"plug\").");
}

TEST_F(OptionsTest, ATableWhereAListBelongsIsNamed) {
  const std::vector<capstan_option> declared = {
      Option(CAPSTAN_OPTION_STRING, "source[].path", nullptr),
      Option(CAPSTAN_OPTION_STRING, "schedule.kind", nullptr)};
  EXPECT_EQ(Problem(declared, "[source]\npath = \"x\"\n"),
            "/c/a.toml:1: plug.source must be a list of tables, but is a table; write "
            "[[plug.source]].");
  EXPECT_EQ(Problem(declared, "schedule = \"cosine\"\n"),
            "/c/a.toml:1: plug.schedule must be a table, but is the string \"cosine\"; write its "
            "keys under [plug.schedule].");
}

TEST_F(OptionsTest, AMissingRequiredKeySaysWhatToAdd) {
  EXPECT_EQ(Problem({Required(Option(CAPSTAN_OPTION_INT, "layers", nullptr))}, ""),
            "/c/a.toml: plug.layers is missing (Documented); add layers = 1 to [plug].");
  EXPECT_EQ(Problem({Required(Option(CAPSTAN_OPTION_PATH, "source[].path", nullptr)),
                     Option(CAPSTAN_OPTION_FLOAT, "source[].weight", nullptr)},
                    "[[source]]\nweight = 1.0\n"),
            "/c/a.toml:1: plug.source.0.path is missing (Documented); add path = \"...\" to "
            "[plug].");
}

TEST_F(OptionsTest, AllMistakesAreReportedTogether) {
  Read({Option(CAPSTAN_OPTION_INT, "a", nullptr), Option(CAPSTAN_OPTION_INT, "b", nullptr)},
       "a = \"x\"\nb = \"y\"\nc = 1\n");
  EXPECT_EQ(problems_.lines().size(), 3u);
  EXPECT_THAT(std::string(problems_.ToStatus().message()),
              testing::StartsWith("the configuration has 3 problems:\n  /c/a.toml:1: "));
}

TEST_F(OptionsTest, RelativePathsStartAtTheFile) {
  const std::vector<capstan_option> declared = {Option(CAPSTAN_OPTION_PATH, "path", nullptr)};
  EXPECT_EQ(Read(declared, "path = \"data/x.bin\"\n").String("path"), "/c/data/x.bin");
  EXPECT_EQ(Read(declared, "path = \"../x.bin\"\n").String("path"), "/x.bin");
  EXPECT_EQ(Read(declared, "path = \"/abs/x.bin\"\n").String("path"), "/abs/x.bin");
  EXPECT_EQ(Read(declared, "path = \"\"\n").String("path"), "");
}

TEST_F(OptionsTest, StringsWithNulAreRefused) {
  EXPECT_THAT(Problem({Option(CAPSTAN_OPTION_STRING, "s", nullptr)}, "s = \"a\\u0000b\"\n"),
              HasSubstr("must not contain a NUL"));
}

TEST_F(OptionsTest, ABrokenDefaultIsItsAuthorsMistake) {
  EXPECT_EQ(Problem({Option(CAPSTAN_OPTION_INT, "n", "= 3")}, ""),
            "default declared by plugin \"plug\": plug.n has the default \"= 3\", which is not a "
            "TOML value; tell its author.");
  EXPECT_THAT(Problem({Range(1, 2, Option(CAPSTAN_OPTION_INT, "n", "3"))}, ""),
              HasSubstr("default declared by plugin \"plug\": plug.n is 3, but must be between"));
}

TEST_F(OptionsTest, AnUnknownOptionTypeAsksForANewerHost) {
  EXPECT_THAT(Problem({Option(99, "n", nullptr)}, "n = 3\n"), HasSubstr("use a newer capstan"));
}

// A plugin of a later minor version declares with larger structs.
TEST_F(OptionsTest, LargerDeclarationsAreStriddenByTheirOwnSize) {
  struct Future {
    capstan_option option;
    const char* later_field;
  };
  Future future[2] = {{Option(CAPSTAN_OPTION_INT, "first", "1"), "?"},
                      {Option(CAPSTAN_OPTION_INT, "second", "2"), "?"}};
  future[0].option.struct_size = future[1].option.struct_size = sizeof(Future);
  const OptionTable table(&future[0].option, 2);
  EXPECT_STREQ(table[1].name, "second");
  EXPECT_EQ(table.Find("second"), &future[1].option);
}

// ---- secrets
// -------------------------------------------------------------------------------------

class SecretTest : public OptionsTest {
 protected:
  const std::vector<capstan_option> declared_ = {Option(CAPSTAN_OPTION_SECRET, "token", nullptr)};
};

TEST_F(SecretTest, ComesFromTheEnvironment) {
  setenv("CAPSTAN_TEST_SECRET", "hunter2", 1);
  EXPECT_EQ(Read(declared_, "token = {env = \"CAPSTAN_TEST_SECRET\"}\n").String("token"),
            "hunter2");
  unsetenv("CAPSTAN_TEST_SECRET");
  EXPECT_THAT(Problem(declared_, "token = {env = \"CAPSTAN_TEST_SECRET\"}\n"),
              HasSubstr("needs the environment variable CAPSTAN_TEST_SECRET, which is not set."));
}

TEST_F(SecretTest, ComesFromAFileWithoutItsLastNewline) {
  const std::string path = testing::TempDir() + "capstan_secret_test";
  std::ofstream(path) << "hunter2\n";
  EXPECT_EQ(Read(declared_, "token = {file = \"" + path + "\"}\n").String("token"), "hunter2");
  std::filesystem::remove(path);
  EXPECT_THAT(Problem(declared_, "token = {file = \"" + path + "\"}\n"),
              HasSubstr("cannot be read: no file " + path));
}

TEST_F(SecretTest, IsNeverWrittenInTheConfigurationNorRepeated) {
  const std::string problem = Problem(declared_, "token = \"hunter2\"\n");
  EXPECT_THAT(problem, HasSubstr("write {env = \"NAME\"} or {file = \"path\"}, never the value."));
  EXPECT_THAT(problem, testing::Not(HasSubstr("hunter2")));
  EXPECT_THAT(Problem(declared_, "token = {env = \"A\", file = \"b\"}\n"),
              HasSubstr("is a secret"));
}

TEST_F(SecretTest, PrintsAsItsReference) {
  setenv("CAPSTAN_TEST_SECRET", "hunter2", 1);
  const OptionSet set = Read(declared_, "token = {env = \"CAPSTAN_TEST_SECRET\"}\n");
  Value out = Value::Table();
  set.AppendTo(&out);
  EXPECT_EQ(ToToml(out), "token = {env = \"CAPSTAN_TEST_SECRET\"}\n");
  unsetenv("CAPSTAN_TEST_SECRET");
}

}  // namespace
}  // namespace capstan
