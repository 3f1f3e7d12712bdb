#include "tests/comm/conformance.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>

#include "sdk/error.h"
#include "sdk/program.h"
#include "tests/comm/backend.h"
#include "tests/comm/collective_case.h"
#include "tests/comm/elements.h"

namespace capstan::test {
namespace {

constexpr size_t kMostFailures = 10;
constexpr capstan_dtype kI8 = {CAPSTAN_DTYPE_INT, 8, 1};
constexpr capstan_dtype kU8 = {CAPSTAN_DTYPE_UINT, 8, 1};
const capstan_dtype kAllDtypes[] = {sdk::kF32, sdk::kF64, sdk::kBF16, sdk::kF16, sdk::kI32,
                                    sdk::kI64, kI8,       kU8,        sdk::kBool};

class Suite {
 public:
  explicit Suite(const Backend& backend)
      : backend_(backend), place_(backend.options.arena, backend.options.arena_bytes) {}

  ConformanceReport run() {
    try {
      waits_elsewhere();  // first: nothing else has set a backend's threads going
      every_group();
      groups_at_once();
      group_made_twice();
    } catch (const std::exception& error) {
      fail(sdk::text("stopped by: ", error.what()));
    }
    return report_;
  }

 private:
  bool member(const std::vector<int32_t>& ranks) const {
    return std::find(ranks.begin(), ranks.end(), backend_.rank) != ranks.end();
  }
  void fail(const std::string& sentence) {
    if (report_.failures.size() >= kMostFailures) return;
    report_.failures.push_back(sdk::text("rank ", backend_.rank, ": ", sentence));
  }
  void expect(const std::string& problem, const Group& group) {
    if (problem.empty()) return;
    std::string ranks;
    for (const int32_t r : group.ranks()) ranks += sdk::text(ranks.empty() ? "" : ",", r);
    fail(sdk::text(problem, " (group ", ranks, ")"));
  }

  // Everything on the world; the rest of the shapes with less: each prefix of the world, the world
  // in reverse order, the first and the last rank.
  void every_group() {
    const int world = backend_.world;
    std::vector<int32_t> ranks(static_cast<size_t>(world));
    std::iota(ranks.begin(), ranks.end(), 0);
    on_group(ranks, true);
    if (world == 1) return;
    for (int n = 1; n < world; ++n) on_group({ranks.begin(), ranks.begin() + n}, false);
    on_group({ranks.rbegin(), ranks.rend()}, false);
    if (world > 2) on_group({0, world - 1}, false);
  }

  void on_group(const std::vector<int32_t>& ranks, bool everything) {
    if (!member(ranks)) return;
    const Group group(backend_, ranks);
    barrier(group);
    if (everything) {
      reductions(group);
      movements(group);
      if (!backend_.options.quick) large(group);
    }
    lists(group);
    started_again(group);
    many_in_flight(group);
    if (group.size() > 1) {
      messages(group);
      channels(group);
      messages_beside_a_collective(group);
    }
    counts_progress(group);
  }

  // One collective; larger ones twice with the same operation.
  void collective(const Group& group, const Collective& what) {
    place_.clear();
    CollectiveCase c(what, group.ranks(), group.index(), place_);
    Prepared operation(group, c.request());
    const uint64_t rounds = what.counts[0] > 1000 ? 2 : 1;
    for (uint64_t round = 0; round < rounds; ++round) {
      c.fill(round);
      operation.run();
      expect(c.check(round), group);
      ++report_.operations;
    }
  }

  void barrier(const Group& group) {
    auto request = sdk::sized<capstan_comm_request>();
    request.operation = CAPSTAN_COMM_BARRIER;
    request.label = "barrier";
    Prepared operation(group, request);
    for (int i = 0; i < 3; ++i) operation.run();
    report_.operations += 3;
  }

  // Sizes in elements that share evenly among the group, and that do not.
  static std::vector<uint64_t> sizes(const Group& group, bool even) {
    std::vector<uint64_t> out;
    for (const uint64_t count : {0, 1, 7, 257, 2051}) {
      const uint64_t n = group.size();
      out.push_back(even ? (count + n - 1) / n * n : count);
    }
    return out;
  }

