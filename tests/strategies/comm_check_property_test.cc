// Thousands of random schedules against what is known of them: one that follows a common order of
// all operations never ends in a cycle; whether any other does is whether a graph has one.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <set>

#include "runtime/exec/comm_check.h"
#include "runtime/status.h"
#include "tests/strategies/comm_script.h"

namespace capstan::strategies_test {
namespace {

// One operation among ranks, or one message.
struct Operation {
  std::string axis, what;
  std::vector<int32_t> members;  // of a message: source, destination
  int channel = -1;              // of a message
  bool message() const { return channel >= 0; }
};

struct Step {
  enum Kind { kStart, kWait } kind;
  int operation;
};

struct World {
  Mesh mesh;
  std::vector<Operation> operations;
  std::vector<std::vector<Step>> ranks;
};

class Generator {
 public:
  explicit Generator(uint32_t seed) : random_(seed) {}
  int Below(int n) { return static_cast<int>(random_() % static_cast<uint32_t>(n)); }

  // Ranks that follow one common order of operations, each with waits where it likes.
  World Correct() {
    World world;
    const std::vector<std::vector<MeshAxis>> meshes = {{{"dp", 2}},
                                                       {{"dp", 4}},
                                                       {{"tp", 2}, {"dp", 2}},
                                                       {{"tp", 2}, {"dp", 3}},
                                                       {{"tp", 2}, {"dp", 2}, {"pp", 2}}};
    world.mesh = *Mesh::Layout(meshes[static_cast<size_t>(Below(5))], 0);
    const int count = 1 + Below(14);
    for (int i = 0; i < count; ++i) world.operations.push_back(Any(world.mesh));
    world.ranks.resize(static_cast<size_t>(world.mesh.world()));
    std::vector<std::vector<int>> open(world.ranks.size());
    for (int i = 0; i < count; ++i) {
      for (const int32_t r : world.operations[static_cast<size_t>(i)].members) {
        const auto rank = static_cast<size_t>(r);
        while (!open[rank].empty() && Below(3) != 0) WaitForOne(world, rank, open[rank]);
        world.ranks[rank].push_back({Step::kStart, i});
        open[rank].push_back(i);
      }
    }
    for (size_t r = 0; r < open.size(); ++r) {
      while (!open[r].empty()) WaitForOne(world, r, open[r]);
    }
    return world;
  }

 private:
  Operation Any(const Mesh& mesh) {
    Operation o;
    const std::vector<MeshAxis>& axes = mesh.axes();
    o.axis = axes[static_cast<size_t>(Below(static_cast<int>(axes.size())))].name;
    o.what = std::string(1, static_cast<char>('a' + Below(3)));
    o.members = mesh.Group({o.axis}, Below(static_cast<int>(mesh.world())));
    if (Below(3) != 0) return o;
    const int size = static_cast<int>(o.members.size());
    const int from = Below(size), to = (from + 1 + Below(size - 1)) % size;
    o.members = {o.members[static_cast<size_t>(from)], o.members[static_cast<size_t>(to)]};
    o.channel = Below(2);
    return o;
  }

  void WaitForOne(World& world, size_t rank, std::vector<int>& open) {
    const auto which = static_cast<size_t>(Below(static_cast<int>(open.size())));
    world.ranks[rank].push_back({Step::kWait, open[which]});
    open.erase(open.begin() + static_cast<ptrdiff_t>(which));
  }

