#include "plugins/dataset/tokens/source.h"

#include <glob.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <utility>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "sdk/error.h"
#include "sdk/file.h"

namespace capstan::tokens {
namespace {

using sdk::quote;
using sdk::text;

static_assert(std::endian::native == std::endian::little, "shards are mapped as they are on disk");

bool ends_with(const std::string& name, std::string_view suffix) {
  return name.size() >= suffix.size() &&
         name.compare(name.size() - suffix.size(), suffix.size(), suffix) == 0;
}

std::vector<std::string> directory_shards(const std::string& directory) {
  std::vector<std::string> paths;
  std::error_code error;
  for (std::filesystem::directory_iterator it(directory, error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.front() != '.' && (ends_with(name, kExtension) || ends_with(name, ".bin"))) {
      paths.push_back(it->path().string());
    }
  }
  if (error) throw sdk::system_error("list directory", directory, error.value());
  if (paths.empty()) {
    throw sdk::usage_error(text("directory ", quote(directory), " holds no *", kExtension,
                                " or *.bin file; check the path, or write some with capstan data "
                                "tokenize"));
  }
  return paths;
}

std::vector<std::string> pattern_matches(const std::string& pattern) {
  glob_t found{};
  const int result = ::glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found);
  std::vector<std::string> paths(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  if (result == GLOB_NOMATCH || (result == 0 && paths.empty())) {
    throw sdk::usage_error(text("no file matches ", quote(pattern), "; check the path"));
  }
  if (result != 0) {
    throw sdk::resource_error(text("cannot list the files that match ", quote(pattern)));
  }
  return paths;
}

}  // namespace

std::vector<std::string> expand_path(const std::string& path) {
  struct stat status;
  if (::stat(path.c_str(), &status) == 0) {
    if (!S_ISDIR(status.st_mode)) return {path};
    std::vector<std::string> paths = directory_shards(path);
    std::sort(paths.begin(), paths.end());
    return paths;
  }
  if (path.find_first_of("*?[") == std::string::npos) {
    throw sdk::system_error("open", path, errno);
  }
  std::vector<std::string> paths = pattern_matches(path);
  std::sort(paths.begin(), paths.end());
  return paths;
}

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const sdk::File file = sdk::File::open_to_read(path);
  size_ = file.size();
  if (size_ == 0) return;
  void* mapped = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.fd(), 0);
  if (mapped == MAP_FAILED) throw sdk::system_error("map", path, errno);
  data_ = static_cast<char*>(mapped);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

void MappedFile::expect_random_reads() const {
  if (data_ != nullptr) ::madvise(data_, size_, MADV_RANDOM);  // a hint: failure is no loss
}

Source::Source(const std::string& path, Format format, std::int64_t vocabulary, bool random_reads,
               bool verify)
    : vocabulary_(vocabulary), starts_{0} {
  for (const std::string& name : expand_path(path)) {
    MappedFile file(name);
    const std::string_view first(file.data(), std::min(file.size(), kLlmcHeaderBytes));
    ShardInfo info = parse_shard(first, file.size(), format, name);
    shards_.push_back({std::move(file), std::move(info)});
    const Shard& shard = shards_.back();
    check_vocabulary(shard);
    if (verify) check_data(shard);
    if (random_reads) shard.file.expect_random_reads();
    starts_.push_back(starts_.back() + shard.info.token_count);
  }
}

void Source::check_vocabulary(const Shard& shard) const {
  if (shard.info.vocabulary <= static_cast<std::uint64_t>(vocabulary_)) return;
  throw sdk::data_error(
      text("file ", quote(shard.file.path()), " was written for a vocabulary of ",
           shard.info.vocabulary, ", but the model's is ", vocabulary_,
           "; use the same tokenizer for both or enlarge the model's vocabulary"));
}

void Source::check_data(const Shard& shard) const {
  if (shard.info.format != Format::kCapstan) return;
  const std::uint64_t start = shard.info.data_start;
  if (XXH3_64bits(shard.file.data() + start, shard.file.size() - start) != shard.info.data_hash) {
    throw sdk::data_error(
        text("file ", quote(shard.file.path()),
             ": the checksum of the tokens does not match; it is damaged: write or "
             "fetch it again"));
  }
}

void Source::read(std::uint64_t first, std::uint64_t count, std::int32_t* out) const {
  const auto after = std::upper_bound(starts_.begin(), starts_.end(), first);
  auto s = static_cast<std::size_t>(after - starts_.begin()) - 1;
  while (count > 0) {
    const Shard& shard = shards_[s];
    const std::uint64_t offset = first - starts_[s];
    const std::uint64_t here = std::min(count, shard.info.token_count - offset);
    if (shard.info.token_bytes == 2) {
      read_shard<std::uint16_t>(shard, offset, here, out);
    } else {
      read_shard<std::uint32_t>(shard, offset, here, out);
    }
    first += here;
    count -= here;
    out += here;
    ++s;
  }
}

template <class Id>
void Source::read_shard(const Shard& shard, std::uint64_t first, std::uint64_t count,
                        std::int32_t* out) const {
  const char* bytes = shard.file.data() + shard.info.data_start + first * sizeof(Id);
  std::uint32_t largest = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    Id id;
    std::memcpy(&id, bytes + i * sizeof(Id), sizeof(Id));
    largest = std::max<std::uint32_t>(largest, id);
    out[i] = static_cast<std::int32_t>(id);
  }
  if (static_cast<std::int64_t>(largest) < vocabulary_) return;
  std::uint64_t i = 0;
  while (static_cast<std::int64_t>(static_cast<std::uint32_t>(out[i])) < vocabulary_) ++i;
  throw sdk::data_error(
      text("file ", quote(shard.file.path()), ": token ", static_cast<std::uint32_t>(out[i]),
           " at position ", first + i, " (byte ", shard.info.data_start + (first + i) * sizeof(Id),
           ") is not below the model's vocabulary of ", vocabulary_,
           "; use the tokenizer the model was made for, or check the option format"));
}

}  // namespace capstan::tokens
