// Any bytes as a safetensors file: the header is either refused in a sentence, or it describes a
// layout in which every tensor lies inside the file, none overlaps, and writing it again reads
// back.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "plugins/store/safetensors/header.h"
#include "sdk/error.h"

namespace {

namespace st = capstan::safetensors;

void require(bool condition) {
  if (!condition) std::abort();
}

void check(const st::Header& header, std::uint64_t file_size) {
  std::uint64_t covered = 0;
  for (const st::TensorEntry& tensor : header.tensors) {
    require(tensor.begin == covered && tensor.end >= tensor.begin);
    std::uint64_t bytes = tensor.dtype->size;
    for (std::int64_t dim : tensor.shape) bytes *= static_cast<std::uint64_t>(dim);
    require(bytes == tensor.bytes());
    covered = tensor.end;
  }
  require(header.data_start + covered == file_size);
}

void check_written_again(st::Header header) {
  const std::string bytes = st::build_header(header);
  const std::uint64_t data = header.tensors.empty() ? 0 : header.tensors.back().end;
  require(bytes.size() % st::kDataAlignment == 0);
  const std::uint64_t size = bytes.size() + data;
  require(st::header_length(bytes, size, "again") + st::kLengthBytes == bytes.size());
  const st::Header again = st::parse_header(bytes.substr(st::kLengthBytes), size, "again");
  require(again.tensors.size() == header.tensors.size());
  check(again, size);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view file(reinterpret_cast<const char*>(data), size);
  try {
    const std::uint64_t length = st::header_length(file.substr(0, st::kLengthBytes), size, "fuzz");
    const st::Header header = st::parse_header(file.substr(st::kLengthBytes, length), size, "fuzz");
    check(header, size);
    check_written_again(header);
  } catch (const capstan::sdk::Error& error) {
    require(error.code() == CAPSTAN_DATA && !error.message().empty());
  }
  return 0;
}
