// comm/shm against the plain reference, over every way its data can travel.
#include "tests/comm/conformance.h"

#include <gtest/gtest.h>

#include "tests/comm/ranks.h"

namespace capstan::test {
namespace {

struct Way {
  const char* name;
  bool registered;  // buffers in registered memory
  std::vector<OptionValue> options;
};

const Way kWays[] = {
    {"Registered", true, {}},
    {"Private", false, {}},
    {"Staged", false, {{"far_memory", CAPSTAN_OPTION_STRING, 0, "staged"}}},
    {"NeverEager", true, {{"eager_bytes", CAPSTAN_OPTION_INT, 0, ""}}},
    {"Streaming",
     true,
     {{"stream_mib", CAPSTAN_OPTION_INT, 0, ""}, {"eager_bytes", CAPSTAN_OPTION_INT, 0, ""}}},
};

constexpr size_t kArenaBytes = size_t{64} << 20;

using Check = ConformanceReport (*)(const capstan_comm_v1&, void*, int, int,
                                    const ConformanceOptions&);

void RunWay(const Way& way, int world, Check check, bool quick) {
  const RunOptions options = {.world = world,
                              .plugin = CAPSTAN_TEST_COMM_PLUGIN,
                              .options = way.options,
                              .deadline_s = 300};
  const RunResult result = RunRanks(options, [&](Rank& rank) {
    const Comm comm(rank);
    const SharedArena arena(way.registered ? kArenaBytes : 4096);
    sdk::check(
        comm.vtable().memory_register(comm.self(), arena.data(), arena.bytes(), arena.fd(), 0));
    ConformanceOptions chosen;
    chosen.quick = quick;
    if (way.registered) {
      chosen.arena = arena.data();
      chosen.arena_bytes = arena.bytes();
    }
    const ConformanceReport report =
        check(comm.vtable(), comm.self(), rank.rank(), rank.world(), chosen);
    for (const std::string& failure : report.failures) rank.fail(failure);
    rank.expect(report.operations > 0, "checked nothing");
    comm.vtable().memory_unregister(comm.self(), arena.data());
  });
  EXPECT_EQ(result.text(), "");
}

struct Setting {
  const Way* way;
  int world;
  bool quick;
};

class Conformance : public testing::TestWithParam<Setting> {};

TEST_P(Conformance, EveryCollectiveGivesWhatTheReferenceGives) {
  const Setting& s = GetParam();
  RunWay(*s.way, s.world, &RunConformance, s.quick);
}

std::string NameOf(const Setting& s) {
  return std::string(s.way->name) + "On" + std::to_string(s.world);
}
void PrintTo(const Setting& s, std::ostream* out) { *out << NameOf(s); }

// All sizes where it matters how data travels, and each way on even, odd and shared cores.
std::vector<Setting> Settings() {
  std::vector<Setting> all = {{&kWays[0], 1, false}, {&kWays[0], 3, true}, {&kWays[1], 3, true}};
  for (const Way& way : kWays) {
    all.push_back({&way, 2, false});
    all.push_back({&way, 4, true});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Ways, Conformance, testing::ValuesIn(Settings()),
                         [](const auto& info) { return NameOf(info.param); });

TEST(Requests, WrongOnesAreRefusedAtPrepare) {
  for (const int world : {1, 3}) RunWay(kWays[0], world, &RunBadRequests, false);
}

TEST(Requests, RanksThatDisagreeAreToldOnEveryRank) {
  for (const Way& way : kWays) {
    for (const int world : {2, 3}) RunWay(way, world, &RunMismatches, false);
  }
}

}  // namespace
}  // namespace capstan::test
