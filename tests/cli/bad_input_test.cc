// Whatever is wrong with a command or its files, the answer is a sentence and exit code 2 (usage),
// never a crash.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>

#include "tests/cli/process.h"

namespace capstan::cli_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

void ExpectUsageError(const std::vector<std::string>& arguments,
                      const testing::Matcher<std::string>& message) {
  const Outcome o = Capstan(arguments);
  EXPECT_EQ(o.exit_code, 2) << o.out << o.err;
  EXPECT_EQ(o.signal, 0);
  EXPECT_THAT(o.err, message);
}

TEST(BadCommand, IsRefused) {
  ExpectUsageError({}, HasSubstr("subcommand"));
  ExpectUsageError({"trane"}, HasSubstr("subcommand"));
  ExpectUsageError({"plan", "--no-such-flag"}, HasSubstr("--no-such-flag"));
  ExpectUsageError({"plan", "--params", "many"}, HasSubstr("many"));
  ExpectUsageError({"data"}, HasSubstr("subcommand"));
  ExpectUsageError({"train"}, HasSubstr("config"));
}

TEST(BadCommand, HelpIsNoError) {
  const Outcome o = Capstan({"--help"});
  EXPECT_EQ(o.exit_code, 0);
  EXPECT_THAT(o.out, AllOf(HasSubstr("train"), HasSubstr("plan"), HasSubstr("export")));
}

TEST(BadPlan, IsRefused) {
  ExpectUsageError({"plan"}, HasSubstr("--params"));
  ExpectUsageError({"plan", "x.toml", "--params", "7e9"}, HasSubstr("not both"));
  ExpectUsageError({"plan", "--params", "-7e9"}, HasSubstr("number of parameters"));
  ExpectUsageError({"plan", "--params", "7e9", "--precision", "fp23"},
                   HasSubstr("did you mean \"fp32\"?"));
  ExpectUsageError({"plan", "--params", "7e9", "--ranks", "8", "--strategy", "zero9"},
                   HasSubstr("zero3"));
  ExpectUsageError({"plan", "--params", "7e9", "--strategy", "zero1"}, HasSubstr("--ranks"));
  ExpectUsageError({"plan", "--params", "7e9", "--ranks", "0"}, HasSubstr("0"));
  ExpectUsageError({"plan", "--params", "7e9", "--set", "a.b=1"}, HasSubstr("--set"));
  ExpectUsageError({"plan", "--params", "7e9", "--gpu", "H10O"},
                   AllOf(HasSubstr("did you mean \"H100\"?"), HasSubstr("RTX 4090")));
  ExpectUsageError({"plan", ConfigPath("tiny-gpt.toml"), "--precision", "bf16"},
                   HasSubstr("--precision"));
  ExpectUsageError({"plan", ConfigPath("tiny-gpt.toml"), "--gpu", "no such"},
                   HasSubstr("known are"));
}

TEST(BadConfig, AMissingFileIsNamed) {
  for (const char* command : {"plan", "train", "dump"}) {
    ExpectUsageError({command, "/no/such/file.toml"},
                     AllOf(StartsWith("capstan: "), HasSubstr("/no/such/file.toml")));
  }
}

TEST(BadConfig, MistakesAreToldWithPlaceAndRemedy) {
  const Folder folder;
  const std::string good = TinyConfig(folder);
  const std::string text = ReadAll(good);
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    changed.replace(changed.find(from), from.size(), to);
    return folder.Write("changed.toml", changed);
  };
  ExpectUsageError({"plan", with("layers", "layrs")},
                   AllOf(HasSubstr("changed.toml:9"), HasSubstr("layrs"), HasSubstr("layers")));
  ExpectUsageError({"plan", with("layers = 2", "layers = \"two\"")}, HasSubstr("changed.toml:9"));
  ExpectUsageError({"plan", with("layers = 2", "layers = -2")}, HasSubstr("changed.toml:9"));
  ExpectUsageError({"plan", with("\"adamw\"", "\"adanw\"")}, HasSubstr("adanw"));
  ExpectUsageError({"plan", with("[model]", "[modle]")}, HasSubstr("modle"));
  ExpectUsageError({"plan", with("[batch]", "[batch")}, HasSubstr("changed.toml"));
  ExpectUsageError({"plan", with("heads = 2", "heads = 5")}, HasSubstr("divide"));
  ExpectUsageError({"plan", with("sequence_length = 16", "sequence_length = 17")},
                   HasSubstr("sequence_length"));
  ExpectUsageError({"plan", with("global = 4", "global = 3")}, HasSubstr("global"));
}

TEST(BadConfig, OverridesAreCheckedLikeTheFile) {
  const Folder folder;
  const std::string good = TinyConfig(folder);
  ExpectUsageError({"plan", good, "--set", "model.layers"}, HasSubstr("model.layers"));
  ExpectUsageError({"plan", good, "--set", "model.layrs=3"}, HasSubstr("layers"));
  ExpectUsageError({"plan", good, "--set", "model.layers=many"}, HasSubstr("many"));
  ExpectUsageError({"plan", good, "--set", "strategy.tp.degree=2"}, HasSubstr("tp"));
  ExpectUsageError({"plan", good, "--set", "model.trainable=[\"nothing.*\"]"},
                   HasSubstr("matches no parameter"));
}