  void reductions(const Group& group) {
    for (const capstan_dtype dtype : kAllDtypes) {
      for (const int32_t reduce : {CAPSTAN_COMM_SUM, CAPSTAN_COMM_MAX, CAPSTAN_COMM_AVERAGE}) {
        if (reduce == CAPSTAN_COMM_AVERAGE && !IsFloat(dtype)) continue;
        const bool real = IsFloat(dtype) && backend_.options.fixed_order;
        for (const uint64_t count : sizes(group, false)) {
          for (const bool in_place : {false, true}) {
            collective(group, {CAPSTAN_COMM_ALL_REDUCE, reduce, dtype, {count}, false, in_place});
            collective(group,
                       {CAPSTAN_COMM_REDUCE_SCATTER, reduce, dtype, {count}, true, in_place, real});
          }
          if (real) {
            collective(group,
                       {CAPSTAN_COMM_ALL_REDUCE, reduce, dtype, {count}, false, false, true});
          }
        }
        for (const uint64_t count : sizes(group, true)) {
          collective(group, {CAPSTAN_COMM_REDUCE_SCATTER, reduce, dtype, {count}});
        }
      }
    }
  }

  void movements(const Group& group) {
    for (const capstan_dtype dtype : kAllDtypes) {
      for (const bool uneven : {false, true}) {
        for (const uint64_t count : sizes(group, !uneven)) {
          for (const bool in_place : {false, true}) {
            collective(group, {CAPSTAN_COMM_ALL_GATHER, 0, dtype, {count}, uneven, in_place});
          }
          collective(group, {CAPSTAN_COMM_ALL_TO_ALL, 0, dtype, {count}, uneven});
        }
      }
      const int last = static_cast<int>(group.size()) - 1;
      for (const uint64_t count : sizes(group, false)) {
        for (const int root : {0, last}) {
          for (const bool in_place : {false, true}) {
            collective(group,
                       {CAPSTAN_COMM_BROADCAST, 0, dtype, {count}, false, in_place, false, root});
          }
        }
      }
    }
  }

  // Several tensors in one operation, empty ones among them.
  void lists(const Group& group) {
    const uint64_t n = group.size();
    for (const std::vector<uint64_t>& counts :
         {std::vector<uint64_t>{3 * n, 0, 1000 * n, n}, std::vector<uint64_t>{0, 0},
          std::vector<uint64_t>(20, 17 * n), std::vector<uint64_t>{9000 * n, 2 * n, 3000 * n}}) {
      for (const capstan_dtype dtype : {sdk::kF32, sdk::kBF16}) {
        for (const bool uneven : {false, true}) {
          for (const bool in_place : {false, true}) {
            collective(group, {CAPSTAN_COMM_REDUCE_SCATTER, 0, dtype, counts, uneven, in_place});
            collective(group, {CAPSTAN_COMM_ALL_GATHER, 0, dtype, counts, uneven, in_place});
          }
          collective(group, {CAPSTAN_COMM_ALL_TO_ALL, 0, dtype, counts, uneven});
        }
        collective(group, {CAPSTAN_COMM_ALL_REDUCE, 0, dtype, counts, false, true});
        collective(group, {CAPSTAN_COMM_BROADCAST, 0, dtype, counts, false, true});
      }
    }
  }

  void large(const Group& group) {
    const uint64_t count = (uint64_t{1} << 20) / 4 * group.size() + 3;
    const uint64_t even = count / group.size() * group.size();
    collective(group, {CAPSTAN_COMM_ALL_REDUCE, CAPSTAN_COMM_SUM, sdk::kF32, {count}, false, true});
    collective(group, {CAPSTAN_COMM_ALL_REDUCE, CAPSTAN_COMM_SUM, sdk::kBF16, {count}});
    collective(group,
               {CAPSTAN_COMM_REDUCE_SCATTER, CAPSTAN_COMM_AVERAGE, sdk::kF32, {count}, true});
    collective(group,
               {CAPSTAN_COMM_REDUCE_SCATTER, CAPSTAN_COMM_SUM, sdk::kF64, {even}, false, true});
    collective(group, {CAPSTAN_COMM_ALL_GATHER, 0, sdk::kF32, {count}, true, true});
    collective(group, {CAPSTAN_COMM_ALL_GATHER, 0, sdk::kBF16, {even}});
    collective(group, {CAPSTAN_COMM_ALL_TO_ALL, 0, sdk::kF32, {even}});
    collective(group, {CAPSTAN_COMM_ALL_TO_ALL, 0, sdk::kF32, {count}, true});
    collective(group, {CAPSTAN_COMM_BROADCAST,
                       0,
                       kU8,
                       {count + 1},
                       false,
                       false,
                       false,
                       static_cast<int>(group.size()) - 1});
  }

