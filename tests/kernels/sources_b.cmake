# Tests of the memory-bound kernels.
set(CAPSTAN_KERNELS_B_TESTS
  activation_test.cc
  cache_test.cc
  cast_test.cc
  dropout_test.cc
  elementwise_test.cc
  embedding_test.cc
  layout_test.cc
  norm_test.cc
  optimizer_test.cc
  philox_test.cc
  quantize_test.cc
  random_fill_test.cc
  reduce_test.cc
  rotary_test.cc
  sampling_test.cc
  softmax_test.cc)
