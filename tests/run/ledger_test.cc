// What the plan says is what the process holds.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/run/run_fixture.h"

namespace capstan::run_test {
namespace {

// Peak resident bytes of `capstan ARGUMENTS`.
int64_t PeakResident(const std::vector<std::string>& arguments) {
  const pid_t child = ::fork();
  if (child == 0) {
    const int null = ::open("/dev/null", O_RDWR);
    ::dup2(null, STDOUT_FILENO);
    std::vector<char*> argv{const_cast<char*>(CAPSTAN_BINARY)};
    for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
    argv.push_back(nullptr);
    ::execv(CAPSTAN_BINARY, argv.data());
    ::_exit(127);
  }
  int status = 0;
  struct rusage usage {};
  EXPECT_EQ(::wait4(child, &status, 0, &usage), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  return int64_t{usage.ru_maxrss} * 1024;
}

// Storage::CheckLedger compares every region with the device's own count and fails the run when they
// differ, so a run that ends well has an exact ledger. Here: the process as the kernel sees it.
TEST_F(TinyRun, ResidentMemoryIsTheLedgerAndFivePercent) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "the sanitizer's shadow memory counts as resident";
#endif
  const std::vector<std::string> size = {
      "--set", "model.width=512", "--set", "model.layers=6", "--set", "model.heads=8",
      "--set", "batch.micro=8",   "--set", "run.steps=2",    "--set", "model.max_sequence=24"};
  std::vector<std::string> plan = {"plan", config_, "--json"}, train = {"train", config_};
  plan.insert(plan.end(), size.begin(), size.end());
  train.insert(train.end(), size.begin(), size.end());
  const Outcome planned = Capstan(plan);
  ASSERT_EQ(planned.exit_code, 0) << planned.err;
  const auto memory = nlohmann::json::parse(planned.out)["memory"];
  const int64_t ledger = memory["total_bytes"], external = memory["external_bytes"];
  ASSERT_GT(ledger, 200'000'000);
  const int64_t peak = PeakResident(train);
  EXPECT_GT(peak, ledger / 2);
  EXPECT_LE(peak, static_cast<int64_t>(1.05 * static_cast<double>(ledger)) + external)
      << "ledger " << ledger << ", external " << external;
}

}  // namespace
}  // namespace capstan::run_test
