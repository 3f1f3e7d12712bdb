#include "kernels/cpu/attention.h"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "kernels/cpu/reference/attention.h"
#include "tests/kernels/compute_test_util.h"

namespace capstan::test {
namespace {

using cpu::AttentionParams;

struct Case {
  std::int64_t B, T, S, H, G, D;
  bool causal;
  float drop = 0.0f;
  std::int64_t query_offset = 0, key_offset = 0, head_offset = 0;
};

AttentionParams params_of(const Case& c, const std::vector<std::int64_t>& samples) {
  AttentionParams p;
  p.B = c.B;
  p.T = c.T;
  p.S = c.S;
  p.H = c.H;
  p.G = c.G;
  p.D = c.D;
  p.scale = 1.0f / std::sqrt(static_cast<float>(c.D));
  p.causal = c.causal;
  p.query_offset = c.query_offset;
  p.key_offset = c.key_offset;
  p.dropout.p = c.drop;
  p.dropout.key = derive_key(7, 11);
  p.dropout.sample_ids = samples.data();
  p.dropout.head_offset = c.head_offset;
  return p;
}

std::string name(const Case& c) {
  return "B=" + std::to_string(c.B) + " T=" + std::to_string(c.T) + " S=" + std::to_string(c.S) +
         " H=" + std::to_string(c.H) + " G=" + std::to_string(c.G) + " D=" + std::to_string(c.D) +
         (c.causal ? " causal" : "") + " drop=" + std::to_string(c.drop) +
         " offsets=" + std::to_string(c.query_offset) + "," + std::to_string(c.key_offset);
}

std::vector<Case> cases() {
  return {
      {1, 1, 1, 1, 1, 1, true},
      {1, 3, 3, 1, 1, 3, false},
      {2, 17, 17, 2, 1, 17, true},
      {1, 65, 65, 3, 3, 65, true},
      {2, 64, 64, 2, 2, 64, false},
      {1, 130, 130, 4, 2, 64, true},
      {1, 200, 200, 2, 1, 32, true},
      {1, 129, 129, 1, 1, 80, true},
      {1, 71, 71, 1, 1, 96, true},
      {1, 100, 100, 2, 2, 128, true},
      {1, 67, 67, 1, 1, 16, true},
      {1, 5, 70, 2, 1, 24, false},
      {1, 70, 5, 2, 1, 24, true},                // late queries see all keys
      {1, 66, 90, 2, 2, 20, true, 0.0f, 24},     // a sequence shard: 24 keys before
      {1, 66, 70, 2, 1, 20, true, 0.0f, 0, 9},   // early queries see no key at all
      {1, 20, 20, 1, 1, 8, true, 0.0f, 0, 100},  // nobody sees anything
      {2, 130, 130, 2, 1, 64, true, 0.2f},
      {1, 70, 70, 4, 4, 33, false, 0.5f, 0, 0, 5},
      {1, 40, 60, 2, 2, 16, true, 0.3f, 23, 3},  // key positions not a multiple of 4
  };
}

struct Data {
  explicit Data(const Case& c)
      : q(random_values(c.B * c.T * c.H * c.D, 1)),
        k(random_values(c.B * c.S * c.G * c.D, 2)),
        v(random_values(c.B * c.S * c.G * c.D, 3)),
        dout(random_values(c.B * c.T * c.H * c.D, 4)) {
    for (std::int64_t b = 0; b < c.B; ++b)
      samples.push_back((std::int64_t{1} << 33) + 1000 * b + 17);
  }
  std::vector<float> q, k, v, dout;
  std::vector<std::int64_t> samples;
};

struct Forward {
  std::vector<float> o, lse;
};

Forward run_forward(const AttentionParams& p, const Data& data) {
  Forward f{std::vector<float>(p.B * p.T * p.H * p.D, std::numeric_limits<float>::quiet_NaN()),
            std::vector<float>(p.B * p.H * p.T)};
  GuardedWorkspace workspace(cpu::attention_forward_workspace(p));
  cpu::attention_forward(p, data.q.data(), data.k.data(), data.v.data(), f.o.data(), f.lse.data(),
                         workspace.get());
  return f;
}

struct Gradients {
  std::vector<float> dq, dk, dv;
};

Gradients run_backward(const AttentionParams& p, const Data& data, const Forward& f) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  Gradients g{std::vector<float>(data.q.size(), nan), std::vector<float>(data.k.size(), nan),
              std::vector<float>(data.v.size(), nan)};
  GuardedWorkspace workspace(cpu::attention_backward_workspace(p));
  cpu::attention_backward(p, data.dout.data(), data.q.data(), data.k.data(), data.v.data(),
                          f.o.data(), f.lse.data(), g.dq.data(), g.dk.data(), g.dv.data(),
                          workspace.get());
  return g;
}

void expect_lse(const std::vector<float>& actual, const std::vector<double>& expected,
                const std::string& what) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (std::isinf(expected[i])) {
      EXPECT_EQ(actual[i], -std::numeric_limits<float>::infinity()) << what << " " << i;
    } else {
      EXPECT_NEAR(actual[i], expected[i], 3e-6 * std::max(1.0, std::abs(expected[i])))
          << what << " " << i;
    }
  }
}

