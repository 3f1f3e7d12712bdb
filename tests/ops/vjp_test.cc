// The backward ops that differentiation rules emit, as text.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "runtime/program/autodiff.h"
#include "tests/ops/world.h"

namespace capstan {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Sums x, which must be whole, to one element over its dims and makes that the loss.
void SumToLoss(PaperWorld& w, TensorId x) {
  while (!w.program().tensor(x).shape().empty())
    x = w.Op("reduce_sum", {x}, {{"dim", int64_t{0}}})[0];
  w.program().mutable_tensor(x).loss_root = true;
}

// The lines of the backward segment, without types and placements; temporaries numbered as they
// come.
std::vector<std::string> Backward(PaperWorld& w) {
  const absl::Status s = Differentiate(w.program(), {});
  EXPECT_TRUE(s.ok()) << s;
  const Program& p = w.program();
  const int segment = p.FindSegment("backward/0");
  std::vector<std::string> lines;
  if (segment < 0) return lines;
  for (OpId o : p.segments()[segment].ops) {
    const Op& op = p.op(o);
    std::string line;
    for (TensorId t : op.outputs) line += (line.empty() ? "" : ", ") + p.TensorName(t);
    line += " = " + p.OpText(o);
    if (op.role == CAPSTAN_ROLE_WEIGHT_GRADIENT) line += " W";
    lines.push_back(line);
  }
  return lines;
}

// Kinds only, for rules whose operands other tests cover.
std::vector<std::string> Kinds(PaperWorld& w) {
  std::vector<std::string> kinds;
  for (const std::string& line : Backward(w)) {
    const size_t eq = line.find("= ");
    kinds.push_back(line.substr(eq + 2, line.find('(') - eq - 2));
  }
  return kinds;
}

std::vector<std::pair<std::string, int64_t>> Tp() { return {{"tp", 2}}; }
const Attrs kTp{{"axis", std::string("tp")}};

TEST(Vjp, LinearGivesDataAndWeightGradients) {
  PaperWorld w;
  const TensorId x = w.Parameter("x", {4, 3}), weight = w.Parameter("w", {2, 3}),
                 bias = w.Parameter("b", {2});
  const TensorId y = w.Op("linear", {x, weight, bias})[0];
  w.program().mutable_tensor(y).loss_root = true;
  EXPECT_THAT(Backward(w),
              ElementsAre("%4 = fill()", "%5 = linear_dx(%4, @w)", "@w.grad = linear_dw(@x, %4) W",
                          "@b.grad = bias_grad(%4) W", "@x.grad = accumulate(%5) W"));
}

TEST(Vjp, NothingIsEmittedForFrozenParameters) {
  PaperWorld w;
  const TensorId x = w.Input("x", {4, 3}), weight = w.Parameter("w", {2, 3}),
                 bias = w.Parameter("b", {2});
  w.program().mutable_tensor(weight).trainable = false;
  w.program().mutable_tensor(w.Op("linear", {x, weight, bias})[0]).loss_root = true;
  EXPECT_THAT(Backward(w), ElementsAre("%4 = fill()", "@b.grad = bias_grad(%4) W"));
}

TEST(Vjp, LossIsReplacedByValueAndGradient) {
  PaperWorld w;
  const TensorId h = w.Parameter("h", {6, 4}), head = w.Parameter("w", {10, 4}),
                 t = w.Input("t", {6}, "", "i32"), n = w.Input("n", {1});
  const TensorId loss =
      w.Op("linear_cross_entropy", {h, head, t, n}, {{"valid_vocab", int64_t{9}}})[0];
  w.program().mutable_tensor(loss).loss_root = true;
  EXPECT_THAT(Backward(w), ElementsAre("@h.grad = accumulate(%6) W"));
  EXPECT_THAT(DumpProgram(w.program()),
              HasSubstr("%4 : f32[1], %6 : f32[6,4], +@w.grad : f32[10,4] = "
                        "linear_cross_entropy_grad(@h, @w, @t, @n)  valid_vocab=9"));
}

TEST(Vjp, LossThatIsNotTheRootScalesItsGradientThroughTheCount) {
  PaperWorld w;
  const TensorId h = w.Parameter("h", {6, 4}), head = w.Parameter("w", {10, 4}),
                 t = w.Input("t", {6}, "", "i32"), n = w.Input("n", {1});
  const TensorId loss = w.Op("linear_cross_entropy", {h, head, t, n})[0];
  w.program().mutable_tensor(w.Op("scale", {loss}, {{"factor", 3.0}})[0]).loss_root = true;
  EXPECT_THAT(Backward(w),
              ElementsAre("%6 = fill()", "%7 = scale(%6)", "%8 = div(@n, %7)",
                          "%10, %11, @w.grad = linear_cross_entropy_grad(@h, @w, @t, %8)",
                          "@h.grad = accumulate(%11) W"));
}

TEST(Vjp, CutVocabularyGoesAroundTheGatheredStatistics) {
  PaperWorld w(Tp());
  const TensorId h = w.Parameter("h", {6, 4}), head = w.Parameter("w", {5, 4}, "{tp:S(0)}"),
                 t = w.Input("t", {6}, "", "i32"), n = w.Input("n", {1});
  const Attrs start{{"vocab_start", int64_t{5}}};
  const TensorId copied = w.Op("copy_to_group", {h}, kTp)[0];
  const TensorId stats = w.Op("lce_stats", {copied, head, t}, start)[0];
  const TensorId row = w.Op("reshape", {stats}, {{"shape", Dims{1, 6, 3}}})[0];
  const TensorId all =
      w.Op("all_gather", {row}, {{"axis", std::string("tp")}, {"dim", int64_t{0}}})[0];
  const TensorId loss = w.Op("lce_merge", {all, t, n, copied, head}, start)[0];
  w.program().mutable_tensor(loss).loss_root = true;
  const std::vector<std::string> lines = Backward(w);
  EXPECT_THAT(lines, ElementsAre("%12, @w.grad = lce_grad(%4, @w, @t, %9, @n)",
                                 "%13 = all_reduce(%12)", "@h.grad = accumulate(%13) W"));
  const Tensor& grad = w.program().tensor(w.program().FindTensor("w.grad"));
  EXPECT_EQ(PlacementString(grad.placement()), "{tp:S(0)}");
}

TEST(Vjp, MegatronPairReducesOnceForwardAndOnceBackward) {
  PaperWorld w(Tp());
  const TensorId x = w.Parameter("x", {4, 8}), up = w.Parameter("up", {6, 8}, "{tp:S(0)}"),
                 down = w.Parameter("down", {8, 6}, "{tp:S(1)}");
  const TensorId h = w.Op("linear", {w.Op("copy_to_group", {x}, kTp)[0], up})[0];
  const TensorId y = w.Op("reduce_from_group", {w.Op("linear", {h, down})[0]}, kTp)[0];
  w.program().mutable_tensor(y).loss_root = true;
  EXPECT_THAT(Backward(w), ElementsAre("%7 = fill()", "%8 = linear_dx(%7, @down)",
                                       "@down.grad = linear_dw(%4, %7) W",
                                       "%10 = linear_dx(%8, @up)", "@up.grad = linear_dw(%3, %8) W",
                                       "%12 = all_reduce(%10)", "@x.grad = accumulate(%12) W"));
  const Program& p = w.program();
  EXPECT_EQ(PlacementString(p.tensor(p.FindTensor("up.grad")).placement()), "{tp:S(0)}");
  EXPECT_EQ(PlacementString(p.tensor(p.FindTensor("down.grad")).placement()), "{tp:S(1)}");
  EXPECT_EQ(PlacementString(p.tensor(p.FindTensor("x.grad")).placement()), "{}");
}

TEST(Vjp, SequenceParallelPairGathersAndScattersBothWays) {
  PaperWorld w(Tp());
  const Attrs rows{{"axis", std::string("tp")}, {"dim", int64_t{0}}};
  const TensorId x = w.Parameter("x", {2, 8}, "{tp:S(0)}"),
                 up = w.Parameter("up", {6, 8}, "{tp:S(0)}"),
                 down = w.Parameter("down", {8, 6}, "{tp:S(1)}");
  const TensorId gain = w.Parameter("g", {8});
  const TensorId normed = w.Op("rms_norm", {x, gain})[0];
  const TensorId h = w.Op("linear", {w.Op("all_gather", {normed}, rows)[0], up})[0];
  const TensorId y = w.Op("reduce_scatter", {w.Op("linear", {h, down})[0]}, rows)[0];
  const TensorId whole = w.Op("all_gather", {y}, rows)[0];
  w.program().mutable_tensor(whole).loss_root = true;
  EXPECT_THAT(Kinds(w),
              ElementsAre("fill", "shard", "all_gather", "linear_dx", "linear_dw", "linear_dx",
                          "linear_dw", "reduce_scatter", "rms_norm_grad", "accumulate"));
  const Program& p = w.program();
  EXPECT_EQ(PlacementString(p.tensor(p.FindTensor("x.grad")).placement()), "{tp:S(0)}");
  EXPECT_EQ(PlacementString(p.tensor(p.FindTensor("g.grad")).placement()), "{tp:P}");
}

TEST(Vjp, CutEmbeddingGradientIsCutAsTheTable) {
  PaperWorld w(Tp());
  const TensorId ids = w.Input("ids", {4}, "", "i32"),
                 table = w.Parameter("t", {10, 3}, "{tp:S(0)}");
  const TensorId y = w.Op("embedding", {ids, table}, {{"vocab_start", int64_t{10}}})[0];
  w.program().mutable_tensor(w.Op("reduce_from_group", {y}, kTp)[0]).loss_root = true;
  EXPECT_THAT(Backward(w), ElementsAre("%4 = fill()", "@t.grad = embedding_grad(@ids, %4) W"));
  const Program& p = w.program();
  EXPECT_EQ(PlacementString(p.tensor(p.FindTensor("t.grad")).placement()), "{tp:S(0)}");
  EXPECT_THAT(DumpProgram(p),
              HasSubstr("embedding_grad(@ids, %4)  placement={tp:S(0)}  vocab=10  vocab_start=10"));
}

TEST(Vjp, SliceOverAnAxisPadsToAPartialSum) {
  PaperWorld w(Tp());
  const TensorId x = w.Parameter("x", {4, 8});
  const TensorId part = w.Op("slice", {x},
                             {{"dim", int64_t{1}},
                              {"start", int64_t{4}},
                              {"size", int64_t{4}},
                              {"axis", std::string("tp")}})[0];
  const TensorId sum = w.Op("reduce_sum", {part}, {{"dim", int64_t{1}}})[0];
  w.program().mutable_tensor(w.Op("reduce_from_group", {sum}, kTp)[0]).loss_root = true;
  EXPECT_THAT(Kinds(w), ElementsAre("fill", "broadcast", "pad", "accumulate"));
  const Program& p = w.program();
  EXPECT_EQ(PlacementString(p.tensor(p.FindTensor("x.grad")).placement()), "{tp:P}");
}

TEST(Vjp, AllToAllIsInverted) {
  PaperWorld w(Tp());
  const TensorId x = w.Parameter("x", {4, 8}, "{tp:S(0)}");
  const TensorId y =
      w.Op("all_to_all", {x},
           {{"axis", std::string("tp")}, {"from", int64_t{0}}, {"to", int64_t{1}}})[0];
  w.program()
      .mutable_tensor(
          w.Op("all_gather", {y}, {{"axis", std::string("tp")}, {"dim", int64_t{1}}})[0])
      .loss_root = true;
  EXPECT_THAT(Kinds(w), ElementsAre("fill", "shard", "all_to_all", "accumulate"));
  EXPECT_THAT(DumpProgram(w.program()), HasSubstr("axis=tp  from=1  to=0"));
}

TEST(Vjp, BroadcastOperandsAreSummedBack) {
  PaperWorld w;
  const TensorId a = w.Input("a", {2, 3, 4}), row = w.Parameter("row", {4}),
                 plane = w.Parameter("plane", {3, 4}), one = w.Parameter("one", {1});
  TensorId y = w.Op("add", {a, row})[0];
  y = w.Op("add", {y, plane})[0];
  y = w.Op("add", {y, one})[0];
  w.program().mutable_tensor(y).loss_root = true;
  EXPECT_THAT(Backward(w),
              ElementsAre("%7 = fill()", "%8 = reduce_sum(%7)", "%9 = reduce_sum(%8)",
                          "%10 = reduce_sum(%9)", "%11 = reshape(%10)", "%12 = reduce_sum(%7)",
                          "@row.grad = bias_grad(%7) W", "@plane.grad = accumulate(%12) W",
                          "@one.grad = accumulate(%11) W"));
}

TEST(Vjp, RecomputesNothingItWasGiven) {
  PaperWorld w;
  const TensorId q = w.Parameter("q", {2, 5, 8});
  const std::vector<TensorId> o =
      w.Op("attention", {q, q, q}, {{"head_dim", int64_t{4}}, {"scale", 0.3}});
  w.program().mutable_tensor(o[0]).loss_root = true;
  const std::vector<std::string> lines = Backward(w);
  ASSERT_GE(lines.size(), 2u);
  EXPECT_THAT(lines[1], HasSubstr("= attention_grad(%3, @q, @q, @q, %1, %2)"));
  EXPECT_THAT(DumpProgram(w.program()), HasSubstr("head_dim=4  scale=0.3"));
}

TEST(Vjp, StatisticsHaveNoGradient) {
  PaperWorld w;
  const std::vector<TensorId> y =
      w.Op("rms_norm", {w.Parameter("x", {2, 4}), w.Parameter("g", {4})});
  SumToLoss(w, y[1]);
  const absl::Status s = Differentiate(w.program(), {});
  EXPECT_THAT(std::string(s.message()), HasSubstr("output 1 has no gradient"));
}

TEST(Vjp, MaximumOverRanksHasNoGradient) {
  PaperWorld w(Tp());
  const TensorId x = w.Parameter("x", {2, 4}, "{tp:P(max)}");
  w.program()
      .mutable_tensor(
          w.Op("all_reduce", {x}, {{"axis", std::string("tp")}, {"reduce", std::string("max")}})[0])
      .loss_root = true;
  EXPECT_THAT(std::string(Differentiate(w.program(), {}).message()),
              HasSubstr("a maximum over ranks has no gradient"));
}

// ---- messages between stages, whose rules no loss reaches through this rank alone

// One evaluation of a rule, every input wanted, with a given cotangent of output 0.
class OneRule final : public VjpContext {
 public:
  OneRule(PaperWorld& w, OpId op, TensorId dy) : w_(w), op_(op), dy_(dy) {}
  Program& program() override { return w_.program(); }
  const Op& op() const override { return w_.program().op(op_); }
  const std::string& segment() const override { return segment_; }
  TensorId cotangent(size_t) const override { return dy_; }
  bool needs(size_t) const override { return true; }
  TensorId gradient_of(size_t) override { return kNone; }
  absl::Status SetCotangent(size_t, TensorId cotangent) override {
    set = cotangent;
    return absl::OkStatus();
  }
  absl::StatusOr<OpId> EmitOp(NewOp op) override {
    return w_.program().AddOp({segment_}, std::move(op));
  }
  absl::Status Run() { return op().def->vjp(*this); }