TEST(BadConfig, CountsBeyondAnyRunAreRefused) {
  const Folder folder;
  const std::string good = TinyConfig(folder);
  ExpectUsageError({"plan", good, "--set", "batch.global=8589934592"}, HasSubstr("batch.global"));
  ExpectUsageError({"plan", good, "--set", "batch.global=16000000", "--set", "batch.micro=1"},
                   HasSubstr("microbatches"));
  ExpectUsageError({"plan", good, "--set", "batch.micro=4611686018427387904", "--set",
                    "batch.global=4611686018427387904"},
                   HasSubstr("batch.micro"));
  ExpectUsageError({"plan", good, "--set", "run.steps=9223372036854775807"},
                   HasSubstr("run.steps"));
  ExpectUsageError({"plan", good, "--set", "mesh.dp=7", "--set", "mesh.tp=7905747460161236407"},
                   HasSubstr("ranks"));  // a product of 1 modulo 2^64
}

TEST(BadConfig, NothingToTrainIsSaid) {
  const Folder folder;
  const std::string good = TinyConfig(folder);
  ExpectUsageError({"plan", good, "--set", "model.trainable=[]"}, HasSubstr("model.trainable"));
  ExpectUsageError({"plan", good, "--set", "optimizer.group=[{match=[\"nothing.*\"]}]"},
                   AllOf(HasSubstr("optimizer.group.0"), HasSubstr("nothing.*")));
}

TEST(BadConfig, AKeyOfEndlessPartsIsRefused) {
  const Folder folder;
  std::string key;
  for (int i = 0; i < 200'000; ++i) key += "a.";
  ExpectUsageError({"plan", folder.Write("deep.toml", "x = 1\n" + key + "b = 1\n")},
                   AllOf(HasSubstr("deep.toml:2"), HasSubstr("64 parts")));
  ExpectUsageError({"plan", TinyConfig(folder), "--set", key.substr(0, 100'000) + "b=1"},
                   HasSubstr("64 parts"));
  // Dots of values and comments are no parts of keys.
  ExpectUsageError({"plan", folder.Write("dots.toml", "x = \"" + key + "\" # " + key + "\n")},
                   HasSubstr("batch.global"));
}

TEST(BadPlugin, OneCutShortIsToldNotMapped) {
  const Folder folder;
  const std::string whole = ReadAll(std::filesystem::path(CAPSTAN_BINARY).parent_path() /
                                    "plugins/libcapstan_model_gpt2.so");
  ASSERT_GT(whole.size(), 20000u);
  const std::string cut = folder.Write("libcut.so", whole.substr(0, 8192));
  const Outcome o = Capstan({"plugins", "show", cut});
  EXPECT_EQ(o.exit_code, 2) << o.out;
  EXPECT_EQ(o.signal, 0);
  EXPECT_THAT(o.err, AllOf(HasSubstr("libcut.so"), HasSubstr("cut short")));
}

TEST(BadOutput, WhatIsNotPrintedIsAFailure) {
  const std::string command =
      std::string("\"") + CAPSTAN_BINARY + "\" plan --params 7e9 >/dev/full";
  const int status = std::system(command.c_str());
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 1);
}

TEST(BadConfig, AHugeModelIsPlannedNotBuilt) {
  const Folder folder;
  const Outcome o = Capstan({"plan", TinyConfig(folder), "--set", "model.width=65536", "--set",
                             "model.vocabulary=1000000000"});
  EXPECT_EQ(o.exit_code, 0) << o.err;
  EXPECT_THAT(o.out, HasSubstr("this machine: does not fit"));
}

TEST(BadData, IsNamedBeforeTraining) {
  const Folder folder;
  const std::string config = TinyConfig(folder);
  const Outcome absent = Capstan({"train", config});
  EXPECT_GT(absent.exit_code, 0);
  EXPECT_EQ(absent.signal, 0);
  EXPECT_THAT(absent.err, HasSubstr("train-*.ctok"));
  folder.Write("data/train-00000.ctok", "not a shard");
  const Outcome damaged = Capstan({"train", config});
  EXPECT_GT(damaged.exit_code, 0);
  EXPECT_EQ(damaged.signal, 0);
  EXPECT_THAT(damaged.err, HasSubstr("train-00000.ctok"));
}

TEST(BadData, APipeIsNotWaitedFor) {
  const Folder folder;
  const std::string pipe = folder / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const Outcome o =
      Capstan({"train", TinyConfig(folder), "--set", "data.source=[{path=\"" + pipe + "\"}]"});
  EXPECT_EQ(o.exit_code, 2) << o.err;
  EXPECT_THAT(o.err, HasSubstr("is not a regular file"));
}

TEST(BadData, WeightsThatAddUpToInfinityAreRefused) {
  const Folder folder;
  const std::string config = TinyConfig(folder);
  const Outcome o = Capstan({"train", config, "--set",
                             "data.source=[{path=\"a\",weight=1e308},{path=\"b\",weight=1e308}]"});
  EXPECT_EQ(o.exit_code, 2) << o.err;
  EXPECT_THAT(o.err, HasSubstr("weights"));
}

}  // namespace
}  // namespace capstan::cli_test
