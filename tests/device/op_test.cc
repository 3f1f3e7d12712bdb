// Every op of the catalogue on the CPU device: fast f32 kernels against plain loops in f64, through
// the ABI. Each call is varied: outputs added to or overwritten, outputs that nothing reads, output
// in place of the input.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include "tests/device/harness.h"
#include "tests/device/op_cases.h"

namespace capstan::test {
namespace {

// The call as an f32 program would make it: every f64 operand narrowed.
Call narrowed(Call call) {
  for (std::vector<Array>* arrays : {&call.inputs, &call.outputs}) {
    for (Array& a : *arrays) {
      if (sdk::same_dtype(a.dtype, sdk::kF64)) a.dtype = sdk::kF32;
    }
  }
  return call;
}

// The bit of `accumulate` and the initial contents that go with it.
void start_with(Call& call, size_t output, bool add, Random& random) {
  Array& a = call.outputs[output];
  a.values.clear();
  if (!add) return;
  a.values = random.uniform(a.size(), -1, 1);
  call.accumulate |= uint64_t{1} << output;
}

// The call with every choice of what the host may ask for.
std::vector<Call> variants(const OpCase& c, Random& random) {
  std::vector<Call> calls = {c.call};
  const size_t count = c.effects.size();
  std::vector<size_t> added;
  for (size_t i = 0; i < count; ++i) {
    if (c.effects[i] == Effect::kAccumulate) added.push_back(i);
  }
  if (!added.empty()) {  // all, then each alone
    Call all = c.call;
    for (const size_t i : added) start_with(all, i, true, random);
    calls.push_back(all);
    for (const size_t i : added) {
      if (added.size() < 2) break;
      Call one = c.call;
      start_with(one, i, true, random);
      calls.push_back(one);
    }
  }
  if (c.optional_outputs) {  // each left out, and each alone
    for (size_t i = 0; i < count; ++i) {
      Call without = c.call, alone = c.call;
      without.outputs[i] = none();
      for (size_t j = 0; j < count; ++j) {
        if (j != i) alone.outputs[j] = none();
      }
      calls.push_back(without);
      if (count > 2) calls.push_back(alone);
    }
  }
  if (c.elementwise) {
    Call in_place = c.call;
    in_place.in_place = true;
    calls.push_back(in_place);
  }
  return calls;
}

void expect_near(const Array& actual, const Array& expected, double tolerance, double scale) {
  ASSERT_EQ(actual.values.size(), expected.values.size());
  double largest = scale;
  for (const double v : expected.values) {
    if (std::isfinite(v)) largest = std::max(largest, std::fabs(v));
  }
  for (size_t i = 0; i < expected.values.size(); ++i) {
    const double a = actual.values[i], e = expected.values[i];
    if (a == e || (std::isnan(a) && std::isnan(e))) continue;
    ASSERT_LE(std::fabs(a - e), tolerance * largest)
        << "element " << i << " is " << a << ", not " << e;
  }
}

class Op : public testing::TestWithParam<std::string> {
 protected:
  // Calls check(call, case) for every variant of every case of the op, or for the cases alone.
  template <class Check>
  void for_each_call(Check&& check, bool varied = true) {
    const MakeCases make = all_op_cases().at(GetParam());
    uint64_t seed = 1;
    for (const Sizes& sizes : all_sizes()) {
      Random random(seed++);
      for (const OpCase& c : make(sizes, random)) {
        for (const Call& call : varied ? variants(c, random) : std::vector<Call>{c.call}) {
          check(call, c);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
};

void expect_all_near(const std::vector<Array>& actual, const std::vector<Array>& expected,
                     const OpCase& c, double slack = 1.0) {
  for (size_t i = 0; i < expected.size(); ++i) {
    SCOPED_TRACE("output " + std::to_string(i));
    expect_near(actual[i], expected[i], slack * c.tolerance, c.scale);
  }
}

TEST_P(Op, FastF32AgreesWithPlainF64) {
  const CpuDevice device({.threads = 2});
  for_each_call([&](const Call& call, const OpCase& c) {
    // f64 is always plain loops.
    expect_all_near(device.run(narrowed(call)), device.run(call), c);
  });
}

TEST_P(Op, AgreesOnOneAndOnThreeThreads) {
  std::vector<std::vector<Array>> results;
  {
    const CpuDevice one({.threads = 1});
    for_each_call(
        [&](const Call& call, const OpCase&) { results.push_back(one.run(narrowed(call))); },
        /*varied=*/false);
  }
  const CpuDevice three({.threads = 3});
  size_t next = 0;
  for_each_call(
      [&](const Call& call, const OpCase& c) {
        expect_all_near(three.run(narrowed(call)), results[next++], c);
      },
      /*varied=*/false);
}

TEST_P(Op, PlainF32AgreesWithPlainF64) {
  const CpuDevice plain({.kernels = "reference"});
  for_each_call([&](const Call& call, const OpCase& c) {
    // Plain sums round more often.
    expect_all_near(plain.run(narrowed(call)), plain.run(call), c, 10.0);
  });
}

TEST_P(Op, RepeatsItselfToTheBit) {
  const CpuDevice device({.threads = 2});
  for_each_call([&](const Call& call, const OpCase&) {
    const std::vector<Array> first = device.run(narrowed(call));
    const std::vector<Array> second = device.run(narrowed(call));
    for (size_t i = 0; i < first.size(); ++i) {
      ASSERT_TRUE(std::equal(first[i].values.begin(), first[i].values.end(),
                             second[i].values.begin(), second[i].values.end(),
                             [](double a, double b) { return a == b || (a != a && b != b); }));
    }
  });
}

TEST_P(Op, IsSupportedInF32AndF64) {
  const CpuDevice device;
  for_each_call([&](const Call& call, const OpCase&) {
    EXPECT_TRUE(device.supports(call));
    EXPECT_TRUE(device.supports(narrowed(call)));
  });
}

std::vector<std::string> names_with_cases() {
  std::vector<std::string> names;
  for (const auto& [name, make] : all_op_cases()) names.push_back(name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(Catalogue, Op, testing::ValuesIn(names_with_cases()),
                         [](const auto& info) { return info.param; });

// ---- completeness

// Ops that the catalogue in plugin_api/ops.h describes: names before "(operands) ->", and the few
// that give nothing.
std::set<std::string> catalogue() {
  std::ifstream in(CAPSTAN_TEST_OPS_HEADER);
  std::stringstream whole;
  whole << in.rdbuf();
  std::string text = whole.str();
  text = text.substr(text.find("* Dense layers"));
  text = std::regex_replace(text, std::regex(R"(\n \*)"), " ");
  text = std::regex_replace(text, std::regex(R"(\s+)"), " ");
  std::set<std::string> names;
  const std::regex op(R"(([a-z_0-9]+(?:, [a-z_0-9]+)*) ?\([^()]*\) ->)");
  for (std::sregex_iterator it(text.begin(), text.end(), op), end; it != end; ++it) {
    std::stringstream list((*it)[1].str());
    for (std::string name; std::getline(list, name, ',');) {
      names.insert(name.substr(name.find_first_not_of(' ')));
    }
  }
  return names;
}

// What the host does itself through the communication backend. send, send_grad and recv_grad are
// not listed: the catalogue gives them no result.
const std::set<std::string> kOfTheHost = {"reduce_from_group", "all_reduce",      "all_gather",
                                          "reduce_scatter",    "shard",           "all_to_all",
                                          "broadcast_from",    "reduce_gradient", "recv"};

TEST(Catalogue, EveryOpHasCasesOrIsTheHosts) {
  const std::set<std::string> described = catalogue();
  ASSERT_GE(described.size(), 80u) << "the catalogue's text is no longer understood";
  for (const char* known : {"embedding", "linear_cross_entropy_grad", "abs", "add", "sgd_plain"}) {
    EXPECT_TRUE(described.count(known)) << known;
  }
  const auto cases = all_op_cases();
  for (const std::string& name : described) {
    EXPECT_NE(cases.count(name) != 0, kOfTheHost.count(name) != 0) << name;
  }
  for (const auto& [name, make] : cases) EXPECT_TRUE(described.count(name)) << name;
}

TEST(Catalogue, OpsOfTheHostAndUnknownOnesAreNotSupported) {
  const CpuDevice device;
  for (const char* op : {"all_reduce", "send", "recv", "org.example.unknown"}) {
    EXPECT_FALSE(device.supports({op, {f64({2}, {1, 2})}, {}, {like({2})}})) << op;
  }
}

TEST(Catalogue, OtherDtypesAreRefusedByName) {
  const CpuDevice device;
  Call call{"linear",
            {array(sdk::kBF16, {2, 3}), array(sdk::kBF16, {4, 3})},
            {},
            {like({2, 4}, sdk::kBF16)}};
  EXPECT_FALSE(device.supports(call));
  try {
    device.run(call);
    FAIL() << "bf16 was accepted";
  } catch (const sdk::Error& error) {
    EXPECT_EQ(error.code(), CAPSTAN_UNSUPPORTED);
    EXPECT_NE(error.message().find("linear(bf16[2,3], bf16[4,3])"), std::string::npos)
        << error.message();
  }
}

// ---- data that a run can break

// The DATA error's message; empty when the call succeeds.
std::string data_error_of(const CpuDevice& device, const Call& call) {
  try {
    device.run(call);
    return "";
  } catch (const sdk::Error& error) {
    EXPECT_EQ(error.code(), CAPSTAN_DATA);
    return error.message();
  }
}

TEST(BadData, IdOutsideTheVocabularyIsNamed) {
  for (const char* kernels : {"fast", "reference"}) {
    const CpuDevice device({.kernels = kernels});
    for (const double bad : {7.0, -1.0}) {
      const std::string message = data_error_of(
          device,
          narrowed({"embedding", {i32({3}, {0, bad, 6}), like({7, 2})}, {}, {like({3, 2})}}));
      EXPECT_NE(message.find(bad > 0 ? "id 7 (element 1 of 3)" : "id -1 (element 1 of 3)"),
                std::string::npos)
          << message;
      EXPECT_NE(message.find("7 rows"), std::string::npos) << message;
    }
  }
}

TEST(BadData, TargetOutsideTheVocabularyIsNamed) {
  for (const char* kernels : {"fast", "reference"}) {
    const CpuDevice device({.kernels = kernels});
    const Array logits = f64({2, 5}, std::vector<double>(10, 0.5));
    const Call call{"cross_entropy",
                    {logits, i32({2}, {1, 4}), f64({1}, {2})},
                    {{"valid_vocab", 4}},
                    {like({1})}};
    EXPECT_NE(data_error_of(device, narrowed(call)).find("target 4 (element 1 of 2)"),
              std::string::npos);
  }
}

TEST(BadData, PositionPastTheCacheIsNamed) {
  const CpuDevice device;
  const Call call{"cache_write", {like({2, 2, 3}), i32({2}, {1, 3})}, {}, {like({2, 4, 3})}};
  EXPECT_NE(data_error_of(device, narrowed(call)).find("position 3 of sequence 1"),
            std::string::npos);
  const Call select{"select_position", {like({2, 2, 3}), i32({2}, {0, 2})}, {}, {like({2, 1, 3})}};
  EXPECT_NE(data_error_of(device, narrowed(select)).find("index 2 of sequence 1"),
            std::string::npos);
  const Call attention{"attention_cached",
                       {like({1, 2, 4}), like({1, 3, 4}), like({1, 3, 4}), i32({1}, {2})},
                       {{"head_dim", 4}},
                       {like({1, 2, 4})}};
  EXPECT_NE(data_error_of(device, narrowed(attention)).find("position 2"), std::string::npos);
}

TEST(BadRequest, ShapesThatDoNotFitAreTheHostsFault) {
  const CpuDevice device;
  const Call call = narrowed({"linear", {like({2, 3}), like({4, 5})}, {}, {like({2, 4})}});
  try {
    device.run(call);
    FAIL() << "a weight of another width was accepted";
  } catch (const sdk::Error& error) {
    EXPECT_EQ(error.code(), CAPSTAN_BUG);
  }
}

TEST(BadRequest, AddingToAnOutputThatIsOnlyWrittenIsRefused) {
  const CpuDevice device;
  Call call = narrowed({"gelu", {f64({2}, {1, 2})}, {}, {f64({2}, {0, 0})}});
  call.accumulate = 1;
  try {
    device.run(call);
    FAIL() << "gelu added to its output";
  } catch (const sdk::Error& error) {
    EXPECT_EQ(error.code(), CAPSTAN_BUG);
  }
}

}  // namespace
}  // namespace capstan::test
