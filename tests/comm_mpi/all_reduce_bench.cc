// What the plugin costs above plain MPI, side by side in one run:
//   mpirun -n 2 mpi_bench_openmpi PLUGIN [PIECE_BYTES]
// Times are the best of the rounds on the slowest rank; the ways take turns.
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "sdk/error.h"
#include "sdk/program.h"
#include "tests/comm_mpi/rank.h"

namespace capstan::test {
namespace {

double now() { return MPI_Wtime(); }

// An all-reduce or all-gather of equal tensors in place, through the plugin.
class Prepared {
 public:
  Prepared(const MpiComm& comm, void* group, int32_t operation, capstan_dtype dtype, char* memory,
           uint64_t bytes, size_t tensors, int rank, int world)
      : comm_(comm) {
    const uint64_t element = dtype.bits / 8u;
    const uint64_t count = bytes / tensors / element;
    std::vector<capstan_comm_item> items(tensors, sdk::sized<capstan_comm_item>());
    for (size_t i = 0; i < tensors; ++i) {
      char* const tensor = memory + i * count * element;
      const uint64_t part = count / static_cast<uint64_t>(world) * static_cast<uint64_t>(rank);
      items[i].recv = tensor;
      items[i].send = operation == CAPSTAN_COMM_ALL_GATHER ? tensor + part * element : tensor;
      items[i].count = count;
    }
    auto request = sdk::sized<capstan_comm_request>();
    request.operation = operation;
    request.dtype = dtype;
    request.item_count = items.size();
    request.items = items.data();
    request.label = "bench";
    sdk::check(comm.vtable().prepare(comm.self(), group, &request, &raw_));
  }
  ~Prepared() { comm_.vtable().release(comm_.self(), raw_); }
  Prepared(const Prepared&) = delete;
  Prepared& operator=(const Prepared&) = delete;
  void run() const {
    sdk::check(comm_.vtable().start(comm_.self(), raw_, nullptr));
    sdk::check(comm_.vtable().wait(comm_.self(), raw_, 60));
  }

