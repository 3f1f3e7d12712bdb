// Samples of a fixed length from weighted sources of token shards: sample i is a pure function of
// the seed and i.
//
// A source's shards are one stream of N tokens. Its sample j is tokens [j * stride, j * stride +
// S], S + 1 of them, so there are floor((N - S - 1) / stride) + 1; a sample may cross from one
// shard into the next. In sequential order the k-th sample drawn from a source is j = k mod n; in
// shuffled order it is a permutation of the epoch k / n, keyed by (seed, source, epoch). Mixture
// says which source the i-th sample comes from.
#ifndef CAPSTAN_PLUGINS_DATASET_TOKENS_DATASET_H_
#define CAPSTAN_PLUGINS_DATASET_TOKENS_DATASET_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "plugins/dataset/tokens/order.h"
#include "plugins/dataset/tokens/source.h"

namespace capstan::tokens {

struct SourceSpec {
  std::string path;
  double weight = 1.0;  // 0: never drawn
  Format format = Format::kAuto;
};

struct DatasetSpec {
  std::vector<SourceSpec> sources;
  bool shuffle = true;
  bool verify = false;
  std::int64_t sequence_length = 0;
  std::int64_t stride = 0;  // tokens between neighbouring samples; 0: sequence_length
  std::int64_t vocabulary = 0;
  std::uint64_t seed = 0;
};

class TokenDataset {
 public:
  explicit TokenDataset(const DatasetSpec& spec);

  // Samples of all drawn sources together.
  std::int64_t epoch_size() const noexcept { return epoch_size_; }
  const char* description() const noexcept { return description_.c_str(); }

  // Each array has S elements or is NULL; targets are the following tokens. [any thread]
  void read(std::int64_t index, std::int32_t* tokens, std::int32_t* targets,
            std::int32_t* position) const;

 private:
  struct Stream {
    Source source;
    std::uint64_t samples;
  };

  std::uint64_t sample_of(const Draw& draw) const;
  static Mixture make_mixture(const std::vector<SourceSpec>& sources);
  void describe();

  bool shuffle_;
  std::uint64_t length_;
  std::uint64_t stride_;
  std::uint64_t seed_;
  Mixture mixture_;
  std::vector<std::optional<Stream>> streams_;  // empty where the weight is 0
  std::int64_t epoch_size_ = 0;
  std::string description_;
};

}  // namespace capstan::tokens

#endif  // CAPSTAN_PLUGINS_DATASET_TOKENS_DATASET_H_
