#include "runtime/run/convert.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "runtime/status.h"

namespace capstan {
namespace {

double FromHalf(uint16_t h) {
  const int exponent = (h >> 10) & 0x1f;
  const int mantissa = h & 0x3ff;
  double value = 0;
  if (exponent == 0) {
    value = std::ldexp(mantissa, -24);
  } else if (exponent == 31) {
    value = mantissa == 0 ? INFINITY : NAN;
  } else {
    value = std::ldexp(mantissa + 1024, exponent - 25);
  }
  return (h & 0x8000) != 0 ? -value : value;
}

absl::StatusOr<double (*)(const char*)> ReaderOf(DType d) {
  using Read = double (*)(const char*);
  if (SameDType(d, kF32)) {
    return Read([](const char* p) {
      float v;
      std::memcpy(&v, p, sizeof(v));
      return static_cast<double>(v);
    });
  }
  if (SameDType(d, kF64)) {
    return Read([](const char* p) {
      double v;
      std::memcpy(&v, p, sizeof(v));
      return v;
    });
  }
  if (SameDType(d, kBF16)) {
    return Read([](const char* p) {
      uint16_t v;
      std::memcpy(&v, p, sizeof(v));
      return static_cast<double>(std::bit_cast<float>(uint32_t{v} << 16));
    });
  }
  if (SameDType(d, kF16)) {
    return Read([](const char* p) {
      uint16_t v;
      std::memcpy(&v, p, sizeof(v));
      return FromHalf(v);
    });
  }
  return DataError("dtype ", DTypeName(d),
                   " cannot be converted to a float parameter; store f16, bf16, f32 or f64");
}

template <int kBytes>
void TransposeAs(const char* from, int64_t stride, int64_t rows, int64_t columns, char* to) {
  constexpr int64_t kBlock = 32;
  for (int64_t r0 = 0; r0 < rows; r0 += kBlock) {
    for (int64_t c0 = 0; c0 < columns; c0 += kBlock) {
      for (int64_t r = r0; r < std::min(rows, r0 + kBlock); ++r) {
        for (int64_t c = c0; c < std::min(columns, c0 + kBlock); ++c) {
          std::memcpy(to + (c * rows + r) * kBytes, from + (r * stride + c) * kBytes, kBytes);
        }
      }
    }
  }
}

}  // namespace

absl::Status Convert(const void* from, DType from_dtype, void* to, DType to_dtype, int64_t n) {
  CAPSTAN_ASSIGN_OR_RETURN(auto read, ReaderOf(from_dtype));
  const char* source = static_cast<const char*>(from);
  const int64_t stride = DTypeBytes(from_dtype);
  if (SameDType(to_dtype, kF32)) {
    for (int64_t i = 0; i < n; ++i)
      static_cast<float*>(to)[i] = static_cast<float>(read(source + i * stride));
    return absl::OkStatus();
  }
  if (SameDType(to_dtype, kF64)) {
    for (int64_t i = 0; i < n; ++i) static_cast<double*>(to)[i] = read(source + i * stride);
    return absl::OkStatus();
  }
  return DataError("stored dtype ", DTypeName(from_dtype), " cannot be converted to ",
                   DTypeName(to_dtype));
}

void Transpose(const char* from, int64_t stride, int64_t rows, int64_t columns,
               int64_t element_bytes, char* to) {
  switch (element_bytes) {
    case 2:
      return TransposeAs<2>(from, stride, rows, columns, to);
    case 4:
      return TransposeAs<4>(from, stride, rows, columns, to);
    case 8:
      return TransposeAs<8>(from, stride, rows, columns, to);
    default:
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < columns; ++c) {
          std::memcpy(to + (c * rows + r) * element_bytes, from + (r * stride + c) * element_bytes,
                      element_bytes);
        }
      }
  }
}

}  // namespace capstan