TEST(Attention, ForwardMatchesTheReference) {
  for (const Case& c : cases()) {
    const Data data(c);
    const AttentionParams p = params_of(c, data.samples);
    const auto q = widen(data.q), k = widen(data.k), v = widen(data.v);
    std::vector<double> o(q.size()), lse(c.B * c.H * c.T);
    reference::attention_forward<double>(p, q.data(), k.data(), v.data(), o.data(), lse.data());
    for_each_setting([&](const std::string& setting) {
      const Forward f = run_forward(p, data);
      expect_close(f.o, o, 3e-6, "o " + name(c) + " " + setting);
      expect_lse(f.lse, lse, "lse " + name(c) + " " + setting);
    });
  }
}

TEST(Attention, BackwardMatchesTheReference) {
  for (const Case& c : cases()) {
    const Data data(c);
    const AttentionParams p = params_of(c, data.samples);
    const auto q = widen(data.q), k = widen(data.k), v = widen(data.v), dout = widen(data.dout);
    std::vector<double> dq(q.size()), dk(k.size()), dv(v.size());
    reference::attention_backward<double>(p, dout.data(), q.data(), k.data(), v.data(), dq.data(),
                                          dk.data(), dv.data());
    for_each_setting([&](const std::string& setting) {
      const Gradients g = run_backward(p, data, run_forward(p, data));
      expect_close(g.dq, dq, 5e-6, "dq " + name(c) + " " + setting);
      expect_close(g.dk, dk, 5e-6, "dk " + name(c) + " " + setting);
      expect_close(g.dv, dv, 5e-6, "dv " + name(c) + " " + setting);
    });
  }
}

TEST(Attention, LargeScoresNeitherOverflowNorLoseTheWinner) {
  const Case c{1, 70, 70, 1, 1, 16, true};
  Data data(c);
  for (float& x : data.q) x *= 300.0f;
  const AttentionParams p = params_of(c, data.samples);
  const auto q = widen(data.q), k = widen(data.k), v = widen(data.v);
  std::vector<double> o(q.size()), lse(c.T);
  reference::attention_forward<double>(p, q.data(), k.data(), v.data(), o.data(), lse.data());
  const Forward f = run_forward(p, data);
  expect_close(f.o, o, 2e-3, "o");  // a score of 3000 has a rounding error of 2e-4
  expect_lse(f.lse, lse, "lse");
}

TEST(Attention, ForwardDoesNotDependOnTheThreadCount) {
  const Case c{1, 300, 300, 3, 1, 64, true};
  const Data data(c);
  const AttentionParams p = params_of(c, data.samples);
  const int before = omp_get_max_threads();
  omp_set_num_threads(1);
  const Forward one = run_forward(p, data);
  omp_set_num_threads(3);
  const Forward three = run_forward(p, data);
  omp_set_num_threads(before);
  EXPECT_EQ(one.o, three.o);
  EXPECT_EQ(one.lse, three.lse);
}

TEST(Attention, BackwardIsBitIdenticalFromRunToRun) {
  const Case c{1, 300, 300, 2, 1, 64, true};
  const Data data(c);
  const AttentionParams p = params_of(c, data.samples);
  const int before = omp_get_max_threads();
  omp_set_num_threads(3);
  const Forward f = run_forward(p, data);
  const Gradients first = run_backward(p, data, f);
  for (int run = 0; run < 5; ++run) {
    const Gradients again = run_backward(p, data, f);
    EXPECT_EQ(first.dq, again.dq);
    EXPECT_EQ(first.dk, again.dk);
    EXPECT_EQ(first.dv, again.dv);
  }
  omp_set_num_threads(before);
}

TEST(Attention, NanInAScoreReachesTheOutput) {
  const Case c{1, 4, 4, 1, 1, 16, true};
  Data data(c);
  data.q[2 * 16 + 5] = std::numeric_limits<float>::quiet_NaN();
  const Forward f = run_forward(params_of(c, data.samples), data);
  EXPECT_FALSE(std::isnan(f.o[1 * 16]));
  EXPECT_TRUE(std::isnan(f.o[2 * 16]));
  EXPECT_TRUE(std::isnan(f.lse[2]));
  EXPECT_FALSE(std::isnan(f.o[3 * 16]));
}

