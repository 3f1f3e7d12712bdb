#include "plugins/store/safetensors/dtype.h"

namespace capstan::safetensors {
namespace {

constexpr Dtype kDtypes[] = {
    {"F64", {CAPSTAN_DTYPE_FLOAT, 64, 1}, 8},
    {"F32", {CAPSTAN_DTYPE_FLOAT, 32, 1}, 4},
    {"F16", {CAPSTAN_DTYPE_FLOAT, 16, 1}, 2},
    {"BF16", {CAPSTAN_DTYPE_BFLOAT, 16, 1}, 2},
    {"F8_E4M3", {CAPSTAN_DTYPE_FLOAT8_E4M3FN, 8, 1}, 1},
    {"F8_E5M2", {CAPSTAN_DTYPE_FLOAT8_E5M2, 8, 1}, 1},
    {"I64", {CAPSTAN_DTYPE_INT, 64, 1}, 8},
    {"I32", {CAPSTAN_DTYPE_INT, 32, 1}, 4},
    {"I16", {CAPSTAN_DTYPE_INT, 16, 1}, 2},
    {"I8", {CAPSTAN_DTYPE_INT, 8, 1}, 1},
    {"U64", {CAPSTAN_DTYPE_UINT, 64, 1}, 8},
    {"U32", {CAPSTAN_DTYPE_UINT, 32, 1}, 4},
    {"U16", {CAPSTAN_DTYPE_UINT, 16, 1}, 2},
    {"U8", {CAPSTAN_DTYPE_UINT, 8, 1}, 1},
    {"BOOL", {CAPSTAN_DTYPE_BOOL, 8, 1}, 1},
};

}  // namespace

const Dtype* find_dtype(std::string_view name) {
  for (const Dtype& dtype : kDtypes) {
    if (name == dtype.name) return &dtype;
  }
  return nullptr;
}

const Dtype* find_dtype(capstan_dtype code) {
  for (const Dtype& dtype : kDtypes) {
    if (code.code == dtype.code.code && code.bits == dtype.code.bits &&
        code.lanes == dtype.code.lanes) {
      return &dtype;
    }
  }
  return nullptr;
}

std::string known_dtypes() {
  std::string names;
  for (const Dtype& dtype : kDtypes) {
    if (!names.empty()) names += ", ";
    names += dtype.name;
  }
  return names;
}

}  // namespace capstan::safetensors
