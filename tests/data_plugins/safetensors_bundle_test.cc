// Bundles: slices in and out, nothing visible before commit, nothing left after a crash.
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <numeric>
#include <random>

#include "plugins/store/safetensors/bundle.h"
#include "plugins/store/safetensors/reader.h"
#include "plugins/store/safetensors/writer.h"
#include "tests/data_plugins/scratch.h"

namespace capstan::safetensors {
namespace {

using data_test::expect_refused;
using data_test::names_in;
using data_test::read_file;
using data_test::refusal;
using data_test::Scratch;
using data_test::write_file;
using testing::ElementsAre;
using testing::IsEmpty;

using Shape = std::vector<std::int64_t>;
constexpr capstan_dtype kF32 = {CAPSTAN_DTYPE_FLOAT, 32, 1};
constexpr capstan_dtype kU8 = {CAPSTAN_DTYPE_UINT, 8, 1};

Box whole(const Shape& shape) { return {Shape(shape.size(), 0), shape}; }

std::vector<float> counted(std::uint64_t count) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), 0.0f);
  return values;
}

// A complete bundle of one tensor "w" that counts up.
void save_counted(const std::string& path, const Shape& shape) {
  BundleWriter writer(path, {{"w", "model", kF32, shape}}, {.fsync = false});
  const std::vector<float> values = counted(box_volume(whole(shape)));
  writer.put("model", "w", whole(shape), values.data());
  writer.put_text(kMarker, "{}");
  writer.commit();
}

// ---- slices ----------------------------------------------------------------------------------

// Element by element: the plain meaning of a box.
template <class T>
std::vector<T> take(const std::vector<T>& from, const Shape& shape, const Box& box) {
  std::vector<T> out;
  Shape at(shape.size(), 0);
  for (std::uint64_t k = 0; k < box_volume(box); ++k) {
    std::uint64_t offset = 0;
    for (std::size_t d = 0; d < shape.size(); ++d) {
      offset = offset * static_cast<std::uint64_t>(shape[d]) +
               static_cast<std::uint64_t>(box.start[d] + at[d]);
    }
    out.push_back(from[offset]);
    for (std::size_t d = shape.size(); d-- > 0;) {
      if (++at[d] < box.extent[d]) break;
      at[d] = 0;
    }
  }
  return out;
}

TEST(SafetensorsSlice, WholeRowsAreOneRun) {
  const Runs runs = box_runs(Shape{8, 4, 16}, {{2, 0, 0}, {3, 4, 16}}, 4);
  EXPECT_EQ(runs.run_count, 1u);
  EXPECT_EQ(runs.run_bytes, 3u * 64 * 4);
  EXPECT_EQ(runs.first, 2u * 64 * 4);
}

TEST(SafetensorsSlice, AColumnRangeHasOneRunARow) {
  const Runs runs = box_runs(Shape{8, 48}, {{0, 16}, {8, 16}}, 2);
  EXPECT_EQ(runs.run_count, 8u);
  EXPECT_EQ(runs.run_bytes, 32u);
  EXPECT_EQ(runs.span, 7u * 96 + 32);
}

TEST(SafetensorsSlice, NamesTheDimABoxLeaves) {
  EXPECT_EQ(box_problem(Shape{4, 4}, {{0, 1}, {4, 3}}), "");
  EXPECT_THAT(box_problem(Shape{4, 4}, {{0, 1}, {4, 4}}), testing::HasSubstr("dim 1"));
  EXPECT_THAT(box_problem(Shape{4, 4}, {{-1, 0}, {4, 4}}), testing::HasSubstr("dim 0"));
  EXPECT_THAT(box_problem(Shape{4, 4}, {{0}, {4}}), testing::HasSubstr("1 dims"));
  // start + extent would overflow.
  EXPECT_THAT(box_problem(Shape{4}, {{2}, {INT64_MAX}}), testing::HasSubstr("dim 0"));
}

