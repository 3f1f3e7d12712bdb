// `capstan data tokenize`: text in, shards out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "tests/cli/process.h"

namespace capstan::cli_test {
namespace {

using namespace std::string_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Ids of a shard as bytes: after the header, two bytes an id, the size known from the end.
std::string TextOf(const std::string& path, size_t tokens) {
  const std::string file = ReadAll(path);
  EXPECT_GE(file.size(), 2 * tokens);
  std::string text;
  for (size_t i = 0; i < tokens; ++i) {
    const size_t at = file.size() - 2 * (tokens - i);
    EXPECT_EQ(file[at + 1], 0);
    text += file[at];
  }
  return text;
}

TEST(Tokenize, RoundTripsBytes) {
  const Folder folder;
  const std::string text = "O capstan,\nmany hands\0turn thee.\n\xC3\xA9\n"s;
  const std::string in = folder.Write("in.txt", text);
  const Outcome o = Capstan({"data", "tokenize", in, "--out", folder / "shards"});
  EXPECT_EQ(o.exit_code, 0) << o.err;
  EXPECT_THAT(folder.List("shards"), ElementsAre("train-00000.ctok"));
  EXPECT_EQ(TextOf(folder / "shards/train-00000.ctok", text.size()), text);
  EXPECT_THAT(o.out, HasSubstr("train: " + std::to_string(text.size()) + " tokens in 1 shard"));
}

TEST(Tokenize, CutsShardsAndHoldsOutTheEndOfEveryInput) {
  const Folder folder;
  folder.Write("texts/b.txt", "0123456789");
  folder.Write("texts/a/first.txt", "abcdefghijklmnopqrst");
  folder.Write("texts/.hidden", "never");
  const Outcome o = Capstan({"data", "tokenize", folder / "texts", "--out", folder / "shards",
                             "--shard-tokens", "16", "--validation-fraction", "0.2"});
  EXPECT_EQ(o.exit_code, 0) << o.err;
  EXPECT_THAT(folder.List("shards"),
              ElementsAre("train-00000.ctok", "train-00001.ctok", "val-00000.ctok"));
  EXPECT_EQ(TextOf(folder / "shards/train-00000.ctok", 16), "abcdefghijklmnop");
  EXPECT_EQ(TextOf(folder / "shards/train-00001.ctok", 8), "01234567");
  EXPECT_EQ(TextOf(folder / "shards/val-00000.ctok", 6), "qrst89");
}

TEST(Tokenize, NeverCutsInsideACharacter) {
  const Folder folder;
  const std::string in = folder.Write("in.txt", "aaaa\xE2\x82\xAC\xE2\x82\xAC");  // two euro signs
  const Outcome o =
      Capstan({"data", "tokenize", in, "--out", folder / "shards", "--validation-fraction", "0.5"});
  EXPECT_EQ(o.exit_code, 0) << o.err;
  EXPECT_EQ(TextOf(folder / "shards/train-00000.ctok", 7), "aaaa\xE2\x82\xAC");
  EXPECT_EQ(TextOf(folder / "shards/val-00000.ctok", 3), "\xE2\x82\xAC");
}

TEST(Tokenize, ReadsStandardInput) {
  const Folder folder;
  const Outcome o = Capstan(
      {"data", "tokenize", "-", "--out", folder / "shards", "--validation-fraction", "0.25"}, "",
      "fedcba98");
  EXPECT_EQ(o.exit_code, 0) << o.err;
  EXPECT_EQ(TextOf(folder / "shards/train-00000.ctok", 6), "fedcba");
  EXPECT_EQ(TextOf(folder / "shards/val-00000.ctok", 2), "98");
}

TEST(Tokenize, RefusesToMixWithOldShards) {
  const Folder folder;
  const std::string in = folder.Write("in.txt", "text");
  folder.Write("shards/train-00007.ctok", "old");
  const Outcome o = Capstan({"data", "tokenize", in, "--out", folder / "shards"});
  EXPECT_EQ(o.exit_code, 2);
  EXPECT_THAT(o.err, HasSubstr("train-00007.ctok already exists"));
  EXPECT_THAT(folder.List("shards"), ElementsAre("train-00007.ctok"));
}

TEST(Tokenize, LeavesNothingBehindWhenAnInputIsBad) {
  const Folder folder;
  const std::string in = folder.Write("in.txt", "text");
  const Outcome missing =
      Capstan({"data", "tokenize", in, folder / "absent.txt", "--out", folder / "shards"});
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_THAT(missing.err, HasSubstr("absent.txt does not exist"));
  const Outcome empty =
      Capstan({"data", "tokenize", folder.Write("empty.txt", ""), "--out", folder / "shards"});
  EXPECT_EQ(empty.exit_code, 1);
  EXPECT_THAT(empty.err, HasSubstr("no text"));
  EXPECT_THAT(folder.List("shards"), ElementsAre());
}

TEST(Tokenize, RefusesAHeldOutShareWithoutAToken) {
  const Folder folder;
  const std::string in = folder.Write("in.txt", "text");
  const Outcome o = Capstan(
      {"data", "tokenize", in, "--out", folder / "shards", "--validation-fraction", "0.01"});
  EXPECT_EQ(o.exit_code, 2);
  EXPECT_THAT(o.err, HasSubstr("give a larger share"));
  EXPECT_THAT(folder.List("shards"), ElementsAre());
}

TEST(Tokenize, RefusesImpossibleNumbersAndUnknownTokenizers) {
  const Folder folder;
  const std::string in = folder.Write("in.txt", "text"), out = folder / "shards";
  for (const char* fraction : {"1", "-0.5", "nan", "half"}) {
    EXPECT_EQ(Capstan({"data", "tokenize", in, "--out", out, "--validation-fraction", fraction})
                  .exit_code,
              2)
        << fraction;
  }
  EXPECT_EQ(Capstan({"data", "tokenize", in, "--out", out, "--shard-tokens", "0"}).exit_code, 2);
  const Outcome o = Capstan({"data", "tokenize", in, "--out", out, "--tokenizer", "byte"});
  EXPECT_EQ(o.exit_code, 2);
  EXPECT_THAT(o.err, HasSubstr("byte"));
}

}  // namespace
}  // namespace capstan::cli_test
