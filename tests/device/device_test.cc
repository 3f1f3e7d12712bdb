// The CPU device as an object: options, memory, description, measurements.
#include <gtest/gtest.h>
#include <malloc.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <thread>

#include "tests/device/harness.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace capstan::test {
namespace {

capstan_memory_info memory_of(const CpuDevice& device) {
  auto info = sdk::sized<capstan_memory_info>();
  sdk::check(device.vtable().memory(device.self(), &info));
  return info;
}

// Memory of a device, freed with it.
class Allocation {
 public:
  Allocation(const CpuDevice& device, uint64_t bytes) : device_(device) {
    sdk::check(device.vtable().allocate(device.self(), "test region", bytes, &data_));
  }
  ~Allocation() { device_.vtable().free(device_.self(), data_); }
  unsigned char* data() const { return static_cast<unsigned char*>(data_); }

 private:
  const CpuDevice& device_;
  void* data_ = nullptr;
};

TEST(Memory, IsAlignedZeroAndCountedExactly) {
  for (const bool huge_pages : {true, false}) {
    const CpuDevice device({.huge_pages = huge_pages});
    const uint64_t odd = (uint64_t{5} << 20) + 12345;
    EXPECT_EQ(memory_of(device).allocated_bytes, 0u);
    {
      const Allocation a(device, odd), b(device, 1), empty(device, 0);
      EXPECT_EQ(memory_of(device).allocated_bytes, odd + 1);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(a.data()) % (2 << 20), 0u);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(b.data()) % (2 << 20), 0u);
      EXPECT_NE(empty.data(), nullptr);
      EXPECT_TRUE(std::all_of(a.data(), a.data() + odd, [](unsigned char c) { return c == 0; }));
      a.data()[odd - 1] = 1;
    }
    EXPECT_EQ(memory_of(device).allocated_bytes, 0u);
  }
}

// What another process would do with the descriptor: map it and look.
TEST(Memory, SharedRegionsAreExportedAndCounted) {
  const CpuDevice device;
  const capstan_device_v1& v = device.vtable();
  const uint64_t bytes = (uint64_t{3} << 20) + 77;
  void* memory = nullptr;
  sdk::check(v.allocate_shared(device.self(), "buckets", bytes, &memory));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % (2 << 20), 0u);
  EXPECT_EQ(memory_of(device).allocated_bytes, bytes);
  auto* mine = static_cast<unsigned char*>(memory);
  EXPECT_TRUE(std::all_of(mine, mine + bytes, [](unsigned char c) { return c == 0; }));
  int32_t fd = -1;
  uint64_t offset = 1;
  sdk::check(v.export_memory(device.self(), memory, &fd, &offset));
  void* raw =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(offset));
  ASSERT_NE(raw, MAP_FAILED);
  close(fd);
  auto* other = static_cast<unsigned char*>(raw);
  mine[5] = 17;
  other[bytes - 1] = 23;
  EXPECT_EQ(other[5], 17);
  EXPECT_EQ(mine[bytes - 1], 23);
  v.free(device.self(), memory);
  EXPECT_EQ(memory_of(device).allocated_bytes, 0u);
  EXPECT_EQ(other[5], 0);  // the pages are gone, the mapping is not
  munmap(raw, bytes);
}

TEST(Memory, PrivateRegionsAreNotExported) {
  const CpuDevice device;
  const Allocation a(device, 100);
  int32_t fd = -7;
  uint64_t offset = 7;
  capstan_status* status = device.vtable().export_memory(device.self(), a.data(), &fd, &offset);
  ASSERT_NE(status, nullptr);
  EXPECT_EQ(status->code, CAPSTAN_USAGE);
  EXPECT_NE(std::string(status->message).find("allocate_shared"), std::string::npos);
  EXPECT_EQ(fd, -7);
  status->release(status);
}

