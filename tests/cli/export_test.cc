// `capstan export`: a checkpoint's weights as a published folder.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <map>

#include "nlohmann/json.hpp"
#include "tests/cli/process.h"

namespace capstan::cli_test {
namespace {

using Json = nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Every tensor of a safetensors file: "dtype shape" and its bytes.
std::map<std::string, std::pair<std::string, std::string>> TensorsOf(const std::string& path) {
  const std::string file = ReadAll(path);
  uint64_t header = 0;
  EXPECT_GT(file.size(), sizeof(header));
  std::memcpy(&header, file.data(), sizeof(header));
  const Json json = Json::parse(file.substr(sizeof(header), header));
  std::map<std::string, std::pair<std::string, std::string>> tensors;
  for (const auto& [name, t] : json.items()) {
    if (name == "__metadata__") continue;
    const uint64_t begin = t["data_offsets"][0], end = t["data_offsets"][1];
    tensors[name] = {t["dtype"].get<std::string>() + " " + t["shape"].dump(),
                     file.substr(sizeof(header) + header + begin, end - begin)};
  }
  return tensors;
}

class Export : public testing::Test {
 protected:
  void SetUp() override {
    const std::string text = folder_.Write("text.txt", std::string(2048, 'x') + "capstan\n");
    config_ = TinyConfig(folder_);
    ASSERT_EQ(Capstan({"data", "tokenize", text, "--out", folder_ / "data"}).exit_code, 0);
    const Outcome train = Capstan({"train", config_});
    ASSERT_EQ(train.exit_code, 0) << train.err;
  }
  Folder folder_;
  std::string config_;
};

TEST_F(Export, CopiesTheModelOfTheNewestCheckpointExactly) {
  const Outcome o = Capstan({"export", folder_ / "run", folder_ / "out"});
  ASSERT_EQ(o.exit_code, 0) << o.err;
  EXPECT_THAT(folder_.List("out"), ElementsAre("config.json", "model.safetensors"));
  const auto exported = TensorsOf(folder_ / "out/model.safetensors");
  EXPECT_EQ(exported, TensorsOf(folder_ / "run/checkpoints/step-00000002/model.safetensors"));
  // Published orientation: c_attn holds q, k and v by column.
  EXPECT_EQ(exported.at("h.0.attn.c_attn.weight").first, "F32 [32,96]");
  EXPECT_EQ(Json::parse(ReadAll(folder_ / "out/config.json"))["model_type"], "gpt2");
}

TEST_F(Export, TakesACheckpointToo) {
  const Outcome o = Capstan({"export", folder_ / "run/checkpoints/step-00000002", folder_ / "out"});
  EXPECT_EQ(o.exit_code, 0) << o.err;
  EXPECT_THAT(folder_.List("out"), ElementsAre("config.json", "model.safetensors"));
}

TEST_F(Export, CanBeStartedFromAgain) {
  ASSERT_EQ(Capstan({"export", folder_ / "run", folder_ / "out"}).exit_code, 0);
  const Outcome o = Capstan({"train", config_, "--set", "run.dir=" + (folder_ / "second"), "--set",
                             "model.weights=" + (folder_ / "out")});
  EXPECT_EQ(o.exit_code, 0) << o.err;
}

TEST_F(Export, RefusesToOverwrite) {
  folder_.Write("out/mine.txt", "precious");
  const Outcome o = Capstan({"export", folder_ / "run", folder_ / "out"});
  EXPECT_EQ(o.exit_code, 2);
  EXPECT_THAT(o.err, HasSubstr("already exists"));
  EXPECT_THAT(folder_.List("out"), ElementsAre("mine.txt"));
}

TEST_F(Export, ADamagedCheckpointLeavesNoFolder) {
  const std::string weights = folder_ / "run/checkpoints/step-00000002/model.safetensors";
  std::filesystem::resize_file(weights, 1000);
  const Outcome o = Capstan({"export", folder_ / "run", folder_ / "out"});
  EXPECT_EQ(o.exit_code, 1);
  EXPECT_THAT(o.err, HasSubstr("model.safetensors"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out"));
}

TEST(ExportRefusal, SaysWhatIsMissing) {
  const Folder folder;
  const Outcome absent = Capstan({"export", folder / "nowhere", folder / "out"});
  EXPECT_EQ(absent.exit_code, 2);
  EXPECT_THAT(absent.err, HasSubstr("nowhere does not exist"));
  std::filesystem::create_directories(folder / "run/checkpoints");
  const Outcome early = Capstan({"export", folder / "run", folder / "out"});
  EXPECT_EQ(early.exit_code, 2);
  EXPECT_THAT(early.err, HasSubstr("no complete checkpoint"));
}

}  // namespace
}  // namespace capstan::cli_test
