// Files that the reference implementation wrote, or is to read.
#include <cstdlib>
#include <numeric>

#include "plugins/store/safetensors/reader.h"
#include "plugins/store/safetensors/writer.h"
#include "tests/data_plugins/scratch.h"

namespace capstan::safetensors {
namespace {

using data_test::Scratch;
using data_test::write_file;
using testing::ElementsAre;

std::vector<float> counted(std::size_t count) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), 0.0f);
  return values;
}

// Weights as PyTorch and its safetensors package wrote them.
TEST(SafetensorsInterop, ReadsAPublishedGpt2) {
  BundleReader reader(CAPSTAN_TEST_DATA "/gpt2_tiny");
  EXPECT_THAT(std::string(reader.text("config.json")), testing::HasSubstr("gpt2"));
  EXPECT_EQ(reader.tensor_count(), 28u);
  // The key of the first layer: columns 48 to 96 of a [48, 144] tensor.
  std::vector<float> key(48 * 48), row(144);
  reader.get("model", "h.0.attn.c_attn.weight", {{0, 48}, {48, 48}}, key.data());
  EXPECT_FLOAT_EQ(key[2 * 48], -0.0743250251f);
  EXPECT_FLOAT_EQ(key[2 * 48 + 1], 0.215544224f);
  reader.get("model", "h.0.attn.c_attn.weight", {{2, 0}, {1, 144}}, row.data());
  EXPECT_TRUE(std::equal(row.begin() + 48, row.begin() + 96, key.begin() + 2 * 48));
}

std::string python() {
  const char* chosen = std::getenv("CAPSTAN_PYTHON");
  return chosen != nullptr ? chosen : "python3";
}

TEST(SafetensorsInterop, PythonReadsWhatWeWriteAndWeReadWhatItWrites) {
  if (std::system((python() + " -c 'import safetensors.numpy, numpy' 2>/dev/null").c_str()) != 0) {
    GTEST_SKIP() << "needs Python with safetensors and numpy (CAPSTAN_PYTHON names another Python)";
  }
  Scratch scratch;
  const std::vector<float> expected = counted(15);
  {
    BundleWriter writer(scratch / "ours", {{"w", "model", {CAPSTAN_DTYPE_FLOAT, 32, 1}, {5, 3}}},
                        {.fsync = false});
    writer.put("model", "w", {{0, 0}, {5, 3}}, expected.data());
    writer.commit();
  }
  write_file(scratch / "check.py", R"(
import sys, numpy, safetensors, safetensors.numpy
ours, theirs = sys.argv[1:]
w = safetensors.numpy.load_file(ours)["w"]
assert w.dtype == numpy.float32 and (w == numpy.arange(15, dtype=numpy.float32).reshape(5, 3)).all()
with safetensors.safe_open(ours, "np") as f:
    assert f.metadata() == {"format": "pt"}
safetensors.numpy.save_file({"w": w, "i": numpy.arange(4, dtype=numpy.int64), "b": numpy.array([True])},
                            theirs)
)");
  const std::string command = python() + " " + (scratch / "check.py") + " " +
                              (scratch / "ours/model.safetensors") + " " +
                              (scratch / "theirs.safetensors");
  ASSERT_EQ(std::system(command.c_str()), 0);
  const BundleReader reader(scratch / "theirs.safetensors");
  ASSERT_EQ(reader.tensor_count(), 3u);
  std::vector<float> w(15);
  reader.get("model", "w", {{0, 0}, {5, 3}}, w.data());
  EXPECT_EQ(w, expected);
  std::vector<std::int64_t> i(2);
  reader.get("model", "i", {{2}, {2}}, i.data());
  EXPECT_THAT(i, ElementsAre(2, 3));
}

}  // namespace
}  // namespace capstan::safetensors
