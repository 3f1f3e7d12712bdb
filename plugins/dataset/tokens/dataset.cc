#include "plugins/dataset/tokens/dataset.h"

#include <cmath>
#include <cstdio>
#include <limits>

#include "sdk/error.h"
#include "sdk/file.h"

namespace capstan::tokens {
namespace {

using sdk::quote;
using sdk::text;

std::string count_text(std::uint64_t count) {
  char buffer[32];
  const auto value = static_cast<double>(count);
  if (count < 10'000) return std::to_string(count);
  if (value < 1e6) {
    std::snprintf(buffer, sizeof buffer, "%.1fK", value / 1e3);
  } else if (value < 1e9) {
    std::snprintf(buffer, sizeof buffer, "%.1fM", value / 1e6);
  } else {
    std::snprintf(buffer, sizeof buffer, "%.2fB", value / 1e9);
  }
  return buffer;
}

void check_spec(const DatasetSpec& spec) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  if (spec.sequence_length < 1 || spec.sequence_length > kMost) {
    throw sdk::usage_error(
        text("sequence_length = ", spec.sequence_length, " is not between 1 and ", kMost));
  }
  if (spec.stride < 0) {
    throw sdk::usage_error(text("sample_stride = ", spec.stride,
                                " is negative; use 0 for sequence_length, or a number of tokens"));
  }
  if (spec.vocabulary < 1 || spec.vocabulary > kMost + 1) {
    throw sdk::usage_error(text("a vocabulary of ", spec.vocabulary, " is not between 1 and 2^31"));
  }
  if (spec.sources.empty()) {
    throw sdk::usage_error("there is no source; add a [[data.source]] table with a path");
  }
}

}  // namespace

TokenDataset::TokenDataset(const DatasetSpec& spec)
    : shuffle_(spec.shuffle),
      length_(static_cast<std::uint64_t>(spec.sequence_length)),
      stride_(static_cast<std::uint64_t>(spec.stride == 0 ? spec.sequence_length : spec.stride)),
      seed_(spec.seed),
      mixture_((check_spec(spec), make_mixture(spec.sources))) {
  for (const SourceSpec& source : spec.sources) {
    streams_.emplace_back();
    if (source.weight == 0) continue;
    Stream stream{Source(source.path, source.format, spec.vocabulary, spec.shuffle, spec.verify),
                  0};
    const std::uint64_t tokens = stream.source.token_count();
    if (tokens < length_ + 1) {
      throw sdk::data_error(text("source ", quote(source.path), " holds ", tokens,
                                 " tokens, and one sample of sequence_length = ", length_,
                                 " needs ", length_ + 1, "; add data or shorten sequence_length"));
    }
    stream.samples = (tokens - length_ - 1) / stride_ + 1;
    epoch_size_ += static_cast<std::int64_t>(stream.samples);
    streams_.back().emplace(std::move(stream));
  }
  describe();
}

Mixture TokenDataset::make_mixture(const std::vector<SourceSpec>& sources) {
  std::vector<double> weights;
  double total = 0;
  for (const SourceSpec& source : sources) {
    if (!std::isfinite(source.weight) || source.weight < 0) {
      throw sdk::usage_error(text("source ", quote(source.path), " has weight ", source.weight,
                                  "; use a number of 0 or more"));
    }
    weights.push_back(source.weight);
    total += source.weight;
  }
  if (total == 0) {
    throw sdk::usage_error("every source has weight 0; give at least one a weight above 0");
  }
  if (!std::isfinite(total)) {
    throw sdk::usage_error(
        "the weights of the sources add up to more than a number can hold; only "
        "their ratios count, so make them smaller");
  }
  return Mixture(weights);
}

void TokenDataset::describe() {
  std::size_t sources = 0, shards = 0;
  std::uint64_t tokens = 0;
  for (const auto& stream : streams_) {
    if (!stream) continue;
    ++sources;
    shards += stream->source.shard_count();
    tokens += stream->source.token_count();
  }
  description_ = sources > 1 ? text(sources, " sources, ") : "";
  description_ += text(shards, shards == 1 ? " shard, " : " shards, ", count_text(tokens),
                       " tokens, ", count_text(static_cast<std::uint64_t>(epoch_size_)),
                       " samples of ", length_, shuffle_ ? ", shuffled" : ", in order");
}

std::uint64_t TokenDataset::sample_of(const Draw& draw) const {
  const std::uint64_t samples = streams_[draw.source]->samples;
  const std::uint64_t epoch = draw.k / samples;
  const std::uint64_t i = draw.k % samples;
  if (!shuffle_) return i;
  PhiloxKey key = derive_key(seed_, purpose_hash("dataset/tokens/shuffle"));
  key = derive_key(derive_key(key, draw.source), epoch);
  return Permutation(samples, key)(i);
}

void TokenDataset::read(std::int64_t index, std::int32_t* tokens, std::int32_t* targets,
                        std::int32_t* position) const {
  if (index < 0) {
    throw sdk::bug_error(text("sample ", index, " was asked for; indices begin at 0"));
  }
  const Draw draw = mixture_(static_cast<std::uint64_t>(index));
  const Source& source = streams_[draw.source]->source;
  const std::uint64_t first = sample_of(draw) * stride_;
  if (tokens != nullptr) source.read(first, length_, tokens);
  if (targets != nullptr) source.read(first + 1, length_, targets);
  if (position != nullptr) {
    for (std::uint64_t i = 0; i < length_; ++i) position[i] = static_cast<std::int32_t>(i);
  }
}

}  // namespace capstan::tokens