TEST(SafetensorsBundle, EverySliceOfRandomTensorsComesBack) {
  std::mt19937 random(7);
  const auto upto = [&](std::int64_t n) { return static_cast<std::int64_t>(random() % (n + 1)); };
  Scratch scratch;
  for (int round = 0; round < 60; ++round) {
    Shape shape(1 + random() % 4);
    for (std::int64_t& dim : shape) dim = 1 + upto(round % 3 == 0 ? 40 : 6);
    const std::vector<float> values = counted(box_volume(whole(shape)));
    const std::string path = scratch / std::to_string(round);
    {
      // Written as two halves of a random dim, the later half first.
      BundleWriter writer(path, {{"w", "model", kF32, shape}}, {.fsync = false});
      const std::size_t d = random() % shape.size();
      Box low = whole(shape), high = whole(shape);
      low.extent[d] = upto(shape[d]);
      high.start[d] = low.extent[d];
      high.extent[d] = shape[d] - low.extent[d];
      for (const Box& half : {high, low}) {
        writer.put("model", "w", half, take(values, shape, half).data());
      }
      writer.put_text(kMarker, "{}");
      writer.commit();
    }
    const BundleReader reader(path);
    for (int slice = 0; slice < 20; ++slice) {
      Box box = whole(shape);
      for (std::size_t d = 0; d < shape.size(); ++d) {
        box.start[d] = upto(shape[d]);
        box.extent[d] = upto(shape[d] - box.start[d]);
      }
      const std::vector<float> expected = take(values, shape, box);
      std::vector<float> got(expected.size());
      reader.get("model", "w", box, got.data());
      ASSERT_EQ(got, expected) << shape_text(shape) << " " << box_text(box);
    }
  }
}

// GPT-2's c_attn: q, k and v are column ranges of one [width, 3 width] tensor, so every run is
// short and lies between the others'.
TEST(SafetensorsBundle, InterleavedColumnRangesDoNotDisturbEachOther) {
  Scratch scratch;
  const Shape shape{3000, 3 * 129};
  const std::vector<float> values = counted(box_volume(whole(shape)));
  BundleWriter writer(scratch / "b", {{"c_attn", "model", kF32, shape}}, {.fsync = false});
  for (std::int64_t part : {1, 2, 0}) {
    const Box columns{{0, part * 129}, {3000, 129}};
    writer.put("model", "c_attn", columns, take(values, shape, columns).data());
  }
  writer.put_text(kMarker, "{}");
  writer.commit();
  const BundleReader reader(scratch / "b");
  std::vector<float> got(values.size());
  reader.get("model", "c_attn", whole(shape), got.data());
  EXPECT_EQ(got, values);
  const Box k{{5, 129}, {2000, 129}};
  std::vector<float> part(2000 * 129);
  reader.get("model", "c_attn", k, part.data());
  EXPECT_EQ(part, take(values, shape, k));
}

// A tensor begun with whole rows is not put together in memory: its column ranges go through
// windows of the file, around what is there already.
TEST(SafetensorsBundle, ColumnRangesAfterRowsGoAroundThem) {
  Scratch scratch;
  const Shape shape{3000, 2 * 300};
  const std::vector<float> values = counted(box_volume(whole(shape)));
  BundleWriter writer(scratch / "b", {{"w", "model", kF32, shape}}, {.fsync = false});
  const Box boxes[] = {{{0, 0}, {100, 600}}, {{100, 300}, {2900, 300}}, {{100, 0}, {2900, 300}}};
  ASSERT_TRUE(use_windows(box_runs(shape, boxes[1], 4)));
  for (const Box& box : boxes) writer.put("model", "w", box, take(values, shape, box).data());
  writer.commit();
  const BundleReader reader(scratch / "b");
  std::vector<float> got(values.size());
  reader.get("model", "w", whole(shape), got.data());
  EXPECT_EQ(got, values);
}

TEST(SafetensorsBundle, TheSameSliceAgainOverwrites) {
  Scratch scratch;
  const Shape shape{4, 4};
  BundleWriter writer(scratch / "b", {{"w", "model", kF32, shape}}, {.fsync = false});
  const std::vector<float> values = counted(16);
  const std::vector<float> wrong(8, -1);
  const Box left{{0, 0}, {4, 2}}, right{{0, 2}, {4, 2}};
  writer.put("model", "w", left, wrong.data());
  writer.put("model", "w", left, take(values, shape, left).data());  // before it is complete
  writer.put("model", "w", right, wrong.data());
  writer.put("model", "w", right, take(values, shape, right).data());  // and after
  writer.commit();
  std::vector<float> got(16);
  BundleReader(scratch / "b").get("model", "w", whole(shape), got.data());
  EXPECT_EQ(got, values);
}

// ---- writing ---------------------------------------------------------------------------------

