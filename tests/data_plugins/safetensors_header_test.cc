// The header: what is accepted, and that each lie in it is refused by name.
#include <string>

#include "plugins/store/safetensors/header.h"
#include "tests/data_plugins/scratch.h"

namespace capstan::safetensors {
namespace {

using data_test::expect_refused;

Header parse(const std::string& json, std::uint64_t data_bytes) {
  return parse_header(json, kLengthBytes + json.size() + data_bytes, "w.safetensors");
}

std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return sdk::text(R"({"w":{"dtype":)", dtype, R"(,"shape":)", shape, R"(,"data_offsets":)",
                   offsets, "}}");
}

void refused(const std::string& json, std::uint64_t data_bytes, std::vector<std::string> parts) {
  parts.push_back("w.safetensors");
  SCOPED_TRACE(json);
  expect_refused(CAPSTAN_DATA, parts, [&] { parse(json, data_bytes); });
}

TEST(SafetensorsHeader, ReadsTensorsInFileOrderAndMetadata) {
  const Header header = parse(
      R"({"b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]},"__metadata__":{"format":"pt"},
          "a":{"data_offsets":[0,24],"shape":[2,3],"dtype":"F32"}}  )",
      32);
  ASSERT_EQ(header.tensors.size(), 2u);
  EXPECT_EQ(header.tensors[0].name, "a");
  EXPECT_EQ(header.tensors[0].shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(header.tensors[1].name, "b");
  EXPECT_STREQ(header.tensors[1].dtype->name, "BF16");
  ASSERT_EQ(header.metadata.size(), 1u);
  EXPECT_EQ(header.metadata[0], (std::pair<std::string, std::string>{"format", "pt"}));
}

TEST(SafetensorsHeader, KnowsEveryDtype) {
  const std::pair<const char*, int> sizes[] = {
      {"F64", 8},     {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"F8_E4M3", 1},
      {"F8_E5M2", 1}, {"I64", 8}, {"I32", 4}, {"I16", 2},  {"I8", 1},
      {"U64", 8},     {"U32", 4}, {"U16", 2}, {"U8", 1},   {"BOOL", 1}};
  for (const auto& [name, size] : sizes) {
    const std::string quoted = sdk::text('"', name, '"');
    const Header header = parse(one(quoted, "[3]", sdk::text("[0,", 3 * size, "]")),
                                static_cast<std::uint64_t>(3 * size));
    ASSERT_EQ(header.tensors.size(), 1u);
    const Dtype* dtype = header.tensors[0].dtype;
    EXPECT_STREQ(dtype->name, name);
    EXPECT_EQ(dtype->code.bits, 8 * size);
    EXPECT_EQ(find_dtype(dtype->code), dtype);
  }
  refused(one("\"F31\"", "[1]", "[0,4]"), 4, {"'w'", "F31", "BF16"});
}

TEST(SafetensorsHeader, AcceptsScalarsAndEmptyTensors) {
  EXPECT_EQ(parse(one("\"I64\"", "[]", "[0,8]"), 8).tensors[0].bytes(), 8u);
  EXPECT_EQ(parse(one("\"I64\"", "[0,7]", "[0,0]"), 0).tensors[0].bytes(), 0u);
  EXPECT_TRUE(parse("{}", 0).tensors.empty());
}

TEST(SafetensorsHeader, RefusesWhatIsNotAHeader) {
  refused("", 0, {"'{'"});
  refused("[]", 0, {"'{'"});
  refused(" {}", 0, {"'{'"});
  refused("{", 0, {"JSON"});
  refused("{}x", 0, {"JSON"});
  refused(std::string("{}\0{}", 5), 0, {"zero byte"});
  refused(R"({"w":3})", 0, {"3"});
  refused(R"({"w":"x"})", 0, {"'x'"});
  refused(R"({"w":[]})", 0, {"["});
  refused(R"({"__metadata__":{"a":1}})", 0, {"__metadata__", "'a'", "1"});
  refused(R"({"__metadata__":{"a":{}}})", 0, {"__metadata__"});
  refused("{\"\xff\":{}}", 0, {"JSON"});
}

TEST(SafetensorsHeader, RefusesMissingUnknownAndRepeatedKeys) {
  refused(R"({"w":{}})", 0, {"'w'", "dtype"});
  refused(R"({"w":{"dtype":"U8","shape":[1]}})", 1, {"'w'", "data_offsets"});
  refused(R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1}})", 1, {"'w'", "'x'"});
  refused(R"({"w":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1, {"twice"});
  refused(R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
          R"("w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
          1, {"'w'", "twice"});
  refused(R"({"__metadata__":{},"__metadata__":{}})", 0, {"twice"});
  refused(R"({"__metadata__":{"a":"1","a":"2"}})", 0, {"'a'", "twice"});
}