  std::mt19937 random_;
};

std::vector<std::string> Texts(const World& world) {
  std::vector<std::string> texts;
  for (size_t r = 0; r < world.ranks.size(); ++r) {
    Script script;
    std::map<int, int> numbers;
    for (const Step& step : world.ranks[r]) {
      if (step.kind == Step::kWait) {
        script.Wait(numbers.at(step.operation));
        continue;
      }
      const Operation& o = world.operations[static_cast<size_t>(step.operation)];
      const std::string name = StrCat("op ", step.operation);
      if (!o.message()) {
        numbers[step.operation] = script.Start(o.axis, o.what, name);
        continue;
      }
      const bool sends = o.members[0] == static_cast<int32_t>(r);
      const std::vector<int32_t> group = world.mesh.Group({o.axis}, static_cast<int64_t>(r));
      const auto peer = static_cast<int>(
          std::find(group.begin(), group.end(), o.members[sends ? 1 : 0]) - group.begin());
      numbers[step.operation] = sends ? script.Send(o.axis, peer, o.channel, o.what, name)
                                      : script.Recv(o.axis, peer, o.channel, o.what, name);
    }
    texts.push_back(script.text());
  }
  return texts;
}

// An operation is done when all its members have started it; a member starts it when all it waits
// for before is done. Some operation is never done exactly when this relation has a cycle.
bool HasCycle(const World& world) {
  const auto count = static_cast<int>(world.operations.size());
  std::vector<std::set<int>> after(static_cast<size_t>(count));
  for (const std::vector<Step>& steps : world.ranks) {
    std::set<int> waited;
    for (const Step& step : steps) {
      if (step.kind == Step::kWait) {
        waited.insert(step.operation);
      } else {
        after[static_cast<size_t>(step.operation)].insert(waited.begin(), waited.end());
      }
    }
  }
  std::vector<bool> done(static_cast<size_t>(count), false);
  for (int turn = 0; turn < count; ++turn) {
    for (int i = 0; i < count; ++i) {
      const std::set<int>& needs = after[static_cast<size_t>(i)];
      done[static_cast<size_t>(i)] = std::all_of(needs.begin(), needs.end(), [&](int before) {
        return bool{done[static_cast<size_t>(before)]};
      });
    }
  }
  return !std::all_of(done.begin(), done.end(), [](bool d) { return d; });
}

// Two starts of one rank, by where they stand.
std::vector<std::pair<size_t, size_t>> PairsOfStarts(
    const World& world, size_t rank,
    const std::function<bool(const Operation&, const Operation&)>& wanted) {
  std::vector<std::pair<size_t, size_t>> pairs;
  const std::vector<Step>& steps = world.ranks[rank];
  for (size_t i = 0; i < steps.size(); ++i) {
    for (size_t j = i + 1; j < steps.size(); ++j) {
      if (steps[i].kind != Step::kStart || steps[j].kind != Step::kStart) continue;
      const Operation& a = world.operations[static_cast<size_t>(steps[i].operation)];
      const Operation& b = world.operations[static_cast<size_t>(steps[j].operation)];
      if (wanted(a, b)) pairs.emplace_back(i, j);
    }
  }
  return pairs;
}

// The two starts change places, and the waits for them too, so that each still comes after its start.
void Swap(std::vector<Step>& steps, size_t i, size_t j) {
  const int a = steps[i].operation, b = steps[j].operation;
  for (Step& step : steps) {
    if (step.operation == a) {
      step.operation = b;
    } else if (step.operation == b) {
      step.operation = a;
    }
  }
}

TEST(CommunicationProperty, ACommonOrderIsNeverRefused) {
  Generator generator(1);
  size_t operations = 0;
  for (int trial = 0; trial < 4000; ++trial) {
    const World world = generator.Correct();
    operations += world.operations.size();
    ASSERT_FALSE(HasCycle(world)) << trial;
    ASSERT_EQ(CheckCommunication(world.mesh, Texts(world)), absl::OkStatus()) << trial;
  }
  EXPECT_GT(operations, 20000u);
}

TEST(CommunicationProperty, SwappedCollectivesOfOneGroupAreRefusedUnlessTheyAreAlike) {
  Generator generator(2);
  int refused = 0, harmless = 0;
  for (int trial = 0; trial < 4000; ++trial) {
    World world = generator.Correct();
    const auto rank = static_cast<size_t>(generator.Below(static_cast<int>(world.ranks.size())));
    const auto pairs = PairsOfStarts(world, rank, [](const Operation& a, const Operation& b) {
      return !a.message() && !b.message() && a.members == b.members && a.members.size() > 1;
    });
    if (pairs.empty()) continue;
    const auto [i, j] = pairs[static_cast<size_t>(generator.Below(static_cast<int>(pairs.size())))];
    std::vector<Step>& steps = world.ranks[rank];
    const Operation& a = world.operations[static_cast<size_t>(steps[i].operation)];
    const Operation& b = world.operations[static_cast<size_t>(steps[j].operation)];
    const bool alike = a.what == b.what;
    Swap(steps, i, j);
    const absl::Status status = CheckCommunication(world.mesh, Texts(world));
    (alike ? harmless : refused) += 1;
    ASSERT_EQ(status.ok(), alike) << trial << ": " << status;
    if (alike) continue;
    EXPECT_NE(status.message().find(StrCat("rank ", rank, " runs op ")), absl::string_view::npos)
        << status;
  }
  EXPECT_GT(refused, 500);
  EXPECT_GT(harmless, 200);
}

// Operations of different groups may change places; refused are exactly the orders that never end.
TEST(CommunicationProperty, AcrossGroupsExactlyTheCyclesAreRefused) {
  Generator generator(3);
  int cycles = 0, fine = 0;
  for (int trial = 0; trial < 6000; ++trial) {
    World world = generator.Correct();
    for (int swaps = 5 + generator.Below(60); swaps > 0; --swaps) {
      const auto rank = static_cast<size_t>(generator.Below(static_cast<int>(world.ranks.size())));
      std::vector<Step>& steps = world.ranks[rank];
      // Neighbours, so that operations of the same group keep their order.
      std::vector<size_t> places;
      for (size_t i = 0; i + 1 < steps.size(); ++i) {
        const Operation& a = world.operations[static_cast<size_t>(steps[i].operation)];
        const Operation& b = world.operations[static_cast<size_t>(steps[i + 1].operation)];
        const bool same = steps[i].operation == steps[i + 1].operation;
        const bool starts = steps[i].kind == Step::kStart && steps[i + 1].kind == Step::kStart;
        const bool ordered = a.message() == b.message() && a.members == b.members;
        if (!same && !(starts && ordered)) places.push_back(i);
      }
      if (places.empty()) continue;
      const size_t at =
          places[static_cast<size_t>(generator.Below(static_cast<int>(places.size())))];
      std::swap(steps[at], steps[at + 1]);
    }
    const bool cycle = HasCycle(world);
    (cycle ? cycles : fine) += 1;
    const absl::Status status = CheckCommunication(world.mesh, Texts(world));
    ASSERT_EQ(status.ok(), !cycle) << trial << ": " << status;
    if (!cycle) continue;
    EXPECT_NE(status.message().find("would never end"), absl::string_view::npos) << status;
  }
  EXPECT_GT(cycles, 100);
  EXPECT_GT(fine, 500);
}

}  // namespace
}  // namespace capstan::strategies_test