TEST(SafetensorsBundle, KeepsGroupsInFilesOfTheirOwn) {
  Scratch scratch;
  const std::uint8_t one = 1, two = 2;
  BundleWriter writer(scratch / "b", {{"x", "model", kU8, {}}, {"x", "optimizer", kU8, {}}}, {});
  writer.put("model", "x", {}, &one);
  writer.put("optimizer", "x", {}, &two);
  writer.put_text("config.json", "{\"a\":1}");
  writer.put_text(kMarker, "{}");
  EXPECT_THAT(list_bundles(scratch.path()), IsEmpty());
  writer.commit();
  EXPECT_THAT(names_in(scratch / "b"), ElementsAre("capstan.json", "config.json",
                                                   "model.safetensors", "optimizer.safetensors"));
  BundleReader reader(scratch / "b");
  ASSERT_EQ(reader.tensor_count(), 2u);
  std::uint8_t got = 0;
  reader.get("optimizer", "x", {}, &got);
  EXPECT_EQ(got, 2);
  EXPECT_EQ(reader.text("config.json"), "{\"a\":1}");
  expect_refused(CAPSTAN_DATA, {"absent.json"}, [&] { reader.text("absent.json"); });
  expect_refused(CAPSTAN_USAGE, {"../x"}, [&] { reader.text("../x"); });
}

TEST(SafetensorsBundle, SavedLoadedAndSavedAgainIsTheSameFile) {
  Scratch scratch;
  const std::vector<DeclaredTensor> tensors = {
      {"b", "model", {CAPSTAN_DTYPE_BFLOAT, 16, 1}, {3, 5}},
      {"a", "model", kF32, {7}},
      {"empty", "model", kF32, {0, 4}}};
  {
    BundleWriter writer(scratch / "1", tensors, {.fsync = false});
    const std::vector<float> bytes = counted(16);
    writer.put("model", "b", whole({3, 5}), bytes.data());
    writer.put("model", "a", whole({7}), bytes.data());
    writer.commit();
  }
  const BundleReader reader(scratch / "1");
  std::vector<DeclaredTensor> again;
  for (std::size_t i = 0; i < reader.tensor_count(); ++i) {
    const TensorEntry& entry = reader.tensor(i);
    again.push_back({entry.name, reader.group(i), entry.dtype->code, entry.shape});
  }
  BundleWriter writer(scratch / "2", again, {.fsync = false});
  for (const DeclaredTensor& tensor : again) {
    std::vector<char> bytes(1024);
    reader.get("model", tensor.name, whole(tensor.shape), bytes.data());
    writer.put("model", tensor.name, whole(tensor.shape), bytes.data());
  }
  writer.commit();
  EXPECT_EQ(read_file(scratch / "1/model.safetensors"), read_file(scratch / "2/model.safetensors"));
}

TEST(SafetensorsBundle, RefusesDeclarationsItCannotKeep) {
  Scratch scratch;
  const auto begin = [&](const std::vector<DeclaredTensor>& tensors) {
    BundleWriter(scratch / "b", tensors, {.fsync = false});
  };
  expect_refused(CAPSTAN_USAGE, {"'x'", "twice"}, [&] {
    begin({{"x", "model", kU8, {1}}, {"x", "model", kU8, {1}}});
  });
  expect_refused(CAPSTAN_USAGE, {"group", "'../x'"}, [&] { begin({{"x", "../x", kU8, {1}}}); });
  expect_refused(CAPSTAN_USAGE, {"'x'", "dtype"}, [&] {
    begin({{"x", "model", {CAPSTAN_DTYPE_FLOAT, 128, 1}, {1}}});
  });
  expect_refused(CAPSTAN_DATA, {"'x'", "negative"}, [&] { begin({{"x", "model", kU8, {-1}}}); });
  expect_refused(CAPSTAN_DATA, {"'x'", "2^63"}, [&] {
    begin({{"x", "model", kU8, {1LL << 40, 1LL << 40}}});
  });
  EXPECT_THAT(names_in(scratch.path()), IsEmpty());
}

TEST(SafetensorsBundle, RefusesAPlaceThatIsTaken) {
  Scratch scratch;
  save_counted(scratch / "b", {2});
  expect_refused(CAPSTAN_USAGE, {"/b'", "exists"}, [&] { save_counted(scratch / "b", {2}); });
  std::filesystem::create_directory(scratch / "ready");
  save_counted(scratch / "ready/", {2});
  EXPECT_THAT(list_bundles(scratch.path()), ElementsAre("b", "ready"));
}

