# Benchmarks of the memory-bound kernels.
set(CAPSTAN_KERNELS_B_BENCHES kernels_b_bench.cc)
set(CAPSTAN_KERNELS_B_BENCH kernels_b_bench.cc)
