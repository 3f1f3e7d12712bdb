#include "plugins/dataset/tokens/shard_writer.h"

#include <sys/stat.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "sdk/error.h"

namespace capstan::tokens {
namespace {

using sdk::quote;
using sdk::text;

constexpr std::size_t kBufferBytes = 1 << 20;
constexpr std::int64_t kMaxVocabulary = std::int64_t{1} << 31;

}  // namespace

struct ShardWriter::Hash {
  XXH3_state_t state;
};

ShardWriter::ShardWriter(const ShardRequest& request)
    : path_(request.path), hash_(std::make_unique<Hash>()) {
  if (request.vocabulary < 1 || request.vocabulary > kMaxVocabulary) {
    throw sdk::usage_error(text("a vocabulary of ", request.vocabulary, " for ", quote(path_),
                                " is not between 1 and 2^31"));
  }
  if (request.end_of_text < -1 || request.end_of_text >= request.vocabulary) {
    throw sdk::usage_error(text("the end-of-text id ", request.end_of_text, " for ", quote(path_),
                                " is not -1 or below the vocabulary of ", request.vocabulary));
  }
  if (request.tokenizer.size() >= kTokenizerBytes) {
    throw sdk::usage_error(text("the tokenizer's name ", quote(request.tokenizer), " has ",
                                request.tokenizer.size(), " bytes; at most ", kTokenizerBytes - 1,
                                " can be stored"));
  }
  struct stat status;
  if (::lstat(path_.c_str(), &status) == 0) {
    throw sdk::usage_error(text(quote(path_), " already exists; remove it or choose another name"));
  }
  info_.format = Format::kCapstan;
  info_.token_bytes = request.vocabulary <= 65536 ? 2 : 4;
  info_.vocabulary = static_cast<std::uint64_t>(request.vocabulary);
  info_.end_of_text = request.end_of_text;
  info_.tokenizer = request.tokenizer;
  info_.tokenizer_fingerprint = request.tokenizer_fingerprint;
  XXH3_64bits_reset(&hash_->state);
  const std::string parent = sdk::parent_directory(path_);
  sdk::make_directories(parent);
  temporary_ = parent + "/" + sdk::temporary_name(sdk::base_name(path_));
  file_ = sdk::File::create(temporary_);
  buffer_.reserve(kBufferBytes + 4);
}

ShardWriter::~ShardWriter() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void ShardWriter::append(std::span<const std::uint32_t> ids) {
  for (std::uint32_t id : ids) {
    if (id >= info_.vocabulary) {
      throw sdk::data_error(text("token ", id, " at position ", info_.token_count, " of ",
                                 quote(path_), " is not below the vocabulary of ", info_.vocabulary,
                                 "; the tokenizer does not fit the vocabulary it states"));
    }
    buffer_ += static_cast<char>(id & 0xff);
    buffer_ += static_cast<char>(id >> 8 & 0xff);
    if (info_.token_bytes == 4) {
      buffer_ += static_cast<char>(id >> 16 & 0xff);
      buffer_ += static_cast<char>(id >> 24);
    }
    ++info_.token_count;
    if (buffer_.size() >= kBufferBytes) flush();
  }
}

void ShardWriter::flush() {
  file_.write(buffer_.data(), buffer_.size(), kHeaderBytes + written_);
  XXH3_64bits_update(&hash_->state, buffer_.data(), buffer_.size());
  written_ += buffer_.size();
  buffer_.clear();
}

void ShardWriter::finish() {
  if (info_.token_count == 0) {
    throw sdk::data_error(text("no token was written to ", quote(path_),
                               ", and an empty file cannot be trained on; give it some text"));
  }
  flush();
  info_.data_hash = XXH3_64bits_digest(&hash_->state);
  const std::string header = build_shard_header(info_);
  file_.write(header.data(), header.size(), 0);
  file_.sync();
  file_.finish();
  sdk::rename_path(temporary_, path_);
  temporary_.clear();
  sdk::sync_directory(sdk::parent_directory(path_));
}

}  // namespace capstan::tokens
