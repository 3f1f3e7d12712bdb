// comm/gloo next to Gloo's own all-reduce, two processes over loopback, in turns in one run:
//   gloo_bench
// Best of the rounds, us.
#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "sdk/error.h"
#include "sdk/program.h"
#include "tests/comm/ranks.h"

namespace capstan::test {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kRanks = 2;

class Bench {
 public:
  Bench(Rank& rank, const std::string& folder) : rank_(rank), comm_(rank) {
    const int32_t ranks[] = {0, 1};
    sdk::check(comm_.vtable().group_create(comm_.self(), ranks, kRanks, 0, &group_));
    context_ = std::make_shared<gloo::rendezvous::Context>(rank.rank(), kRanks);
    gloo::rendezvous::FileStore store(folder);
    auto device = gloo::transport::tcp::CreateDevice("127.0.0.1");
    context_->connectFullMesh(store, device);
  }
  ~Bench() { comm_.vtable().group_destroy(comm_.self(), group_); }

  void size(size_t bytes) {
    std::vector<float> data(bytes / sizeof(float));
    void* operation = prepare(data);
    const auto ours = [&] {
      sdk::check(comm_.vtable().start(comm_.self(), operation, nullptr));
      sdk::check(comm_.vtable().wait(comm_.self(), operation, 60));
    };
    const auto theirs = [&] {
      gloo::AllreduceOptions options(context_);
      options.setOutput(data.data(), data.size());
      options.setReduceFunction(
          static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<float>));
      gloo::allreduce(options);
    };
    const int repeats = bytes > (1 << 20) ? 2 : 100;
    double best_ours = 1e30, best_theirs = 1e30;
    for (int round = 0; round < 5; ++round) {
      best_ours = std::min(best_ours, time(ours, repeats));
      best_theirs = std::min(best_theirs, time(theirs, repeats));
    }
    comm_.vtable().release(comm_.self(), operation);
    if (rank_.rank() != 0) return;
    std::printf("%8zu KiB  comm/gloo %10.1f us  gloo::allreduce %10.1f us\n", bytes >> 10,
                best_ours * 1e6, best_theirs * 1e6);
    std::fflush(stdout);
  }

 private:
  void* prepare(std::vector<float>& data) {
    auto item = sdk::sized<capstan_comm_item>();
    item.send = item.recv = data.data();
    item.count = data.size();
    auto request = sdk::sized<capstan_comm_request>();
    request.operation = CAPSTAN_COMM_ALL_REDUCE;
    request.dtype = sdk::kF32;
    request.item_count = 1;
    request.items = &item;
    request.label = "bench";
    void* operation = nullptr;
    sdk::check(comm_.vtable().prepare(comm_.self(), group_, &request, &operation));
    return operation;
  }
  static double time(const std::function<void()>& body, int repeats) {
    body();
    const auto begin = Clock::now();
    for (int i = 0; i < repeats; ++i) body();
    return std::chrono::duration<double>(Clock::now() - begin).count() / repeats;
  }

  Rank& rank_;
  Comm comm_;
  void* group_ = nullptr;
  std::shared_ptr<gloo::rendezvous::Context> context_;
};

}  // namespace
}  // namespace capstan::test

int main() {
  namespace fs = std::filesystem;
  std::string folder = (fs::temp_directory_path() / "gloo_bench_XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) return 1;
  capstan::test::RunOptions options;
  options.world = capstan::test::kRanks;
  options.plugin = CAPSTAN_TEST_COMM_PLUGIN;
  const auto result = capstan::test::RunRanks(options, [&](capstan::test::Rank& rank) {
    capstan::test::Bench bench(rank, folder);
    for (const size_t kib : {1, 16, 64, 1024, 16384, 65536}) bench.size(kib << 10);
  });
  fs::remove_all(folder);
  std::printf("%s", result.text().c_str());
  return result.text().empty() ? 0 : 1;
}