uint64_t resident_bytes() {
  std::ifstream in("/proc/self/statm");
  uint64_t whole = 0, resident = 0;
  in >> whole >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

TEST(Memory, IsResidentFromTheStart) {
  const CpuDevice device;
  constexpr uint64_t kBytes = uint64_t{96} << 20;
  const uint64_t before = resident_bytes();
  const Allocation a(device, kBytes);
  EXPECT_GE(resident_bytes(), before + kBytes - (uint64_t{4} << 20));
}

TEST(Memory, ImpossibleSizesAreRefusedInASentence) {
  const CpuDevice device;
  const uint64_t total = memory_of(device).total_bytes;
  for (const uint64_t bytes : {total, total * 1000, uint64_t{1} << 62}) {
    void* data = reinterpret_cast<void*>(1);
    capstan_status* status =
        device.vtable().allocate(device.self(), "optimizer state", bytes, &data);
    ASSERT_NE(status, nullptr) << bytes;
    EXPECT_EQ(status->code, CAPSTAN_RESOURCE);
    const std::string message = status->message;
    EXPECT_NE(message.find("optimizer state"), std::string::npos) << message;
    EXPECT_NE(message.find(std::to_string(bytes)), std::string::npos) << message;
    EXPECT_NE(message.find("can be had"), std::string::npos) << message;
    EXPECT_EQ(data, reinterpret_cast<void*>(1));  // untouched
    status->release(status);
  }
  EXPECT_EQ(memory_of(device).allocated_bytes, 0u);
}

TEST(Memory, FactsAreWithinReason) {
  const CpuDevice device;
  const capstan_memory_info info = memory_of(device);
  EXPECT_GT(info.free_bytes, 0u);
  EXPECT_LE(info.free_bytes, info.total_bytes);
  EXPECT_GT(info.external_bytes, 0u);
}

TEST(Memory, CopyMovesSmallAndLargePieces) {
  const CpuDevice device;
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{1}, uint64_t{4097}, (uint64_t{7} << 20) + 3}) {
    const Allocation a(device, bytes);
    std::vector<unsigned char> from(bytes), back(bytes + 1, 0xee);
    for (uint64_t i = 0; i < bytes; ++i) from[i] = static_cast<unsigned char>(i * 31 + 7);
    sdk::check(device.vtable().copy(device.self(), a.data(), from.data(), bytes));
    sdk::check(device.vtable().copy(device.self(), back.data(), a.data(), bytes));
    EXPECT_TRUE(std::equal(from.begin(), from.end(), back.begin()));
    EXPECT_EQ(back[bytes], 0xee);
  }
}

// What oneDNN and OpenMP take stays within what the device declares. The products are those of a
// GPT-2 layer; the harness's own operands are freed before each look.
TEST(Memory, LibrariesStayWithinTheDeclaredBound) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "AddressSanitizer keeps freed memory resident";
#endif
  // A fixed threshold: large operands are mapped one by one and unmapped when freed. (By itself
  // glibc raises the threshold and keeps them in its heap, by an order that varies.)
  ASSERT_EQ(mallopt(M_MMAP_THRESHOLD, 128 << 10), 1);
  const CpuDevice device;
  const int64_t M = 1024, K = 768;
  const auto product = [&](int64_t N) {
    std::vector<double> x(static_cast<size_t>(M * K), 0.5), w(static_cast<size_t>(N * K), 0.25);
    device.run({"linear", {f32({M, K}, x), f32({N, K}, w)}, {}, {like({M, N}, sdk::kF32)}});
    device.run({"linear_dw",
                {f32({M, K}, x), f32({M, N}, std::vector<double>(static_cast<size_t>(M * N), 1))},
                {},
                {like({N, K}, sdk::kF32)}});
  };
  malloc_trim(0);
  const uint64_t before = resident_bytes();
  product(3072);
  product(768);
  malloc_trim(0);
  const uint64_t after = resident_bytes();
  EXPECT_LE(after - std::min(before, after),
            memory_of(device).external_bytes + (uint64_t{4} << 20));
}

std::string description_of(const CpuDevice& device) {
  return device.vtable().description(device.self());
}

int available_cores() {
  cpu_set_t mask;
  sched_getaffinity(0, sizeof mask, &mask);
  return CPU_COUNT(&mask);
}

TEST(Options, ThreadsDefaultToTheShareOfTheCores) {
  const int cores = available_cores();
  EXPECT_EQ(std::stoi(description_of(CpuDevice({.threads = 0}))), cores);
  EXPECT_EQ(std::stoi(description_of(CpuDevice({.threads = 0, .local_rank = 1, .local_ranks = 2}))),
            std::max(1, cores / 2));
  // More ranks than cores: one thread each.
  EXPECT_EQ(std::stoi(description_of(
                CpuDevice({.threads = 0, .local_rank = 4 * cores - 1, .local_ranks = 4 * cores}))),
            1);
  EXPECT_EQ(std::stoi(description_of(CpuDevice({.threads = 3}))), 3);
}

TEST(Options, ReferenceKernelsArePlainAndSaySo) {
  const Call call{"linear", {f32({1, 1}, {2}), f32({1, 1}, {3})}, {}, {like({1, 1}, sdk::kF32)}};
  EXPECT_EQ(CpuDevice({.kernels = "reference"}).kernel_name(call), "plain linear");
  EXPECT_EQ(CpuDevice().kernel_name(call), "linear (oneDNN sgemm)");
  EXPECT_NE(description_of(CpuDevice({.kernels = "reference"})).find("plain"), std::string::npos);
}