  void started_again(const Group& group) {
    for (const uint64_t count : {uint64_t{33}, uint64_t{10000}}) {
      place_.clear();
      CollectiveCase c({CAPSTAN_COMM_ALL_REDUCE, 0, sdk::kF32, {count}, false, true}, group.ranks(),
                       group.index(), place_);
      Prepared operation(group, c.request());
      for (uint64_t round = 0; round < 40; ++round) {
        c.fill(round);
        operation.run();
        expect(c.check(round), group);
        ++report_.operations;
      }
    }
  }

  // More operations in flight than any ring of slots holds; ranks wait in opposite orders.
  void many_in_flight(const Group& group) {
    for (const bool backwards : {false, true}) {
      place_.clear();
      std::vector<std::unique_ptr<CollectiveCase>> cases;
      std::vector<std::unique_ptr<Prepared>> operations;
      for (uint64_t i = 0; i < 150; ++i) {
        const uint64_t count = i % 10 == 9 ? 5000 : 10 + i;
        cases.push_back(std::make_unique<CollectiveCase>(
            Collective{CAPSTAN_COMM_ALL_REDUCE, 0, sdk::kI32, {count}, false, i % 2 == 0},
            group.ranks(), group.index(), place_));
        operations.push_back(std::make_unique<Prepared>(group, cases.back()->request()));
        cases.back()->fill(i);
        operations.back()->start();
      }
      for (size_t i = 0; i < cases.size(); ++i) {
        const bool last_first = backwards != (backend_.rank % 2 == 1);
        const size_t at = last_first ? cases.size() - 1 - i : i;
        operations[at]->wait();
        expect(cases[at]->check(at), group);
        ++report_.operations;
      }
    }
  }

  // ---- messages ------------------------------------------------------------------------------

  struct Message {
    Message(const Group& group, bool sends, int32_t peer, int32_t channel, int32_t tag,
            uint64_t count, uint64_t seed, Workplace& place)
        : sends(sends),
          values{sdk::kF32, seed, false},
          count(count),
          from(sends ? static_cast<int>(group.index()) : peer) {
      memory = place.take((count + 16) * sizeof(float));
      for (uint64_t k = 0; k < count + 16; ++k) {
        Store(sdk::kF32, memory, k, sends && k < count ? values.at(from, 0, k) : -99.0);
      }
      item = sdk::sized<capstan_comm_item>();
      if (sends) {
        item.send = memory;
      } else {
        item.recv = memory;
      }
      item.count = count;
      auto request = sdk::sized<capstan_comm_request>();
      request.operation = sends ? CAPSTAN_COMM_SEND : CAPSTAN_COMM_RECV;
      request.dtype = sdk::kF32;
      request.peer = peer;
      request.channel = channel;
      request.tag = tag;
      request.item_count = 1;
      request.items = &item;
      request.label = sends ? "send of a test" : "recv of a test";
      operation.emplace(group, request);
      operation->start();
    }

    std::string wait() {
      operation->wait();
      if (sends) return "";
      for (uint64_t k = 0; k < count + 16; ++k) {
        const double want = k < count ? values.at(from, 0, k) : -99.0;
        if (Load(sdk::kF32, memory, k) != want) {
          return sdk::text("message of ", count, " elements from ", from, ": element ", k, " is ",
                           Load(sdk::kF32, memory, k), ", not ", want);
        }
      }
      return "";
    }

    bool sends;
    Values values;
    uint64_t count;
    int from;
    char* memory = nullptr;
    capstan_comm_item item{};
    std::optional<Prepared> operation;
  };

  // To the next member and from the one before, several sizes.
  void messages(const Group& group) {
    const auto n = static_cast<int32_t>(group.size());
    const auto me = static_cast<int32_t>(group.index());
    for (const uint64_t count : {0, 1, 100, 5000, 300001}) {
      if (backend_.options.quick && count > 100000) continue;
      place_.clear();
      Message out(group, true, (me + 1) % n, 0, 5, count, count, place_);
      Message in(group, false, (me + n - 1) % n, 0, 5, count, count, place_);
      expect(in.wait(), group);
      expect(out.wait(), group);
      report_.operations += 2;
    }
  }

