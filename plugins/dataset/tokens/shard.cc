#include "plugins/dataset/tokens/shard.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "sdk/error.h"
#include "sdk/file.h"

namespace capstan::tokens {
namespace {

using sdk::quote;
using sdk::text;

constexpr std::string_view kMagic("CTOK\r\n\x1a\n", 8);
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kTokenizerOffset = 64;
constexpr std::size_t kReservedOffset = 192;
constexpr std::size_t kChecksumOffset = 248;
constexpr std::uint64_t kMaxVocabulary = std::uint64_t{1} << 31;  // ids are int32 in a batch

constexpr std::uint32_t kLlmcMagicU16 = 20240520;
constexpr std::uint32_t kLlmcMagicU32 = 20240801;
constexpr std::uint32_t kLlmcMagicEvaluation = 20240522;

constexpr const char* kAgain = "; it is damaged: write or fetch it again";

template <class T>
T load(std::string_view bytes, std::size_t offset) {
  T value = 0;
  for (std::size_t i = sizeof(T); i-- > 0;) {
    value = static_cast<T>(value << 8 | static_cast<unsigned char>(bytes[offset + i]));
  }
  return value;
}

template <class T>
void put(std::string& bytes, std::size_t offset, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    bytes[offset + i] = static_cast<char>(value >> (8 * i) & 0xff);
  }
}

bool ends_with(const std::string& name, std::string_view suffix) {
  return name.size() >= suffix.size() &&
         name.compare(name.size() - suffix.size(), suffix.size(), suffix) == 0;
}

// The ids must fill the file exactly: a count that does not is a truncated or forged file.
void check_count(const ShardInfo& info, std::uint64_t file_size, const std::string& at) {
  const std::uint64_t data = file_size - info.data_start;
  if (info.token_count == data / info.token_bytes && data % info.token_bytes == 0) return;
  throw sdk::data_error(text(at, "the header announces ", info.token_count, " tokens of ",
                             info.token_bytes, " bytes, but the file holds ", data,
                             " bytes after it; it was cut short or appended to: write or fetch it "
                             "again"));
}

ShardInfo parse_capstan(std::string_view bytes, std::uint64_t file_size, const std::string& at) {
  if (bytes.size() < kHeaderBytes) {
    throw sdk::data_error(
        text(at, "the header needs ", kHeaderBytes, " bytes, the file has ", file_size, kAgain));
  }
  if (bytes.substr(0, kMagic.size()) != kMagic) {
    throw sdk::data_error(text(at, "it does not begin as a ", kExtension,
                               " file does; check the path and the option format"));
  }
  if (const auto version = load<std::uint32_t>(bytes, 8); version != kVersion) {
    throw sdk::data_error(text(at, "version ", version, " of the format is not known, only ",
                               kVersion, "; use a newer Capstan or write the file again"));
  }
  if (load<std::uint64_t>(bytes, kChecksumOffset) != XXH3_64bits(bytes.data(), kChecksumOffset)) {
    throw sdk::data_error(text(at, "the header's checksum does not match", kAgain));
  }
  ShardInfo info;
  info.format = Format::kCapstan;
  info.data_start = load<std::uint32_t>(bytes, 12);
  info.token_bytes = load<std::uint32_t>(bytes, 16);
  info.vocabulary = load<std::uint64_t>(bytes, 24);
  info.token_count = load<std::uint64_t>(bytes, 32);
  info.data_hash = load<std::uint64_t>(bytes, 40);
  info.end_of_text = static_cast<std::int64_t>(load<std::uint64_t>(bytes, 48));
  info.tokenizer_fingerprint = load<std::uint64_t>(bytes, 56);
  const std::string_view name = bytes.substr(kTokenizerOffset, kTokenizerBytes);
  const std::string_view reserved =
      bytes.substr(kReservedOffset, kChecksumOffset - kReservedOffset);
  const auto nonzero = [](char c) { return c != 0; };
  const bool sound =
      info.data_start == kHeaderBytes && (info.token_bytes == 2 || info.token_bytes == 4) &&
      load<std::uint32_t>(bytes, 20) == 0 && info.vocabulary >= 1 &&
      info.vocabulary <= (info.token_bytes == 2 ? 65536 : kMaxVocabulary) &&
      info.end_of_text >= -1 && info.end_of_text < static_cast<std::int64_t>(info.vocabulary) &&
      std::none_of(reserved.begin(), reserved.end(), nonzero) &&
      name.find('\0') != std::string_view::npos &&
      std::none_of(name.begin() + static_cast<std::ptrdiff_t>(name.find('\0')), name.end(),
                   nonzero);
  if (!sound) {
    throw sdk::data_error(text(at, "the header has a field out of range (", info.token_bytes,
                               " bytes an id, vocabulary ", info.vocabulary, ")", kAgain));
  }
  info.tokenizer = std::string(name.substr(0, name.find('\0')));
  check_count(info, file_size, at);
  return info;
}

ShardInfo parse_llmc(std::string_view bytes, std::uint64_t file_size, const std::string& at) {
  if (bytes.size() < kLlmcHeaderBytes) {
    throw sdk::data_error(text(at, "llm.c's header needs ", kLlmcHeaderBytes,
                               " bytes, the file has ", file_size, kAgain));
  }
  const auto magic = load<std::uint32_t>(bytes, 0);
  const auto version = load<std::uint32_t>(bytes, 4);
  if (magic != kLlmcMagicU16 && magic != kLlmcMagicU32) {
    throw sdk::data_error(text(at, "it begins with ", magic, ", not with llm.c's ", kLlmcMagicU16,
                               " or ", kLlmcMagicU32, "; check the path and the option format"));
  }
  const std::uint32_t known = magic == kLlmcMagicU16 ? 1 : 7;
  if (version != known) {
    throw sdk::data_error(text(at, "version ", version, " of llm.c's format ", magic,
                               " is not known, only ", known, "; convert the file"));
  }
  ShardInfo info;
  info.format = Format::kLlmc;
  info.token_bytes = magic == kLlmcMagicU16 ? 2 : 4;
  info.data_start = kLlmcHeaderBytes;
  info.token_count = load<std::uint32_t>(bytes, 8);
  check_count(info, file_size, at);
  return info;
}

ShardInfo parse_raw_u16(std::uint64_t file_size, const std::string& at) {
  if (file_size % 2 != 0) {
    throw sdk::data_error(
        text(at, "its size of ", file_size,
             " bytes is odd, so it cannot hold 16-bit tokens; it was cut short or "
             "is of another format: set the option format or write it again"));
  }
  ShardInfo info;
  info.format = Format::kRawU16;
  info.token_bytes = 2;
  info.token_count = file_size / 2;
  return info;
}

Format detect(std::string_view bytes, const std::string& file, const std::string& at) {
  if (bytes.substr(0, 4) == kMagic.substr(0, 4) || ends_with(file, kExtension)) {
    return Format::kCapstan;
  }
  if (bytes.size() >= 4) {
    const auto magic = load<std::uint32_t>(bytes, 0);
    if (magic == kLlmcMagicU16 || magic == kLlmcMagicU32) return Format::kLlmc;
    if (magic == kLlmcMagicEvaluation) {
      throw sdk::data_error(text(at,
                                 "it is an evaluation file of llm.c (multiple choice), not a "
                                 "stream of tokens; use a training or validation file"));
    }
  }
  if (ends_with(file, ".bin")) return Format::kRawU16;
  throw sdk::data_error(text(at,
                             "its format is not recognised; set the option format to capstan, "
                             "llmc or raw_u16, or tokenize the text first (capstan data "
                             "tokenize)"));
}

}  // namespace

