// Token shards and the order of samples.
#include <cmath>
#include <cstring>
#include <numeric>
#include <set>
#include <thread>

#include "plugins/dataset/tokens/dataset.h"
#include "plugins/dataset/tokens/order.h"
#include "plugins/dataset/tokens/shard.h"
#include "plugins/dataset/tokens/shard_writer.h"
#include "plugins/dataset/tokens/source.h"
#include "tests/data_plugins/scratch.h"

namespace capstan::tokens {
namespace {

using data_test::expect_refused;
using data_test::names_in;
using data_test::read_file;
using data_test::Scratch;
using data_test::write_file;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Lt;

std::vector<std::uint32_t> counted(std::uint32_t first, std::uint32_t count) {
  std::vector<std::uint32_t> ids(count);
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

void write_shard(const std::string& path, const std::vector<std::uint32_t>& ids,
                 std::int64_t vocabulary) {
  ShardWriter writer({path, vocabulary, -1, "test", 0});
  writer.append(ids);
  writer.finish();
}

template <class Id>
std::string id_bytes(const std::vector<std::uint32_t>& ids) {
  std::string bytes;
  for (std::uint32_t id : ids) {
    for (std::size_t b = 0; b < sizeof(Id); ++b) bytes += static_cast<char>(id >> (8 * b));
  }
  return bytes;
}

std::string llmc_header(std::int32_t magic, std::int32_t version, std::int32_t count) {
  std::string bytes(1024, '\0');
  const std::int32_t values[] = {magic, version, count};
  std::memcpy(bytes.data(), values, sizeof values);
  return bytes;
}

std::vector<std::int32_t> read_source(const std::string& path, Format format,
                                      std::int64_t vocabulary) {
  const Source source(path, format, vocabulary, false, true);
  std::vector<std::int32_t> ids(source.token_count());
  source.read(0, ids.size(), ids.data());
  return ids;
}

struct Sample {
  std::vector<std::int32_t> tokens, targets, position;
  bool operator==(const Sample&) const = default;
};

Sample read_sample(const TokenDataset& data, std::int64_t index, std::size_t length) {
  Sample sample{std::vector<std::int32_t>(length), std::vector<std::int32_t>(length),
                std::vector<std::int32_t>(length)};
  data.read(index, sample.tokens.data(), sample.targets.data(), sample.position.data());
  return sample;
}

// ---- shards ----------------------------------------------------------------------------------

TEST(TokenShard, OwnFormatRoundTripsInBothWidths) {
  Scratch scratch;
  for (std::int64_t vocabulary : {65536, 65537}) {
    const std::string path = scratch / std::to_string(vocabulary) + ".ctok";
    const auto last = static_cast<std::uint32_t>(vocabulary - 1);
    write_shard(path, {0, 1, last, 300}, vocabulary);
    EXPECT_EQ(std::filesystem::file_size(path), 256u + 4 * (vocabulary == 65536 ? 2 : 4));
    EXPECT_THAT(read_source(path, Format::kAuto, vocabulary),
                ElementsAre(0, 1, static_cast<std::int32_t>(last), 300));
  }
}

TEST(TokenShard, HeaderKeepsEveryField) {
  ShardInfo info;
  info.token_bytes = 4;
  info.vocabulary = 100'000;
  info.token_count = 0;
  info.data_hash = 0x0123456789abcdef;
  info.end_of_text = 50'256;
  info.tokenizer = std::string(127, 'n');
  info.tokenizer_fingerprint = ~0ull;
  const ShardInfo got = parse_shard(build_shard_header(info), 256, Format::kCapstan, "x");
  EXPECT_EQ(got.token_bytes, 4u);
  EXPECT_EQ(got.vocabulary, 100'000u);
  EXPECT_EQ(got.data_hash, 0x0123456789abcdefu);
  EXPECT_EQ(got.end_of_text, 50'256);
  EXPECT_EQ(got.tokenizer, info.tokenizer);
  EXPECT_EQ(got.tokenizer_fingerprint, ~0ull);
  EXPECT_EQ(got.data_start, 256u);
}

TEST(TokenShard, ReadsTheFormatsOfLlmcAndNanoGpt) {
  Scratch scratch;
  const std::vector<std::uint32_t> ids = {7, 50'256, 0};
  write_file(scratch / "gpt2.bin", llmc_header(20240520, 1, 3) + id_bytes<std::uint16_t>(ids));
  write_file(scratch / "llama.bin", llmc_header(20240801, 7, 3) + id_bytes<std::uint32_t>(ids));
  write_file(scratch / "train.bin", id_bytes<std::uint16_t>(ids));
  for (const char* name : {"gpt2.bin", "llama.bin", "train.bin"}) {
    EXPECT_THAT(read_source(scratch / name, Format::kAuto, 50'257), ElementsAre(7, 50'256, 0))
        << name;
  }
  EXPECT_EQ(Source(scratch / "gpt2.bin", Format::kRawU16, 65'536, false, false).token_count(),
            515u);
}

TEST(TokenShard, RefusesHeadersThatLie) {
  Scratch scratch;
  const auto refused = [&](const std::string& name, const std::string& content,
                           std::vector<std::string> parts, Format format = Format::kAuto) {
    write_file(scratch / name, content);
    parts.push_back(name);
    SCOPED_TRACE(name);
    expect_refused(CAPSTAN_DATA, parts,
                   [&] { Source(scratch / name, format, 50'257, false, false); });
  };
  refused("short.bin", llmc_header(20240520, 1, 4) + std::string(6, '\0'), {"4 tokens", "6 bytes"});
  refused("long.bin", llmc_header(20240520, 1, 2) + std::string(6, '\0'), {"2 tokens", "6 bytes"});
  refused("negative.bin", llmc_header(20240520, 1, -1), {"4294967295"});
  refused("version.bin", llmc_header(20240520, 3, 0), {"version 3"});
  refused("cut.bin", llmc_header(20240520, 1, 4).substr(0, 100), {"1024", "100"});
  refused("eval.bin", llmc_header(20240522, 1, 4), {"evaluation"});
  refused("magic.bin", llmc_header(1, 1, 0), {"20240520"}, Format::kLlmc);
  refused("odd.bin", "abc", {"3 bytes", "odd"});
  refused("empty.bin", "", {"empty"});
  refused("text.txt", "once upon a time", {"format", "tokenize"});
  refused("fake.ctok", std::string(300, 'x'), {".ctok"});
  refused("raw.ctok", "ab", {"256", "2"});
}

TEST(TokenShard, EveryDamagedByteOfTheHeaderIsRefused) {
  Scratch scratch;
  write_shard(scratch / "a.ctok", counted(0, 100), 50'257);
  const std::string good = read_file(scratch / "a.ctok");
  for (std::size_t i = 0; i < kHeaderBytes; ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x10);
    const auto error = data_test::refusal(
        [&] { parse_shard(bad.substr(0, 456), bad.size(), Format::kAuto, "a.ctok"); });
    ASSERT_TRUE(error.has_value()) << "byte " << i;
  }
  for (std::size_t size = 0; size < good.size(); ++size) {
    const auto error = data_test::refusal(
        [&] { parse_shard(good.substr(0, size), size, Format::kAuto, "a.ctok"); });
    ASSERT_TRUE(error.has_value()) << size << " bytes";
  }
}

TEST(TokenShard, VerifyFindsDamagedTokens) {
  Scratch scratch;
  write_shard(scratch / "a.ctok", counted(0, 100), 50'257);
  std::string bytes = read_file(scratch / "a.ctok");
  bytes[300] = static_cast<char>(bytes[300] ^ 1);
  write_file(scratch / "b.ctok", bytes);
  EXPECT_EQ(Source(scratch / "b.ctok", Format::kAuto, 50'257, false, false).token_count(), 100u);
  expect_refused(CAPSTAN_DATA, {"b.ctok", "checksum"},
                 [&] { Source(scratch / "b.ctok", Format::kAuto, 50'257, false, true); });
}

TEST(TokenShard, ATokenOutsideTheVocabularyIsNamed) {
  Scratch scratch;
  write_file(scratch / "a.bin", id_bytes<std::uint16_t>({1, 255, 256, 4}));
  const Source source(scratch / "a.bin", Format::kRawU16, 256, false, false);
  std::int32_t ids[4];
  source.read(0, 2, ids);
  expect_refused(CAPSTAN_DATA, {"a.bin", "token 256", "position 2", "byte 4", "vocabulary of 256"},
                 [&] { source.read(1, 3, ids); });
  // An id that would be negative as int32.
  write_file(scratch / "b.bin", llmc_header(20240801, 7, 1) + std::string(4, '\xff'));
  const Source wide(scratch / "b.bin", Format::kAuto, 1LL << 31, false, false);
  expect_refused(CAPSTAN_DATA, {"token 4294967295"}, [&] { wide.read(0, 1, ids); });
}

TEST(TokenShard, AFileForALargerVocabularyIsRefusedAtTheStart) {
  Scratch scratch;
  write_shard(scratch / "a.ctok", {1, 2}, 50'257);
  expect_refused(CAPSTAN_DATA, {"a.ctok", "50257", "256"},
                 [&] { Source(scratch / "a.ctok", Format::kAuto, 256, false, false); });
}

TEST(TokenSource, PathsMayBeFilesDirectoriesAndPatterns) {
  Scratch scratch;
  for (const char* name : {"train-1.ctok", "train-0.ctok", "val.ctok"}) {
    write_shard(scratch / name, {1}, 256);
  }
  write_file(scratch / "old.bin", "ab");
  write_file(scratch / "notes.txt", "x");
  write_file(scratch / ".tmp-x.ctok", "x");
  const auto names = [&](const std::string& path) {
    std::vector<std::string> found;
    for (const std::string& file : expand_path(path)) found.push_back(sdk::base_name(file));
    return found;
  };
  EXPECT_THAT(names(scratch / "val.ctok"), ElementsAre("val.ctok"));
  EXPECT_THAT(names(scratch / "train-*.ctok"), ElementsAre("train-0.ctok", "train-1.ctok"));
  EXPECT_THAT(names(scratch.path()),
              ElementsAre("old.bin", "train-0.ctok", "train-1.ctok", "val.ctok"));
  expect_refused(CAPSTAN_USAGE, {"none-*"}, [&] { expand_path(scratch / "none-*"); });
  expect_refused(CAPSTAN_USAGE, {"absent.bin"}, [&] { expand_path(scratch / "absent.bin"); });
  std::filesystem::create_directory(scratch / "empty");
  expect_refused(CAPSTAN_USAGE, {"empty", "tokenize"}, [&] { expand_path(scratch / "empty"); });
}

// ---- the writer ------------------------------------------------------------------------------

TEST(ShardWriter, ShowsNothingBeforeFinish) {
  Scratch scratch;
  {
    ShardWriter writer({scratch / "deep/a.ctok", 256, -1, "", 0});
    writer.append(counted(0, 10));
    EXPECT_FALSE(std::filesystem::exists(scratch / "deep/a.ctok"));
  }
  EXPECT_THAT(names_in(scratch / "deep"), IsEmpty());
}

TEST(ShardWriter, RefusesWhatCannotBeRead) {
  Scratch scratch;
  expect_refused(CAPSTAN_USAGE, {"vocabulary"}, [&] {
    ShardWriter({scratch / "a", 0, -1, "", 0});
  });
  expect_refused(CAPSTAN_USAGE, {"256"}, [&] { ShardWriter({scratch / "a", 256, 256, "", 0}); });
  expect_refused(CAPSTAN_USAGE, {"127"}, [&] {
    ShardWriter({scratch / "a", 256, -1, std::string(128, 'x'), 0});
  });
  write_file(scratch / "taken", "x");
  expect_refused(CAPSTAN_USAGE, {"taken"}, [&] {
    ShardWriter({scratch / "taken", 256, -1, "", 0});
  });
  ShardWriter writer({scratch / "a", 256, -1, "", 0});
  writer.append(counted(0, 3));
  expect_refused(CAPSTAN_DATA, {"256", "position 3"}, [&] { writer.append(counted(256, 1)); });
  ShardWriter none({scratch / "b", 256, -1, "", 0});
  expect_refused(CAPSTAN_DATA, {"no token"}, [&] { none.finish(); });
}

TEST(ShardWriter, WritesMoreThanItsBuffer) {
  Scratch scratch;
  const std::vector<std::uint32_t> ids = counted(0, 700'000);
  ShardWriter writer({scratch / "a.ctok", 1'000'000, -1, "", 0});
  for (std::size_t i = 0; i < ids.size(); i += 70'000) {
    writer.append(std::span(ids).subspan(i, 70'000));
  }
  writer.finish();
  const std::vector<std::int32_t> got = read_source(scratch / "a.ctok", Format::kAuto, 1'000'000);
  EXPECT_TRUE(std::equal(got.begin(), got.end(), ids.begin(), ids.end(),
                         [](std::int32_t a, std::uint32_t b) { return a == static_cast<int>(b); }));
}

// ---- order -----------------------------------------------------------------------------------

TEST(Permutation, IsABijection) {
  for (std::uint64_t n : {1, 2, 3, 4, 5, 16, 17, 100, 1000, 4096, 4097, 65'537}) {
    for (std::uint64_t key : {0, 1, 99}) {
      const Permutation permutation(n, philox_key(key));
      std::vector<bool> seen(n);
      for (std::uint64_t i = 0; i < n; ++i) {
        const std::uint64_t p = permutation(i);
        ASSERT_LT(p, n);
        ASSERT_FALSE(seen[p]) << "n = " << n << ", key = " << key;
        seen[p] = true;
      }
    }
  }
}

TEST(Permutation, HandlesTheLargestDomain) {
  const std::uint64_t n = (std::uint64_t{1} << 62) - 1;
  const Permutation permutation(n, philox_key(5));
  std::set<std::uint64_t> seen;
  for (std::uint64_t i = 0; i < 1000; ++i) seen.insert(permutation(n - 1 - i));
  EXPECT_EQ(seen.size(), 1000u);
  EXPECT_THAT(seen, Each(Lt(n)));
}

// Where element 0 goes, over many keys, is uniform: chi-squared of 10 cells stays below the 99.99%
// quantile of 9 degrees of freedom (33.7); the keys are fixed, so the test is deterministic.
TEST(Permutation, SpreadsEvenly) {
  constexpr int kKeys = 20'000, kCells = 10;
  for (std::uint64_t i : {0, 7}) {
    int counts[kCells] = {};
    for (int key = 0; key < kKeys; ++key) {
      ++counts[Permutation(kCells, philox_key(static_cast<std::uint64_t>(key)))(i)];
    }
    double chi = 0;
    for (int count : counts) chi += std::pow(count - kKeys / kCells, 2) / (kKeys / kCells);
    EXPECT_LT(chi, 33.7) << i;
  }
}

TEST(Mixture, KeepsEveryPrefixInProportion) {
  const std::vector<double> weights = {0.7, 0.2, 0.0, 0.05, 3.0, 1e-3};
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  const Mixture mixture(weights);
  std::vector<std::uint64_t> drawn(weights.size());
  for (std::uint64_t i = 0; i < 200'000; ++i) {
    const Draw draw = mixture(i);
    ASSERT_LT(draw.source, weights.size());
    ASSERT_EQ(draw.k, drawn[draw.source]) << "draw " << i;  // k counts up without a gap
    ++drawn[draw.source];
    for (std::size_t s = 0; s < weights.size(); ++s) {
      const double ideal = static_cast<double>(i + 1) * weights[s] / total;
      ASSERT_NEAR(static_cast<double>(drawn[s]), ideal, 3.0) << "source " << s << " after " << i;
    }
  }
  EXPECT_EQ(drawn[2], 0u);
}

TEST(Mixture, KeepsProportionFarOut) {
  const Mixture mixture({1, 3});
  const std::uint64_t far = std::uint64_t{1} << 60;
  std::uint64_t second = 0;
  for (std::uint64_t i = 0; i < 4000; ++i) second += mixture(far + i).source;
  EXPECT_EQ(second, 3000u);
}

// ---- samples ---------------------------------------------------------------------------------

class Samples : public testing::Test {
 protected:
  // Tokens 0 .. 99 in three shards, so that a sample's tokens tell where it lies.
  void SetUp() override {
    write_shard(scratch_ / "a-0.ctok", counted(0, 33), 1000);
    write_shard(scratch_ / "a-1.ctok", counted(33, 3), 1000);
    write_shard(scratch_ / "a-2.ctok", counted(36, 64), 1000);
    write_shard(scratch_ / "b.ctok", counted(500, 40), 1000);  // 7 of them are left over
    spec_.sources = {{scratch_ / "a-*.ctok", 1.0, Format::kAuto}};
    spec_.sequence_length = 8;
    spec_.vocabulary = 1000;
    spec_.seed = 42;
  }
  Scratch scratch_;
  DatasetSpec spec_;
};

TEST_F(Samples, InOrderAreWindowsOfTheStreamAcrossShards) {
  spec_.shuffle = false;
  const TokenDataset data(spec_);
  EXPECT_EQ(data.epoch_size(), 12);  // (100 - 9) / 8 + 1
  EXPECT_THAT(data.description(), HasSubstr("3 shards, 100 tokens, 12 samples of 8, in order"));
  for (std::int64_t index = 0; index < 30; ++index) {
    const Sample sample = read_sample(data, index, 8);
    for (std::int32_t t = 0; t < 8; ++t) {
      const auto first = static_cast<std::int32_t>(index % 12 * 8);
      ASSERT_EQ(sample.tokens[t], first + t);
      ASSERT_EQ(sample.targets[t], first + t + 1);
      ASSERT_EQ(sample.position[t], t);
    }
  }
}

TEST_F(Samples, TheStrideSetsTheirDistance) {
  spec_.shuffle = false;
  spec_.stride = 3;
  const TokenDataset data(spec_);
  EXPECT_EQ(data.epoch_size(), 31);  // (100 - 9) / 3 + 1
  EXPECT_EQ(read_sample(data, 30, 8).targets[7], 98);
}

TEST_F(Samples, ShuffledEachEpochHoldsEverySampleOnceInANewOrder) {
  const TokenDataset data(spec_);
  std::vector<std::vector<std::int32_t>> epochs;
  for (std::int64_t epoch = 0; epoch < 4; ++epoch) {
    std::vector<std::int32_t> firsts;
    for (std::int64_t i = 0; i < 12; ++i) {
      firsts.push_back(read_sample(data, 12 * epoch + i, 8).tokens[0]);
    }
    EXPECT_EQ(std::set<std::int32_t>(firsts.begin(), firsts.end()).size(), 12u);
    for (const auto& earlier : epochs) EXPECT_NE(firsts, earlier);
    epochs.push_back(firsts);
  }
}

TEST_F(Samples, ArePureFunctionsOfSeedAndIndex) {
  spec_.sources.push_back({scratch_ / "b.ctok", 0.5, Format::kAuto});
  const TokenDataset data(spec_);
  std::vector<Sample> forward;
  for (std::int64_t i = 0; i < 200; ++i) forward.push_back(read_sample(data, i, 8));
  const TokenDataset again(spec_);
  for (std::int64_t i = 199; i >= 0; --i) {
    ASSERT_EQ(read_sample(again, i, 8), forward[static_cast<std::size_t>(i)]);
  }
  // From many threads at once.
  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (std::int64_t i = t; i < 200; i += 4) {
        wrong[t] += read_sample(data, i, 8) != forward[static_cast<std::size_t>(i)];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, Each(0));
  spec_.seed = 43;
  const TokenDataset other(spec_);
  int different = 0;
  for (std::int64_t i = 0; i < 200; ++i) {
    different += read_sample(other, i, 8) != forward[static_cast<std::size_t>(i)];
  }
  EXPECT_GT(different, 100);
}

TEST_F(Samples, SourcesComeInProportion) {
  spec_.sources.push_back({scratch_ / "b.ctok", 3.0, Format::kAuto});
  spec_.sources.push_back({scratch_ / "absent", 0.0, Format::kAuto});  // never drawn, never opened
  const TokenDataset data(spec_);
  EXPECT_EQ(data.epoch_size(), 12 + 4);  // (40 - 9) / 8 + 1, rounded down
  int from_b = 0;
  for (std::int64_t i = 0; i < 400; ++i) from_b += read_sample(data, i, 8).tokens[0] >= 500;
  EXPECT_EQ(from_b, 300);
}

TEST_F(Samples, FieldsMayBeLeftOut) {
  const TokenDataset data(spec_);
  std::vector<std::int32_t> targets(8);
  data.read(5, nullptr, targets.data(), nullptr);
  EXPECT_EQ(targets, read_sample(data, 5, 8).targets);
}

TEST_F(Samples, RefusesWhatCannotBeSampled) {
  const auto refused = [&](std::int32_t code, const std::vector<std::string>& parts, auto change) {
    DatasetSpec spec = spec_;
    change(spec);
    expect_refused(code, parts, [&] { TokenDataset{spec}; });
  };
  refused(CAPSTAN_DATA, {"a-*", "100 tokens", "101", "sequence_length"},
          [](DatasetSpec& s) { s.sequence_length = 100; });
  refused(CAPSTAN_USAGE, {"sequence_length"}, [](DatasetSpec& s) { s.sequence_length = 0; });
  refused(CAPSTAN_USAGE, {"sample_stride"}, [](DatasetSpec& s) { s.stride = -1; });
  refused(CAPSTAN_USAGE, {"vocabulary"}, [](DatasetSpec& s) { s.vocabulary = 0; });
  refused(CAPSTAN_USAGE, {"source"}, [](DatasetSpec& s) { s.sources.clear(); });
  refused(CAPSTAN_USAGE, {"weight"}, [](DatasetSpec& s) { s.sources[0].weight = 0; });
  refused(CAPSTAN_USAGE, {"weight"}, [](DatasetSpec& s) { s.sources[0].weight = -1; });
  refused(CAPSTAN_USAGE, {"weight"}, [](DatasetSpec& s) { s.sources[0].weight = NAN; });
  const TokenDataset data(spec_);
  expect_refused(CAPSTAN_BUG, {"-1"}, [&] { data.read(-1, nullptr, nullptr, nullptr); });
  spec_.sequence_length = 99;  // exactly one sample
  EXPECT_EQ(TokenDataset(spec_).epoch_size(), 1);
}

}  // namespace
}  // namespace capstan::tokens
