// The element types of safetensors and their DLPack codes.
#ifndef CAPSTAN_PLUGINS_STORE_SAFETENSORS_DTYPE_H_
#define CAPSTAN_PLUGINS_STORE_SAFETENSORS_DTYPE_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "plugin_api/base.h"

namespace capstan::safetensors {

struct Dtype {
  const char* name;    // as the header spells it, "BF16"
  capstan_dtype code;  // DLPack's
  std::uint32_t size;  // bytes of one element
};

// NULL when there is no such type. The result lives for ever.
const Dtype* find_dtype(std::string_view name);
const Dtype* find_dtype(capstan_dtype code);

// "F64, F32, ...": for messages.
std::string known_dtypes();

}  // namespace capstan::safetensors

#endif  // CAPSTAN_PLUGINS_STORE_SAFETENSORS_DTYPE_H_
