// Any bytes as a token shard, under every format: either refused in a sentence, or the ids fill the
// file exactly. A Capstan header that is accepted is the one its fields give when written again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "plugins/dataset/tokens/shard.h"
#include "sdk/error.h"

namespace {

namespace tokens = capstan::tokens;

void require(bool condition) {
  if (!condition) std::abort();
}

void check(std::string_view file, tokens::Format format, const char* name) {
  const std::string_view first = file.substr(0, tokens::kLlmcHeaderBytes);
  tokens::ShardInfo info;
  try {
    info = tokens::parse_shard(first, file.size(), format, name);
  } catch (const capstan::sdk::Error& error) {
    require(error.code() == CAPSTAN_DATA && !error.message().empty());
    return;
  }
  require(info.token_bytes == 2 || info.token_bytes == 4);
  require(info.data_start + info.token_count * info.token_bytes == file.size());
  if (info.format == tokens::Format::kCapstan) {
    require(tokens::build_shard_header(info) == file.substr(0, tokens::kHeaderBytes));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view file(reinterpret_cast<const char*>(data), size);
  for (tokens::Format format : {tokens::Format::kAuto, tokens::Format::kCapstan,
                                tokens::Format::kLlmc, tokens::Format::kRawU16}) {
    check(file, format, "fuzz.bin");
  }
  check(file, tokens::Format::kAuto, "fuzz.ctok");
  // No fuzzer guesses a checksum, so the fields behind it are also tried with the right one.
  if (size >= tokens::kHeaderBytes) {
    std::string sealed(file);
    const std::uint64_t sum = XXH3_64bits(sealed.data(), tokens::kHeaderBytes - 8);
    for (std::size_t i = 0; i < 8; ++i) {
      sealed[tokens::kHeaderBytes - 8 + i] = static_cast<char>(sum >> (8 * i) & 0xff);
    }
    check(sealed, tokens::Format::kCapstan, "fuzz.ctok");
  }
  return 0;
}
