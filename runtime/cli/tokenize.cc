// `capstan data tokenize`: text files into token shards, by way of a tokenizer plugin and the
// dataset plugin that writes what training reads.
//
// The split into training and validation text is by place: the last F of each input's bytes are
// validation. So neighbouring sentences stay together, no sample of one split overlaps the other,
// and the same inputs always give the same shards.
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <vector>

#include "absl/strings/str_format.h"
#include "plugin_api/dataset_writer.h"
#include "plugin_api/tokenizer.h"
#include "runtime/cli/cli.h"
#include "runtime/cli/default_options.h"
#include "runtime/cli/tokenize_inputs.h"
#include "runtime/run/figures.h"
#include "runtime/run/files.h"
#include "runtime/run/host.h"
#include "runtime/run/owned.h"
#include "runtime/status.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFormat = "tokens";  // the dataset whose files are written
constexpr const char* kScratchPrefix = ".tmp-tokenize-";

using Tokenizer = Owned<capstan_tokenizer_v1>;

// ---- a directory that vanishes unless its files are moved out

// Shards are written in here and moved to their places together at the end. Locked while it is in
// use, so that the next run can tell one that a crash left behind, and remove it.
class Scratch {
 public:
  static absl::StatusOr<std::unique_ptr<Scratch>> Create(const std::string& output) {
    CAPSTAN_RETURN_IF_ERROR(MakeDirectories(output));
    RemoveAbandoned(output);
    std::unique_ptr<Scratch> scratch(new Scratch());
    scratch->path_ = StrCat(output, "/", kScratchPrefix, ::getpid());
    CAPSTAN_RETURN_IF_ERROR(MakeDirectories(scratch->path_));
    scratch->lock_ = ::open(scratch->path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (scratch->lock_ >= 0) ::flock(scratch->lock_, LOCK_EX | LOCK_NB);
    return scratch;
  }
  ~Scratch() {
    std::error_code error;
    fs::remove_all(path_, error);
    if (lock_ >= 0) ::close(lock_);
  }
  const std::string& path() const { return path_; }

 private:
  Scratch() = default;
  static void RemoveAbandoned(const std::string& output) {
    std::error_code error;
    for (const fs::directory_entry& entry : fs::directory_iterator(output, error)) {
      if (!entry.path().filename().native().starts_with(kScratchPrefix)) continue;
      const int fd = ::open(entry.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
      if (fd >= 0 && ::flock(fd, LOCK_EX | LOCK_NB) == 0) fs::remove_all(entry.path(), error);
      if (fd >= 0) ::close(fd);
    }
  }

  std::string path_;
  int lock_ = -1;
};

// ---- shards of one split

struct ShardSettings {
  const capstan_dataset_writer_v1* vtable = nullptr;
  const capstan_host* host = nullptr;
  const OptionSet* options = nullptr;
  std::string tokenizer;
  uint64_t fingerprint = 0;
  int64_t vocabulary = 0, end_of_text = -1;
  int64_t shard_tokens = 0;
};

// "train-00000.ctok".
std::string ShardName(const std::string& split, int64_t index, const std::string& extension) {
  return absl::StrFormat("%s-%05d%s", split, index, extension);
}

// Cuts a stream of ids into files of at most shard_tokens.
class Shards {
 public:
  Shards(const ShardSettings& settings, std::string directory, std::string split)
      : settings_(settings), directory_(std::move(directory)), split_(std::move(split)) {}
  ~Shards() {
    if (writer_ != nullptr) settings_.vtable->abort(writer_);
  }
  Shards(const Shards&) = delete;
  Shards& operator=(const Shards&) = delete;

  absl::Status Append(const uint32_t* ids, size_t count) {
    while (count > 0) {
      if (writer_ == nullptr) CAPSTAN_RETURN_IF_ERROR(Begin());
      const size_t room = static_cast<size_t>(settings_.shard_tokens - in_shard_);
      const size_t now = std::min(count, room);
      CAPSTAN_RETURN_IF_ERROR(settings_.vtable->append(writer_, ids, now));
      ids += now;
      count -= now;
      in_shard_ += static_cast<int64_t>(now);
      tokens_ += static_cast<int64_t>(now);
      if (in_shard_ == settings_.shard_tokens) CAPSTAN_RETURN_IF_ERROR(Finish());
    }
    return absl::OkStatus();
  }
  absl::Status Finish() {
    if (writer_ == nullptr) return absl::OkStatus();
    void* writer = writer_;
    writer_ = nullptr;  // finish consumes it
    return FromC(settings_.vtable->finish(writer));
  }
  int64_t tokens() const { return tokens_; }
  const std::vector<std::string>& names() const { return names_; }

 private:
  absl::Status Begin() {
    names_.push_back(
        ShardName(split_, static_cast<int64_t>(names_.size()), settings_.vtable->extension));
    const std::string path = StrCat(directory_, "/", names_.back());
    capstan_dataset_writer_request request{};
    request.struct_size = sizeof(request);
    request.path = path.c_str();
    request.vocabulary = settings_.vocabulary;
    request.end_of_text = settings_.end_of_text;
    request.tokenizer = settings_.tokenizer.c_str();
    request.tokenizer_fingerprint = settings_.fingerprint;
    in_shard_ = 0;
    return FromC(
        settings_.vtable->create(settings_.host, &settings_.options->c(), &request, &writer_));
  }

  const ShardSettings& settings_;
  std::string directory_, split_;
  std::vector<std::string> names_;
  void* writer_ = nullptr;
  int64_t in_shard_ = 0, tokens_ = 0;
};

// ---- progress

// Bytes of text so far, redrawn on one line of a terminal; silent elsewhere.
class Meter {
 public:
  Meter() : terminal_(::isatty(STDERR_FILENO) != 0), begin_(Clock::now()), drawn_(begin_) {}
  ~Meter() {
    if (terminal_) std::fputs("\r\x1b[2K", stderr);
  }
  void Add(size_t bytes) {
    bytes_ += static_cast<double>(bytes);
    const Clock::time_point now = Clock::now();
    if (!terminal_ || now - drawn_ < std::chrono::milliseconds(200)) return;
    drawn_ = now;
    std::fprintf(stderr, "\r\x1b[2Ktokenizing: %s", Text().c_str());
    std::fflush(stderr);
  }
  // "1.1 MB of text, 52.3 MB/s".
  std::string Text() const {
    const double seconds = std::chrono::duration<double>(Clock::now() - begin_).count();
    return StrCat(BytesText(bytes_), " of text, ",
                  absl::StrFormat("%.1f MB/s", bytes_ / 1e6 / std::max(seconds, 1e-9)));
  }

 private:
  using Clock = std::chrono::steady_clock;
  bool terminal_;
  Clock::time_point begin_, drawn_;
  double bytes_ = 0;
};

// ---- the command

// Ids of texts, one after the other.
class TextEncoder {
 public:
  static absl::StatusOr<std::unique_ptr<TextEncoder>> Create(const Tokenizer& tokenizer) {
    std::unique_ptr<TextEncoder> made(new TextEncoder(tokenizer));
    CAPSTAN_RETURN_IF_ERROR(tokenizer->encoder_create(tokenizer.self(), &made->encoder_));
    return made;
  }
  ~TextEncoder() {
    if (encoder_ != nullptr) tokenizer_->encoder_destroy(tokenizer_.self(), encoder_);
  }
  // [begin, end) of a text, closed by the tokenizer's end-of-text id where it has one.
  absl::Status Encode(InputText& text, int64_t begin, int64_t end, Shards& to, Meter& meter) {
    if (begin == end) return absl::OkStatus();
    CAPSTAN_RETURN_IF_ERROR(
        text.Read(begin, end, [&](std::string_view piece, bool last) -> absl::Status {
          const uint32_t* ids = nullptr;
          size_t count = 0;
          CAPSTAN_RETURN_IF_ERROR(tokenizer_->encode(tokenizer_.self(), encoder_, piece.data(),
                                                     piece.size(), last ? 1 : 0, &ids, &count));
          meter.Add(piece.size());
          return to.Append(ids, count);
        }));
    const int64_t closing = tokenizer_->end_of_text(tokenizer_.self());
    if (closing < 0) return absl::OkStatus();
    const auto id = static_cast<uint32_t>(closing);
    return to.Append(&id, 1);
  }

 private:
  explicit TextEncoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  const Tokenizer& tokenizer_;
  void* encoder_ = nullptr;
};

absl::Status CheckArguments(const TokenizeArguments& arguments) {
  if (arguments.inputs.empty()) return UsageError("data tokenize needs a text file to read");
  if (arguments.output.empty()) return UsageError("data tokenize needs --out DIR");
  if (arguments.shard_tokens < 1) {
    return UsageError("--shard-tokens ", arguments.shard_tokens, ": give at least 1");
  }
  if (!(arguments.validation_fraction >= 0 && arguments.validation_fraction < 1)) {
    return UsageError("--validation-fraction ", arguments.validation_fraction,
                      ": give a share from 0 up to, but not including, 1");
  }
  return absl::OkStatus();
}

// Old shards beside new ones would be trained on together.
absl::Status RefuseOldShards(const std::string& output, const std::string& extension) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(output, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.ends_with(extension)) continue;
    if (!name.starts_with("train-") && !name.starts_with("val-")) continue;
    return UsageError(entry.path().string(),
                      " already exists; remove the old shards or choose "
                      "another --out");
  }
  return absl::OkStatus();
}