 private:
  const MpiComm& comm_;
  void* raw_ = nullptr;
};

struct Way {
  std::string name;
  std::function<void()> run;
  double best = 1e30;
};

void measure(std::vector<Way>& ways, int rounds, int repeats) {
  for (int round = 0; round < rounds; ++round) {
    for (Way& way : ways) {
      MPI_Barrier(MPI_COMM_WORLD);
      const double begin = now();
      for (int i = 0; i < repeats; ++i) way.run();
      double took = (now() - begin) / repeats;
      MPI_Allreduce(MPI_IN_PLACE, &took, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
      way.best = std::min(way.best, took);
    }
  }
}

class Bench {
 public:
  Bench(const std::string& plugin, const std::string& piece_bytes)
      : ordered_(load_comm(plugin), host_, {{"piece_bytes", piece_bytes}}),
        library_(load_comm(plugin), host_, {{"reduction", "library"}}),
        ordered_group_(group(ordered_)),
        library_group_(group(library_)) {
    const size_t most = size_t{64} << 20;
    memory_.assign(most / sizeof(float), 0.0F);
  }
  ~Bench() {
    ordered_.vtable().group_destroy(ordered_.self(), ordered_group_);
    library_.vtable().group_destroy(library_.self(), library_group_);
  }

  void all() {
    for (const uint64_t kib : {1, 8, 16, 64, 256, 1024, 16384, 65536}) all_reduce(kib << 10);
    lists();
  }

 private:
  void* group(const MpiComm& comm) {
    std::vector<int32_t> ranks;
    for (int r = 0; r < place_.world; ++r) ranks.push_back(r);
    void* made = nullptr;
    sdk::check(comm.vtable().group_create(comm.self(), ranks.data(), ranks.size(), 0, &made));
    return made;
  }
  Prepared prepare(bool ordered, int32_t operation, capstan_dtype dtype, uint64_t bytes,
                   size_t tensors) {
    const MpiComm& comm = ordered ? ordered_ : library_;
    return Prepared(comm, ordered ? ordered_group_ : library_group_, operation, dtype,
                    reinterpret_cast<char*>(memory_.data()), bytes, tensors, place_.rank,
                    place_.world);
  }
  void print(const std::string& what, const std::vector<Way>& ways) const {
    if (place_.rank != 0) return;
    std::printf("%-28s", what.c_str());
    for (const Way& way : ways) std::printf("  %s %.1f us", way.name.c_str(), way.best * 1e6);
    std::printf("\n");
    std::fflush(stdout);
  }

  void all_reduce(uint64_t bytes) {
    constexpr int32_t kOperation = CAPSTAN_COMM_ALL_REDUCE;
    const Prepared ordered = prepare(true, kOperation, sdk::kF32, bytes, 1);
    const Prepared library = prepare(false, kOperation, sdk::kF32, bytes, 1);
    const Prepared ordered16 = prepare(true, kOperation, sdk::kBF16, bytes, 1);
    const Prepared library16 = prepare(false, kOperation, sdk::kBF16, bytes, 1);
    const int count = static_cast<int>(bytes / sizeof(float));
    std::vector<Way> ways = {{"MPI_Allreduce",
                              [&] {
                                MPI_Allreduce(MPI_IN_PLACE, memory_.data(), count, MPI_FLOAT,
                                              MPI_SUM, MPI_COMM_WORLD);
                              }},
                             {"MPI_Iallreduce",
                              [&] {
                                MPI_Request request = MPI_REQUEST_NULL;
                                MPI_Iallreduce(MPI_IN_PLACE, memory_.data(), count, MPI_FLOAT,
                                               MPI_SUM, MPI_COMM_WORLD, &request);
                                MPI_Wait(&request, MPI_STATUS_IGNORE);
                              }},
                             {"ordered", [&] { ordered.run(); }},
                             {"library", [&] { library.run(); }},
                             {"ordered bf16", [&] { ordered16.run(); }},
                             {"library bf16", [&] { library16.run(); }}};
    measure(ways, 5, bytes > (1 << 20) ? 4 : 200);
    print(sdk::text("all-reduce ", bytes >> 10, " KiB"), ways);
  }

  // The same bytes as one tensor and as the many small ones of a model.
  void lists() {
    constexpr uint64_t kBytes = 148 * 3072;
    for (const int32_t operation : {CAPSTAN_COMM_ALL_REDUCE, CAPSTAN_COMM_ALL_GATHER}) {
      const Prepared one = prepare(true, operation, sdk::kF32, kBytes, 1);
      const Prepared many = prepare(true, operation, sdk::kF32, kBytes, 148);
      const Prepared library = prepare(false, operation, sdk::kF32, kBytes, 148);
      std::vector<Way> ways = {{"one tensor", [&] { one.run(); }},
                               {"148 tensors", [&] { many.run(); }},
                               {"148 tensors, reduction = library", [&] { library.run(); }}};
      measure(ways, 5, 50);
      print(operation == CAPSTAN_COMM_ALL_REDUCE ? "all-reduce list" : "all-gather list", ways);
    }
  }

  LaunchedAs place_ = launched_as();
  MpiHost host_{place_};
  MpiComm ordered_, library_;
  void *ordered_group_, *library_group_;
  std::vector<float> memory_;
};

}  // namespace
}  // namespace capstan::test

int main(int argc, char** argv) {
  if (argc != 2 && argc != 3) {
    std::printf("usage: mpirun -n RANKS %s PLUGIN [PIECE_BYTES]\n", argv[0]);
    return 2;
  }
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  try {
    capstan::test::Bench(argv[1], argc == 3 ? argv[2] : "4194304").all();
  } catch (const std::exception& error) {
    std::printf("stopped by: %s\n", error.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
  return 0;
}
