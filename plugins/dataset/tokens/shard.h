// Files of token ids and the four headers they may have.
//
// Capstan (.ctok), 256 bytes, little-endian, then the ids:
//
//   offset  size  field
//        0     8  magic "CTOK\r\n\x1a\n" (a transfer in text mode breaks it)
//        8     4  version, 1
//       12     4  header size, 256
//       16     4  bytes of an id, 2 or 4
//       20     4  flags, 0
//       24     8  vocabulary: every id is below it
//       32     8  number of ids
//       40     8  XXH3-64 of the ids' bytes
//       48     8  id that ends a document, -1: none (signed)
//       56     8  fingerprint of the tokenizer, 0: unknown
//       64   128  name of the tokenizer, UTF-8, padded with zero bytes
//      192    56  zero
//      248     8  XXH3-64 of bytes 0 .. 247
//
// llm.c (.bin): 256 little-endian int32: magic 20240520, version 1 (16-bit ids, GPT-2) or magic
// 20240801, version 7 (32-bit ids, LLaMA 3); then the number of ids; the rest unused.
//
// raw_u16 (.bin, as nanoGPT writes): no header, 16-bit ids.
#ifndef CAPSTAN_PLUGINS_DATASET_TOKENS_SHARD_H_
#define CAPSTAN_PLUGINS_DATASET_TOKENS_SHARD_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace capstan::tokens {

enum class Format { kAuto, kCapstan, kLlmc, kRawU16 };

// "auto", "capstan", "llmc" or "raw_u16"; throws on anything else.
Format parse_format(const std::string& name);
const char* format_name(Format format);

inline constexpr char kExtension[] = ".ctok";
inline constexpr std::uint64_t kHeaderBytes = 256;
inline constexpr std::uint64_t kLlmcHeaderBytes = 1024;
inline constexpr std::size_t kTokenizerBytes = 128;  // name and at least one zero

struct ShardInfo {
  Format format = Format::kAuto;
  std::uint32_t token_bytes = 0;  // 2 or 4
  std::uint64_t token_count = 0;
  std::uint64_t data_start = 0;  // byte offset of the first id
  // Capstan's own format only:
  std::uint64_t vocabulary = 0;  // 0: unknown
  std::uint64_t data_hash = 0;
  std::int64_t end_of_text = -1;
  std::uint64_t tokenizer_fingerprint = 0;
  std::string tokenizer;
};

// What the file is, from its first bytes (kLlmcHeaderBytes of them, or all when it is shorter).
//
// With kAuto: the magic of Capstan or llm.c decides; without either, a file named *.bin of even
// size is raw_u16 and anything else is refused. (A raw_u16 file that begins like llm.c's magic
// would hold the ids 55432, 308 or 55713, 308 first: above GPT-2's vocabulary.)
//
// Throws sdk::data_error naming the file, the value and the remedy when sizes, counts or checksums
// do not agree.
ShardInfo parse_shard(std::string_view first_bytes, std::uint64_t file_size, Format format,
                      const std::string& file);

// The 256 bytes of a .ctok header; info.tokenizer must be shorter than kTokenizerBytes.
std::string build_shard_header(const ShardInfo& info);

}  // namespace capstan::tokens

#endif  // CAPSTAN_PLUGINS_DATASET_TOKENS_SHARD_H_