absl::Status EncodeAll(const std::vector<std::string>& inputs, double validation,
                       const std::string& scratch, TextEncoder& encoder, Shards& train,
                       Shards& held_out, Meter& meter) {
  for (const std::string& input : inputs) {
    CAPSTAN_ASSIGN_OR_RETURN(InputText text, InputText::Open(input, validation > 0, scratch));
    int64_t cut = text.size();  // -1: to the end
    if (validation > 0) {
      CAPSTAN_ASSIGN_OR_RETURN(cut, text.CutBefore(validation));
    }
    CAPSTAN_RETURN_IF_ERROR(Annotate(encoder.Encode(text, 0, cut, train, meter), input));
    if (validation == 0) continue;
    CAPSTAN_RETURN_IF_ERROR(
        Annotate(encoder.Encode(text, cut, text.size(), held_out, meter), input));
  }
  CAPSTAN_RETURN_IF_ERROR(train.Finish());
  CAPSTAN_RETURN_IF_ERROR(held_out.Finish());
  if (train.tokens() == 0) return DataError("the inputs hold no text to train on");
  if (validation > 0 && held_out.tokens() == 0) {
    return UsageError("--validation-fraction ", validation,
                      " of the inputs is not even one token; ", "give a larger share or more text");
  }
  return absl::OkStatus();
}

