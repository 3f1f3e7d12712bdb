// A third party's ops, parameters and states, through nothing but the ABI.
#include <gtest/gtest.h>

#include <cmath>

#include "runtime/run/fuse.h"
#include "tests/sdk/bench.h"

namespace capstan {
namespace {

constexpr const char* kTiny =
    "layers = 2\nwidth = 8\nheads = 2\nvocabulary = 11\nmax_sequence = 8\n";

class ScaleResidual : public testing::Test {
 protected:
  void SetUp() override {
    bench_.register_ops("scale_residual_ops");
    bench_.compose("gpt2", kTiny);
    bench_.add_strategy("scale_residual", "initial = 0.5\n");
  }
  std::unique_ptr<Program> train() {
    auto program = ComposeTrain(bench_.ingredients());
    EXPECT_TRUE(program.ok()) << program.status();
    return *std::move(program);
  }
  Bench bench_;
};

TEST_F(ScaleResidual, InsertsItsOpAfterEachMlp) {
  const auto program = train();
  EXPECT_EQ(KindsOf(*program, "forward/0", 1),
            "layer_norm linear linear linear attention linear add layer_norm linear gelu linear "
            "org.capstan.test.scaled_tanh add");
}

TEST_F(ScaleResidual, TrainsItsParameterThroughItsOwnGradientOp) {
  const auto program = train();
  const TensorId scale = program->FindTensor("h.1.mlp.down.scale");
  ASSERT_NE(scale, kNone);
  EXPECT_TRUE(program->tensor(scale).trainable);
  EXPECT_EQ(program->tensor(scale).init.a, 0.5);
  EXPECT_NE(program->FindTensor("h.1.mlp.down.scale.grad"), kNone);
  EXPECT_NE(program->FindTensor("h.1.mlp.down.scale.exp_avg"), kNone);
  EXPECT_NE(KindsOf(*program, "backward/0", 1).find("org.capstan.test.scaled_tanh_grad"),
            std::string::npos);
}

TEST_F(ScaleResidual, CountsUpdatesInAStateOfItsOwn) {
  const auto program = train();
  EXPECT_NE(program->FindTensor("scale_residual.updates"), kNone);
  EXPECT_TRUE(KindsOf(*program, "update").ends_with("org.capstan.test.count_updates"));
  const auto eval = ComposeEval(bench_.ingredients());
  ASSERT_TRUE(eval.ok()) << eval.status();
  EXPECT_EQ((*eval)->FindTensor("scale_residual.updates"), kNone);
}

TEST_F(ScaleResidual, ItsOpsAreRecomputedLikeStandardOnes) {
  bench_.add_strategy("recompute", "policy = \"full\"\nevery = 2\n");
  const std::string backward = KindsOf(*train(), "backward/0");
  EXPECT_NE(backward.find("org.capstan.test.scaled_tanh "), std::string::npos) << backward;
}

TEST_F(ScaleResidual, BecomesStandardOpsOnADeviceItHasNoKernelFor) {
  auto program = train();
  const absl::Status lowered = DecomposePluginOps(*program, "abacus");
  ASSERT_TRUE(lowered.ok()) << lowered;
  EXPECT_EQ(KindsOf(*program, "forward/0", 1),
            "layer_norm linear linear linear attention linear add layer_norm linear gelu linear "
            "tanh mul add");
  auto kept = train();
  ASSERT_TRUE(DecomposePluginOps(*kept, "cpu").ok());
  EXPECT_TRUE(KindsOf(*kept, "forward/0", 1).ends_with("org.capstan.test.scaled_tanh add"));
}

// The kernels of one op, prepared for x [2,3] and run.
class ScaledTanhKernels : public ScaleResidual {
 protected:
  template <class T>
  void run(const std::string& kind, std::vector<std::vector<T>*> inputs,
           std::vector<std::vector<T>*> outputs, uint64_t accumulate = 0) {
    const capstan_op_def* def = bench_.ops().Find(kind)->plugin;
    std::vector<int64_t> whole = {2, 3}, channels = {3};
    const auto view = [&](const std::vector<T>& v) {
      capstan_dl_tensor t{};
      t.dtype = {CAPSTAN_DTYPE_FLOAT, sizeof(T) * 8, 1};
      t.ndim = v.size() == 6 ? 2 : 1;
      t.shape = v.size() == 6 ? whole.data() : channels.data();
      return t;
    };
    std::vector<capstan_dl_tensor> in, out;
    std::vector<void*> in_data, out_data;
    for (auto* v : inputs) in.push_back(view(*v)), in_data.push_back(v->data());
    for (auto* v : outputs) out.push_back(view(*v)), out_data.push_back(v->data());
    capstan_kernel_request request{};
    request.struct_size = sizeof request;
    request.op = kind.c_str();
    request.input_count = in.size();
    request.inputs = in.data();
    request.output_count = out.size();
    request.outputs = out.data();
    capstan_kernel kernel{};
    kernel.struct_size = sizeof kernel;
    ASSERT_EQ(def->kernels[0]->prepare(&request, &kernel), nullptr);
    EXPECT_STREQ(def->kernels[0]->device, "cpu");
    EXPECT_EQ(def->kernels[1], nullptr);
    capstan_kernel_args args{};
    args.struct_size = sizeof args;
    args.inputs = in_data.data();
    args.outputs = out_data.data();
    args.accumulate = accumulate;
    EXPECT_EQ(kernel.run(kernel.state, &args), nullptr);
    kernel.release(kernel.state);
  }
};

TEST_F(ScaledTanhKernels, GradientMatchesCentralDifferences) {
  std::vector<double> x = {0.3, -1.2, 0.7, 2.0, 0.0, -0.4}, scale = {0.5, 2.0, -1.0}, y(6);
  std::vector<double> dy = {1.0, -0.5, 0.25, 2.0, 1.5, -1.0}, dx(6), dscale(3);
  run<double>("org.capstan.test.scaled_tanh_grad", {&dy, &x, &scale}, {&dx, &dscale});
  const auto loss = [&] {
    run<double>("org.capstan.test.scaled_tanh", {&x, &scale}, {&y});
    double sum = 0;
    for (size_t i = 0; i < 6; ++i) sum += y[i] * dy[i];
    return sum;
  };
  const auto slope = [&](double& at) {
    constexpr double kStep = 1e-6;
    const double middle = at;
    at = middle + kStep;
    const double above = loss();
    at = middle - kStep;
    const double below = loss();
    at = middle;
    return (above - below) / (2 * kStep);
  };
  for (size_t i = 0; i < 6; ++i) EXPECT_NEAR(dx[i], slope(x[i]), 1e-8);
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(dscale[i], slope(scale[i]), 1e-8);
}

TEST_F(ScaledTanhKernels, AddsToAGradientWhenTold) {
  std::vector<float> x = {1, 1, 1, 1, 1, 1}, scale = {1, 1, 1}, dy = x, dx(6),
                     dscale = {10, 20, 30};
  run<float>("org.capstan.test.scaled_tanh_grad", {&dy, &x, &scale}, {&dx, &dscale},
             /*accumulate=*/2);
  EXPECT_FLOAT_EQ(dscale[0], 10 + 2 * std::tanh(1.0f));
  EXPECT_FLOAT_EQ(dscale[2], 30 + 2 * std::tanh(1.0f));
}

}  // namespace
}  // namespace capstan
