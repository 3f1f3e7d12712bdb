// Requests that are wrong, alone or next to those of other ranks.
#include <functional>
#include <numeric>
#include <optional>

#include "sdk/error.h"
#include "sdk/program.h"
#include "tests/comm/backend.h"
#include "tests/comm/conformance.h"

namespace capstan::test {
namespace {

// A request over two small arrays of its own.
struct Ask {
  explicit Ask(int32_t operation, std::string name, uint64_t count = 8) : label(std::move(name)) {
    item = sdk::sized<capstan_comm_item>();
    item.send = send;
    item.recv = recv;
    item.count = count;
    request = sdk::sized<capstan_comm_request>();
    request.operation = operation;
    request.dtype = sdk::kF32;
    request.item_count = operation == CAPSTAN_COMM_BARRIER ? 0 : 1;
    request.items = &item;
    request.label = label.c_str();
  }
  Ask(const Ask&) = delete;

  float send[64] = {};
  float recv[64] = {};
  std::string label;
  capstan_comm_item item{};
  capstan_comm_request request{};
};

class Checks {
 public:
  explicit Checks(const Backend& backend) : backend_(backend) {}

  ConformanceReport run(void (Checks::*body)()) {
    try {
      (this->*body)();
    } catch (const std::exception& error) {
      fail(sdk::text("stopped by: ", error.what()));
    }
    return report_;
  }

  void bad_requests() {
    const Group group(backend_, everyone());
    const auto n = static_cast<int32_t>(group.size());
    const auto me = static_cast<int32_t>(group.index());
    using Change = std::function<void(Ask&)>;
    refused(group, CAPSTAN_COMM_ALL_REDUCE, [](Ask& a) { a.item.send = nullptr; });
    refused(group, CAPSTAN_COMM_ALL_REDUCE, [](Ask& a) { a.item.recv = a.send + 1; });
    refused(group, CAPSTAN_COMM_ALL_REDUCE, [](Ask& a) { a.request.dtype = {77, 32, 1}; });
    refused(group, CAPSTAN_COMM_ALL_REDUCE, [](Ask& a) { a.request.reduce = 9; });
    refused(group, CAPSTAN_COMM_ALL_REDUCE, [](Ask& a) {
      a.request.reduce = CAPSTAN_COMM_AVERAGE;
      a.request.dtype = sdk::kI32;
    });
    refused(group, CAPSTAN_COMM_ALL_REDUCE, [](Ask& a) { a.item.count = ~uint64_t{0}; });
    refused(group, CAPSTAN_COMM_BROADCAST, [n](Ask& a) { a.request.root = n; });
    refused(group, CAPSTAN_COMM_BROADCAST, [](Ask& a) { a.request.root = -1; });
    refused(group, CAPSTAN_COMM_RECV, [n](Ask& a) { a.request.peer = n + 3; });
    refused(group, CAPSTAN_COMM_SEND, [me](Ask& a) { a.request.peer = me; });
    refused(group, 99, Change());
    if (n > 1) {
      const auto odd = static_cast<uint64_t>(n) + 1;
      refused(group, CAPSTAN_COMM_ALL_GATHER, [odd](Ask& a) { a.item.count = odd; });
      refused(group, CAPSTAN_COMM_REDUCE_SCATTER, [odd](Ask& a) { a.item.count = odd; });
      refused(group, CAPSTAN_COMM_ALL_TO_ALL, [odd](Ask& a) { a.item.count = odd; });
    }
    // None of it has done the group any harm, and none leaves before all have come.
    const Ask barrier(CAPSTAN_COMM_BARRIER, "barrier");
    Prepared(group, barrier.request).run();
  }

  void mismatches() {
    using Change = std::function<void(Ask&)>;
    const std::vector<std::pair<const char*, Change>> changes = {
        {"operation", [](Ask& a) { a.request.operation = CAPSTAN_COMM_BROADCAST; }},
        {"reduction", [](Ask& a) { a.request.reduce = CAPSTAN_COMM_MAX; }},
        {"dtype", [](Ask& a) { a.request.dtype = sdk::kI32; }},
        {"count", [](Ask& a) { a.item.count = 7; }},
        {"number of items", [](Ask& a) { a.request.item_count = 0; }},
        {"label alone", [](Ask&) {}},
    };
    for (const auto& [name, change] : changes) {
      Ask ask(CAPSTAN_COMM_ALL_REDUCE, odd_one() ? "odd one" : "the others");
      if (odd_one() && change) change(ask);
      disagreement(name, ask);
    }
    Ask root(CAPSTAN_COMM_BROADCAST, odd_one() ? "odd one" : "the others");
    root.request.root = odd_one() ? 1 : 0;
    disagreement("root", root);
    all_to_all_counts();
    large_against_small();
  }

