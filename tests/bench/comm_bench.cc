// All-reduce between processes of this machine: comm/shm, Open MPI, and what the memory allows, in
// turns in one run.
//
//   comm_bench [--ranks N] [--rounds N] [--eager BYTES] [BYTES...]
//
// Prints the best of the rounds for each size: microseconds, payload GB/s, and ratios. Columns:
//   shm       float sums in place, buffers registered
//   private   the same with buffers of the heap, read with process_vm_readv
//   Open MPI  MPI_Allreduce in place, malloc tuned for huge pages
//   memory    the same loads and stores by as many processes over private huge pages, no waiting
#include <sys/mman.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "plugins/comm/shm/combine.h"
#include "sdk/error.h"
#include "sdk/program.h"
#include "tests/bench/comm_bench_sizes.h"
#include "tests/comm/ranks.h"

namespace capstan::bench {
namespace {

using Clock = std::chrono::steady_clock;
using Times = std::map<size_t, double>;  // seconds by bytes

double Now() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

double Since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void Improve(Times& best, const Times& found) {
  for (const auto& [bytes, seconds] : found) {
    auto [it, added] = best.try_emplace(bytes, seconds);
    it->second = std::min(it->second, seconds);
  }
}

// ---- comm/shm --------------------------------------------------------------------------------

class AllReduce {
 public:
  AllReduce(const test::Comm& comm, void* group, float* data, size_t bytes) : comm_(comm) {
    auto item = sdk::sized<capstan_comm_item>();
    item.send = item.recv = data;
    item.count = bytes / sizeof(float);
    auto request = sdk::sized<capstan_comm_request>();
    request.operation = CAPSTAN_COMM_ALL_REDUCE;
    request.dtype = sdk::kF32;
    request.item_count = 1;
    request.items = &item;
    request.label = "bench";
    sdk::check(comm.vtable().prepare(comm.self(), group, &request, &operation_));
  }
  ~AllReduce() { comm_.vtable().release(comm_.self(), operation_); }
  AllReduce(const AllReduce&) = delete;
  AllReduce& operator=(const AllReduce&) = delete;

  void run() const {
    sdk::check(comm_.vtable().start(comm_.self(), operation_, nullptr));
    sdk::check(comm_.vtable().wait(comm_.self(), operation_, 60));
  }

 private:
  const test::Comm& comm_;
  void* operation_ = nullptr;
};

// Memory of huge pages, touched.
class HugeMemory {
 public:
  explicit HugeMemory(size_t bytes) : bytes_(bytes + kAlign) {
    raw_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw_ == MAP_FAILED) throw std::bad_alloc();
    const auto address = reinterpret_cast<uintptr_t>(raw_);
    data_ = reinterpret_cast<char*>((address + kAlign - 1) / kAlign * kAlign);
    madvise(data_, bytes, MADV_HUGEPAGE);
    std::memset(data_, 0, bytes);
  }
  ~HugeMemory() { munmap(raw_, bytes_); }
  HugeMemory(const HugeMemory&) = delete;
  HugeMemory& operator=(const HugeMemory&) = delete;
  char* data() const { return data_; }

