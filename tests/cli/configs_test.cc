// The configurations of configs/: each plans as it stands, with the parameter count that its
// model's authors published.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <filesystem>
#include <iterator>

#include "nlohmann/json.hpp"
#include "tests/cli/process.h"

namespace capstan::cli_test {
namespace {

using Json = nlohmann::json;

struct Published {
  const char* file;
  int64_t parameters;
};

constexpr Published kPublished[] = {
    {"gpt2-124m.toml", 124'439'808},    {"gpt2-355m.toml", 354'823'168},
    {"gpt2-774m.toml", 774'030'080},    {"gpt2-1.5b.toml", 1'557'611'200},
    {"llama-7b.toml", 6'738'415'616},   {"llama-13b.toml", 13'015'864'320},
    {"llama-70b.toml", 68'976'648'192}, {"tiny-gpt.toml", 10'844'160},
};

class Configs : public testing::TestWithParam<Published> {};

TEST_P(Configs, PlansWithThePublishedNumberOfParameters) {
  const Outcome o = Capstan({"plan", ConfigPath(GetParam().file), "--json"});
  ASSERT_EQ(o.exit_code, 0) << o.err;
  const Json json = Json::parse(o.out);
  EXPECT_EQ(json["parameters"]["total"], GetParam().parameters);
  EXPECT_EQ(json["parameters"]["trainable"], GetParam().parameters);
}

std::string NameOf(const testing::TestParamInfo<Published>& info) {
  std::string name = std::filesystem::path(info.param.file).stem().string();
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, Configs, testing::ValuesIn(kPublished), NameOf);

// Of the first and the last rank of 3,072, by the process that needed most.
TEST(ConfigsFolder, ATrillionParametersArePlannedInTwoGigabytes) {
  for (const char* rank : {"0", "3071"}) {
    const Outcome o = Capstan({"plan", ConfigPath("gpt-1t.toml"), "--rank", rank, "--json"});
    ASSERT_EQ(o.exit_code, 0) << o.err;
    const Json json = Json::parse(o.out);
    EXPECT_GT(json["parameters"]["total"], 1'000'000'000'000);
    EXPECT_EQ(json["batch"]["microbatches"], 512);
  }
  struct rusage children {};
  ASSERT_EQ(getrusage(RUSAGE_CHILDREN, &children), 0);
  EXPECT_LT(children.ru_maxrss, 2'000'000);  // kilobytes
}

TEST(ConfigsFolder, EveryFilePlansAsItStands) {
  int files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(ConfigPath(""))) {
    if (entry.path().extension() != ".toml") continue;
    if (entry.path().parent_path().filename() == "include") continue;  // parts of others
    const Outcome o = Capstan({"plan", entry.path().string()});
    EXPECT_EQ(o.exit_code, 0) << entry.path() << ": " << o.err;
    ++files;
  }
  EXPECT_GE(files, static_cast<int>(std::size(kPublished)));
}

}  // namespace
}  // namespace capstan::cli_test
