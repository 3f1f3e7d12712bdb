// Writes past the page cache: the same files, and failures that are not lost on the way.
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <random>

#include "plugins/store/safetensors/bundle.h"
#include "plugins/store/safetensors/reader.h"
#include "plugins/store/safetensors/writer.h"
#include "tests/data_plugins/scratch.h"

namespace capstan::safetensors {
namespace {

using data_test::names_in;
using data_test::read_file;
using data_test::refusal;
using data_test::Scratch;
using testing::IsEmpty;

using Bytes = std::vector<std::uint8_t>;
constexpr capstan_dtype kU8 = {CAPSTAN_DTYPE_UINT, 8, 1};

Bytes drawn(std::int64_t count, unsigned seed) {
  Bytes bytes(static_cast<std::size_t>(count));
  std::mt19937 random(seed);
  std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<std::uint8_t>(random()); });
  return bytes;
}

// Sizes that leave every tensor but the first somewhere inside a block.
const std::vector<std::int64_t> kSizes = {(3 << 20) + 12345, 77, (20 << 20) + 4097, 1 << 20,
                                          (1 << 20) + 4095};

std::vector<DeclaredTensor> declared() {
  std::vector<DeclaredTensor> tensors;
  for (std::size_t i = 0; i < kSizes.size(); ++i) {
    tensors.push_back({"t" + std::to_string(i), "model", kU8, {kSizes[i]}});
  }
  return tensors;
}

void put_range(BundleWriter& writer, std::size_t i, std::int64_t begin, std::int64_t end) {
  const Bytes values = drawn(kSizes[i], static_cast<unsigned>(i));
  writer.put("model", "t" + std::to_string(i), {{begin}, {end - begin}}, values.data() + begin);
}

void save(const std::string& path, WriterOptions options) {
  BundleWriter writer(path, declared(), options);
  for (std::size_t i = 0; i < kSizes.size(); ++i) put_range(writer, i, 0, kSizes[i]);
  writer.put_text(kMarker, "{}");
  writer.commit();
}

void expect_all_there(const std::string& path) {
  const BundleReader reader(path);
  for (std::size_t i = 0; i < kSizes.size(); ++i) {
    Bytes got(static_cast<std::size_t>(kSizes[i]));
    reader.get("model", "t" + std::to_string(i), {{0}, {kSizes[i]}}, got.data());
    EXPECT_TRUE(got == drawn(kSizes[i], static_cast<unsigned>(i))) << "tensor " << i;
  }
}

TEST(SafetensorsDirect, TheFileIsThatOfThePageCache) {
  Scratch scratch;
  save(scratch / "direct", {.fsync = true, .direct = true});
  save(scratch / "cached", {.fsync = false, .direct = false});
  expect_all_there(scratch / "direct");
  EXPECT_TRUE(read_file(scratch / "direct/model.safetensors") ==
              read_file(scratch / "cached/model.safetensors"));
}

TEST(SafetensorsDirect, TwoWritersMeetInsideABlock) {
  Scratch scratch;
  for (const std::int64_t shift : {0, 1, 63, 4095}) {
    const std::string path = scratch / std::to_string(shift);
    BundleWriter leader(path, declared(), {.fsync = false});
    BundleWriter joined(BundleWriter::Joined{leader.share()}, declared(), {.fsync = false});
    for (std::size_t i = 0; i < kSizes.size(); ++i) {
      const std::int64_t cut = std::min(kSizes[i], kSizes[i] / 2 + shift);
      put_range(leader, i, 0, cut);
      put_range(joined, i, cut, kSizes[i]);
    }
    joined.commit();
    leader.put_text(kMarker, "{}");
    leader.commit();
    expect_all_there(path);
  }
}

TEST(SafetensorsDirect, TheSameSliceAgainOverwrites) {
  Scratch scratch;
  BundleWriter writer(scratch / "b", {{"w", "model", kU8, {5 << 20}}}, {.fsync = false});
  const Bytes before(5 << 20, 1), after = drawn(5 << 20, 3);
  writer.put("model", "w", {{0}, {5 << 20}}, before.data());
  writer.put("model", "w", {{0}, {5 << 20}}, after.data());
  writer.commit();
  Bytes got(5 << 20);
  BundleReader(scratch / "b/model.safetensors").get("model", "w", {{0}, {5 << 20}}, got.data());
  EXPECT_TRUE(got == after);
}

// Column ranges after the first slice go through windows that are read, changed and written back, over
// bytes that were written before.
TEST(SafetensorsDirect, WindowsKeepWhatWasWrittenBefore) {
  Scratch scratch;
  constexpr std::int64_t kRows = 2560, kColumns = 2048, kWhole = 1024, kCut = 1000,
                         kBusy = 24 << 20;
  const Bytes values = drawn(kRows * kColumns, 5), busy(kBusy, 1);
  struct Part {
    Box box;
    Bytes bytes;
  };
  const auto part = [&](std::int64_t row, std::int64_t rows, std::int64_t column,
                        std::int64_t columns) {
    Part out{{{row, column}, {rows, columns}}, {}};
    for (std::int64_t r = row; r < row + rows; ++r) {
      const auto at = values.begin() + r * kColumns + column;
      out.bytes.insert(out.bytes.end(), at, at + columns);
    }
    return out;
  };
  const std::vector<Part> parts = {part(0, kWhole, 0, kColumns),
                                   part(kWhole, kRows - kWhole, 0, kCut),
                                   part(kWhole, kRows - kWhole, kCut, kColumns - kCut)};
  BundleWriter writer(scratch / "b",
                      {{"v", "model", kU8, {kBusy}}, {"w", "model", kU8, {kRows, kColumns}}},
                      {.fsync = false});
  writer.put("model", "v", {{0}, {kBusy}}, busy.data());  // what follows waits behind it
  for (const Part& p : parts) writer.put("model", "w", p.box, p.bytes.data());
  writer.commit();
  Bytes got(values.size());
  BundleReader(scratch / "b/model.safetensors")
      .get("model", "w", {{0, 0}, {kRows, kColumns}}, got.data());
  EXPECT_TRUE(got == values);
}

// The write fails in a thread of its own, after put has returned.
TEST(SafetensorsDirect, AFailedWriteFailsTheBundle) {
  Scratch scratch;
  rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  {
    BundleWriter writer(scratch / "b", {{"w", "model", kU8, {40 << 20}}}, {.fsync = false});
    const Bytes values(40 << 20, 1);
    const rlimit small{2 << 20, before.rlim_max};
    auto* const old = ::signal(SIGXFSZ, SIG_IGN);
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
    const auto error = refusal([&] {
      writer.put("model", "w", {{0}, {40 << 20}}, values.data());
      writer.commit();
    });
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
    ::signal(SIGXFSZ, old);
    ASSERT_TRUE(error.has_value());
    EXPECT_EQ(error->code(), CAPSTAN_RESOURCE);
    EXPECT_THAT(error->message(), testing::HasSubstr("ulimit -f"));
  }
  EXPECT_THAT(names_in(scratch.path()), IsEmpty());
}

TEST(SafetensorsDirect, GivingUpInTheMiddleLeavesNothing) {
  Scratch scratch;
  {
    BundleWriter writer(scratch / "b", declared(), {.fsync = false});
    put_range(writer, 2, 0, kSizes[2]);
  }
  EXPECT_THAT(names_in(scratch.path()), IsEmpty());
}

}  // namespace
}  // namespace capstan::safetensors
