// Elements of tensors as doubles: values by (rank, item, index), their bytes, and plain reductions.
#ifndef CAPSTAN_TESTS_COMM_ELEMENTS_H_
#define CAPSTAN_TESTS_COMM_ELEMENTS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "plugin_api/comm.h"

namespace capstan::test {

size_t ElementBytes(capstan_dtype dtype);

// Whether the dtype is a floating one.
bool IsFloat(capstan_dtype dtype);

// A well-mixed function of its arguments.
uint64_t Mix(uint64_t a, uint64_t b, uint64_t c = 0, uint64_t d = 0);

// What makes the values of a case.
struct Values {
  capstan_dtype dtype{};
  uint64_t seed = 0;
  // false: small integers, whose sum over 16 ranks is exact in every dtype, in any order.
  // true: reals over many magnitudes (floating dtypes), whose sums depend on the order.
  bool real = false;

  double at(int rank, size_t item, uint64_t index) const;
};

// Stores a double as element `index` of `memory`, and back. Rounding to nearest, ties to even.
void Store(capstan_dtype dtype, char* memory, uint64_t index, double value);
double Load(capstan_dtype dtype, const char* memory, uint64_t index);

// The reduction of `values`, from left to right, as the interface defines it, before it is stored:
// floats accumulate in the dtype's accumulation type (f32 for the 16-bit ones), average divides.
double Reduce(capstan_dtype dtype, int32_t reduce, std::span<const double> values);

// `total` cut into n parts of different sizes, some of them empty; the same for the same arguments.
std::vector<uint64_t> UnevenParts(uint64_t total, size_t n, uint64_t seed);

}  // namespace capstan::test

#endif  // CAPSTAN_TESTS_COMM_ELEMENTS_H_