TEST(SafetensorsHeader, RefusesNumbersThatAreNoSizes) {
  for (const char* bad : {"-1", "-0", "1.5", "1e3", "true", "null", "\"1\"", "[1]", "{}",
                          "18446744073709551616", "9223372036854775808"}) {
    refused(one("\"U8\"", sdk::text("[", bad, "]"), "[0,1]"), 1, {"'w'", "shape"});
  }
  for (const char* bad : {"-1", "1.5", "null", "[1]", "18446744073709551616"}) {
    refused(one("\"U8\"", "[1]", sdk::text("[0,", bad, "]")), 1, {"'w'", "data_offsets"});
  }
  refused(one("\"U8\"", "1", "[0,1]"), 1, {"'w'", "shape"});
  refused(one("\"U8\"", "[1]", "[0]"), 1, {"two numbers"});
  refused(one("\"U8\"", "[1]", "[0,1,2]"), 1, {"two numbers"});
  std::string dims = "1";
  for (std::size_t d = 0; d < kMaxDims; ++d) dims += ",1";
  refused(one("\"U8\"", sdk::text("[", dims, "]"), "[0,1]"), 1, {"dims"});
}

TEST(SafetensorsHeader, RefusesOverflowingShapes) {
  refused(one("\"F64\"", "[4611686018427387904,4611686018427387904]", "[0,8]"), 8, {"'w'", "2^63"});
  // 2^61 elements of 8 bytes is 2^64, which a careless product takes for 0.
  refused(one("\"F64\"", "[2305843009213693952]", "[0,0]"), 0, {"2^63"});
}

TEST(SafetensorsHeader, RefusesDeepNesting) {
  const std::string deep(100'000, '[');
  refused(one("\"U8\"", deep, "[0,1]"), 1, {"'w'"});
  refused("{\"w\":" + deep, 1, {"["});
}

TEST(SafetensorsHeader, RefusesOffsetsThatDoNotTileTheData) {
  const auto two = [](const std::string& a, const std::string& b) {
    return sdk::text(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":)", a,
                     R"(},"b":{"dtype":"U8","shape":[2],"data_offsets":)", b, "}}");
  };
  EXPECT_EQ(parse(two("[2,4]", "[0,2]"), 4).tensors[0].name, "b");
  refused(two("[0,2]", "[1,3]"), 3, {"'b'", "overlap", "'a'"});
  refused(two("[0,2]", "[0,2]"), 2, {"overlap"});
  refused(two("[0,2]", "[3,5]"), 5, {"'b'", "hole", "2"});
  refused(two("[0,2]", "[2,4]"), 5, {"4", "5"});
  refused(two("[0,2]", "[2,4]"), 3, {"'b'", "truncated"});
  refused(two("[0,2]", "[4,2]"), 4, {"'b'", "end before they begin"});
  refused(one("\"F32\"", "[2]", "[0,7]"), 7, {"'w'", "7", "8"});
}

TEST(SafetensorsHeader, ChecksTheLengthAgainstTheFile) {
  const auto length = [](std::uint64_t announced, std::uint64_t file_size) {
    std::string bytes(8, '\0');
    for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(announced >> (8 * i));
    return header_length(bytes, file_size, "w.safetensors");
  };
  EXPECT_EQ(length(2, 10), 2u);
  expect_refused(CAPSTAN_DATA, {"w.safetensors", "truncated"}, [&] { length(3, 10); });
  expect_refused(CAPSTAN_DATA, {"100000001", "limit"}, [&] { length(100'000'001, 1ull << 40); });
  expect_refused(CAPSTAN_DATA, {"limit"}, [&] { length(~0ull, 1ull << 40); });
  expect_refused(CAPSTAN_DATA, {"5 bytes"}, [] { header_length("12345", 5, "w"); });
}

TEST(SafetensorsHeader, WritesWhatItReads) {
  Header header;
  header.metadata = {{"format", "pt"}};
  header.tensors.resize(3);
  header.tensors[0] = {"half \"x\"\n", find_dtype("F16"), {3}, 0, 0};
  header.tensors[1] = {"double", find_dtype("F64"), {2, 2}, 0, 0};
  header.tensors[2] = {"\xce\xbb", find_dtype("U8"), {}, 0, 0};
  const std::string bytes = build_header(header);
  EXPECT_EQ(bytes.size() % kDataAlignment, 0u);
  EXPECT_EQ(header.data_start, bytes.size());
  // Larger elements first, so that each lies at a multiple of its own size.
  EXPECT_EQ(header.tensors[0].name, "double");
  for (const TensorEntry& tensor : header.tensors) EXPECT_EQ(tensor.begin % tensor.dtype->size, 0u);

  const std::uint64_t size = bytes.size() + header.tensors.back().end;
  ASSERT_EQ(header_length(bytes.substr(0, 8), size, "x"), bytes.size() - 8);
  Header again = parse_header(bytes.substr(8), size, "x");
  ASSERT_EQ(again.tensors.size(), 3u);
  EXPECT_EQ(again.tensors[1].name, "half \"x\"\n");
  EXPECT_EQ(again.tensors[2].name, "\xce\xbb");
  EXPECT_EQ(build_header(again), bytes);
}

TEST(SafetensorsHeader, RefusesToWriteANameThatIsNotUtf8) {
  Header header;
  header.tensors.resize(1);
  header.tensors[0] = {"\xff", find_dtype("U8"), {1}, 0, 0};
  expect_refused(CAPSTAN_USAGE, {"UTF-8"}, [&] { build_header(header); });
}

}  // namespace
}  // namespace capstan::safetensors
