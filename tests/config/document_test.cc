// runtime/config/document.h: include and --set.
#include "runtime/config/document.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/config/fake_components.h"

namespace capstan {
namespace {

using testing::HasSubstr;
using testing_config::FakeFiles;

class IncludeTest : public testing::Test {
 protected:
  absl::StatusOr<Value> Load(const std::string& path) {
    return LoadDocument(path, files_.Reader());
  }
  std::string Problem(const std::string& path) {
    return std::string(Load(path).status().message());
  }
  FakeFiles files_;
};

TEST_F(IncludeTest, TheIncludingFileWinsKeyByKey) {
  files_.Add("/c/base.toml", "[run]\nsteps = 1\nseed = 2\n");
  files_.Add("/c/main.toml", "include = [\"base.toml\"]\n[run]\nsteps = 10\n");
  const absl::StatusOr<Value> value = Load("/c/main.toml");
  ASSERT_TRUE(value.ok()) << value.status();
  EXPECT_EQ(ToToml(*value), "[run]\nsteps = 10\nseed = 2\n");
}

TEST_F(IncludeTest, AnotherLengthOfTheRunTakesThePlaceOfTheIncludedOne) {
  files_.Add("/c/base.toml", "[run]\nsteps = 5\nseed = 2\n");
  files_.Add("/c/main.toml", "include = [\"base.toml\"]\n[run]\nepochs = 2.0\n");
  EXPECT_EQ(ToToml(*Load("/c/main.toml")), "[run]\nseed = 2\nepochs = 2.0\n");
  // Two in one file are still two.
  files_.Add("/c/both.toml", "include = [\"base.toml\"]\n[run]\nepochs = 2.0\ntokens = 9\n");
  EXPECT_EQ(ToToml(*Load("/c/both.toml")), "[run]\nseed = 2\nepochs = 2.0\ntokens = 9\n");
}

TEST_F(IncludeTest, PositionsSurviveMerging) {
  files_.Add("/c/base.toml", "[run]\nsteps = 1\nseed = 2\n");
  files_.Add("/c/main.toml", "include = [\"base.toml\"]\n[run]\nsteps = 10\n");
  const absl::StatusOr<Value> value = Load("/c/main.toml");
  ASSERT_TRUE(value.ok());
  EXPECT_EQ(value->FindPath("run.steps")->position.ToString(), "/c/main.toml:3");
  EXPECT_EQ(value->FindPath("run.seed")->position.ToString(), "/c/base.toml:3");
}

TEST_F(IncludeTest, LaterIncludesWinAndListsAreReplaced) {
  files_.Add("/c/a.toml", "x = 1\ny = [1, 2]\n[[strategy]]\nplugin = \"tp\"\n");
  files_.Add("/c/b.toml", "x = 2\n[[strategy]]\nplugin = \"dp\"\n");
  files_.Add("/c/main.toml", "include = [\"a.toml\", \"b.toml\"]\n");
  EXPECT_EQ(ToToml(*Load("/c/main.toml")), "x = 2\ny = [1, 2]\n\n[[strategy]]\nplugin = \"dp\"\n");
}

TEST_F(IncludeTest, PathsAreRelativeToTheIncludingFile) {
  files_.Add("/c/main.toml", "include = [\"sub/a.toml\"]\n");
  files_.Add("/c/sub/a.toml", "include = [\"../b.toml\"]\n");
  files_.Add("/c/b.toml", "x = 1\n");
  EXPECT_EQ(ToToml(*Load("/c/main.toml")), "x = 1\n");
}

TEST_F(IncludeTest, ADiamondIsFine) {
  files_.Add("/c/main.toml", "include = [\"a.toml\", \"b.toml\"]\n");
  files_.Add("/c/a.toml", "include = [\"base.toml\"]\n");
  files_.Add("/c/b.toml", "include = [\"base.toml\"]\n");
  files_.Add("/c/base.toml", "x = 1\n");
  EXPECT_TRUE(Load("/c/main.toml").ok());
}

TEST_F(IncludeTest, ACycleIsRefusedWithItsChain) {
  files_.Add("/c/a.toml", "include = [\"b.toml\"]\n");
  files_.Add("/c/b.toml", "\ninclude = [\"./a.toml\"]\n");
  EXPECT_EQ(Problem("/c/a.toml"),
            "/c/b.toml:2: /c/a.toml includes itself (/c/a.toml -> /c/b.toml -> /c/a.toml); remove "
            "one include.");
}

TEST_F(IncludeTest, AMissingFileNamesTheIncludeLine) {
  files_.Add("/c/a.toml", "\ninclude = [\"nowhere.toml\"]\n");
  EXPECT_EQ(Problem("/c/a.toml"), "/c/a.toml:2: no file /c/nowhere.toml.");
}

TEST_F(IncludeTest, MustBeAListOfNames) {
  files_.Add("/c/a.toml", "include = \"b.toml\"\n");
  EXPECT_THAT(Problem("/c/a.toml"), HasSubstr("write include = [\"base.toml\"]."));
  files_.Add("/c/b.toml", "include = [1]\n");
  EXPECT_THAT(Problem("/c/b.toml"), HasSubstr("/c/b.toml:1: include must be a list"));
}

TEST(ReadConfigFile, RefusesWhatIsNotARegularFile) {
  EXPECT_THAT(std::string(ReadConfigFile("/nowhere/x.toml").status().message()),
              HasSubstr("no file /nowhere/x.toml"));
  EXPECT_THAT(std::string(ReadConfigFile("/dev/zero").status().message()),
              HasSubstr("not a regular file"));
}

TEST(ReadConfigFile, ReadsFilesEmptyOnesToo) {
  const std::string path = testing::TempDir() + "capstan_document_test.toml";
  std::ofstream(path) << "x = 1\n";
  EXPECT_EQ(*ReadConfigFile(path), "x = 1\n");
  std::ofstream(path).close();
  EXPECT_EQ(*ReadConfigFile(path), "");
  std::filesystem::remove(path);
}

// ---- --set
// ---------------------------------------------------------------------------------------

class OverrideTest : public testing::Test {
 protected:
  OverrideTest() {
    files_.Add("/c/a.toml", R"([run]
steps = 10
[optimizer]
betas = [0.9, 0.95]
[[strategy]]
plugin = "tp"
[[strategy]]
plugin = "pp"
id = "stages"
[[data.source]]
path = "a.bin"
)");
    document_ = *LoadDocument("/c/a.toml", files_.Reader());
  }
  absl::Status Set(const std::string& argument) { return ApplyOverride(argument, &document_); }
  std::string Problem(const std::string& argument) { return std::string(Set(argument).message()); }
  const Value& At(const std::string& path) { return *document_.FindPath(path); }

