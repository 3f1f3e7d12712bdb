// The Program as text: stable from run to run, and the same as the committed dumps.
//
// After an intended change, regenerate with
//     CAPSTAN_UPDATE_DUMPS=1 ctest --test-dir build/release -R Dump
// and review the difference as text.
#include <cstdlib>
#include <fstream>

#include "tests/run/run_fixture.h"

namespace capstan::run_test {
namespace {

struct DumpCase {
  std::string name;
  std::vector<std::string> arguments;
};

class Dump : public TinyRun, public testing::WithParamInterface<DumpCase> {};

TEST_P(Dump, IsTheCommittedText) {
  std::vector<std::string> arguments = {"dump", config_, "--set", "model.layers=1"};
  arguments.insert(arguments.end(), GetParam().arguments.begin(), GetParam().arguments.end());
  const Outcome first = Capstan(arguments), second = Capstan(arguments);
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_EQ(first.out, second.out);
  const std::string path =
      std::string(CAPSTAN_REPOSITORY) + "/tests/run/dumps/" + GetParam().name + ".txt";
  if (std::getenv("CAPSTAN_UPDATE_DUMPS") != nullptr)
    std::ofstream(path, std::ios::binary) << first.out;
  EXPECT_EQ(first.out, ReadAll(path)) << "differs from " << path;
}

INSTANTIATE_TEST_SUITE_P(
    Programs, Dump,
    testing::Values(DumpCase{"train", {}},
                    DumpCase{"before_differentiate", {"--before", "differentiate"}},
                    DumpCase{"after_differentiate", {"--after", "differentiate"}},
                    DumpCase{"eval", {"--program", "eval"}},
                    DumpCase{"prefill", {"--program", "prefill"}},
                    DumpCase{"decode", {"--program", "decode"}}),
    [](const auto& info) { return info.param.name; });

TEST_F(TinyRun, DumpOfAnUnknownPhaseNamesThePhases) {
  const Outcome outcome = Capstan({"dump", config_, "--after", "tensors"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_NE(outcome.err.find("differentiate"), std::string::npos) << outcome.err;
}

}  // namespace
}  // namespace capstan::run_test
