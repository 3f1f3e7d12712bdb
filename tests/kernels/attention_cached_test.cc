#include <gtest/gtest.h>

#include <limits>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/reference/attention.h"
#include "tests/kernels/compute_test_util.h"

namespace capstan::test {
namespace {

using cpu::CachedAttentionParams;

CachedAttentionParams cached(std::int64_t B, std::int64_t T, std::int64_t S_max, std::int64_t H,
                             std::int64_t G, std::int64_t D) {
  return {B, T, S_max, H, G, D, 1.0f / std::sqrt(static_cast<float>(D))};
}

std::vector<float> run(const CachedAttentionParams& p, const std::vector<float>& q,
                       const std::vector<float>& k, const std::vector<float>& v,
                       const std::vector<std::int32_t>& position) {
  std::vector<float> o(q.size(), std::numeric_limits<float>::quiet_NaN());
  GuardedWorkspace workspace(cpu::attention_cached_workspace(p));
  cpu::attention_cached(p, q.data(), k.data(), v.data(), position.data(), o.data(),
                        workspace.get());
  return o;
}

TEST(CachedAttention, MatchesTheReferenceWhenDecodingAndInPrefill) {
  for (const auto& p :
       {cached(1, 1, 1, 1, 1, 1), cached(2, 1, 300, 4, 2, 64), cached(3, 1, 150, 3, 1, 65),
        cached(2, 3, 140, 2, 2, 17), cached(2, 7, 200, 4, 1, 128), cached(2, 8, 90, 2, 1, 32),
        cached(2, 65, 200, 4, 2, 80)}) {
    const auto q = random_values(p.B * p.T * p.H * p.D, 1);
    const auto k = random_values(p.B * p.S_max * p.G * p.D, 2);
    const auto v = random_values(p.B * p.S_max * p.G * p.D, 3);
    // Rows of a batch have different lengths: an empty cache, a full one, and one between.
    std::vector<std::int32_t> position(p.B, 0);
    if (p.B > 1) position[1] = static_cast<std::int32_t>(p.S_max - p.T);
    if (p.B > 2) position[2] = static_cast<std::int32_t>(p.S_max / 2);
    const auto qd = widen(q), kd = widen(k), vd = widen(v);
    std::vector<double> expected(q.size());
    reference::attention_cached<double>(p, qd.data(), kd.data(), vd.data(), position.data(),
                                        expected.data());
    for_each_setting([&](const std::string& setting) {
      expect_close(run(p, q, k, v, position), expected, 3e-6,
                   "T=" + std::to_string(p.T) + " D=" + std::to_string(p.D) + " " + setting);
    });
  }
}

TEST(CachedAttention, RowsBeyondThePositionAreNotRead) {
  const auto p = cached(1, 2, 50, 2, 1, 16);
  const auto q = random_values(p.T * p.H * p.D, 1);
  auto k = random_values(p.S_max * p.D, 2), v = random_values(p.S_max * p.D, 3);
  const std::vector<std::int32_t> position{20};
  const auto before = run(p, q, k, v, position);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::fill(k.begin() + 22 * 16, k.end(), nan);
  std::fill(v.begin() + 22 * 16, v.end(), nan);
  EXPECT_EQ(run(p, q, k, v, position), before);
}

// Generating token by token gives what the training pass gives for the whole sequence.
TEST(CachedAttention, DecodingStepByStepEqualsTheTrainingForward) {
  const std::int64_t T = 70, H = 2, D = 32;
  cpu::AttentionParams whole;
  whole.B = 1;
  whole.T = whole.S = T;
  whole.H = H;
  whole.G = 1;
  whole.D = D;
  whole.scale = 0.2f;
  whole.causal = true;
  const auto q = random_values(T * H * D, 1), k = random_values(T * D, 2),
             v = random_values(T * D, 3);
  std::vector<float> o(q.size()), lse(H * T);
  GuardedWorkspace workspace(cpu::attention_forward_workspace(whole));
  cpu::attention_forward(whole, q.data(), k.data(), v.data(), o.data(), lse.data(),
                         workspace.get());
  std::vector<float> steps;
  for (std::int64_t t = 0; t < T; ++t) {
    const std::vector<float> step(q.begin() + t * H * D, q.begin() + (t + 1) * H * D);
    const CachedAttentionParams p{1, 1, T, H, 1, D, 0.2f};
    const auto out = run(p, step, k, v, {static_cast<std::int32_t>(t)});
    steps.insert(steps.end(), out.begin(), out.end());
  }
  expect_close(steps, widen(o), 2e-6, "steps");
}

}  // namespace
}  // namespace capstan::test
