// Shapes and dtypes of the standard ops, and the messages of operands that do not fit.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/ops/signature.h"
#include "tests/ops/world.h"

namespace capstan {
namespace {

using testing::HasSubstr;

TEST(Signature, ReadsOptionalVariadicAndEffects) {
  const absl::StatusOr<ops::Signature> s =
      ops::ParseSignature("x f *k, bias? f n -> y f *n, +dw f nk, !state x *");
  ASSERT_TRUE(s.ok()) << s.status();
  EXPECT_EQ(s->min_inputs(), 1u);
  EXPECT_EQ(s->max_inputs(), 2u);
  EXPECT_EQ(s->outputs[1].effect, CAPSTAN_ACCUMULATE);
  EXPECT_EQ(s->outputs[2].effect, CAPSTAN_UPDATE);
  EXPECT_EQ(s->outputs[2].name, "state");
  EXPECT_GT(ops::ParseSignature("x... t * -> y t *")->max_inputs(), 1000u);
  EXPECT_FALSE(ops::ParseSignature("x f *k").ok());
  EXPECT_FALSE(ops::ParseSignature("x f -> y f *").ok());
}

TEST(Shapes, MismatchNamesBothOperandsAndTheDim) {
  PaperWorld w;
  const TensorId x = w.Input("x", {2, 3, 8});
  EXPECT_EQ(w.Refusal("linear", {x, w.Parameter("w", {5, 7})}),
            "linear(@x, @w): dim 1 of weight @w f32[5,7] must be 8 to match dim 2 of x @x "
            "f32[2,3,8] (shapes are this rank's; cut or reshape both alike)");
  EXPECT_EQ(w.Refusal("linear", {x, w.Parameter("v", {5, 8, 1})}),
            "linear(@x, @v): weight @v f32[5,8,1] must have 2 dims; insert a reshape");
  EXPECT_THAT(w.Refusal("linear", {x, w.Parameter("u", {5, 8}), w.Parameter("b", {6})}),
              HasSubstr("dim 0 of bias @b f32[6] must be 5"));
}

TEST(Shapes, MissingOperandsAreNamed) {
  PaperWorld w;
  const TensorId x = w.Input("x", {2, 8});
  EXPECT_THAT(w.Refusal("rms_norm", {x, kNone}), HasSubstr("input 1 (weight) is not optional"));
}

TEST(DTypes, AreOneForAllFloatOperands) {
  PaperWorld w;
  const TensorId x = w.Input("x", {2, 8}, "", "bf16");
  EXPECT_EQ(w.Refusal("linear", {x, w.Parameter("w", {5, 8})}),
            "linear(@x, @w): weight @w f32[5,8] must be bf16 as @x is; insert cast(@w) before this "
            "op");
  EXPECT_THAT(w.Refusal("relu", {w.Input("i", {2}, "", "i32")}),
              HasSubstr("must be f32, bf16, f16 or f64"));
  EXPECT_THAT(w.Refusal("embedding", {w.Input("ids", {2}, "", "i64"), w.Parameter("t", {4, 3})}),
              HasSubstr("ids @ids i64[2] must be i32"));
}

TEST(DTypes, StatisticsAndLossesAreWide) {
  PaperWorld w;
  for (const auto& [dtype, wide] :
       {std::pair{"bf16", "f32"}, {"f16", "f32"}, {"f32", "f32"}, {"f64", "f64"}}) {
    const std::string n = dtype;
    const TensorId x = w.Input("x" + n, {2, 3, 8}, "", dtype),
                   g = w.Parameter("g" + n, {8}, "", dtype);
    EXPECT_EQ(w.Type(w.Op("layer_norm", {x, g})[1]), std::string(wide) + "[2,3] {}");
    const TensorId head = w.Parameter("h" + n, {10, 8}, "", dtype),
                   t = w.Input("t" + n, {2, 3}, "", "i32");
    const TensorId count = w.Input("n" + n, {1}, "", wide);
    EXPECT_EQ(w.Type(w.Op("linear_cross_entropy", {x, head, t, count})[0]),
              std::string(wide) + "[1] {}");
  }
}

TEST(DTypes, AccumulatedGradientsMayBeWiderButNotNarrower) {
  PaperWorld w;
  const TensorId x = w.Input("x", {4, 8}, "", "bf16"), dy = w.Input("dy", {4, 6}, "", "bf16");
  EXPECT_EQ(w.Type(w.Op("linear_dw", {x, dy})[0]), "bf16[6,8] {}");
  const TensorId wide = w.Add(CAPSTAN_GRADIENT, "wide", "f32", {6, 8}, "");
  EXPECT_EQ(w.Type(w.Op("linear_dw", {x, dy}, {}, {wide})[0]), "f32[6,8] {}");
  const TensorId x32 = w.Input("x32", {4, 8}), dy32 = w.Input("dy32", {4, 6});
  const TensorId narrow = w.Add(CAPSTAN_GRADIENT, "narrow", "bf16", {6, 8}, "");
  EXPECT_THAT(w.Refusal("linear_dw", {x32, dy32}, {}, {narrow}),
              HasSubstr("must be at least as wide"));
}

TEST(Attention, ChecksHeads) {
  PaperWorld w;
  const TensorId q = w.Input("q", {2, 5, 12}), k = w.Input("k", {2, 7, 8}),
                 v = w.Input("v", {2, 7, 4});
  EXPECT_THAT(w.Refusal("attention", {q, v, v}, {{"head_dim", int64_t{5}}}),
              HasSubstr("head_dim=5 must divide"));
  EXPECT_THAT(w.Refusal("attention", {q, k, k}, {{"head_dim", int64_t{4}}}),
              HasSubstr("3 query heads of @q must be a multiple of the 2"));
  EXPECT_THAT(w.Refusal("attention", {q, v, k}, {{"head_dim", int64_t{4}}}),
              HasSubstr("dim 2 of v @k"));
  EXPECT_THAT(w.Refusal("attention", {q, v, v}, {{"head_dim", int64_t{4}}, {"dropout", 0.1}}),
              HasSubstr("dropout needs the inputs step and sample"));
  const std::vector<TensorId> o =
      w.Op("attention", {q, v, v}, {{"head_dim", int64_t{4}}, {"causal", int64_t{0}}});
  EXPECT_EQ(w.Type(o[0]), "f32[2,5,12] {}");
  EXPECT_EQ(w.Type(o[1]), "f32[2,3,5] {}");
}

TEST(Cache, WritesIntoAnExistingCache) {
  PaperWorld w;
  const TensorId src = w.Input("src", {2, 1, 8}), at = w.Input("at", {2}, "", "i32");
  const TensorId cache = w.Add(CAPSTAN_STATE, "cache", "f32", {2, 32, 8}, "");
  EXPECT_EQ(w.Op("cache_write", {src, at}, {}, {cache})[0], cache);
  EXPECT_THAT(w.Refusal("cache_write", {src, at}), HasSubstr("updated in place"));
  const TensorId q = w.Input("q", {2, 1, 16});
  EXPECT_EQ(w.Type(w.Op("attention_cached", {q, cache, cache, at}, {{"head_dim", int64_t{8}}})[0]),
            "f32[2,1,16] {}");
  EXPECT_EQ(w.Type(w.Op("select_position", {cache, at})[0]), "f32[2,1,8] {}");
}

TEST(Elementwise, BroadcastsTrailingDimsAndSingleElements) {
  PaperWorld w;
  const TensorId a = w.Input("a", {2, 3, 4});
  for (const Dims& b : {Dims{2, 3, 4}, Dims{3, 4}, Dims{4}, Dims{1}, Dims{}, Dims{1, 1}}) {
    EXPECT_EQ(w.Type(w.Op("mul", {a, w.Input("b" + ShapeString(b), b)})[0]), "f32[2,3,4] {}");
  }
  EXPECT_THAT(w.Refusal("add", {a, w.Input("c", {3})}),
              HasSubstr("dim 0 of b @c f32[3] must be 4"));
  EXPECT_THAT(w.Refusal("add", {w.Input("d", {4}), a}),
              HasSubstr("its trailing dims, or one element"));
}

TEST(Shapes, OfOpsThatMoveElements) {
  PaperWorld w;
  const TensorId x = w.Input("x", {2, 3, 4}), i = w.Input("i", {5, 2}, "", "i32");
  auto dim = [](int64_t d) { return Attrs{{"dim", d}}; };
  EXPECT_THAT(w.Refusal("reshape", {x}, {{"shape", Dims{5, 5}}}), HasSubstr("24 and 25 elements"));
  EXPECT_THAT(w.Refusal("transpose", {x}, {{"perm", Dims{0, 0, 1}}}), HasSubstr("once"));
  EXPECT_EQ(w.Type(w.Op("transpose", {x}, {{"perm", Dims{1, 2, 0}}})[0]), "f32[3,4,2] {}");
  EXPECT_EQ(w.Type(w.Op("slice", {x},
                        {{"dim", int64_t{1}}, {"start", int64_t{1}}, {"size", int64_t{2}}})[0]),
            "f32[2,2,4] {}");
  EXPECT_THAT(
      w.Refusal("slice", {x}, {{"dim", int64_t{1}}, {"start", int64_t{2}}, {"size", int64_t{2}}}),
      HasSubstr("do not exist"));
  EXPECT_EQ(w.Type(w.Op("pad", {x},
                        {{"dim", int64_t{2}}, {"start", int64_t{1}}, {"size", int64_t{9}}})[0]),
            "f32[2,3,9] {}");
  EXPECT_THAT(
      w.Refusal("pad", {x}, {{"dim", int64_t{2}}, {"start", int64_t{6}}, {"size", int64_t{9}}}),
      HasSubstr("does not fit"));
  EXPECT_EQ(w.Type(w.Op("concat", {x, w.Input("y", {2, 5, 4})}, dim(1))[0]), "f32[2,8,4] {}");
  EXPECT_THAT(w.Refusal("concat", {x, w.Input("z", {2, 5, 5})}, dim(1)),
              HasSubstr("dim 2 of x @z f32[2,5,5] must be 4"));
  EXPECT_EQ(w.Type(w.Op("reduce_sum", {x}, dim(1))[0]), "f32[2,4] {}");
  EXPECT_EQ(w.Type(w.Op("reduce_sum", {w.Input("v", {4})}, dim(0))[0]), "f32[] {}");
  EXPECT_THAT(w.Refusal("reduce_max", {x}, dim(3)), HasSubstr("dim=3 must lie in [0, 3)"));
  EXPECT_EQ(w.Type(w.Op("broadcast", {x}, {{"dim", int64_t{3}}, {"size", int64_t{7}}})[0]),
            "f32[2,3,4,7] {}");
  const TensorId rows = w.Input("rows", {9, 4});
  EXPECT_EQ(w.Type(w.Op("gather", {rows, i})[0]), "f32[5,2,4] {}");
  EXPECT_EQ(w.Type(w.Op("gather_grad", {i, w.Input("dy", {5, 2, 4})}, {{"rows", int64_t{9}}})[0]),
            "f32[9,4] {}");
}

TEST(Shapes, OfValuesFromNothing) {
  PaperWorld w;
  EXPECT_EQ(
      w.Type(w.Op("fill", {},
                  {{"value", 0.5}, {"shape", Dims{2, 3}}, {"dtype", std::string("bf16")}})[0]),
      "bf16[2,3] {}");
  EXPECT_EQ(w.Type(w.Op("random_normal", {}, {{"key", int64_t{7}}, {"shape", Dims{4}}})[0]),
            "f32[4] {}");
  EXPECT_THAT(w.Refusal("fill", {}, {{"value", 0.5}, {"shape", Dims{-1}}}),
              HasSubstr("negative dim"));
}

TEST(Quantize, HasAScaleABlock) {
  PaperWorld w;
  const TensorId x = w.Input("x", {3, 64}, "", "bf16");
  const std::vector<TensorId> q = w.Op("quantize", {x}, {{"block", int64_t{32}}});
  EXPECT_EQ(w.Type(q[0]), "i8[3,64] {}");
  EXPECT_EQ(w.Type(q[1]), "f32[3,2] {}");
  EXPECT_EQ(w.Type(w.Op("dequantize", {q[0], q[1]},
                        {{"block", int64_t{32}}, {"dtype", std::string("bf16")}})[0]),
            "bf16[3,64] {}");
  EXPECT_THAT(w.Refusal("quantize", {x}, {{"block", int64_t{48}}}),
              HasSubstr("not whole blocks of 48"));
  EXPECT_EQ(w.Type(w.Op("quantize", {w.Input("v", {65})}, {{"block", int64_t{32}}})[1]),
            "f32[3] {}");
}

TEST(Quantize, ScalesAreCutWithTheirBlocks) {
  PaperWorld w({{"tp", 2}, {"dp", 2}});
  const TensorId x = w.Input("x", {3, 64}, "{dp:S(0)[3:6], tp:S(1)[64:128]}");
  EXPECT_EQ(w.Type(w.Op("quantize", {x}, {{"block", int64_t{32}}})[1]),
            "f32[3,2] {dp:S(0)[3:6], tp:S(1)[2:4]}");
}

TEST(Loss, ChecksTheVocabulary) {
  PaperWorld w;
  const TensorId h = w.Input("h", {6, 4}), head = w.Parameter("w", {10, 4}),
                 t = w.Input("t", {6}, "", "i32"), n = w.Input("n", {1});
  EXPECT_THAT(w.Refusal("linear_cross_entropy", {h, head, t, n}, {{"valid_vocab", int64_t{11}}}),
              HasSubstr("valid_vocab=11 must lie in 0 (all) to the 10 rows"));
  EXPECT_THAT(w.Refusal("linear_cross_entropy", {h, head, w.Input("u", {5}, "", "i32"), n}),
              HasSubstr("dim 0 of targets @u i32[5] must be 6"));
  EXPECT_THAT(w.Refusal("lce_merge", {w.Input("s", {2, 6, 3}), t, n, h, head}),
              HasSubstr("vocab_start"));
}

}  // namespace
}  // namespace capstan