Format parse_format(const std::string& name) {
  for (Format format : {Format::kAuto, Format::kCapstan, Format::kLlmc, Format::kRawU16}) {
    if (name == format_name(format)) return format;
  }
  throw sdk::usage_error(
      text("format ", quote(name), " is not known; use auto, capstan, llmc or raw_u16"));
}

const char* format_name(Format format) {
  switch (format) {
    case Format::kAuto:
      return "auto";
    case Format::kCapstan:
      return "capstan";
    case Format::kLlmc:
      return "llmc";
    case Format::kRawU16:
      return "raw_u16";
  }
  return "";
}

ShardInfo parse_shard(std::string_view first_bytes, std::uint64_t file_size, Format format,
                      const std::string& file) {
  const std::string at = text("file ", quote(file), ": ");
  if (file_size == 0) throw sdk::data_error(at + "it is empty; write or fetch it again");
  if (format == Format::kAuto) format = detect(first_bytes, file, at);
  if (format == Format::kCapstan) return parse_capstan(first_bytes, file_size, at);
  if (format == Format::kLlmc) return parse_llmc(first_bytes, file_size, at);
  return parse_raw_u16(file_size, at);
}

std::string build_shard_header(const ShardInfo& info) {
  std::string bytes(kHeaderBytes, '\0');
  std::copy(kMagic.begin(), kMagic.end(), bytes.begin());
  put<std::uint32_t>(bytes, 8, kVersion);
  put<std::uint32_t>(bytes, 12, static_cast<std::uint32_t>(kHeaderBytes));
  put<std::uint32_t>(bytes, 16, info.token_bytes);
  put<std::uint64_t>(bytes, 24, info.vocabulary);
  put<std::uint64_t>(bytes, 32, info.token_count);
  put<std::uint64_t>(bytes, 40, info.data_hash);
  put<std::uint64_t>(bytes, 48, static_cast<std::uint64_t>(info.end_of_text));
  put<std::uint64_t>(bytes, 56, info.tokenizer_fingerprint);
  std::copy(info.tokenizer.begin(), info.tokenizer.end(), bytes.begin() + kTokenizerOffset);
  put<std::uint64_t>(bytes, kChecksumOffset, XXH3_64bits(bytes.data(), kChecksumOffset));
  return bytes;
}

}  // namespace capstan::tokens