TEST(Options, BoundWorkersLeaveTheCallerFree) {
  cpu_set_t before, after;
  sched_getaffinity(0, sizeof before, &before);
  const CpuDevice device({.threads = 2, .bind = true});
  const std::vector<double> x(1 << 16, 1.5);
  const auto y =
      device.run({"scale", {f32({1 << 16}, x)}, {{"factor", 2.0}}, {like({1 << 16}, sdk::kF32)}});
  EXPECT_EQ(y[0].values[65535], 3.0);
  sched_getaffinity(0, sizeof after, &after);
  EXPECT_TRUE(CPU_EQUAL(&before, &after));
}

// A product of two floats of about 1e-20 is subnormal.
TEST(Options, SubnormalsAreFlushedUnlessToldOtherwise) {
  const Call call{"mul", {f32({1}, {1e-20f}), f32({1}, {1e-20f})}, {}, {like({1}, sdk::kF32)}};
  EXPECT_EQ(CpuDevice().run(call)[0].values[0], 0.0);
  EXPECT_GT(CpuDevice({.flush_subnormals = false}).run(call)[0].values[0], 0.0);
}

TEST(Launch, LeavesTheCallersFloatModeAlone) {
#if defined(__x86_64__)
  const unsigned before = _mm_getcsr();
  CpuDevice().run({"scale", {f32({1}, {1})}, {{"factor", 2.0}}, {like({1}, sdk::kF32)}});
  // Sticky exception flags (the low six bits) may be raised.
  EXPECT_EQ(_mm_getcsr() & ~0x3fu, before & ~0x3fu);
#endif
  volatile float tiny = 1e-20f;
  EXPECT_GT(tiny * tiny, 0.0f);
}

TEST(Launch, WorksOnThreadsThatDidNotMakeTheDevice) {
  const CpuDevice device({.threads = 2});
  const size_t n = 1 << 18;
  std::vector<Array> y;
  std::thread other([&] {
    y = device.run({"scale",
                    {f32({1 << 18}, std::vector<double>(n, 1.5))},
                    {{"factor", 2.0}},
                    {like({1 << 18}, sdk::kF32)}});
  });
  other.join();
  EXPECT_TRUE(
      std::all_of(y[0].values.begin(), y[0].values.end(), [](double v) { return v == 3.0; }));
}

TEST(Device, ProbesAndIdentifiesItself) {
  const CpuDevice device;
  int32_t score = 0;
  sdk::check(device.vtable().probe(device.host(), &score));
  EXPECT_GT(score, 0);
  EXPECT_EQ(device.vtable().id(device.self()).type, CAPSTAN_DEVICE_CPU);
  EXPECT_STREQ(device.component().kind, "device");
  EXPECT_STREQ(device.component().id, "cpu");
  EXPECT_NE(description_of(device).find("oneDNN"), std::string::npos);
  EXPECT_STREQ(device.vtable().fusions(device.self())[0], "linear_gelu");
}

TEST(Device, MeasuresPlausiblePeaksQuickly) {
  const CpuDevice device;
  auto roofline = sdk::sized<capstan_roofline>();
  const auto start = std::chrono::steady_clock::now();
  sdk::check(device.vtable().measure(device.self(), sdk::kF32, &roofline));
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  EXPECT_GT(roofline.matmul_flops, 1e8);
  EXPECT_GT(roofline.memory_bytes, 1e8);
  RecordProperty("gigaflops", std::to_string(roofline.matmul_flops * 1e-9));
  RecordProperty("gigabytes_per_second", std::to_string(roofline.memory_bytes * 1e-9));
  RecordProperty("seconds", std::to_string(seconds));
  capstan_status* status = device.vtable().measure(device.self(), sdk::kBF16, &roofline);
  ASSERT_NE(status, nullptr);
  EXPECT_EQ(status->code, CAPSTAN_UNSUPPORTED);
  status->release(status);
}

TEST(Device, TwoInstancesWorkSideBySide) {
  const CpuDevice one({.threads = 1}), two({.threads = 2});
  const size_t n = 100000;
  const Call call{"scale",
                  {f32({100000}, std::vector<double>(n, 0.5))},
                  {{"factor", 4.0}},
                  {like({100000}, sdk::kF32)}};
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(one.run(call)[0].values, two.run(call)[0].values);
  }
}

}  // namespace
}  // namespace capstan::test