// Heads [1, 3) and queries [64, 130) of a whole computed alone draw the same mask.
TEST(Attention, DropoutMaskDoesNotDependOnTheSharding) {
  const Case whole{2, 130, 130, 4, 4, 16, true, 0.4f};
  const Data data(whole);
  const Forward all = run_forward(params_of(whole, data.samples), data);
  const Case part{1, 66, 130, 2, 2, 16, true, 0.4f, 64, 0, 1};
  Data shard(part);
  shard.samples = {data.samples[1]};
  const auto copy = [](const std::vector<float>& from, std::int64_t first_row, std::int64_t rows) {
    std::vector<float> to;
    for (std::int64_t t = first_row; t < first_row + rows; ++t) {
      to.insert(to.end(), from.begin() + (t * 4 + 1) * 16, from.begin() + (t * 4 + 3) * 16);
    }
    return to;
  };
  shard.q = copy(data.q, 130 + 64, 66);
  shard.k = copy(data.k, 130, 130);
  shard.v = copy(data.v, 130, 130);
  const Forward f = run_forward(params_of(part, shard.samples), shard);
  expect_close(f.o, widen(copy(all.o, 130 + 64, 66)), 1e-6, "shard");
}

TEST(Attention, DropoutDropsTheStatedShareAndKeepsTheMean) {
  const Case c{1, 64, 1024, 1, 1, 1, false, 0.25f};
  Data data(c);
  std::fill(data.q.begin(), data.q.end(), 0.0f);
  std::fill(data.v.begin(), data.v.end(), 1.0f);
  const Forward f = run_forward(params_of(c, data.samples), data);
  double mean = 0;
  for (const float x : f.o) mean += x / 64.0;
  EXPECT_NEAR(mean, 1.0, 0.01);  // 65536 draws: a standard deviation of 0.0023
  EXPECT_NE(f.o[0], f.o[1]);
}

// Two blocks of keys merged by log-sum-exp give attention over both: what a ring relies on.
TEST(Attention, BlocksOfKeysMergeByLogSumExp) {
  const Case whole{1, 60, 60, 1, 1, 32, true};
  const Data data(whole);
  const Forward expected = run_forward(params_of(whole, data.samples), data);
  Data first = data, second = data;
  first.k.resize(30 * 32);
  first.v.resize(30 * 32);
  second.k.erase(second.k.begin(), second.k.begin() + 30 * 32);
  second.v.erase(second.v.begin(), second.v.begin() + 30 * 32);
  const Forward a = run_forward(params_of({1, 60, 30, 1, 1, 32, true}, data.samples), first);
  const Forward b =
      run_forward(params_of({1, 60, 30, 1, 1, 32, true, 0.0f, 0, 30}, data.samples), second);
  std::vector<double> merged(a.o.size());
  for (std::int64_t t = 0; t < 60; ++t) {
    const double wa = std::exp(double(a.lse[t]) - expected.lse[t]);
    const double wb = std::exp(double(b.lse[t]) - expected.lse[t]);
    for (std::int64_t i = 0; i < 32; ++i)
      merged[t * 32 + i] = wa * a.o[t * 32 + i] + wb * b.o[t * 32 + i];
  }
  expect_close(expected.o, merged, 3e-6, "merged");
}

TEST(Attention, SizesThatAreZeroAreFine) {
  const Case none{0, 0, 3, 1, 1, 2, true};
  AttentionParams p = params_of(none, {});
  p.B = 1;  // no queries: the keys get zero gradients
  std::vector<float> k(6, 1.0f), v(6, 1.0f), dk(6, 9.0f), dv(6, 9.0f);
  GuardedWorkspace workspace(cpu::attention_backward_workspace(p));
  cpu::attention_forward(p, nullptr, k.data(), v.data(), nullptr, nullptr, workspace.get());
  cpu::attention_backward(p, nullptr, nullptr, k.data(), v.data(), nullptr, nullptr, nullptr,
                          dk.data(), dv.data(), workspace.get());
  EXPECT_EQ(dk, std::vector<float>(6, 0.0f));
  EXPECT_EQ(dv, std::vector<float>(6, 0.0f));
}

TEST(AttentionReference, GradientsMatchFiniteDifferences) {
  for (const Case& c :
       {Case{2, 5, 5, 2, 1, 3, true}, Case{1, 4, 6, 2, 2, 2, false},
        Case{1, 6, 6, 2, 1, 3, true, 0.4f}, Case{1, 5, 5, 1, 1, 3, true, 0.0f, 0, 2}}) {
    const Data data(c);
    const AttentionParams p = params_of(c, data.samples);
    auto q = widen(data.q), k = widen(data.k), v = widen(data.v);
    const auto dout = widen(data.dout);
    const auto loss = [&] {
      std::vector<double> o(q.size()), lse(c.B * c.H * c.T);
      reference::attention_forward<double>(p, q.data(), k.data(), v.data(), o.data(), lse.data());
      return std::inner_product(o.begin(), o.end(), dout.begin(), 0.0);
    };
    std::vector<double> dq(q.size()), dk(k.size()), dv(v.size());
    reference::attention_backward<double>(p, dout.data(), q.data(), k.data(), v.data(), dq.data(),
                                          dk.data(), dv.data());
    expect_gradient(q, dq, loss, "q " + name(c));
    expect_gradient(k, dk, loss, "k " + name(c));
    expect_gradient(v, dv, loss, "v " + name(c));
  }
}

}  // namespace
}  // namespace capstan::test
