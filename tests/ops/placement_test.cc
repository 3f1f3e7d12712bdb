// Placements through ops, axis by axis, and the messages of those that do not fit.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/ops/world.h"

namespace capstan {
namespace {

using testing::HasSubstr;

std::vector<std::pair<std::string, int64_t>> TpDp() { return {{"tp", 2}, {"dp", 2}}; }
const Attrs kTp{{"axis", std::string("tp")}};

TEST(ParsePlacement, IsTheInverseOfPrinting) {
  for (const char* text : {"{}", "{tp:P}", "{dp:S(0), tp:S(2)}", "{tp:S(1)[0:3]}",
                           "{cp:S(1)[0:4:12:16]}", "{dp:V, tp:P(max)}"}) {
    const absl::StatusOr<Placement> p = ops::ParsePlacement(text);
    ASSERT_TRUE(p.ok()) << p.status();
    EXPECT_EQ(PlacementString(*p), text);
  }
  EXPECT_EQ(PlacementString(*ops::ParsePlacement("tp:S(0)")), "{tp:S(0)}");
  EXPECT_EQ(PlacementString(*ops::ParsePlacement("{tp:R}")), "{}");
}

TEST(ParsePlacement, RefusesWhatItCannotRead) {
  for (const char* text :
       {"tp", "tp:Q", "tp:S", "tp:S(x)", "tp:S(0", "tp:S(0)[1:a]", ":P", "tp:S(0)]"}) {
    EXPECT_EQ(ops::ParsePlacement(text).status().code(), absl::StatusCode::kInvalidArgument)
        << text;
  }
}

// ---- Megatron's pair (Shoeybi et al. 2019, section 3)

TEST(Megatron, ColumnThenRowParallelNeedsOneReduction) {
  PaperWorld w(TpDp());
  const TensorId x = w.Input("x", {2, 8, 16}, "{dp:S(0)}");
  const TensorId up = w.Parameter("up", {32, 16}, "{tp:S(0)}");
  const TensorId up_bias = w.Parameter("up_bias", {32}, "{tp:S(0)}");
  const TensorId down = w.Parameter("down", {16, 32}, "{tp:S(1)}");
  const TensorId copied = w.Op("copy_to_group", {x}, kTp)[0];
  EXPECT_EQ(w.Type(copied), "f32[2,8,16] {dp:S(0)}");
  const TensorId h = w.Op("linear", {copied, up, up_bias})[0];
  EXPECT_EQ(w.Type(h), "f32[2,8,32] {dp:S(0), tp:S(2)}");
  const TensorId a = w.Op("gelu", {h})[0];
  EXPECT_EQ(w.Type(a), "f32[2,8,32] {dp:S(0), tp:S(2)}");
  const TensorId y = w.Op("linear", {a, down})[0];
  EXPECT_EQ(w.Type(y), "f32[2,8,16] {dp:S(0), tp:P}");
  const TensorId reduced = w.Op("reduce_from_group", {y}, kTp)[0];
  EXPECT_EQ(w.Type(reduced), "f32[2,8,16] {dp:S(0)}");
  EXPECT_EQ(w.Type(w.Op("add", {x, reduced})[0]), "f32[2,8,16] {dp:S(0)}");
}

TEST(Megatron, ForgottenReductionIsRefusedAtTheResidualAdd) {
  PaperWorld w({{"tp", 2}});
  const TensorId x = w.Op("fill", {}, {{"value", 1.0}, {"shape", Dims{2, 16}}})[0];
  const TensorId up = w.Parameter("up", {32, 16}, "{tp:S(0)}");
  const TensorId down = w.Parameter("down", {16, 32}, "{tp:S(1)}");
  const TensorId y = w.Op("linear", {w.Op("linear", {x, up})[0], down})[0];
  const std::string a = w.program().TensorName(x), b = w.program().TensorName(y);
  EXPECT_EQ(w.Refusal("add", {x, y}), "add(" + a + ", " + b + "): " + b +
                                          " is partial (P) over tp but " + a +
                                          " is replicated (R); insert reduce_from_group(" + b +
                                          ") over tp (or reduce_scatter) before this op");
}

TEST(Megatron, RowParallelBiasIsRefused) {
  PaperWorld w({{"tp", 2}});
  const TensorId x = w.Input("x", {4, 8}, "{tp:S(1)}"),
                 weight = w.Parameter("w", {6, 8}, "{tp:S(1)}");
  const TensorId bias = w.Parameter("b", {6});
  EXPECT_EQ(w.Refusal("linear", {x, weight, bias}),
            "linear(@x, @w, @b): the product is partial (P) over tp, so @b would be added once by "
            "every rank; leave it out and add the bias after reduce_from_group over tp");
}

TEST(Megatron, NonLinearOpRefusesAPartialValue) {
  PaperWorld w({{"tp", 2}});
  const TensorId x = w.Input("x", {4, 8}, "{tp:P}");
  EXPECT_EQ(w.Refusal("gelu", {x}),
            "gelu(@x): @x is partial (P) over tp and this op is not linear in it; insert "
            "reduce_from_group(@x) over tp (or reduce_scatter) before this op");
}

TEST(Megatron, FusedLinearGeluRefusesACutInnerDim) {
  PaperWorld w({{"tp", 2}});
  const TensorId x = w.Input("x", {4, 8}, "{tp:S(1)}"),
                 weight = w.Parameter("w", {6, 8}, "{tp:S(1)}");
  EXPECT_THAT(w.Refusal("linear_gelu", {x, weight}),
              HasSubstr("use linear, reduce_from_group and gelu"));
}

// ---- products

TEST(Linear, MismatchNamesTheCollective) {
  PaperWorld w({{"tp", 2}});
  const TensorId x = w.Input("x", {4, 8}, "{tp:S(1)}"), weight = w.Parameter("w", {6, 8});
  EXPECT_EQ(w.Refusal("linear", {x, weight}),
            "linear(@x, @w): @x is sharded (S(1)) over tp but @w is replicated (R); insert "
            "all_gather(@x) over tp along dim 1 (or shard(@w) along dim 1) before this op");
}

TEST(Linear, OneAxisMayCutOnlyOneDim) {
  PaperWorld w({{"tp", 2}});
  const TensorId x = w.Input("x", {4, 8}, "{tp:S(0)}"),
                 weight = w.Parameter("w", {6, 8}, "{tp:S(0)}");
  EXPECT_THAT(w.Refusal("linear", {x, weight}), HasSubstr("an axis may cut only one"));
}

TEST(Linear, IsLinearInXOnlyWithAReplicatedWeight) {
  PaperWorld w({{"tp", 2}});
  const TensorId x = w.Input("x", {4, 8}, "{tp:P}");
  EXPECT_EQ(w.Type(w.Op("linear", {x, w.Parameter("w", {6, 8})})[0]), "f32[4,6] {tp:P}");
  EXPECT_THAT(w.Refusal("linear", {x, w.Parameter("v", {6, 8}, "{tp:S(0)}")}),
              HasSubstr("@x is partial (P) over tp but @v is sharded (S(0))"));
  const TensorId partial_weight = w.Input("pw", {6, 8}, "{tp:P}");
  EXPECT_THAT(w.Refusal("linear", {w.Input("z", {4, 8}), partial_weight}),
              HasSubstr("not linear in it"));
}

TEST(Linear, GradientsOfCutWeightsAreCutAlike) {
  PaperWorld w(TpDp());
  const TensorId x = w.Input("x", {4, 8}, "{dp:S(0)}"),
                 dy = w.Input("dy", {4, 6}, "{dp:S(0), tp:S(1)}");
  EXPECT_EQ(w.Type(w.Op("linear_dw", {x, dy})[0]), "f32[6,8] {dp:P, tp:S(0)}");
  EXPECT_EQ(w.Type(w.Op("bias_grad", {dy})[0]), "f32[6] {dp:P, tp:S(0)}");
  EXPECT_EQ(w.Type(w.Op("linear_dx", {dy, w.Parameter("w", {6, 8}, "{tp:S(0)}")})[0]),
            "f32[4,8] {dp:S(0), tp:P}");
  const TensorId x_cut = w.Input("xc", {4, 8}, "{dp:S(0), tp:S(1)}"),
                 dy_whole = w.Input("dw", {4, 6}, "{dp:S(0)}");
  EXPECT_EQ(w.Type(w.Op("linear_dw", {x_cut, dy_whole})[0]), "f32[6,8] {dp:P, tp:S(1)}");
  EXPECT_EQ(w.Type(w.Op("linear_dx", {dy_whole, w.Parameter("v", {6, 8}, "{tp:S(1)}")})[0]),
            "f32[4,8] {dp:S(0), tp:S(1)}");
}

TEST(Linear, UnevenRangesMustAgree) {
  PaperWorld w({{"tp", 2}});
  const TensorId x = w.Input("x", {4, 3}, "{tp:S(1)[0:3]}");
  EXPECT_EQ(w.Type(w.Op("linear", {x, w.Parameter("w", {6, 3}, "{tp:S(1)[0:3]}")})[0]),
            "f32[4,6] {tp:P}");
  EXPECT_EQ(w.Refusal("linear", {x, w.Parameter("v", {6, 3}, "{tp:S(1)[3:6]}")}),
            "linear(@x, @v): @x is sharded (S(1)[0:3]) but @v is sharded (S(1)[3:6]) over tp: the "
            "ranges differ; cut both alike");
}

TEST(Linear, UnevenRangesReachTheOutput) {
  PaperWorld w({{"tp", 2}});
  const TensorId weight = w.Parameter("w", {5, 3}, "{tp:S(0)[0:5]}"),
                 b = w.Parameter("b", {5}, "{tp:S(0)[0:5]}");
  EXPECT_EQ(w.Type(w.Op("linear", {w.Input("x", {4, 3}), weight, b})[0]),
            "f32[4,5] {tp:S(1)[0:5]}");
}

TEST(Matmul, InnerShardsGiveAPartialSumTransposedOrNot) {
  PaperWorld w({{"tp", 2}});
  const TensorId a = w.Input("a", {3, 8, 4}, "{tp:S(1)}"), b = w.Input("b", {3, 5, 8}, "{tp:S(2)}");
  const Attrs both{{"transpose_a", int64_t{1}}, {"transpose_b", int64_t{1}}};
  EXPECT_EQ(w.Type(w.Op("matmul", {a, b}, both)[0]), "f32[3,4,5] {tp:P}");
  const TensorId batch = w.Input("c", {3, 4, 8}, "{tp:S(0)}"),
                 d = w.Input("d", {3, 8, 5}, "{tp:S(0)}");
  EXPECT_EQ(w.Type(w.Op("matmul", {batch, d})[0]), "f32[3,4,5] {tp:S(0)}");
}

// ---- embedding and loss over a cut vocabulary

TEST(Embedding, RowsCutGiveAPartialSumColumnsCutAShard) {
  PaperWorld w({{"tp", 2}});
  const TensorId ids = w.Input("ids", {2, 3}, "", "i32");
  const Attrs start{{"vocab_start", int64_t{10}}};
  EXPECT_EQ(w.Type(w.Op("embedding", {ids, w.Parameter("rows", {10, 4}, "{tp:S(0)}")}, start)[0]),
            "f32[2,3,4] {tp:P}");
  EXPECT_EQ(w.Type(w.Op("embedding", {ids, w.Parameter("columns", {20, 2}, "{tp:S(1)}")})[0]),
            "f32[2,3,2] {tp:S(2)}");
}

TEST(Embedding, RefusesIdsCutOverTheTablesAxis) {
  PaperWorld w({{"tp", 2}});
  const TensorId ids = w.Input("ids", {2, 3}, "{tp:S(1)}", "i32");
  EXPECT_THAT(w.Refusal("embedding", {ids, w.Parameter("t", {10, 4}, "{tp:S(0)}")}),
              HasSubstr("an axis may cut only one"));
}

TEST(Embedding, CutRowsNeedTheirFirstRow) {
  PaperWorld w({{"tp", 2}});
  const TensorId ids = w.Input("ids", {2, 3}, "", "i32");
  EXPECT_THAT(w.Refusal("embedding", {ids, w.Parameter("t", {10, 4}, "{tp:S(0)}")}),
              HasSubstr("give the attribute vocab_start"));
}

TEST(Loss, IsAPartialSumOverWhatCutsTheTokens) {
  PaperWorld w(TpDp());
  const TensorId h = w.Input("h", {2, 3, 4}, "{dp:S(0)}"), weight = w.Parameter("w", {10, 4});
  const TensorId targets = w.Input("t", {2, 3}, "{dp:S(0)}", "i32"), count = w.Input("n", {1});
  EXPECT_EQ(w.Type(w.Op("linear_cross_entropy", {h, weight, targets, count})[0]), "f32[1] {dp:P}");
  const std::vector<TensorId> grad = w.Op("linear_cross_entropy_grad", {h, weight, targets, count});
  EXPECT_EQ(w.Type(grad[0]), "f32[1] {dp:P}");
  EXPECT_EQ(w.Type(grad[1]), "f32[2,3,4] {dp:S(0)}");
  EXPECT_EQ(w.Type(grad[2]), "f32[10,4] {dp:P}");
  EXPECT_THAT(
      w.Refusal("linear_cross_entropy", {h, weight, w.Input("u", {2, 3}, "", "i32"), count}),
      HasSubstr("@h is sharded (S(0)) over dp but @u is replicated (R)"));
}

TEST(Loss, CutVocabularyMergesGatheredStatistics) {
  PaperWorld w(TpDp());
  const TensorId h = w.Input("h", {2, 3, 4}, "{dp:S(0)}"),
                 weight = w.Parameter("w", {10, 4}, "{tp:S(0)}");
  const TensorId targets = w.Input("t", {2, 3}, "{dp:S(0)}", "i32"), count = w.Input("n", {1});
  const Attrs start{{"vocab_start", int64_t{0}}};
  EXPECT_THAT(w.Refusal("linear_cross_entropy", {h, weight, targets, count}),
              HasSubstr("needs lce_stats, all_gather and lce_merge"));
  const TensorId stats = w.Op("lce_stats", {h, weight, targets}, start)[0];
  EXPECT_EQ(w.Type(stats), "f32[2,3,3] {dp:S(0), tp:V}");
  const TensorId row = w.Op("reshape", {stats}, {{"shape", Dims{1, 2, 3, 3}}})[0];
  EXPECT_EQ(w.Type(row), "f32[1,2,3,3] {dp:S(1), tp:V}");
  const TensorId all =
      w.Op("all_gather", {row}, {{"axis", std::string("tp")}, {"dim", int64_t{0}}})[0];
  EXPECT_EQ(w.Type(all), "f32[2,2,3,3] {dp:S(1)}");
  const std::vector<TensorId> merged = w.Op("lce_merge", {all, targets, count, h, weight}, start);
  EXPECT_EQ(w.Type(merged[0]), "f32[1] {dp:P}");
  EXPECT_EQ(w.Type(merged[1]), "f32[2,3] {dp:S(0)}");
  const std::vector<TensorId> grad =
      w.Op("lce_grad", {h, weight, targets, merged[1], count}, start);
  EXPECT_EQ(w.Type(grad[0]), "f32[2,3,4] {dp:S(0), tp:P}");
  EXPECT_EQ(w.Type(grad[1]), "f32[10,4] {dp:P, tp:S(0)}");
}

// ---- norms, attention

TEST(Norm, NeedsItsChannelsWhole) {
  PaperWorld w({{"tp", 2}});
  const TensorId x = w.Input("x", {2, 3, 4}, "{tp:S(2)}");
  EXPECT_EQ(
      w.Refusal("rms_norm", {x, w.Parameter("g", {4})}),
      "rms_norm(@x, @g): @x is sharded (S(2)) over tp, along a dim this op needs whole; insert "
      "all_gather(@x) over tp along dim 2 before this op");
  const TensorId sequence = w.Input("y", {2, 3, 4}, "{tp:S(1)}");
  const std::vector<TensorId> y = w.Op("layer_norm", {sequence, w.Parameter("h", {4})});
  EXPECT_EQ(w.Type(y[0]), "f32[2,3,4] {tp:S(1)}");
  EXPECT_EQ(w.Type(y[1]), "f32[2,3] {tp:S(1)}");
}

TEST(Norm, GradientOfASequenceShardIsPartialForTheWeights) {
  PaperWorld w({{"tp", 2}});
  const TensorId x = w.Input("x", {2, 3, 4}, "{tp:S(1)}"), g = w.Parameter("g", {4});
  const TensorId rstd = w.Op("rms_norm", {x, g})[1];
  const std::vector<TensorId> grad = w.Op("rms_norm_grad", {x, x, g, rstd});
  EXPECT_EQ(w.Type(grad[0]), "f32[2,3,4] {tp:S(1)}");
  EXPECT_EQ(w.Type(grad[1]), "f32[4] {tp:P}");
}

TEST(Attention, CutsHeadsAndBatch) {
  PaperWorld w(TpDp());
  const TensorId q = w.Input("q", {2, 5, 8}, "{dp:S(0), tp:S(2)}"),
                 k = w.Input("k", {2, 5, 4}, "{dp:S(0), tp:S(2)}");
  const std::vector<TensorId> o = w.Op("attention", {q, k, k}, {{"head_dim", int64_t{4}}});
  EXPECT_EQ(w.Type(o[0]), "f32[2,5,8] {dp:S(0), tp:S(2)}");
  EXPECT_EQ(w.Type(o[1]), "f32[2,2,5] {dp:S(0), tp:S(1)}");
  EXPECT_THAT(w.Refusal("attention", {q, w.Input("k2", {2, 5, 4}, "{dp:S(0)}"), k},
                        {{"head_dim", int64_t{4}}}),
              HasSubstr("@q is sharded (S(2)) over tp but @k2 is replicated (R)"));
}

TEST(Attention, SharedKeyHeadsHaveRangesOfTheirOwn) {
  PaperWorld w({{"tp", 2}});
  const TensorId q = w.Input("q", {2, 5, 8}, "{tp:S(2)[8:16]}");
  const TensorId k = w.Input("k", {2, 5, 4}, "{tp:S(2)[0:4]}"),
                 v = w.Input("v", {2, 5, 4}, "{tp:S(2)[0:4]}");
  const Attrs attrs{{"head_dim", int64_t{4}}};
  const std::vector<TensorId> o = w.Op("attention", {q, k, v}, attrs);
  EXPECT_EQ(w.Type(o[0]), "f32[2,5,8] {tp:S(2)[8:16]}");
  EXPECT_EQ(w.Type(o[1]), "f32[2,2,5] {tp:S(1)[2:4]}");
  const std::vector<TensorId> grad = w.Op("attention_grad", {o[0], q, k, v, o[0], o[1]}, attrs);
  EXPECT_EQ(w.Type(grad[1]), "f32[2,5,4] {tp:S(2)[0:4]}");
  EXPECT_THAT(w.Refusal("attention", {q, k, w.Input("u", {2, 5, 4}, "{tp:S(2)[4:8]}")}, attrs),
              HasSubstr("the ranges differ"));
}

TEST(Attention, RefusesACutSequence) {
  PaperWorld w({{"cp", 2}});
  const TensorId q = w.Input("q", {2, 5, 8}, "{cp:S(1)}"), k = w.Input("k", {2, 5, 8}, "{cp:S(1)}");
  EXPECT_THAT(w.Refusal("attention", {q, k, k}, {{"head_dim", int64_t{4}}}),
              HasSubstr("context-parallel"));
}

// ---- element-wise

TEST(Elementwise, ScalingKeepsPartialsAndAddNeedsBoth) {
  PaperWorld w({{"tp", 2}});
  const TensorId p = w.Input("p", {4, 8}, "{tp:P}"), r = w.Input("r", {4, 8});
  EXPECT_EQ(w.Type(w.Op("add", {p, p})[0]), "f32[4,8] {tp:P}");
  EXPECT_EQ(w.Type(w.Op("mul", {p, r})[0]), "f32[4,8] {tp:P}");
  EXPECT_THAT(w.Refusal("mul", {r, p}), HasSubstr("not linear in it"));
  EXPECT_EQ(w.Type(w.Op("scale", {p}, {{"factor", 2.0}})[0]), "f32[4,8] {tp:P}");
  EXPECT_EQ(w.Type(w.Op("cast", {p}, {{"dtype", std::string("bf16")}})[0]), "bf16[4,8] {tp:P}");
  EXPECT_THAT(w.Refusal("add", {w.Input("s", {4, 8}, "{tp:S(0)}"), p}),
              HasSubstr("insert reduce_scatter(@p) over tp along dim 0"));
}

TEST(Elementwise, BroadcastOperandsAreCutOnlyAlongTheirOwnDims) {
  PaperWorld w(TpDp());
  const TensorId x = w.Input("x", {4, 8, 6}, "{dp:S(0), tp:S(2)}");
  EXPECT_EQ(w.Type(w.Op("add", {x, w.Parameter("b", {6}, "{tp:S(0)}")})[0]),
            "f32[4,8,6] {dp:S(0), tp:S(2)}");
  EXPECT_EQ(w.Type(w.Op("mul", {x, w.Input("s", {1})})[0]), "f32[4,8,6] {dp:S(0), tp:S(2)}");
  EXPECT_THAT(w.Refusal("add", {x, w.Parameter("c", {6})}),
              HasSubstr("@x is sharded (S(2)) over tp but @c is replicated (R)"));
}

TEST(Elementwise, VaryingMeetsReplicatedOrVaryingOnly) {
  PaperWorld w({{"dp", 2}});
  const TensorId v = w.Input("v", {4, 8}, "{dp:V}"), r = w.Input("r", {4, 8});
  EXPECT_EQ(w.Type(w.Op("add", {v, r})[0]), "f32[4,8] {dp:V}");
  EXPECT_EQ(w.Type(w.Op("gelu", {v})[0]), "f32[4,8] {dp:V}");
  EXPECT_THAT(w.Refusal("add", {v, w.Input("s", {4, 8}, "{dp:S(0)}")}),
              HasSubstr("@v is varying (V) over dp but @s is sharded (S(0))"));
}

TEST(Elementwise, TwoAxesOfOneDimNestAlike) {
  PaperWorld w(TpDp());
  const TensorId a = w.Input("a", {4, 8}, "{dp:S(0), tp:S(0)}"),
                 b = w.Input("b", {4, 8}, "{tp:S(0), dp:S(0)}");
  EXPECT_EQ(w.Type(w.Op("add", {a, a})[0]), "f32[4,8] {dp:S(0), tp:S(0)}");
  EXPECT_THAT(w.Refusal("add", {a, b}), HasSubstr("the other way round"));
}

// ---- moving dims

TEST(Reshape, FollowsTheCutDim) {
  PaperWorld w({{"tp", 2}});
  const TensorId x = w.Input("x", {2, 6, 8}, "{tp:S(2)}");
  auto shape = [](Dims d) { return Attrs{{"shape", std::move(d)}}; };
  EXPECT_EQ(w.Type(w.Op("reshape", {x}, shape({12, 8}))[0]), "f32[12,8] {tp:S(1)}");
  EXPECT_EQ(w.Type(w.Op("reshape", {x}, shape({2, 6, 2, 4}))[0]), "f32[2,6,2,4] {tp:S(2)}");
  EXPECT_THAT(w.Refusal("reshape", {x}, shape({96})), HasSubstr("needs whole"));
  const TensorId first = w.Input("y", {2, 6, 8}, "{tp:S(0)[2:4]}");
  EXPECT_EQ(w.Type(w.Op("reshape", {first}, shape({12, 8}))[0]), "f32[12,8] {tp:S(0)[12:24]}");
  const TensorId thin = w.Input("z", {1, 6, 8}, "{tp:S(1)}");
  EXPECT_EQ(w.Type(w.Op("reshape", {thin}, shape({6, 8}))[0]), "f32[6,8] {tp:S(0)}");
}

TEST(Shape, DimsOfTransposeBroadcastAndReduceMove) {
  PaperWorld w({{"tp", 2}});
  const TensorId x = w.Input("x", {2, 6, 8}, "{tp:S(2)}");
  EXPECT_EQ(w.Type(w.Op("transpose", {x}, {{"perm", Dims{2, 0, 1}}})[0]), "f32[8,2,6] {tp:S(0)}");
  EXPECT_EQ(w.Type(w.Op("broadcast", {x}, {{"dim", int64_t{0}}, {"size", int64_t{3}}})[0]),
            "f32[3,2,6,8] {tp:S(3)}");
  EXPECT_EQ(w.Type(w.Op("reduce_sum", {x}, {{"dim", int64_t{0}}})[0]), "f32[6,8] {tp:S(1)}");
  EXPECT_EQ(w.Type(w.Op("reduce_sum", {x}, {{"dim", int64_t{2}}})[0]), "f32[2,6] {tp:P}");
  EXPECT_EQ(w.Type(w.Op("reduce_max", {x}, {{"dim", int64_t{2}}})[0]), "f32[2,6] {tp:P(max)}");
  EXPECT_THAT(
      w.Refusal("slice", {x}, {{"dim", int64_t{2}}, {"start", int64_t{0}}, {"size", int64_t{4}}}),
      HasSubstr("insert all_gather(@x) over tp along dim 2"));
  EXPECT_THAT(w.Refusal("concat", {x, x}, {{"dim", int64_t{2}}}), HasSubstr("needs whole"));
  EXPECT_EQ(w.Type(w.Op("concat", {x, x}, {{"dim", int64_t{1}}})[0]), "f32[2,12,8] {tp:S(2)}");
}

TEST(Shape, SliceOverAnAxisCutsAndPadGivesAPartialSum) {
  PaperWorld w({{"tp", 4}});
  const Attrs part{{"dim", int64_t{1}},
                   {"start", int64_t{4}},
                   {"size", int64_t{4}},
                   {"axis", std::string("tp")}};
  const TensorId y = w.Op("slice", {w.Input("x", {2, 8})}, part)[0];
  EXPECT_EQ(w.Type(y), "f32[2,4] {tp:S(1)[4:8]}");
  Attrs whole = part;
  whole.Set("size", int64_t{8});
  EXPECT_EQ(w.Type(w.Op("pad", {y}, whole)[0]), "f32[2,8] {tp:P}");
}

// ---- communication

TEST(Comm, TypesOverTheAxis) {
  PaperWorld w(TpDp());
  const Attrs dim1{{"axis", std::string("tp")}, {"dim", int64_t{1}}};
  const TensorId p = w.Input("p", {2, 8}, "{dp:S(0), tp:P}"), r = w.Input("r", {2, 8}),
                 s = w.Input("s", {2, 4}, "{tp:S(1)}");
  EXPECT_EQ(w.Type(w.Op("all_reduce", {p}, kTp)[0]), "f32[2,8] {dp:S(0)}");
  EXPECT_EQ(w.Type(w.Op("reduce_scatter", {p}, dim1)[0]), "f32[2,4] {dp:S(0), tp:S(1)}");
  EXPECT_EQ(w.Type(w.Op("all_gather", {s}, dim1)[0]), "f32[2,8] {}");
  EXPECT_EQ(w.Type(w.Op("shard", {r}, dim1)[0]), "f32[2,4] {tp:S(1)}");
  EXPECT_EQ(
      w.Type(w.Op("all_to_all", {s},
                  {{"axis", std::string("tp")}, {"from", int64_t{1}}, {"to", int64_t{0}}})[0]),
      "f32[1,8] {tp:S(0)}");
  EXPECT_EQ(w.Type(w.Op("broadcast_from", {w.Input("v", {3}, "{tp:V}")}, kTp)[0]), "f32[3] {}");
}

TEST(Comm, RefusesOperandsOfAnotherType) {
  PaperWorld w({{"tp", 2}});
  const Attrs dim0{{"axis", std::string("tp")}, {"dim", int64_t{0}}};
  const TensorId p = w.Input("p", {4}, "{tp:P}"), r = w.Input("r", {4}),
                 m = w.Input("m", {4}, "{tp:P(max)}");
  EXPECT_THAT(w.Refusal("copy_to_group", {p}, kTp),
              HasSubstr("@p is partial (P) over tp, but must be replicated (R)"));
  EXPECT_THAT(w.Refusal("reduce_from_group", {r}, kTp), HasSubstr("must be partial (P)"));
  EXPECT_THAT(w.Refusal("all_reduce", {m}, kTp), HasSubstr("must be partial (P)"));
  EXPECT_EQ(w.Type(w.Op("all_reduce", {m},
                        {{"axis", std::string("tp")}, {"reduce", std::string("max")}})[0]),
            "f32[4] {}");
  EXPECT_THAT(w.Refusal("all_gather", {r}, dim0),
              HasSubstr("must be sharded (S(0)) or varying (V)"));
  EXPECT_THAT(w.Refusal("shard", {p}, dim0), HasSubstr("use reduce_scatter"));
  EXPECT_THAT(w.Refusal("shard", {w.Input("odd", {3})}, dim0),
              HasSubstr("2 ranks of tp do not divide"));
  EXPECT_THAT(w.Refusal("send", {p}, {{"peer", int64_t{1}}}),
              HasSubstr("a send takes whole values"));
}

TEST(Comm, UnevenPartsHaveCountsAndRanges) {
  PaperWorld w({{"dp", 3}});
  const Attrs parts{{"axis", std::string("dp")},
                    {"dim", int64_t{0}},
                    {"counts", Dims{4, 4, 2}},
                    {"index", int64_t{2}}};
  const TensorId part = w.Op("reduce_scatter", {w.Input("g", {10, 3}, "{dp:P}")}, parts)[0];
  EXPECT_EQ(w.Type(part), "f32[2,3] {dp:S(0)[8:10]}");
  EXPECT_EQ(w.Type(w.Op("all_gather", {part}, parts)[0]), "f32[10,3] {}");
  EXPECT_THAT(w.Refusal("all_gather", {part}, {{"axis", std::string("dp")}, {"dim", int64_t{0}}}),
              HasSubstr("give the attribute counts"));
  EXPECT_THAT(w.Refusal("shard", {w.Input("h", {11, 3})}, parts), HasSubstr("add to 10"));
}

TEST(Comm, InnermostCutIsGatheredFirst) {
  PaperWorld w(TpDp());
  const TensorId x = w.Input("x", {2, 3}, "{tp:S(0), dp:S(0)}");
  EXPECT_THAT(w.Refusal("all_gather", {x}, {{"axis", std::string("tp")}, {"dim", int64_t{0}}}),
              HasSubstr("gather over dp first"));
  EXPECT_EQ(w.Type(w.Op("all_gather", {x}, {{"axis", std::string("dp")}, {"dim", int64_t{0}}})[0]),
            "f32[4,3] {tp:S(0)}");
}

TEST(Comm, ReinterpretNeedsAReason) {
  PaperWorld w({{"tp", 2}});
  const TensorId x = w.Input("x", {2}, "{tp:V}");
  EXPECT_THAT(w.Refusal("reinterpret", {x},
                        {{"placement", std::string("{}")}, {"reason", std::string("")}}),
              HasSubstr("give a reason"));
  EXPECT_EQ(w.Type(w.Op("reinterpret", {x},
                        {{"placement", std::string("{tp:S(0)}")},
                         {"reason", std::string("ranks hold halves")}})[0]),
            "f32[2] {tp:S(0)}");
}

TEST(Comm, ReceivedValuesSayTheirType) {
  PaperWorld w({{"dp", 2}});
  const Attrs attrs{{"peer", int64_t{1}},
                    {"shape", Dims{2, 3}},
                    {"dtype", std::string("bf16")},
                    {"placement", std::string("{dp:S(0)}")}};
  EXPECT_EQ(w.Type(w.Op("recv", {}, attrs)[0]), "bf16[2,3] {dp:S(0)}");
}

// ---- updates

TEST(Update, RefusesAPartialGradient) {
  PaperWorld w({{"dp", 2}});
  const TensorId g = w.Input("g", {4}, "{dp:P}"), lr = w.Input("lr", {1}), s = w.Input("s", {1}),
                 p = w.Parameter("h.0.q.weight", {4});
  EXPECT_EQ(w.Refusal("sgd_plain", {g, lr, s}, {{"weight_decay", 0.0}}, {p}),
            "sgd_plain(@g, @lr, @s): gradients of 1 parameter are partial over dp (@h.0.q.weight); "
            "add a strategy that reduces them (dp, zero1, zero2, zero3, fsdp)");
}

TEST(Update, WantsGradientParameterAndStatesCutAlike) {
  PaperWorld w({{"dp", 2}});
  const TensorId lr = w.Input("lr", {1}), step = w.Input("step", {1}, "", "i64"),
                 s = w.Input("s", {1});
  const TensorId g = w.Input("g", {4}, "{dp:S(0)}"), p = w.Parameter("p", {4}, "{dp:S(0)}");
  const TensorId m = w.Add(CAPSTAN_STATE, "m", "f32", {4}, "{dp:S(0)}"),
                 v = w.Add(CAPSTAN_STATE, "v", "f32", {4}, "");
  const Attrs attrs{{"beta1", 0.9}, {"beta2", 0.99}, {"eps", 1e-8}, {"weight_decay", 0.1}};
  EXPECT_THAT(w.Refusal("adamw", {g, lr, step, s}, attrs, {p, m, v}),
              HasSubstr("gradient @g is sharded (S(0)) over dp but @v is replicated (R)"));
  EXPECT_EQ(w.Type(w.Op("adamw", {g, lr, step, s}, attrs, {p, m, m})[0]), "f32[4] {dp:S(0)}");
  EXPECT_THAT(w.Refusal("adamw", {g, lr, step, s}, attrs), HasSubstr("name an existing tensor"));
}

TEST(SumSquares, IsPartialOverWhatCutsAllItsInputs) {
  PaperWorld w(TpDp());
  const TensorId a = w.Input("a", {4}, "{tp:S(0)}"), b = w.Input("b", {3, 2}, "{tp:S(1)}"),
                 c = w.Input("c", {5});
  EXPECT_EQ(w.Type(w.Op("sum_squares", {a, b})[0]), "f32[1] {tp:P}");
  EXPECT_EQ(w.Type(w.Op("sum_squares", {c})[0]), "f32[1] {}");
  EXPECT_THAT(w.Refusal("sum_squares", {a, c}),
              HasSubstr("emit one sum_squares for each placement"));
  EXPECT_THAT(w.Refusal("sum_squares", {w.Input("d", {4}, "{dp:P}")}),
              HasSubstr("insert reduce_from_group(@d) over dp"));
  EXPECT_EQ(w.Type(w.Op("all_finite", {a, c})[0]), "bool[1] {tp:V}");
  EXPECT_THAT(w.Refusal("clip_scale", {w.Input("n", {1}, "{tp:P}")}, {{"clip", 1.0}}),
              HasSubstr("not linear in it"));
}

}  // namespace
}  // namespace capstan