  // Messages of one channel arrive in order, whatever happens on another, and in any order of waits.
  void channels(const Group& group) {
    const auto me = static_cast<int32_t>(group.index());
    if (me > 1) return;
    place_.clear();
    std::vector<std::unique_ptr<Message>> all;
    const int32_t peer = 1 - me;
    for (int32_t k = 0; k < 39; ++k) {  // thirteen a channel
      const int32_t channel = me == 0 ? k % 3 : 2 - k % 3;
      const auto seed = static_cast<uint64_t>(channel * 100 + k / 3);
      const uint64_t count = k / 3 % 4 == 3 ? 50000 : 20;
      all.push_back(
          std::make_unique<Message>(group, me == 0, peer, channel, k / 3, count, seed, place_));
    }
    for (size_t i = all.size(); i-- > 0;) {
      expect(all[i]->wait(), group);
      ++report_.operations;
    }
  }

  // More messages than any ring holds, whose receiver waits for a collective that their sender starts
  // when they are gone.
  void messages_beside_a_collective(const Group& group) {
    const auto me = static_cast<int32_t>(group.index());
    place_.clear();
    std::vector<std::unique_ptr<Message>> all;
    for (uint64_t k = 0; k < 9 && me <= 1; ++k) {
      all.push_back(std::make_unique<Message>(group, me == 0, 1 - me, 0, 7, 1000, k, place_));
    }
    if (me == 1) barrier(group);
    for (const auto& message : all) expect(message->wait(), group);
    if (me != 1) barrier(group);
    report_.operations += all.size();
  }

  // ---- progress ------------------------------------------------------------------------------

  capstan_comm_progress poll(const Group& group) const {
    auto progress = sdk::sized<capstan_comm_progress>();
    sdk::check(backend_.comm.poll(backend_.self, group.handle(), &progress));
    return progress;
  }

  void counts_progress(const Group& group) {
    const capstan_comm_progress before = poll(group);
    barrier(group);
    const capstan_comm_progress after = poll(group);
    if (before.started != before.finished) fail("poll counts operations as unfinished");
    if (after.started != before.started + 3 || after.finished != before.finished + 3) {
      fail(sdk::text("three barriers moved poll from ", before.started, "/", before.finished,
                     " to ", after.started, "/", after.finished));
    }
    if (after.waiting_for != -1) fail(sdk::text("an idle group waits for ", after.waiting_for));
    counts_bytes(group);
    barrier(group);  // all have polled before any leaves
  }

  // Every finished operation once, with the whole of its tensors.
  void counts_bytes(const Group& group) {
    const uint64_t n = group.size();
    const capstan_comm_progress before = poll(group);
    collective(group, {CAPSTAN_COMM_ALL_REDUCE, 0, sdk::kF32, {300}});
    collective(group, {CAPSTAN_COMM_REDUCE_SCATTER, 0, sdk::kF32, {20 * n, 7 * n}});
    collective(group, {CAPSTAN_COMM_ALL_GATHER, 0, sdk::kBF16, {11 * n, 0, n}});
    if (n > 1) messages_beside_a_collective(group);
    const capstan_comm_progress after = poll(group);
    const auto moved = [&](int32_t operation, uint64_t bytes) {
      const uint64_t counted = after.bytes[operation] - before.bytes[operation];
      if (counted == bytes) return;
      fail(sdk::text("poll counts ", counted, " bytes of operation ", operation, ", not ", bytes));
    };
    moved(CAPSTAN_COMM_ALL_REDUCE, 1200);
    moved(CAPSTAN_COMM_REDUCE_SCATTER, 27 * n * 4);
    moved(CAPSTAN_COMM_ALL_GATHER, 12 * n * 2);
    moved(CAPSTAN_COMM_SEND, n > 1 && group.index() == 0 ? 36000 : 0);
    moved(CAPSTAN_COMM_RECV, n > 1 && group.index() == 1 ? 36000 : 0);
    moved(CAPSTAN_COMM_BARRIER, 0);
  }

  // ---- several groups ------------------------------------------------------------------------

