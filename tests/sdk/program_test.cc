// The SDK's handle and emitter against the host's own Program.
#include "sdk/program.h"

#include <gtest/gtest.h>

#include "runtime/program/program.h"
#include "runtime/program/program_service.h"
#include "sdk/graph.h"

namespace capstan {
namespace {

TEST(Attrs, SurviveTheRoundTripThroughTheAbi) {
  const sdk::Attrs attrs{{"dim", 1}, {"eps", 1e-5}, {"axis", "tp"}, {"shape", sdk::Shape{2, 3}}};
  const std::vector<capstan_attr> raw = attrs.raw();
  const sdk::Attrs back(raw.data(), raw.size());
  EXPECT_EQ(back.get_int("dim", 0), 1);
  EXPECT_EQ(back.get_float("eps", 0), 1e-5);
  EXPECT_EQ(back.get_string("axis", ""), "tp");
  EXPECT_EQ(back.get_ints("shape"), (sdk::Shape{2, 3}));
  EXPECT_EQ(back.get_int("absent", 7), 7);
}

TEST(RngKey, IsFnv1a) {
  // Published test values of 64-bit FNV-1a.
  EXPECT_EQ(static_cast<uint64_t>(sdk::rng_key("")), 0xcbf29ce484222325u);
  EXPECT_EQ(static_cast<uint64_t>(sdk::rng_key("a")), 0xaf63dc4c8601ec8cu);
  EXPECT_EQ(static_cast<uint64_t>(sdk::rng_key("foobar")), 0x85944171f73967e8u);
}

class ProgramTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(RegisterStandardOps(ops_).ok()); }

  sdk::Graph graph(sdk::Position at = {"forward/0", {}}) {
    return sdk::Graph(program(), std::move(at));
  }
  sdk::Program program() { return sdk::Program(ProgramService(), handle_.get()); }

  OpRegistry ops_;
  Program host_{&ops_, Program::Options{.name = "train",
                                        .microbatches = 2,
                                        .micro_batch_size = 3,
                                        .sequence_length = 4,
                                        .mesh = {}}};
  ProgramHandle handle_{host_};
};

TEST_F(ProgramTest, SaysItsFacts) {
  EXPECT_EQ(program().name(), "train");
  EXPECT_EQ(program().microbatches(), 2);
  EXPECT_EQ(program().micro_batch_size(), 3);
  EXPECT_EQ(program().sequence_length(), 4);
}

TEST_F(ProgramTest, KeepsEveryFieldOfATensor) {
  sdk::TensorInfo info;
  info.name = "w";
  info.dtype = sdk::kBF16;
  info.shape = {2, 3};
  info.kind = CAPSTAN_PARAMETER;
  info.trainable = true;
  info.placement = {{"tp", CAPSTAN_SHARD, 0, 0, {2, 4}}};
  info.global_shape = {4, 3};
  info.slice_start = {2, 0};
  info.dim_axes = {"mlp", "embed"};
  info.init = CAPSTAN_INIT_NORMAL;
  info.init_b = 0.02;
  info.layer = 5;
  info.external = sdk::External{"c_fc.weight", {3, 4}, {0, 0}, true};
  const sdk::TensorInfo back = program().get(program().add(info));
  EXPECT_EQ(back.name, "w");
  EXPECT_TRUE(sdk::same_dtype(back.dtype, sdk::kBF16));
  EXPECT_EQ(back.shape, info.shape);
  EXPECT_TRUE(back.trainable);
  EXPECT_EQ(back.placement, info.placement);
  EXPECT_EQ(back.global_shape, info.global_shape);
  EXPECT_EQ(back.slice_start, info.slice_start);
  EXPECT_EQ(back.dim_axes, info.dim_axes);
  EXPECT_EQ(back.init_b, 0.02);
  EXPECT_EQ(back.layer, 5);
  ASSERT_TRUE(back.external.has_value());
  EXPECT_EQ(back.external->name, "c_fc.weight");
  EXPECT_EQ(back.external->shape, (sdk::Shape{3, 4}));
  EXPECT_TRUE(back.external->transposed);
}

TEST_F(ProgramTest, EmitsAtTheCursorWithMarks) {
  sdk::Graph g = graph();
  const sdk::Tensor w =
      g.parameter({"w", {5, 4}, {"mlp", "embed"}, sdk::kF32, sdk::normal(0, 1), {}});
  g.set_layer(2);
  const sdk::Tensor x = g.fill(1.0, {3, 4});
  const sdk::Tensor y = g.linear(x, w);
  const sdk::Op linear = program().producer(y);
  sdk::Graph before = graph(program().before(linear));
  before.scale(x, 2.0);

  std::vector<std::string> kinds;
  for (const sdk::Op op : program().ops("forward/0")) kinds.push_back(program().get(op).kind);
  EXPECT_EQ(kinds, (std::vector<std::string>{"fill", "scale", "linear"}));
  EXPECT_EQ(program().get(linear).layer, 2);
  EXPECT_EQ(program().get(y).shape, (sdk::Shape{3, 5}));
  EXPECT_EQ(program().users(x).size(), 2u);
  EXPECT_FALSE(program().next(linear)) << "the last op has no next";
}

TEST_F(ProgramTest, FindsAParameterDeclaredBefore) {
  sdk::Graph g = graph();
  const sdk::Graph::Parameter w{"w", {5, 4}, {"vocab", "embed"}, sdk::kF32, sdk::normal(0, 1), {}};
  EXPECT_EQ(g.parameter(w), g.parameter(w));
}

TEST_F(ProgramTest, ThrowsTheHostsRefusal) {
  sdk::Graph g = graph();
  const sdk::Tensor x = g.fill(1.0, {3, 4});
  const sdk::Tensor w = g.parameter({"w", {5, 6}, {"a", "b"}, sdk::kF32, sdk::zeros(), {}});
  EXPECT_THROW(g.linear(x, w), sdk::Error) << "6 channels against 4";
  EXPECT_THROW(g.emit("lineer", {x, w}), sdk::Error);
  EXPECT_THROW(program().require("absent"), sdk::Error);
}

TEST_F(ProgramTest, RewiresReaders) {
  sdk::Graph g = graph();
  const sdk::Tensor x = g.fill(1.0, {4});
  const sdk::Tensor y = g.scale(x, 2.0);
  const sdk::Tensor z = g.scale(y, 3.0);
  const sdk::Op last = program().producer(z);
  const sdk::Emission mid =
      sdk::Graph(program(), program().before(last)).emit("scale", {y}, {{"factor", 5.0}});
  program().replace_uses(y, mid[0], mid.op);
  EXPECT_EQ(program().get(last).inputs[0], mid[0]);
  EXPECT_EQ(program().get(mid.op).inputs[0], y) << "the exception keeps reading y";
}

}  // namespace
}  // namespace capstan
