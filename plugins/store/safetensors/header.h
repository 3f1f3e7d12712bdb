// The header of a safetensors file: 8 bytes of little-endian length, then that many bytes of JSON
// {"tensor": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}, then the data.
//
// Reading trusts nothing: sizes, offsets, names and JSON all come from a file that may be torn,
// forged or of another format. Every refusal throws sdk::data_error whose sentence names the
// file, the tensor, the value and the remedy.
#ifndef CAPSTAN_PLUGINS_STORE_SAFETENSORS_HEADER_H_
#define CAPSTAN_PLUGINS_STORE_SAFETENSORS_HEADER_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "plugins/store/safetensors/dtype.h"

namespace capstan::safetensors {

inline constexpr std::uint64_t kLengthBytes = 8;
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
inline constexpr std::uint64_t kDataAlignment = 64;
inline constexpr std::size_t kMaxDims = 64;

struct TensorEntry {
  std::string name;
  const Dtype* dtype = nullptr;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;  // bytes from the start of the data
  std::uint64_t end = 0;

  std::uint64_t bytes() const { return end - begin; }
};

struct Header {
  std::vector<TensorEntry> tensors;  // ascending by offset
  std::vector<std::pair<std::string, std::string>> metadata;
  std::uint64_t data_start = 0;  // file offset of the first tensor's bytes
};

// The JSON's length from the first 8 bytes (or fewer, when the file is shorter). `file` is for
// messages only.
std::uint64_t header_length(std::string_view first_bytes, std::uint64_t file_size,
                            const std::string& file);

// `json` is the whole header text, header_length bytes.
Header parse_header(std::string_view json, std::uint64_t file_size, const std::string& file);

// Bytes of a tensor; throws when a dim is negative or the product passes 2^63. `what` begins the
// sentence: "file 'x': tensor 'y'".
std::uint64_t tensor_bytes(const std::vector<std::int64_t>& shape, std::uint32_t element_size,
                           const std::string& what);

// Places the tensors one after another (larger elements first, so that each is aligned to its own
// element; otherwise in the given order), fills in begin, end and data_start, and returns length
// and JSON padded with spaces so that the data begins at a multiple of 64 bytes.
std::string build_header(Header& header);

}  // namespace capstan::safetensors

#endif  // CAPSTAN_PLUGINS_STORE_SAFETENSORS_HEADER_H_
