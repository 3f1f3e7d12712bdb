// A bundle that several processes write together: each its own slices, none of them visible before all
// are there.
#include <numeric>
#include <random>
#include <thread>

#include "plugins/store/safetensors/bundle.h"
#include "plugins/store/safetensors/reader.h"
#include "plugins/store/safetensors/writer.h"
#include "tests/data_plugins/scratch.h"

namespace capstan::safetensors {
namespace {

using data_test::expect_refused;
using data_test::names_in;
using data_test::read_file;
using data_test::Scratch;
using testing::ElementsAre;
using testing::IsEmpty;

using Shape = std::vector<std::int64_t>;
constexpr capstan_dtype kF32 = {CAPSTAN_DTYPE_FLOAT, 32, 1};

std::vector<float> counted(std::int64_t count, float from) {
  std::vector<float> values(static_cast<std::size_t>(count));
  std::iota(values.begin(), values.end(), from);
  return values;
}

// A part of a tensor whose values count up.
struct Part {
  std::string name;
  Box box;
  std::vector<float> values;
};

Part part_of(const std::string& name, const Shape& shape, const Box& box) {
  Part part{name, box, {}};
  const std::int64_t rows = box.extent[0], columns = box.extent[1];
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto first = static_cast<float>((box.start[0] + r) * shape[1] + box.start[1]);
    const std::vector<float> row = counted(columns, first);
    part.values.insert(part.values.end(), row.begin(), row.end());
  }
  return part;
}

// Every writer in a thread of its own, as ranks write: the first leads.
void write_together(const std::string& path, const std::vector<DeclaredTensor>& tensors,
                    const std::vector<std::vector<Part>>& writers) {
  BundleWriter leader(path, tensors, {.fsync = false});
  const std::string ticket = leader.share();
  const auto put = [](BundleWriter& writer, const std::vector<Part>& parts) {
    for (const Part& p : parts) writer.put("model", p.name, p.box, p.values.data());
  };
  std::vector<std::thread> others;
  for (std::size_t w = 1; w < writers.size(); ++w) {
    others.emplace_back([&, w] {
      BundleWriter joined(BundleWriter::Joined{ticket}, tensors, {.fsync = false});
      put(joined, writers[w]);
      joined.commit();
    });
  }
  put(leader, writers[0]);
  leader.put_text(kMarker, "{}");
  for (std::thread& other : others) other.join();
  leader.commit();
}

std::vector<float> read_whole(const std::string& path, const std::string& name,
                              const Shape& shape) {
  BundleReader reader(path);
  std::vector<float> values(static_cast<std::size_t>(shape[0] * shape[1]), -1);
  reader.get("model", name, {Shape(shape.size(), 0), shape}, values.data());
  return values;
}

TEST(SharedBundle, RandomPartsOfSeveralWritersMakeTheTensors) {
  std::mt19937 random(23);
  const auto upto = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint32_t>(n + 1));
  };
  Scratch scratch;
  for (int round = 0; round < 40; ++round) {
    const std::size_t count = 2 + random() % 3;
    std::vector<DeclaredTensor> tensors;
    std::vector<std::vector<Part>> writers(count);
    for (int t = 0; t < 3; ++t) {
      // Cut along rows or columns, so that runs of several writers alternate in the file.
      const Shape shape = {1 + upto(30), 1 + upto(300)};
      const std::string name = "w" + std::to_string(t);
      tensors.push_back({name, "model", kF32, shape});
      const std::size_t dim = random() % 2;
      std::int64_t begin = 0;
      for (std::size_t w = 0; w < count; ++w) {
        const std::int64_t size = w + 1 == count ? shape[dim] - begin : upto(shape[dim] - begin);
        Box box{{0, 0}, shape};
        box.start[dim] = begin;
        box.extent[dim] = size;
        writers[w].push_back(part_of(name, shape, box));
        begin += size;
      }
    }
    const std::string path = scratch / std::to_string(round);
    write_together(path, tensors, writers);
    for (const DeclaredTensor& t : tensors) {
      EXPECT_EQ(read_whole(path, t.name, t.shape), counted(t.shape[0] * t.shape[1], 0)) << round;
    }
  }
}

