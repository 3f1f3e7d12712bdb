// The peer of comm_bench: MPI_Allreduce in place. Started by it under mpirun.
//
//   comm_bench_mpi BYTES...      prints "BYTES SECONDS" for each, the mean of one call
#include <mpi.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "tests/bench/comm_bench_sizes.h"

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  for (int i = 1; i < argc; ++i) {
    const auto bytes = static_cast<size_t>(std::atoll(argv[i]));
    const auto count = static_cast<int>(bytes / sizeof(float));
    std::vector<float> data(bytes / sizeof(float), 0.0f);
    const int turns = capstan::bench::TurnsFor(bytes);
    const auto reduce = [&] {
      MPI_Allreduce(MPI_IN_PLACE, data.data(), count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    };
    for (int t = 0; t < turns / 8 + 2; ++t) reduce();
    MPI_Barrier(MPI_COMM_WORLD);
    const double start = MPI_Wtime();
    for (int t = 0; t < turns; ++t) reduce();
    const double seconds = (MPI_Wtime() - start) / turns;
    if (rank == 0) std::printf("%zu %.9f\n", bytes, seconds);
  }
  MPI_Finalize();
  return 0;
}
