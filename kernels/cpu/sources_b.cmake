# The memory-bound kernels.
set(CAPSTAN_KERNELS_B_SOURCES
  activation.cc
  cache.cc
  cast.cc
  dropout.cc
  elementwise.cc
  embedding.cc
  layout.cc
  norm.cc
  optimizer.cc
  quantize.cc
  random_fill.cc
  reduce.cc
  rotary.cc
  sampling.cc
  softmax.cc)

# Random values must not depend on which SIMD target runs: no fused multiply-add behind our back.
set_source_files_properties(random_fill.cc PROPERTIES COMPILE_OPTIONS -ffp-contract=off)