TEST(SafetensorsBundle, CommitRefusesAMissingSlice) {
  Scratch scratch;
  BundleWriter writer(scratch / "b", {{"w", "model", kF32, {4, 4}}}, {.fsync = false});
  const std::vector<float> values = counted(16);
  writer.put("model", "w", {{0, 0}, {2, 4}}, values.data());
  writer.put("model", "w", {{0, 0}, {2, 4}}, values.data());  // again: no progress
  expect_refused(CAPSTAN_BUG, {"'w'", "8 of its 16"}, [&] { writer.commit(); });
  EXPECT_THAT(names_in(scratch.path()), IsEmpty());
}

TEST(SafetensorsBundle, PutRefusesSlicesThatDoNotFit) {
  Scratch scratch;
  BundleWriter writer(scratch / "b", {{"w", "model", kF32, {4, 4}}}, {.fsync = false});
  const std::vector<float> values = counted(16);
  expect_refused(CAPSTAN_BUG, {"'v'", "declared"}, [&] {
    writer.put("model", "v", {{0}, {1}}, values.data());
  });
  expect_refused(CAPSTAN_BUG, {"'w'", "dim 1"}, [&] {
    writer.put("model", "w", {{0, 2}, {4, 3}}, values.data());
  });
  writer.put("model", "w", {{0, 0}, {2, 4}}, values.data());
  expect_refused(CAPSTAN_BUG, {"'w'", "overlaps"}, [&] {
    writer.put("model", "w", {{1, 0}, {2, 4}}, values.data());
  });
}

// ---- crashes and full disks ------------------------------------------------------------------

TEST(SafetensorsBundle, AnAbandonedWriterLeavesNothing) {
  Scratch scratch;
  {
    BundleWriter writer(scratch / "b", {{"w", "model", kF32, {4}}}, {.fsync = false});
    EXPECT_EQ(names_in(scratch.path()).size(), 1u);
  }
  EXPECT_THAT(names_in(scratch.path()), IsEmpty());
}

