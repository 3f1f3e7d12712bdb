// The bill of model states, and how numbers are written.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/cli/memory_arithmetic.h"
#include "runtime/cli/plan_gpus.h"
#include "runtime/run/figures.h"
#include "runtime/status.h"

namespace capstan {
namespace {

using ::testing::HasSubstr;

// Parameters, gradients, optimizer state and total, in decimal GB.
void ExpectBill(double parameters, const char* precision, const char* strategy, int64_t ranks,
                double p, double g, double o, double total) {
  SCOPED_TRACE(testing::Message() << parameters << " " << precision << " " << strategy);
  const absl::StatusOr<MemoryBill> bill = BillOf(parameters, precision, strategy, ranks);
  ASSERT_TRUE(bill.ok()) << bill.status();
  EXPECT_DOUBLE_EQ(bill->parameters, p * 1e9);
  EXPECT_DOUBLE_EQ(bill->gradients, g * 1e9);
  EXPECT_DOUBLE_EQ(bill->optimizer, o * 1e9);
  EXPECT_DOUBLE_EQ(bill->total(), total * 1e9);
}

TEST(MemoryArithmetic, MixedPrecisionTakes16BytesAParameter) {
  ExpectBill(7e9, "mixed", "", 1, 14, 14, 84, 112);
  ExpectBill(13e9, "mixed", "", 1, 26, 26, 156, 208);
  ExpectBill(70e9, "mixed", "", 1, 140, 140, 840, 1120);
}

TEST(MemoryArithmetic, Fp32Takes16BytesAndPureBf16Takes8) {
  ExpectBill(7e9, "fp32", "", 1, 28, 28, 56, 112);
  ExpectBill(7e9, "bf16", "", 1, 14, 14, 28, 56);
}

TEST(MemoryArithmetic, ZeroDividesOptimizerThenGradientsThenParameters) {
  ExpectBill(70e9, "mixed", "", 8, 140, 140, 840, 1120);
  ExpectBill(70e9, "mixed", "zero1", 8, 140, 140, 105, 385);
  ExpectBill(70e9, "mixed", "zero2", 8, 140, 17.5, 105, 262.5);
  ExpectBill(70e9, "mixed", "zero3", 8, 17.5, 17.5, 105, 140);
}

TEST(MemoryArithmetic, FewestRanksRoundsUp) {
  const MemoryBill bill = *BillOf(13e9, "mixed", "", 1);
  EXPECT_EQ(FewestRanks(bill, 80e9), 3);
  EXPECT_EQ(FewestRanks(bill, 208e9), 1);
  EXPECT_EQ(FewestRanks(bill, 207.9e9), 2);
  EXPECT_EQ(FewestRanks(bill, 1e15), 1);
}

TEST(MemoryArithmetic, RefusesWhatMakesNoSense) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double parameters : {0.0, -7e9, 1e30, nan}) {
    EXPECT_EQ(ExitCode(BillOf(parameters, "mixed", "", 1).status()), kExitUsage) << parameters;
  }
  EXPECT_EQ(ExitCode(BillOf(7e9, "mixed", "zero1", 0).status()), kExitUsage);
  EXPECT_THAT(std::string(BillOf(7e9, "mixd", "", 1).status().message()),
              HasSubstr("did you mean \"mixed\"?"));
  EXPECT_THAT(std::string(BillOf(7e9, "mixed", "zero4", 8).status().message()),
              HasSubstr("zero1, zero2, zero3"));
}

TEST(Gpus, AreFoundBySizeSpellingAndPartOfTheName) {
  EXPECT_EQ(FindGpu("A100 80GB")->name, "A100 80GB");
  EXPECT_EQ(FindGpu("nvidia-a100-40gb")->name, "A100 40GB");
  EXPECT_EQ(FindGpu("h100")->name, "H100 80GB");
  EXPECT_EQ(FindGpu("4090")->name, "RTX 4090 24GB");
}

TEST(Gpus, AnAmbiguousNameListsItsMeanings) {
  const absl::Status status = FindGpu("A100").status();
  EXPECT_EQ(ExitCode(status), kExitUsage);
  EXPECT_THAT(std::string(status.message()), HasSubstr("A100 40GB, A100 80GB"));
}

TEST(Gpus, AnUnknownNameSuggestsTheNearest) {
  EXPECT_THAT(std::string(FindGpu("H10O").status().message()), HasSubstr("did you mean \"H100\"?"));
  EXPECT_EQ(ExitCode(FindGpu("").status()), kExitUsage);
}

// A data sheet's GB lie between the decimal and the binary unit.
TEST(Gpus, MemoryIsWhatTheNameSaysWithinAFewPercent) {
  for (const Gpu& gpu : KnownGpus()) {
    const double label = std::stod(gpu.name.substr(gpu.name.rfind(' ') + 1));
    EXPECT_GE(gpu.bytes(), 0.99e9 * label) << gpu.name;
    EXPECT_LE(gpu.bytes(), 1.0 * label * 1073741824.0) << gpu.name;
  }
}

TEST(PlanFormat, GroupsThousands) {
  EXPECT_EQ(GroupedText(0), "0");
  EXPECT_EQ(GroupedText(999), "999");
  EXPECT_EQ(GroupedText(1000), "1,000");
  EXPECT_EQ(GroupedText(68976648192), "68,976,648,192");
  EXPECT_EQ(GroupedText(-1234567), "-1,234,567");
  EXPECT_EQ(GroupedText(-123), "-123");
}

TEST(PlanFormat, UnitsAreDecimalAndNeverRoundUpToAThousand) {
  EXPECT_EQ(BytesText(0), "0 B");
  EXPECT_EQ(BytesText(512), "512 B");
  EXPECT_EQ(BytesText(497759232), "497.8 MB");
  EXPECT_EQ(BytesText(999.99e6), "1.0 GB");
  EXPECT_EQ(GigabytesText(208e9), "208.0 GB");
  EXPECT_EQ(GigabytesText(1120e9), "1120.0 GB");
  EXPECT_EQ(GigabytesText(2e6), "0.002 GB");
  EXPECT_EQ(FlopsText(3.42e12), "3.42 TFLOP");
  EXPECT_EQ(CountText(13e9), "13.00 billion");
  EXPECT_EQ(CountText(124439808), "124.44 million");
  EXPECT_EQ(CountText(640), "640");
}

}  // namespace
}  // namespace capstan
