// The shards of one source, memory-mapped, seen as one stream of token ids.
#ifndef CAPSTAN_PLUGINS_DATASET_TOKENS_SOURCE_H_
#define CAPSTAN_PLUGINS_DATASET_TOKENS_SOURCE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "plugins/dataset/tokens/shard.h"

namespace capstan::tokens {

// The files a path stands for, ascending by name: itself, every *.ctok and *.bin of a directory, or
// the matches of a pattern with * ? or [.
std::vector<std::string> expand_path(const std::string& path);

// A read-only file in memory. Do not shorten a file that is mapped: the pages are gone for good.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;

  const std::string& path() const { return path_; }
  const char* data() const { return data_; }
  std::uint64_t size() const { return size_; }
  // Tells the kernel that reads will jump about, so that it does not read ahead in vain.
  void expect_random_reads() const;

 private:
  std::string path_;
  char* data_ = nullptr;
  std::uint64_t size_ = 0;
};

class Source {
 public:
  // verify: also compares the checksum of every .ctok file, which reads all of it.
  Source(const std::string& path, Format format, std::int64_t vocabulary, bool random_reads,
         bool verify);

  std::uint64_t token_count() const { return starts_.back(); }
  std::size_t shard_count() const { return shards_.size(); }

  // Ids [first, first + count) of the stream. Throws when one is not below the vocabulary.
  // [any thread]
  void read(std::uint64_t first, std::uint64_t count, std::int32_t* out) const;

 private:
  struct Shard {
    MappedFile file;
    ShardInfo info;
  };

  void check_vocabulary(const Shard& shard) const;
  void check_data(const Shard& shard) const;
  template <class Id>
  void read_shard(const Shard& shard, std::uint64_t first, std::uint64_t count,
                  std::int32_t* out) const;

  std::int64_t vocabulary_;
  std::vector<Shard> shards_;
  std::vector<std::uint64_t> starts_;  // stream position of each shard's first id; last: the end
};

}  // namespace capstan::tokens

#endif  // CAPSTAN_PLUGINS_DATASET_TOKENS_SOURCE_H_
