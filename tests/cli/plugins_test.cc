// `capstan plugins list` and `plugins show`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "nlohmann/json.hpp"
#include "tests/cli/process.h"

namespace capstan::cli_test {
namespace {

using Json = nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string PluginFile(const std::string& name) {
  return (std::filesystem::path(CAPSTAN_BINARY).parent_path() / "plugins" / name).string();
}

// Runs with another plugin folder for as long as it lives.
class PluginPath {
 public:
  explicit PluginPath(const std::string& path) { ::setenv("CAPSTAN_PLUGIN_PATH", path.c_str(), 1); }
  ~PluginPath() { ::unsetenv("CAPSTAN_PLUGIN_PATH"); }
};

TEST(PluginsList, ShowsKindIdVersionFileAndDescription) {
  const Outcome o = Capstan({"plugins", "list"});
  EXPECT_EQ(o.exit_code, 0) << o.err;
  EXPECT_THAT(o.out, AllOf(HasSubstr("KIND"), HasSubstr("adamw"), HasSubstr("safetensors"),
                           HasSubstr("libcapstan_model_gpt2.so"), HasSubstr("1.0.0")));
  EXPECT_EQ(o.err, "");
}

TEST(PluginsList, GivesJson) {
  const Outcome o = Capstan({"plugins", "list", "--json"});
  ASSERT_EQ(o.exit_code, 0) << o.err;
  const Json json = Json::parse(o.out);
  EXPECT_TRUE(json["failures"].empty());
  bool found = false;
  for (const Json& c : json["components"]) found |= c["kind"] == "optimizer" && c["id"] == "adamw";
  EXPECT_TRUE(found);
}

TEST(PluginsList, SaysWhyAFileDoesNotLoadAndListsTheRest) {
  const Folder folder;
  folder.Write("libcapstan_optimizer_broken.so", "not a library");
  std::filesystem::copy(PluginFile("libcapstan_optimizer_sgd.so"), folder.path());
  const PluginPath path(folder.path());
  const Outcome o = Capstan({"plugins", "list"});
  EXPECT_EQ(o.exit_code, 0);
  EXPECT_THAT(o.out, HasSubstr("sgd"));
  EXPECT_THAT(o.err, AllOf(HasSubstr("cannot load"), HasSubstr("libcapstan_optimizer_broken.so")));
}

TEST(PluginsShow, TellsOptionsWithDefaultAndRange) {
  const Outcome o = Capstan({"plugins", "show", "adamw"});
  EXPECT_EQ(o.exit_code, 0) << o.err;
  EXPECT_THAT(o.out, AllOf(HasSubstr("optimizer/adamw"), HasSubstr("licence: Apache-2.0"),
                           HasSubstr("ABI: 1."), HasSubstr("betas"), HasSubstr("[0.9, 0.95]"),
                           HasSubstr("0 to 1")));
}

TEST(PluginsShow, OfTheHostTellsTheKeysOfEveryTable) {
  const Outcome o = Capstan({"plugins", "show", "host"});
  EXPECT_EQ(o.exit_code, 0) << o.err;
  for (const char* text : {"[run]", "[[strategy]]", "[[optimizer.group]]", "clip_norm", "timeout_s",
                           "plugin of kind model", "every  (an integer, default 0"}) {
    EXPECT_THAT(o.out, HasSubstr(text));
  }
}

TEST(PluginsShow, TellsThePhasesAStrategyRewritesIn) {
  const Outcome o = Capstan({"plugins", "show", "strategy/recompute"});
  EXPECT_EQ(o.exit_code, 0) << o.err;
  EXPECT_THAT(o.out, AllOf(HasSubstr("phases: recompute"), HasSubstr("one of full selective")));
}

TEST(PluginsShow, AnIdOfTwoKindsShowsBothAndKindPicksOne) {
  const Outcome both = Capstan({"plugins", "show", "tokens"});
  EXPECT_THAT(both.out, AllOf(HasSubstr("dataset/tokens"), HasSubstr("dataset_writer/tokens")));
  const Outcome one = Capstan({"plugins", "show", "dataset/tokens"});
  EXPECT_THAT(one.out, AllOf(HasSubstr("dataset/tokens"), Not(HasSubstr("dataset_writer/"))));
}

TEST(PluginsShow, TakesAFile) {
  const Outcome o =
      Capstan({"plugins", "show", PluginFile("libcapstan_optimizer_sgd.so"), "--json"});
  ASSERT_EQ(o.exit_code, 0) << o.err;
  const Json json = Json::parse(o.out);
  ASSERT_EQ(json.size(), 1u);
  EXPECT_EQ(json[0]["id"], "sgd");
  EXPECT_EQ(json[0]["plugin"]["licence"], "Apache-2.0");
  EXPECT_EQ(json[0]["options"][0]["name"], "lr");
}

TEST(PluginsShow, AnUnknownNameSuggestsTheNearest) {
  const Outcome o = Capstan({"plugins", "show", "adanw"});
  EXPECT_EQ(o.exit_code, 2);
  EXPECT_THAT(o.err, HasSubstr("did you mean \"adamw\"?"));
}

TEST(PluginsShow, AFileThatIsNoPluginIsRefusedInASentence) {
  const Folder folder;
  const std::string file = folder.Write("notes.so", "no ELF");
  const Outcome o = Capstan({"plugins", "show", file});
  EXPECT_GT(o.exit_code, 0);
  EXPECT_THAT(o.err, HasSubstr(file));
}

}  // namespace
}  // namespace capstan::cli_test