  FakeFiles files_;
  Value document_;
};

TEST_F(OverrideTest, ReplacesAValueAndMakesNewTables) {
  ASSERT_TRUE(Set("run.steps=20").ok());
  ASSERT_TRUE(Set("optimizer.schedule.kind=\"cosine\"").ok());
  EXPECT_EQ(At("run.steps").integer, 20);
  EXPECT_EQ(At("optimizer.schedule.kind").text, "cosine");
}

TEST_F(OverrideTest, WhatIsNotTomlIsAString) {
  ASSERT_TRUE(Set("run.dir=runs/a b").ok());
  EXPECT_EQ(At("run.dir").text, "runs/a b");
  ASSERT_TRUE(Set("run.name=").ok());
  EXPECT_EQ(At("run.name").text, "");
  ASSERT_TRUE(Set("run.name=a=b").ok());
  EXPECT_EQ(At("run.name").text, "a=b");
}

TEST_F(OverrideTest, RemembersTheTextOfANumberForStringOptions) {
  ASSERT_TRUE(Set("run.name=2024").ok());
  EXPECT_EQ(At("run.name").kind, Value::Kind::kInt);
  EXPECT_EQ(At("run.name").raw, "2024");
}

TEST_F(OverrideTest, AddressesListEntriesByPluginIdAndIndex) {
  ASSERT_TRUE(Set("strategy.tp.overlap=true").ok());
  ASSERT_TRUE(Set("strategy.stages.schedule=gpipe").ok());
  ASSERT_TRUE(Set("strategy.0.extra=1").ok());
  ASSERT_TRUE(Set("data.source.0.weight=2.0").ok());
  ASSERT_TRUE(Set("optimizer.betas.1=0.99").ok());
  EXPECT_TRUE(document_.Find("strategy")->items[0].Find("overlap")->boolean);
  EXPECT_EQ(document_.Find("strategy")->items[1].Find("schedule")->text, "gpipe");
  EXPECT_EQ(document_.Find("strategy")->items[0].Find("extra")->integer, 1);
  EXPECT_EQ(At("data.source").items[0].Find("weight")->real, 2.0);
  EXPECT_EQ(At("optimizer.betas").items[1].real, 0.99);
}

TEST_F(OverrideTest, TheNextIndexAppends) {
  ASSERT_TRUE(Set("strategy.2.plugin=dp").ok());
  EXPECT_EQ(document_.Find("strategy")->items.size(), 3u);
  EXPECT_EQ(Problem("strategy.7.plugin=dp"),
            "--set strategy.7.plugin: strategy has 3 entries; the next index is 3, not 7.");
}

TEST_F(OverrideTest, IndexZeroBeginsAList) {
  ASSERT_TRUE(Set("tracker.0.plugin=jsonl").ok());
  EXPECT_EQ(At("tracker").items.at(0).Find("plugin")->text, "jsonl");
}

TEST_F(OverrideTest, AnUnknownEntryListsThoseThereAre) {
  EXPECT_EQ(Problem("strategy.zero1.x=1"),
            "--set strategy.zero1.x: no entry of strategy has the plugin or id \"zero1\"; there is "
            "tp, stages, pp.");
}

TEST_F(OverrideTest, AnAmbiguousNameIsRefused) {
  ASSERT_TRUE(Set("strategy.2.plugin=tp").ok());
  EXPECT_THAT(Problem("strategy.tp.overlap=true"), HasSubstr("several entries of strategy"));
}

TEST_F(OverrideTest, QuotedKeysMayHoldDots) {
  ASSERT_TRUE(Set("run.\"a.b\"=1").ok());
  EXPECT_EQ(document_.Find("run")->Find("a.b")->integer, 1);
}

TEST_F(OverrideTest, MalformedArgumentsAreRefused) {
  for (const char* bad :
       {"run.steps", "=1", "run..steps=1", ".a=1", "run.=1", "\"a=1", "\"a\"b=1"}) {
    EXPECT_THAT(Problem(bad), HasSubstr("--set table.key=value")) << bad;
  }
  EXPECT_THAT(Problem("include=[\"x\"]"), HasSubstr("only inside a file"));
}

TEST_F(OverrideTest, AKeyBelowAPlainValueIsRefused) {
  EXPECT_EQ(Problem("run.steps.x=1"),
            "--set run.steps.x: run.steps is the integer 10, so it has no key \"x\".");
}

TEST_F(OverrideTest, MessagesNeverRepeatTheValue) {
  EXPECT_THAT(Problem("strategy.zero1.token=hunter2"), testing::Not(HasSubstr("hunter2")));
}

TEST_F(OverrideTest, InvalidUtf8IsRefused) {
  EXPECT_THAT(Problem("run.name=\xff\xfe"), HasSubstr("not valid UTF-8"));
}

}  // namespace
}  // namespace capstan
