// AdamW and SGD against the reference in double over several steps.
#include "kernels/cpu/optimizer.h"

#include "kernels/cpu/reference/optimizer.h"
#include "tests/kernels/memory_bound_util.h"

namespace capstan::cpu {
namespace {

using namespace capstan::testing;  // NOLINT: the tests' vocabulary

TEST(Adamw, FollowsTheReferenceOverSteps) {
  everywhere([] {
    for (std::int64_t n : {1, 3, 17, 65, 30001}) {
      AdamwParams p{0.9, 0.95, 1e-8, 0.1};
      Floats param = random_floats(n, 1), m(param.size()), v(param.size());
      Doubles param64 = widen(param), m64(param.size()), v64(param.size());
      for (std::int64_t step = 1; step <= 5; ++step) {
        const Floats grad = random_floats(n, 10 + static_cast<std::uint32_t>(step));
        const float lr = 1e-2f * static_cast<float>(step), scale = 0.5f;
        adamw(p, n, &lr, &step, &scale, grad.data(), param.data(), m.data(), v.data());
        reference::adamw<double>(p, n, lr, step, scale, widen(grad).data(), param64.data(),
                                 m64.data(), v64.data());
      }
      expect_close(param, param64, 1e-6, "param");
      expect_close(m, m64, 1e-6, "m");
      expect_close(v, v64, 1e-6, "v");
    }
  });
}

TEST(Adamw, FirstStepMovesByTheLearningRate) {
  const AdamwParams p{0.9, 0.999, 1e-8, 0.0};
  const float lr = 0.125f, scale = 1.0f, grad = 3.0f;
  const std::int64_t step = 1;
  float param = 1.0f, m = 0.0f, v = 0.0f;
  adamw(p, 1, &lr, &step, &scale, &grad, &param, &m, &v);
  EXPECT_NEAR(param, 0.875f, 1e-6);
}

TEST(Adamw, DecaysWithoutAGradient) {
  const AdamwParams p{0.9, 0.999, 1e-8, 0.1};
  const float lr = 0.5f, scale = 1.0f, grad = 0.0f;
  const std::int64_t step = 1;
  float param = 2.0f, m = 0.0f, v = 0.0f;
  adamw(p, 1, &lr, &step, &scale, &grad, &param, &m, &v);
  EXPECT_FLOAT_EQ(param, 2.0f * (1.0f - 0.05f));
}

TEST(Sgd, FollowsTheReferenceOverSteps) {
  everywhere([] {
    for (std::int64_t n : {1, 17, 65, 30001}) {
      for (bool nesterov : {false, true}) {
        const SgdParams p{0.9, nesterov, 0.01};
        Floats param = random_floats(n, 1), buffer(param.size());
        Doubles param64 = widen(param), buffer64(param.size());
        for (std::uint32_t step = 1; step <= 4; ++step) {
          const Floats grad = random_floats(n, 10 + step);
          const float lr = 0.05f, scale = 2.0f;
          sgd(p, n, &lr, &scale, grad.data(), param.data(), buffer.data());
          reference::sgd<double>(p, n, lr, scale, widen(grad).data(), param64.data(),
                                 buffer64.data());
        }
        expect_close(param, param64, 1e-6, "param");
        expect_close(buffer, buffer64, 1e-6, "buffer");
      }
    }
  });
}

TEST(Sgd, NeedsNoBufferWithoutMomentum) {
  const SgdParams p{0.0, false, 0.5};
  const float lr = 0.1f, scale = 2.0f, grad = 3.0f;
  float param = 1.0f;
  sgd(p, 1, &lr, &scale, &grad, &param, nullptr);
  EXPECT_FLOAT_EQ(param, 1.0f - 0.1f * (6.0f + 0.5f));
}

}  // namespace
}  // namespace capstan::cpu