  TensorId set = kNone;

 private:
  PaperWorld& w_;
  OpId op_;
  TensorId dy_;
  std::string segment_ = "backward/0";
};

TEST(Vjp, WhatWasSentHasItsCotangentReceived) {
  PaperWorld w({{"dp", 2}, {"pp", 2}});
  const TensorId x = w.Input("x", {2, 3}, "{dp:S(0)}", "bf16");
  const Attrs attrs{{"axis", std::string("pp")}, {"peer", int64_t{1}}, {"channel", int64_t{4}}};
  OneRule rule(w, *w.TryOp("send", {x}, attrs), kNone);
  ASSERT_TRUE(rule.Run().ok());
  ASSERT_NE(rule.set, kNone);
  EXPECT_EQ(w.Type(rule.set), "bf16[2,3] {dp:S(0)}");
  const Op& made = w.program().op(w.program().Producer(rule.set));
  EXPECT_EQ(made.kind(), "recv_grad");
  EXPECT_EQ(made.attrs.Int("peer", -1), 1);
  EXPECT_EQ(made.attrs.Int("channel", -1), 4);
}

TEST(Vjp, WhatWasReceivedHasItsCotangentSentBack) {
  PaperWorld w({{"tp", 2}, {"pp", 2}});
  const Attrs attrs{{"axis", std::string("pp")}, {"peer", int64_t{0}}, {"shape", Dims{2, 3}}};
  const OpId recv = *w.TryOp("recv", {}, attrs);
  OneRule rule(w, recv, w.Input("dy", {2, 3}));
  ASSERT_TRUE(rule.Run().ok());
  EXPECT_THAT(DumpProgram(w.program()), HasSubstr("send_grad(@dy)  axis=pp  peer=0"));
  OneRule partial(w, recv, w.Input("dp", {2, 3}, "{tp:P}"));
  EXPECT_THAT(std::string(partial.Run().message()), HasSubstr("a send takes whole values"));
}

TEST(Vjp, MessagesWithoutGradientHaveNone) {
  PaperWorld w({{"pp", 2}});
  const TensorId x = w.Input("x", {2});
  OneRule rule(w, *w.TryOp("send", {x}, {{"peer", int64_t{1}}, {"requires_grad", int64_t{0}}}),
               kNone);
  ASSERT_TRUE(rule.Run().ok());
  EXPECT_EQ(rule.set, kNone);
}

}  // namespace
}  // namespace capstan
