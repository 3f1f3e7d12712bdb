// The dataset and its writer as a plugin.
#include <cstring>

#include "plugins/dataset/tokens/dataset.h"
#include "plugins/dataset/tokens/shard_writer.h"
#include "sdk/dataset.h"
#include "sdk/dataset_writer.h"
#include "sdk/file.h"

namespace capstan::tokens {
namespace {

DatasetSpec training_spec(const sdk::Options& options) {
  DatasetSpec spec;
  spec.shuffle = options.get_string("order") == "shuffle";
  spec.stride = options.get_int("sample_stride");
  for (std::size_t s = 0; s < options.size("source"); ++s) {
    SourceSpec source;
    source.path = options.get_string(sdk::Options::key("source", s, "path"));
    source.weight = options.get_float(sdk::Options::key("source", s, "weight"));
    source.format = parse_format(options.get_string(sdk::Options::key("source", s, "format")));
    spec.sources.push_back(std::move(source));
  }
  return spec;
}

// Validation reads the same samples in the same order whatever the seed.
DatasetSpec validation_spec(const sdk::Options& options) {
  if (!options.has("validation.path")) {
    throw sdk::usage_error("validation was asked for, but [data.validation] has no path; add one");
  }
  DatasetSpec spec;
  spec.shuffle = false;
  spec.sources = {{options.get_string("validation.path"), 1.0,
                   parse_format(options.get_string("validation.format"))}};
  return spec;
}

class Dataset {
 public:
  Dataset(const sdk::Host&, const sdk::Options& options, const capstan_dataset_request& request)
      : data_(spec(options, request)) {}

  int64_t epoch_size() const noexcept { return data_.epoch_size(); }
  const char* description() const noexcept { return data_.description(); }

  void read(const capstan_sample_request& request) const {
    std::int32_t* tokens = nullptr;
    std::int32_t* targets = nullptr;
    std::int32_t* position = nullptr;
    for (std::size_t f = 0; f < request.field_count; ++f) {
      auto* buffer = static_cast<std::int32_t*>(request.buffers[f]);
      if (std::strcmp(request.fields[f], "tokens") == 0) {
        tokens = buffer;
      } else if (std::strcmp(request.fields[f], "targets") == 0) {
        targets = buffer;
      } else if (std::strcmp(request.fields[f], "position") == 0) {
        position = buffer;
      } else {
        throw sdk::unsupported_error(sdk::text("dataset tokens has no field ",
                                               sdk::quote(request.fields[f]),
                                               ", only tokens, targets and position; use an "
                                               "objective that needs no other"));
      }
    }
    data_.read(request.index, tokens, targets, position);
  }

 private:
  static DatasetSpec spec(const sdk::Options& options, const capstan_dataset_request& request) {
    DatasetSpec spec = request.split == CAPSTAN_SPLIT_VALIDATION ? validation_spec(options)
                                                                 : training_spec(options);
    spec.verify = options.get_bool("verify");
    spec.sequence_length = request.sequence_length;
    spec.vocabulary = request.vocabulary;
    spec.seed = request.seed;
    return spec;
  }

  TokenDataset data_;
};

class Writer {
 public:
  static constexpr const char* kExtension = tokens::kExtension;

  Writer(const sdk::Host&, const sdk::Options&, const capstan_dataset_writer_request& request)
      : shard_({request.path, request.vocabulary, request.end_of_text,
                request.tokenizer == nullptr ? "" : request.tokenizer,
                request.tokenizer_fingerprint}) {}
  void append(std::span<const uint32_t> ids) { shard_.append(ids); }
  void finish() { shard_.finish(); }

 private:
  ShardWriter shard_;
};

constexpr capstan_option kOptions[] = {
    sdk::string_option("order", "\"shuffle\"",
                       "shuffle: a new order each epoch; sequential: as stored, again and again.")
        .choices("shuffle|sequential"),
    sdk::int_option("sample_stride", "0",
                    "Tokens between the starts of neighbouring samples; 0: sequence_length.")
        .at_least(0),
    sdk::path_option("source[].path", nullptr,
                     "A file, a directory of *.ctok and *.bin, or a pattern with * ? [.")
        .need(),
    sdk::float_option("source[].weight", "1.0",
                      "Share of the samples drawn from this source, relative to the others.")
        .at_least(0),
    sdk::string_option("source[].format", "\"auto\"", "Format of the files; auto: by their header.")
        .choices("auto|capstan|llmc|raw_u16"),
    sdk::path_option("validation.path", nullptr,
                     "Like source[].path: what is read in validation, in order."),
    sdk::string_option("validation.format", "\"auto\"", "Like source[].format.")
        .choices("auto|capstan|llmc|raw_u16"),
    sdk::bool_option("verify", "false",
                     "Read every .ctok file once at the start and compare its checksum."),
};

}  // namespace
}  // namespace capstan::tokens

CAPSTAN_PLUGIN_ENTRY(
    "tokens", "1.0.0", "Apache-2.0", "Token shards, read and written.",
    capstan::sdk::dataset_component<capstan::tokens::Dataset>(
        "tokens", "1.0.0",
        "Fixed-length samples from memory-mapped token shards (Capstan, llm.c, raw).",
        capstan::tokens::kOptions),
    capstan::sdk::dataset_writer_component<capstan::tokens::Writer>("tokens", "1.0.0",
                                                                    "Writes .ctok token shards."));