TEST(SafetensorsBundle, ACrashBeforeCommitLeavesOnlyWhatCleanRemoves) {
  Scratch scratch;
  save_counted(scratch / "step-1", {2});
  const pid_t child = ::fork();
  if (child == 0) {
    BundleWriter writer(scratch / "step-2", {{"w", "model", kF32, {4}}}, {});
    const float value = 1;
    writer.put("model", "w", {{0}, {1}}, &value);
    writer.put_text(kMarker, "{}");
    ::_exit(0);  // no destructor runs, as in a crash
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  EXPECT_EQ(names_in(scratch.path()).size(), 2u);
  EXPECT_THAT(list_bundles(scratch.path()), ElementsAre("step-1"));
  EXPECT_FALSE(std::filesystem::exists(scratch / "step-2"));
  clean_temporaries(scratch.path());
  EXPECT_THAT(names_in(scratch.path()), ElementsAre("step-1"));
}

TEST(SafetensorsBundle, CleanSparesALivingWriter) {
  Scratch scratch;
  BundleWriter writer(scratch / "b", {{"w", "model", kU8, {1}}}, {.fsync = false});
  clean_temporaries(scratch.path());
  const std::uint8_t value = 9;
  writer.put("model", "w", {{0}, {1}}, &value);
  writer.put_text(kMarker, "{}");
  writer.commit();
  EXPECT_THAT(list_bundles(scratch.path()), ElementsAre("b"));
}

TEST(SafetensorsBundle, RemoveTakesOnlyACompleteBundle) {
  Scratch scratch;
  save_counted(scratch / "b", {2});
  std::filesystem::create_directory(scratch / "home");
  write_file(scratch / "home/precious", "x");
  expect_refused(CAPSTAN_USAGE, {"home", "capstan.json"}, [&] { remove_bundle(scratch / "home"); });
  remove_bundle(scratch / "b");
  EXPECT_THAT(names_in(scratch.path()), ElementsAre("home"));
  // What a crash in the middle of a removal leaves is a temporary.
  std::filesystem::create_directory(scratch / ".tmp-removed-b-1-ab");
  write_file(scratch / ".tmp-removed-b-1-ab/capstan.json", "{}");
  EXPECT_THAT(list_bundles(scratch.path()), IsEmpty());
  clean_temporaries(scratch.path());
  EXPECT_THAT(names_in(scratch.path()), ElementsAre("home"));
}

TEST(SafetensorsBundle, ListsNothingWhereThereIsNoDirectory) {
  Scratch scratch;
  EXPECT_THAT(list_bundles(scratch / "none"), IsEmpty());
  clean_temporaries(scratch / "none");
  EXPECT_FALSE(std::filesystem::exists(scratch / "none"));
}

TEST(SafetensorsBundle, RefusesADiskTooSmallBeforeWriting) {
  Scratch scratch;
  // More than any disk has.
  expect_refused(CAPSTAN_RESOURCE, {"disk full", "/b'", "free"}, [&] {
    BundleWriter(scratch / "b", {{"w", "model", kU8, {1LL << 58}}}, {.fsync = false});
  });
  EXPECT_THAT(names_in(scratch.path()), IsEmpty());
}

TEST(SafetensorsBundle, RefusesAFileAboveTheProcessLimit) {
  Scratch scratch;
  rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{1 << 20, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto error = refusal([&] {
    BundleWriter(scratch / "b", {{"w", "model", kU8, {2 << 20}}}, {.fsync = false});
  });
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->code(), CAPSTAN_RESOURCE);
  EXPECT_THAT(error->message(), testing::HasSubstr("ulimit -f"));
  EXPECT_THAT(names_in(scratch.path()), IsEmpty());
}

// A file system of a few MiB of its own.
class SmallDisk : public testing::Test {
 protected:
  void SetUp() override {
    if (::mount("tmpfs", scratch_.path().c_str(), "tmpfs", 0, "size=4m") != 0) {
      GTEST_SKIP() << "needs the right to mount a tmpfs";
    }
    mounted_ = true;
  }
  void TearDown() override {
    if (mounted_) {
      ASSERT_EQ(::umount(scratch_.path().c_str()), 0);
    }
  }
  Scratch scratch_;
  bool mounted_ = false;
};

TEST_F(SmallDisk, TooSmallForTheBundleIsRefusedAtBegin) {
  expect_refused(CAPSTAN_RESOURCE, {"disk full"}, [&] { save_counted(scratch_ / "b", {1 << 20}); });
  EXPECT_THAT(names_in(scratch_.path()), IsEmpty());
}

TEST_F(SmallDisk, FilledWhileWritingLeavesNothing) {
  {
    BundleWriter writer(scratch_ / "b", {{"w", "model", kU8, {1 << 20}}}, {.fsync = false});
    // The tensors' space is already taken; the text's is not.
    const std::string filler(8 << 20, 'x');
    expect_refused(CAPSTAN_RESOURCE, {"disk full", "notes.txt"},
                   [&] { writer.put_text("notes.txt", filler); });
  }
  EXPECT_THAT(names_in(scratch_.path()), IsEmpty());
}

TEST_F(SmallDisk, SpaceTakenAtBeginIsKeptForTheTensors) {
  BundleWriter writer(scratch_ / "b", {{"w", "model", kU8, {2 << 20}}}, {.fsync = false});
  std::ofstream(scratch_ / "other") << std::string(8 << 20, 'x');  // takes all the rest
  const std::vector<std::uint8_t> values(2 << 20, 7);
  writer.put("model", "w", {{0}, {2 << 20}}, values.data());
  writer.commit();
  std::vector<std::uint8_t> got(2 << 20);
  BundleReader(scratch_ / "b/model.safetensors").get("model", "w", {{0}, {2 << 20}}, got.data());
  EXPECT_EQ(got, values);
}

// ---- reading what others wrote ---------------------------------------------------------------

class Folder : public testing::Test {
 protected:
  void SetUp() override {
    save_counted(scratch_ / "s", {6});
    std::filesystem::create_directory(scratch_ / "hf");
    write_file(scratch_ / "hf/config.json", "{\"model_type\":\"gpt2\"}");
  }
  void copy(const std::string& name) {
    std::filesystem::copy(scratch_ / "s/model.safetensors", scratch_ / ("hf/" + name));
  }
  void index(const std::string& map) {
    write_file(scratch_ / "hf/model.safetensors.index.json", "{\"weight_map\":" + map + "}");
  }
  Scratch scratch_;
};

TEST_F(Folder, OfHuggingFaceReadsAsGroupModel) {
  copy("model.safetensors");
  copy("consolidated.safetensors");  // the same weights for another program: not read
  BundleReader reader(scratch_ / "hf");
  ASSERT_EQ(reader.tensor_count(), 1u);
  EXPECT_EQ(reader.group(0), "model");
  EXPECT_EQ(reader.text("config.json"), "{\"model_type\":\"gpt2\"}");
}

TEST_F(Folder, ShardedReadsThroughItsIndex) {
  copy("model-00001-of-00002.safetensors");
  {
    BundleWriter writer(scratch_ / "t", {{"v", "model", kU8, {1}}, {"unlisted", "model", kU8, {1}}},
                        {.fsync = false});
    const std::uint8_t value = 3;
    writer.put("model", "v", {{0}, {1}}, &value);
    writer.put("model", "unlisted", {{0}, {1}}, &value);
    writer.commit();
  }
  std::filesystem::rename(scratch_ / "t/model.safetensors",
                          scratch_ / "hf/model-00002-of-00002.safetensors");
  index(R"({"w":"model-00001-of-00002.safetensors","v":"model-00002-of-00002.safetensors"})");
  const BundleReader reader(scratch_ / "hf");
  ASSERT_EQ(reader.tensor_count(), 2u);
  std::vector<float> w(6);
  reader.get("model", "w", {{0}, {6}}, w.data());
  EXPECT_EQ(w, counted(6));
  std::uint8_t v = 0;
  reader.get("model", "v", {{0}, {1}}, &v);
  EXPECT_EQ(v, 3);
}

TEST_F(Folder, ShardedRefusesAnIndexThatDoesNotFit) {
  const auto open = [&] { BundleReader(scratch_ / "hf"); };
  copy("model-1.safetensors");
  index(R"({"w":"model-1.safetensors","v":"model-2.safetensors"})");
  expect_refused(CAPSTAN_DATA, {"model-2.safetensors", "not there"}, open);
  index(R"({"w":"model-1.safetensors","v":"model-1.safetensors"})");
  expect_refused(CAPSTAN_DATA, {"'v'", "does not hold"}, open);
  index(R"({"w":"../s/model.safetensors"})");
  expect_refused(CAPSTAN_DATA, {"'w'", "../s"}, open);
  index(R"({"w":7})");
  expect_refused(CAPSTAN_DATA, {"'w'", "7"}, open);
  index("[]");
  expect_refused(CAPSTAN_DATA, {"weight_map"}, open);
  write_file(scratch_ / "hf/model.safetensors.index.json", "{");
  expect_refused(CAPSTAN_DATA, {"weight_map"}, open);
}

TEST_F(Folder, WithoutWeightsSaysWhatToDo) {
  const auto open = [&] { BundleReader(scratch_ / "hf"); };
  expect_refused(CAPSTAN_DATA, {"model.safetensors", "check the path"}, open);
  write_file(scratch_ / "hf/pytorch_model.bin", "x");
  expect_refused(CAPSTAN_DATA, {"pytorch_model.bin", "convert"}, open);
  copy("adapter.safetensors");
  expect_refused(CAPSTAN_DATA, {"adapter.safetensors", "own path"}, open);
  expect_refused(CAPSTAN_USAGE, {"nowhere"}, [&] { BundleReader(scratch_ / "nowhere"); });
}

TEST_F(Folder, ASingleFileReadsAsGroupModel) {
  const BundleReader reader(scratch_ / "s/model.safetensors");
  std::vector<float> w(6);
  reader.get("model", "w", {{0}, {6}}, w.data());
  EXPECT_EQ(w, counted(6));
}

TEST_F(Folder, GetNamesWhatDoesNotFit) {
  const BundleReader reader(scratch_ / "s");
  std::vector<float> out(16);
  expect_refused(CAPSTAN_DATA, {"'v'", "'model'"}, [&] {
    reader.get("model", "v", {{0}, {1}}, out.data());
  });
  expect_refused(CAPSTAN_DATA, {"'w'", "[6]", "dim 0"}, [&] {
    reader.get("model", "w", {{0}, {7}}, out.data());
  });
  expect_refused(CAPSTAN_DATA, {"'w'", "2 dims"}, [&] {
    reader.get("model", "w", {{0, 0}, {1, 1}}, out.data());
  });
}

TEST_F(Folder, EveryTruncationIsRefused) {
  const std::string content = read_file(scratch_ / "s/model.safetensors");
  for (std::size_t size = 0; size < content.size(); ++size) {
    write_file(scratch_ / "cut.safetensors", content.substr(0, size));
    ASSERT_TRUE(refusal([&] { BundleReader(scratch_ / "cut.safetensors"); }).has_value()) << size;
  }
}

}  // namespace
}  // namespace capstan::safetensors