  // The whole world, the even and the odd ranks, and pairs: all in flight at the same time.
  void groups_at_once() {
    std::vector<std::vector<int32_t>> lists(2);
    for (int r = 0; r < backend_.world; ++r) {
      lists[0].push_back(r);
      if (r % 2 == backend_.rank % 2) lists[1].push_back(r);
    }
    const int pair = backend_.rank / 2 * 2;
    if (pair + 1 < backend_.world) lists.push_back({pair, pair + 1});
    std::vector<std::unique_ptr<Group>> groups;
    // Ranks make them in different orders.
    if (backend_.rank % 2 == 1) std::reverse(lists.begin(), lists.end());
    for (const auto& ranks : lists) groups.push_back(std::make_unique<Group>(backend_, ranks));

    place_.clear();
    std::vector<std::unique_ptr<CollectiveCase>> cases;
    std::vector<std::unique_ptr<Prepared>> operations;
    for (uint64_t round = 0; round < 12; ++round) {
      for (const auto& group : groups) {
        const uint64_t count = round % 3 == 0 ? 70000 : 300;
        cases.push_back(std::make_unique<CollectiveCase>(
            Collective{CAPSTAN_COMM_ALL_REDUCE, 0, sdk::kF32, {count}}, group->ranks(),
            group->index(), place_));
        cases.back()->fill(round);
        operations.push_back(std::make_unique<Prepared>(*group, cases.back()->request()));
        operations.back()->start();
      }
    }
    for (size_t i = operations.size(); i-- > 0;) {
      operations[i]->wait();
      expect(cases[i]->check(i / groups.size()), *groups[i % groups.size()]);
      ++report_.operations;
    }
    operations.clear();
  }

  // Two groups of the same ranks are two groups.
  void group_made_twice() {
    std::vector<int32_t> ranks(static_cast<size_t>(backend_.world));
    std::iota(ranks.begin(), ranks.end(), 0);
    const Group one(backend_, ranks), two(backend_, ranks);
    place_.clear();
    CollectiveCase a({CAPSTAN_COMM_ALL_REDUCE, 0, sdk::kF32, {9}}, ranks, one.index(), place_);
    CollectiveCase b({CAPSTAN_COMM_ALL_REDUCE, 0, sdk::kF32, {9}}, ranks, two.index(), place_);
    a.fill(1);
    b.fill(2);
    Prepared on_one(one, a.request()), on_two(two, b.request());
    const bool swap = backend_.rank % 2 == 1;
    (swap ? on_two : on_one).start();
    (swap ? on_one : on_two).start();
    on_two.wait();
    on_one.wait();
    expect(a.check(1), one);
    expect(b.check(2), two);
    report_.operations += 2;
  }

  // What a rank has started comes about while it waits for something else: more operations than slots,
  // of which the first ones are waited for as messages of another group say.
  void waits_elsewhere() {
    if (backend_.world == 1) return;
    constexpr size_t kFirst = 32, kAll = 40;
    std::vector<int32_t> ranks(static_cast<size_t>(backend_.world));
    std::iota(ranks.begin(), ranks.end(), 0);
    const Group one(backend_, ranks), two(backend_, ranks);
    const auto me = static_cast<int32_t>(one.index());
    place_.clear();
    std::vector<std::unique_ptr<CollectiveCase>> cases;
    std::vector<std::unique_ptr<Prepared>> operations;
    for (size_t i = 0; i < kAll; ++i) {
      cases.push_back(std::make_unique<CollectiveCase>(
          Collective{CAPSTAN_COMM_ALL_REDUCE, 0, sdk::kF32, {10}}, ranks, one.index(), place_));
      cases.back()->fill(i);
      operations.push_back(std::make_unique<Prepared>(one, cases.back()->request()));
    }
    const auto start = [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) operations[i]->start();
    };
    const auto wait = [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) {
        operations[i]->wait();
        expect(cases[i]->check(i), one);
        ++report_.operations;
      }
    };
    const auto message = [&](bool sends) {
      expect(Message(two, sends, 1 - me, 0, 0, 1, 0, place_).wait(), two);
    };
    start(0, kFirst);
    if (me != 1) start(kFirst, kAll);
    if (me == 1) message(false);  // until rank 0 needs no more of the first ones
    wait(0, kFirst);
    if (me == 1) start(kFirst, kAll);
    if (me == 0) message(true);
    if (me == 0) message(false);  // until rank 1 has got the others
    wait(kFirst, kAll);
    if (me == 1) message(true);
  }

  const Backend backend_;
  Workplace place_;
  ConformanceReport report_;
};

}  // namespace

ConformanceReport RunConformance(const capstan_comm_v1& comm, void* self, int rank, int world,
                                 const ConformanceOptions& options) {
  return Suite({comm, self, rank, world, options}).run();
}

}  // namespace capstan::test
