// Writes one .ctok file; nothing is visible at its place before finish.
#ifndef CAPSTAN_PLUGINS_DATASET_TOKENS_SHARD_WRITER_H_
#define CAPSTAN_PLUGINS_DATASET_TOKENS_SHARD_WRITER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "plugins/dataset/tokens/shard.h"
#include "sdk/file.h"

namespace capstan::tokens {

struct ShardRequest {
  std::string path;
  std::int64_t vocabulary = 0;
  std::int64_t end_of_text = -1;
  std::string tokenizer;  // empty: unknown
  std::uint64_t tokenizer_fingerprint = 0;
};

// Ids take 2 bytes when the vocabulary is at most 65536, else 4. [one thread]
class ShardWriter {
 public:
  explicit ShardWriter(const ShardRequest& request);
  // Without finish: removes the temporary.
  ~ShardWriter();
  ShardWriter(const ShardWriter&) = delete;
  ShardWriter& operator=(const ShardWriter&) = delete;

  void append(std::span<const std::uint32_t> ids);
  void finish();

 private:
  struct Hash;  // running XXH3 of the ids
  void flush();

  ShardInfo info_;
  std::string path_;
  std::string temporary_;
  sdk::File file_;
  std::string buffer_;
  std::uint64_t written_ = 0;  // bytes of ids
  std::unique_ptr<Hash> hash_;
};

}  // namespace capstan::tokens

#endif  // CAPSTAN_PLUGINS_DATASET_TOKENS_SHARD_WRITER_H_