 private:
  std::vector<int32_t> everyone() const {
    std::vector<int32_t> ranks(static_cast<size_t>(backend_.world));
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
  }
  bool odd_one() const { return backend_.rank == backend_.world - 1; }
  void fail(const std::string& sentence) {
    report_.failures.push_back(sdk::text("rank ", backend_.rank, ": ", sentence));
  }

  void refused(const Group& group, int32_t operation, const std::function<void(Ask&)>& change) {
    Ask ask(operation, "wrong by itself");
    if (change) change(ask);
    void* made = nullptr;
    capstan_status* status =
        backend_.comm.prepare(backend_.self, group.handle(), &ask.request, &made);
    ++report_.operations;
    if (status == nullptr) {
      fail(sdk::text("a wrong request of operation ", operation, " was prepared"));
      backend_.comm.release(backend_.self, made);
      return;
    }
    const std::string message = status->message;
    const bool right_class = status->code == CAPSTAN_USAGE || status->code == CAPSTAN_UNSUPPORTED;
    if (!right_class || message.find("wrong by itself") == std::string::npos || made != nullptr) {
      fail(sdk::text("a wrong request gave the status ", status->code, ": ", message));
    }
    status->release(status);
  }

  // Start and wait give a BUG status with both labels; so does every call from then on.
  void disagreement(const char* name, Ask& ask) {
    const Group group(backend_, everyone());
    void* operation = nullptr;
    sdk::check(backend_.comm.prepare(backend_.self, group.handle(), &ask.request, &operation));
    capstan_status* status = backend_.comm.start(backend_.self, operation, nullptr);
    if (status == nullptr) {
      status = backend_.comm.wait(backend_.self, operation, backend_.options.timeout_s);
    }
    examine(name, status);
    examine(name, backend_.comm.start(backend_.self, operation, nullptr));
    auto progress = sdk::sized<capstan_comm_progress>();
    examine(name, backend_.comm.poll(backend_.self, group.handle(), &progress));
    backend_.comm.release(backend_.self, operation);
    ++report_.operations;
  }

  void examine(const char* name, capstan_status* status) {
    if (status == nullptr) {
      fail(sdk::text("ranks that disagree about the ", name, " were not told"));
      return;
    }
    const std::string message = status->message;
    if (status->code != CAPSTAN_BUG || message.find("odd one") == std::string::npos ||
        message.find("the others") == std::string::npos) {
      fail(sdk::text("ranks that disagree about the ", name, " were told (", status->code, ") ",
                     message));
    }
    status->release(status);
  }

  void all_to_all_counts() {
    Ask ask(CAPSTAN_COMM_ALL_TO_ALL, odd_one() ? "odd one" : "the others");
    const size_t n = everyone().size();
    std::vector<uint64_t> send(n, 1), recv(n, 1);
    // The odd one believes that the first rank sends it more than it does.
    if (odd_one()) recv[0] = 2;
    ask.item.count = n;
    ask.item.send_counts = send.data();
    ask.item.recv_counts = recv.data();
    disagreement("counts of an all-to-all", ask);
  }

  // Where small and large operations take different paths.
  void large_against_small() {
    std::vector<float> big(1 << 20);
    Ask ask(CAPSTAN_COMM_ALL_REDUCE, odd_one() ? "odd one" : "the others");
    if (odd_one()) {
      ask.item.send = ask.item.recv = big.data();
      ask.item.count = big.size();
    }
    disagreement("size", ask);
  }

  const Backend backend_;
  ConformanceReport report_;
};

}  // namespace

ConformanceReport RunBadRequests(const capstan_comm_v1& comm, void* self, int rank, int world,
                                 const ConformanceOptions& options) {
  return Checks({comm, self, rank, world, options}).run(&Checks::bad_requests);
}

ConformanceReport RunMismatches(const capstan_comm_v1& comm, void* self, int rank, int world,
                                const ConformanceOptions& options) {
  return Checks({comm, self, rank, world, options}).run(&Checks::mismatches);
}

}  // namespace capstan::test