// The number of writers leaves no trace.
TEST(SharedBundle, HasTheBytesOfOneWriter) {
  Scratch scratch;
  const Shape shape = {6, 5};
  const std::vector<DeclaredTensor> tensors = {{"a", "model", kF32, shape},
                                               {"b", "model", kF32, shape}};
  const auto rows = [&](const std::string& name, std::int64_t begin, std::int64_t end) {
    return part_of(name, shape, {{begin, 0}, {end - begin, 5}});
  };
  write_together(scratch / "one", tensors, {{rows("a", 0, 6), rows("b", 0, 6)}});
  write_together(scratch / "three", tensors,
                 {{rows("a", 0, 2), rows("b", 4, 6)}, {rows("a", 2, 6)}, {rows("b", 0, 4)}});
  EXPECT_EQ(read_file(scratch / "one/model.safetensors"),
            read_file(scratch / "three/model.safetensors"));
}

class OneOfTwo : public testing::Test {
 protected:
  const Shape shape_ = {4, 3};
  const std::vector<DeclaredTensor> tensors_ = {{"w", "model", kF32, shape_}};
  Scratch scratch_;
  const std::string path_ = scratch_ / "bundle";

  void put_rows(BundleWriter& writer, std::int64_t begin, std::int64_t end) {
    const Part part = part_of("w", shape_, {{begin, 0}, {end - begin, 3}});
    writer.put("model", "w", part.box, part.values.data());
  }
};

TEST_F(OneOfTwo, CommitOfOneThatJoinedMakesNothingVisible) {
  BundleWriter leader(path_, tensors_, {});
  BundleWriter joined(BundleWriter::Joined{leader.share()}, tensors_, {});
  put_rows(joined, 0, 2);
  joined.commit();
  EXPECT_FALSE(std::filesystem::exists(path_));
  put_rows(leader, 2, 4);
  leader.put_text(kMarker, "{}");
  leader.commit();
  EXPECT_THAT(list_bundles(scratch_.path()), ElementsAre("bundle"));
  EXPECT_EQ(read_whole(path_, "w", shape_), counted(12, 0));
}

TEST_F(OneOfTwo, GivingUpOfOneThatJoinedLeavesTheLeadersWork) {
  BundleWriter leader(path_, tensors_, {.fsync = false});
  {
    BundleWriter joined(BundleWriter::Joined{leader.share()}, tensors_, {.fsync = false});
    put_rows(joined, 0, 1);
  }
  put_rows(leader, 0, 4);
  leader.put_text(kMarker, "{}");
  leader.commit();
  EXPECT_EQ(read_whole(path_, "w", shape_), counted(12, 0));
}

TEST_F(OneOfTwo, GivingUpOfTheLeaderLeavesNothing) {
  {
    BundleWriter leader(path_, tensors_, {.fsync = false});
    BundleWriter joined(BundleWriter::Joined{leader.share()}, tensors_, {.fsync = false});
    put_rows(joined, 0, 2);
    joined.commit();
  }
  EXPECT_THAT(names_in(scratch_.path()), IsEmpty());
}

TEST_F(OneOfTwo, OtherTensorsThanTheLeadersAreRefused) {
  BundleWriter leader(path_, tensors_, {.fsync = false});
  const std::string ticket = leader.share();
  const std::vector<std::vector<DeclaredTensor>> others = {
      {{"w", "model", kF32, {3, 4}}},
      {{"v", "model", kF32, shape_}},
      {{"w", "model", kF32, shape_}, {"x", "model", kF32, shape_}}};
  for (const std::vector<DeclaredTensor>& other : others) {
    expect_refused(CAPSTAN_BUG, {"model.safetensors", "all must declare the same"}, [&] {
      BundleWriter joined(BundleWriter::Joined{ticket}, other, {.fsync = false});
    });
  }
}

TEST_F(OneOfTwo, ATicketOfABundleThatIsGoneIsRefused) {
  std::string ticket;
  {
    BundleWriter leader(path_, tensors_, {.fsync = false});
    ticket = leader.share();
  }
  const auto refused = data_test::refusal(
      [&] { BundleWriter joined(BundleWriter::Joined{ticket}, tensors_, {.fsync = false}); });
  ASSERT_TRUE(refused.has_value());
  EXPECT_THAT(refused->message(), testing::HasSubstr(ticket));
}

TEST_F(OneOfTwo, CleanSparesABundleAtWork) {
  BundleWriter leader(path_, tensors_, {.fsync = false});
  BundleWriter joined(BundleWriter::Joined{leader.share()}, tensors_, {.fsync = false});
  clean_temporaries(scratch_.path());
  put_rows(joined, 0, 2);
  joined.commit();
  put_rows(leader, 2, 4);
  leader.put_text(kMarker, "{}");
  leader.commit();
  EXPECT_EQ(read_whole(path_, "w", shape_), counted(12, 0));
}

}  // namespace
}  // namespace capstan::safetensors
