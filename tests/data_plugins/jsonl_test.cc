// The metrics log: what a line says, and that nothing is lost or doubled over a crash.
#include <sys/mount.h>

#include <cmath>
#include <limits>

#include "plugins/tracker/jsonl/log_file.h"
#include "plugins/tracker/jsonl/record.h"
#include "tests/data_plugins/scratch.h"

namespace capstan::jsonl {
namespace {

using data_test::expect_refused;
using data_test::names_in;
using data_test::read_file;
using data_test::Scratch;
using data_test::write_file;
using testing::ElementsAre;

capstan_metric metric(const char* name, double value, bool integer = false) {
  auto out = sdk::sized<capstan_metric>();
  out.name = name;
  out.value = value;
  out.integer = integer ? 1 : 0;
  return out;
}

std::string line(std::vector<capstan_metric> metrics, const char* scope = "train") {
  return metrics_line(scope, 12, metrics);
}

TEST(JsonlRecord, IsOneObjectAStep) {
  EXPECT_EQ(line({metric("loss", 3.25), metric("tokens", 98'304, true)}),
            "{\"step\":12,\"loss\":3.25,\"tokens\":98304}\n");
  EXPECT_EQ(line({metric("loss", 3.25)}, "validation"),
            "{\"step\":12,\"scope\":\"validation\",\"loss\":3.25}\n");
  EXPECT_EQ(event_line("checkpoint", 3, "saved \"a\"\n"),
            "{\"step\":3,\"event\":\"checkpoint\",\"text\":\"saved \\\"a\\\"\\n\"}\n");
  EXPECT_EQ(event_line("x", 3, "\xff"), "{\"step\":3,\"event\":\"x\",\"text\":\"\xef\xbf\xbd\"}\n");
}

TEST(JsonlRecord, NumbersReadBackExactly) {
  for (double value : {0.1, 1.0 / 3.0, 6.02214076e23, 5e-324, 1.7976931348623157e308, -0.25}) {
    const std::string text = line({metric("v", value)});
    const std::size_t at = text.find("\"v\":") + 4;
    EXPECT_EQ(std::strtod(text.c_str() + at, nullptr), value) << text;
  }
}

TEST(JsonlRecord, IntegersHaveNoFractionAndNoExponent) {
  EXPECT_EQ(line({metric("n", 1e15, true)}), "{\"step\":12,\"n\":1000000000000000}\n");
  EXPECT_EQ(line({metric("n", -0.0, true)}), "{\"step\":12,\"n\":0}\n");
  EXPECT_EQ(line({metric("n", 1e22, true)}), "{\"step\":12,\"n\":10000000000000000000000}\n");
}

TEST(JsonlRecord, NonFiniteNumbersAreNullAndNamed) {
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(line({metric("loss", NAN), metric("a", infinity), metric("b", -infinity)}),
            "{\"step\":12,\"loss\":null,\"a\":null,\"b\":null,"
            "\"non_finite\":{\"loss\":\"nan\",\"a\":\"inf\",\"b\":\"-inf\"}}\n");
}

TEST(JsonlTrim, DropsLaterStepsAndATornLastLine) {
  Scratch scratch;
  write_file(scratch / "m",
             "{\"step\":1}\n{\"step\":2,\"event\":\"e\"}\n{\"step\":3}\n"
             "{\"step\":2,\"scope\":\"validation\"}\n{\"step\":4}\n{\"step\":5,\"lo");
  const Trimmed trimmed = trim_log(scratch / "m", 2);
  EXPECT_EQ(trimmed.later, 2u);
  EXPECT_EQ(trimmed.unreadable, 1u);
  EXPECT_EQ(read_file(scratch / "m"),
            "{\"step\":1}\n{\"step\":2,\"event\":\"e\"}\n{\"step\":2,\"scope\":\"validation\"}\n");
  EXPECT_THAT(names_in(scratch.path()), ElementsAre("m"));
}

// A last line without its newline may lack digits of its last number: "12" could have been "123".
TEST(JsonlTrim, TakesALineWithoutItsNewlineForTorn) {
  Scratch scratch;
  write_file(scratch / "m", "{\"step\":1}\n{\"step\":2}");
  EXPECT_EQ(trim_log(scratch / "m", 9).unreadable, 1u);
  EXPECT_EQ(read_file(scratch / "m"), "{\"step\":1}\n");
}

TEST(JsonlTrim, DropsWhatIsNotARecord) {
  Scratch scratch;
  write_file(scratch / "m",
             "{\"step\":1}\n" + std::string(40, '\0') + "\n[]\n{\"step\":1.5}\n{}\n");
  EXPECT_EQ(trim_log(scratch / "m", 9).unreadable, 4u);
  EXPECT_EQ(read_file(scratch / "m"), "{\"step\":1}\n");
}

TEST(JsonlTrim, LeavesAFileThatIsRightAlone) {
  Scratch scratch;
  write_file(scratch / "m", "{\"step\":1}\n");
  const auto before = std::filesystem::last_write_time(scratch / "m");
  trim_log(scratch / "m", 1);
  EXPECT_EQ(std::filesystem::last_write_time(scratch / "m"), before);
  EXPECT_EQ(trim_log(scratch / "none", 1).later, 0u);
  EXPECT_THAT(names_in(scratch.path()), ElementsAre("m"));
}

TEST(JsonlTrim, AFreshStartSetsTheOldLogAside) {
  Scratch scratch;
  write_file(scratch / "m", "old");
  set_aside_log(scratch / "m");
  set_aside_log(scratch / "m");
  EXPECT_THAT(names_in(scratch.path()), ElementsAre("m.old"));
}

TEST(JsonlWriter, WritesEverythingInOrder) {
  Scratch scratch;
  std::string expected;
  {
    LogWriter writer(scratch / "m", 100'000, 7);
    for (int step = 0; step < 5000; ++step) {
      const std::string text = metrics_line("train", step, {});
      expected += text;
      writer.add(text);
      if (step == 2500) {
        writer.flush();
        EXPECT_EQ(read_file(scratch / "m"), expected);
      }
    }
  }
  EXPECT_EQ(read_file(scratch / "m"), expected);
  LogWriter writer(scratch / "m", 10, 0);
  writer.add("{\"step\":9}\n");
  writer.flush();
  EXPECT_EQ(read_file(scratch / "m"), expected + "{\"step\":9}\n");
}

TEST(JsonlWriter, CountsWhatFindsTheQueueFull) {
  Scratch scratch;
  LogWriter writer(scratch / "m", 2, 0);
  constexpr std::uint64_t kLines = 200'000;
  for (std::uint64_t i = 0; i < kLines; ++i) writer.add("{\"step\":1}\n");
  writer.flush();
  const WriterCounts counts = writer.counts();
  const std::uint64_t written = read_file(scratch / "m").size() / 11;
  EXPECT_GT(counts.dropped, 0u);
  EXPECT_EQ(written + counts.dropped, kLines);
  EXPECT_EQ(counts.lost, 0u);
}

TEST(JsonlWriter, AFullDiskLosesWholeLinesAndIsReportedOnce) {
  Scratch scratch;
  if (::mount("tmpfs", scratch.path().c_str(), "tmpfs", 0, "size=64k") != 0) {
    GTEST_SKIP() << "needs the right to mount a tmpfs";
  }
  {
    LogWriter writer(scratch / "m", 10, 0);
    writer.add("{\"step\":1}\n");
    writer.flush();
    writer.add(std::string(1 << 20, 'x') + "\n");
    expect_refused(CAPSTAN_RESOURCE, {"disk full", "/m'"}, [&] { writer.flush(); });
    EXPECT_EQ(writer.counts().lost, 1u);
    writer.add("{\"step\":2}\n");
    writer.flush();
    EXPECT_EQ(read_file(scratch / "m"), "{\"step\":1}\n{\"step\":2}\n");
  }
  EXPECT_EQ(::umount(scratch.path().c_str()), 0);
}

}  // namespace
}  // namespace capstan::jsonl