absl::Status Publish(const Shards& shards, const std::string& scratch, const std::string& output) {
  for (const std::string& name : shards.names()) {
    std::error_code error;
    fs::rename(StrCat(scratch, "/", name), StrCat(output, "/", name), error);
    if (error) return ResourceError("cannot move ", name, " to ", output, ": ", error.message());
  }
  return absl::OkStatus();
}

void Report(const char* split, const Shards& shards, const std::string& output) {
  if (shards.names().empty()) return;
  const size_t files = shards.names().size();
  std::printf("%s: %s tokens in %zu shard%s, %s/%s%s\n", split,
              GroupedText(shards.tokens()).c_str(), files, files == 1 ? "" : "s", output.c_str(),
              shards.names().front().c_str(), files == 1 ? "" : " ...");
}

}  // namespace

absl::StatusOr<int> TokenizeCommand(const TokenizeArguments& arguments) {
  CAPSTAN_RETURN_IF_ERROR(CheckArguments(arguments));
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<std::string> inputs, ListInputs(arguments.inputs));
  CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<HostEnvironment> host, HostEnvironment::Create());
  CAPSTAN_ASSIGN_OR_RETURN(const Tokenizer tokenizer, MakeWithDefaults<capstan_tokenizer_v1>(
                                                          *host, "tokenizer", arguments.tokenizer));
  CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<TextEncoder> encoder, TextEncoder::Create(tokenizer));
  CAPSTAN_ASSIGN_OR_RETURN(const Component* component,
                           host->registry().Find("dataset_writer", kFormat));
  CAPSTAN_ASSIGN_OR_RETURN(const OptionSet options, DefaultOptions(*component->definition));

  ShardSettings settings;
  settings.vtable = component->vtable<capstan_dataset_writer_v1>();
  settings.host = host->c_host();
  settings.options = &options;
  settings.tokenizer = tokenizer->name(tokenizer.self());
  settings.fingerprint = tokenizer->fingerprint(tokenizer.self());
  settings.vocabulary = tokenizer->vocabulary(tokenizer.self());
  settings.end_of_text = tokenizer->end_of_text(tokenizer.self());
  settings.shard_tokens = arguments.shard_tokens;

  CAPSTAN_RETURN_IF_ERROR(RefuseOldShards(arguments.output, settings.vtable->extension));
  CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<Scratch> scratch, Scratch::Create(arguments.output));
  Shards train(settings, scratch->path(), "train"), held_out(settings, scratch->path(), "val");
  std::string rate;
  {
    Meter meter;
    CAPSTAN_RETURN_IF_ERROR(EncodeAll(inputs, arguments.validation_fraction, scratch->path(),
                                      *encoder, train, held_out, meter));
    rate = meter.Text();
  }
  CAPSTAN_RETURN_IF_ERROR(Publish(held_out, scratch->path(), arguments.output));
  CAPSTAN_RETURN_IF_ERROR(Publish(train, scratch->path(), arguments.output));
  Report("train", train, arguments.output);
  Report("val", held_out, arguments.output);
  std::printf("%zu file%s, %s, tokenizer %s (vocabulary %s)\n", inputs.size(),
              inputs.size() == 1 ? "" : "s", rate.c_str(), settings.tokenizer.c_str(),
              GroupedText(settings.vocabulary).c_str());
  return kExitDone;
}

}  // namespace capstan