 private:
  static constexpr size_t kAlign = size_t{2} << 20;
  size_t bytes_;
  void* raw_;
  char* data_;
};

std::string TimeLine(size_t bytes, double seconds) {
  char line[64];
  std::snprintf(line, sizeof line, "%zu %.9f\n", bytes, seconds);
  return line;
}

Times Parse(const std::string& text) {
  Times out;
  const char* at = text.c_str();
  size_t bytes = 0;
  double seconds = 0;
  int used = 0;
  while (std::sscanf(at, "%zu %lf\n%n", &bytes, &seconds, &used) == 2) {
    out[bytes] = seconds;
    at += used;
  }
  return out;
}

Times RunShm(int ranks, const std::vector<size_t>& sizes, bool registered, int64_t eager) {
  test::RunOptions options = {.world = ranks, .plugin = CAPSTAN_BENCH_SHM, .deadline_s = 600};
  if (eager >= 0) options.options = {{"eager_bytes", CAPSTAN_OPTION_INT, eager, ""}};
  const test::RunResult result = test::RunRanks(options, [&](test::Rank& rank) {
    const test::Comm comm(rank);
    const capstan_comm_v1& vtable = comm.vtable();
    std::vector<int32_t> everyone;
    for (int r = 0; r < ranks; ++r) everyone.push_back(r);
    void* group = nullptr;
    const size_t most = sizes.back();
    const test::SharedArena arena(registered ? most : 4096);
    const HugeMemory heap(registered ? 4096 : most);
    sdk::check(vtable.memory_register(comm.self(), arena.data(), arena.bytes(), arena.fd(), 0));
    sdk::check(vtable.group_create(comm.self(), everyone.data(), everyone.size(), 0, &group));
    for (const size_t bytes : sizes) {
      auto* data = reinterpret_cast<float*>(registered ? arena.data() : heap.data());
      const AllReduce all_reduce(comm, group, data, bytes);
      const int turns = TurnsFor(bytes);
      for (int t = 0; t < turns / 8 + 2; ++t) all_reduce.run();
      const auto start = Clock::now();
      for (int t = 0; t < turns; ++t) all_reduce.run();
      if (rank.rank() == 0) rank.fail(TimeLine(bytes, Since(start) / turns));
    }
    vtable.group_destroy(comm.self(), group);
  });
  const Times times = Parse(result.ranks[0].failures);
  if (times.size() != sizes.size()) std::fprintf(stderr, "shm failed: %s\n", result.text().c_str());
  return times;
}

// ---- Open MPI --------------------------------------------------------------------------------

Times RunMpi([[maybe_unused]] int ranks, [[maybe_unused]] const std::vector<size_t>& sizes) {
#ifdef CAPSTAN_BENCH_MPI
  std::string command =
      "GLIBC_TUNABLES=glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=17179869184:"
      "glibc.malloc.trim_threshold=34359738368:glibc.malloc.top_pad=268435456:"
      "glibc.malloc.arena_max=1 OMPI_ALLOW_RUN_AS_ROOT=1 "
      "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 " CAPSTAN_BENCH_MPIRUN " --oversubscribe -n " +
      std::to_string(ranks) + " " CAPSTAN_BENCH_MPI;
  for (const size_t bytes : sizes) command += " " + std::to_string(bytes);
  std::string text;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return {};
  char line[256];
  while (std::fgets(line, sizeof line, pipe) != nullptr) text += line;
  pclose(pipe);
  return Parse(text);
#else
  return {};
#endif
}

// ---- the bound -------------------------------------------------------------------------------

// Every process sums its share of `ranks` arrays into all of them.
double RunMemory(int ranks, size_t bytes, bool stream) {
  const test::RunOptions options = {.world = ranks, .plugin = "", .options = {}, .deadline_s = 600};
  const test::RunResult result = test::RunRanks(options, [&](test::Rank& rank) {
    const auto n = static_cast<size_t>(ranks);
    const size_t share = bytes / n / 64 * 64;
    const HugeMemory memory(share * n + (size_t{4} << 10) * n);
    std::vector<const char*> from;
    std::vector<char*> to;
    for (size_t r = 0; r < n; ++r) {
      to.push_back(memory.data() + r * (share + 4096));
      from.push_back(to.back());
    }
    const auto pass = [&] {
      constexpr size_t kTile = size_t{128} << 10;
      for (size_t at = 0; at < share; at += kTile) {
        std::vector<const char*> sources = from;
        std::vector<char*> targets = to;
        for (auto& s : sources) s += at;
        for (auto& t : targets) t += at;
        shm::combine(sdk::kF32, CAPSTAN_COMM_SUM, sources, targets,
                     std::min(kTile, share - at) / sizeof(float), stream);
      }
    };
    const int turns = TurnsFor(bytes);
    pass();
    rank.announce(0);
    rank.await(0, static_cast<uint32_t>(ranks), 60);
    // With fewer cores than processes none may see all of the time: from the first to the last.
    const double start = Now();
    for (int t = 0; t < turns; ++t) pass();
    char line[64];
    std::snprintf(line, sizeof line, "%.9f %.9f", start, Now());
    rank.fail(line);
  });
  double first = 1e300, last = 0;
  for (const test::RankEnd& end : result.ranks) {
    double start = 0, finish = 0;
    if (std::sscanf(end.failures.c_str(), "%lf %lf", &start, &finish) != 2) return 0;
    first = std::min(first, start);
    last = std::max(last, finish);
  }
  return (last - first) / TurnsFor(bytes);
}

Times RunMemory(int ranks, const std::vector<size_t>& sizes) {
  Times out;
  for (const size_t bytes : sizes) {
    if (bytes < (size_t{1} << 20)) continue;
    out[bytes] = std::min(RunMemory(ranks, bytes, true), RunMemory(ranks, bytes, false));
  }
  return out;
}

// ---- the table -------------------------------------------------------------------------------

void Print(int ranks, const std::vector<size_t>& sizes, const std::map<std::string, Times>& all) {
  std::printf("\nall-reduce (f32 sum, in place), %d ranks: us and payload GB/s\n", ranks);
  std::printf("%12s", "bytes");
  for (const char* name : {"shm", "private", "Open MPI", "memory"}) std::printf(" %20s", name);
  std::printf(" %12s %12s\n", "MPI/shm", "memory/shm");
  for (const size_t bytes : sizes) {
    std::printf("%12zu", bytes);
    const auto time = [&](const char* name) {
      const auto& times = all.at(name);
      const auto it = times.find(bytes);
      return it == times.end() ? 0.0 : it->second;
    };
    for (const char* name : {"shm", "private", "Open MPI", "memory"}) {
      const double seconds = time(name);
      if (seconds == 0) {
        std::printf(" %20s", "-");
      } else {
        std::printf(" %11.2f %8.2f", seconds * 1e6, static_cast<double>(bytes) / seconds * 1e-9);
      }
    }
    std::printf(" %12.2f %12.2f\n", time("Open MPI") / time("shm"), time("memory") / time("shm"));
  }
}

void Bench(int ranks, int rounds, const std::vector<size_t>& sizes, int64_t eager) {
  std::map<std::string, Times> best = {
      {"shm", {}}, {"private", {}}, {"Open MPI", {}}, {"memory", {}}};
  for (int round = 0; round < rounds; ++round) {
    Improve(best["shm"], RunShm(ranks, sizes, true, eager));
    Improve(best["Open MPI"], RunMpi(ranks, sizes));
    Improve(best["private"], RunShm(ranks, sizes, false, eager));
    Improve(best["memory"], RunMemory(ranks, sizes));
  }
  Print(ranks, sizes, best);
}

}  // namespace
}  // namespace capstan::bench

int main(int argc, char** argv) {
  std::vector<int> ranks = {2, 4};
  std::vector<size_t> sizes;
  int rounds = 3;
  int64_t eager = -1;  // the plugin's default
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--ranks") == 0 && i + 1 < argc) {
      ranks = {std::atoi(argv[++i])};
    } else if (std::strcmp(argv[i], "--rounds") == 0 && i + 1 < argc) {
      rounds = std::atoi(argv[++i]);
    } else if (std::strcmp(argv[i], "--eager") == 0 && i + 1 < argc) {
      eager = std::atoll(argv[++i]);
    } else {
      sizes.push_back(static_cast<size_t>(std::atoll(argv[i])));
    }
  }
  if (sizes.empty()) {
    for (const size_t kib : {1, 8, 64, 512, 4096, 65536, 524288}) sizes.push_back(kib << 10);
  }
  for (const int n : ranks) capstan::bench::Bench(n, rounds, sizes, eager);
  return 0;
}
