// The catalogue in plugin_api/ops.h and the registry name the same ops, and every op is complete.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include "runtime/ops/standard_ops.h"
#include "tests/ops/world.h"

namespace capstan {
namespace {

std::string CatalogueText() {
  std::ifstream file(std::string(CAPSTAN_SOURCE_DIR) + "/plugin_api/ops.h");
  std::stringstream text;
  text << file.rdbuf();
  const std::string all = text.str();
  const size_t begin = all.find("* Dense layers");
  EXPECT_NE(begin, std::string::npos);
  const size_t end = all.find("*/", begin);
  // Entries run over lines that each start with " *".
  return std::regex_replace(all.substr(begin, end - begin), std::regex("\n \\*"), "");
}

// Ops stand as "name(inputs) -> outputs", "name, name (inputs) -> outputs", "name(input);" when
// there is no output, and "name / name as ..." for two that are like others.
std::set<std::string> CatalogueOps() {
  const std::string text = CatalogueText();
  const std::regex entry(
      R"(((?:\b[a-z][a-z0-9_]*, )*\b[a-z][a-z0-9_]*) ?\((?:[^()]|\([^()]*\))*\)\s*(?:->|;))");
  const std::regex pair(R"(\b([a-z_]+) / ([a-z_]+) as\b)");
  const std::regex word("[a-z][a-z0-9_]*");
  std::set<std::string> ops;
  for (std::sregex_iterator m(text.begin(), text.end(), entry), end; m != end; ++m) {
    const std::string names = (*m)[1];
    for (std::sregex_iterator w(names.begin(), names.end(), word), last; w != last; ++w) {
      ops.insert(w->str());
    }
  }
  for (std::sregex_iterator m(text.begin(), text.end(), pair), end; m != end; ++m) {
    ops.insert((*m)[1]);
    ops.insert((*m)[2]);
  }
  return ops;
}

std::set<std::string> RegisteredOps() {
  std::set<std::string> ops;
  for (const OpDef* def : PaperWorld::Registry()->All()) ops.insert(def->kind);
  return ops;
}

// Gradients of gradients, integers, updates, and what has no gradient by design.
const std::set<std::string>& NotDifferentiable() {
  static const std::set<std::string> ops = {"embedding_grad",
                                            "linear_dx",
                                            "linear_dw",
                                            "bias_grad",
                                            "layer_norm_grad",
                                            "rms_norm_grad",
                                            "gelu_grad",
                                            "swiglu_grad",
                                            "softmax_grad",
                                            "unary_grad",
                                            "attention_grad",
                                            "linear_cross_entropy_grad",
                                            "cross_entropy_grad",
                                            "lce_grad",
                                            "gather_grad",
                                            "attention_cached",
                                            "cache_write",
                                            "select_position",
                                            "ce_stats",
                                            "lce_stats",
                                            "accumulate",
                                            "reduce_max",
                                            "fill",
                                            "random_normal",
                                            "random_uniform",
                                            "quantize",
                                            "dequantize",
                                            "sum_squares",
                                            "all_finite",
                                            "clip_scale",
                                            "adamw",
                                            "sgd",
                                            "sgd_plain",
                                            "broadcast_from",
                                            "reduce_gradient",
                                            "send_grad",
                                            "recv_grad"};
  return ops;
}

TEST(Catalogue, NamesTheRegisteredOps) {
  EXPECT_GT(CatalogueOps().size(), 85u);
  EXPECT_THAT(RegisteredOps(), testing::ContainerEq(CatalogueOps()));
}

TEST(Catalogue, EveryOpHasACostAndADescription) {
  for (const OpDef* def : PaperWorld::Registry()->All()) {
    EXPECT_TRUE(def->cost) << def->kind;
    EXPECT_FALSE(def->doc.empty()) << def->kind;
  }
}

TEST(Catalogue, EveryOpIsDifferentiableUnlessListed) {
  for (const OpDef* def : PaperWorld::Registry()->All()) {
    EXPECT_EQ(!def->vjp, NotDifferentiable().contains(def->kind)) << def->kind;
  }
}

TEST(Catalogue, NamesEveryAttribute) {
  const std::string text = CatalogueText();
  const std::regex attribute(
      R"(([a-z0-9_]+)!? (?:int|float|string|ints|dtype|placement|[a-z|]+\|[a-z]+)(?:,|$))");
  int seen = 0;
  for (const OpDef* def : PaperWorld::Registry()->All()) {
    const size_t at = def->doc.find("; ");  // "kind: signature; attributes"
    if (at == std::string::npos) continue;
    const std::string attributes = def->doc.substr(at + 2);
    for (std::sregex_iterator m(attributes.begin(), attributes.end(), attribute), end; m != end;
         ++m) {
      ++seen;
      EXPECT_TRUE(std::regex_search(text, std::regex("\\b" + (*m)[1].str() + "\\b")))
          << "attribute '" << (*m)[1] << "' of " << def->kind << " is not in the catalogue";
    }
  }
  EXPECT_GT(seen, 100);
}

TEST(Catalogue, ElementwiseOpsMayShareTheStorageOfInput0) {
  std::set<std::string> shared;
  for (const OpDef* def : PaperWorld::Registry()->All()) {
    if (def->is(CAPSTAN_OP_ELEMENTWISE)) shared.insert(def->kind);
  }
  EXPECT_THAT(shared, testing::UnorderedElementsAre(
                          "add", "sub", "mul", "div", "scale", "gelu", "gelu_grad", "unary_grad",
                          "dropout", "rotary", "relu", "silu", "sigmoid", "tanh", "exp", "log",
                          "sqrt", "rsqrt", "reciprocal", "neg", "square", "abs"));
}

TEST(Catalogue, CollectivesAreFlagged) {
  for (const OpDef* def : PaperWorld::Registry()->All()) {
    EXPECT_EQ(def->is(CAPSTAN_OP_COLLECTIVE), IsCollective(def->kind)) << def->kind;
  }
  EXPECT_TRUE(IsPointToPoint("send"));
  EXPECT_FALSE(IsPointToPoint("all_gather"));
  EXPECT_FALSE(IsCollective("shard"));
}

TEST(Catalogue, WhatWritesBesidesItsNewOutputsIsNotPure) {
  for (const OpDef* def : PaperWorld::Registry()->All()) {
    for (int effect : def->output_effects) {
      if (effect == CAPSTAN_WRITE) continue;
      EXPECT_FALSE(def->is(CAPSTAN_OP_PURE)) << def->kind;
    }
  }
}

TEST(Attributes, UnknownNamesAreRefusedWithTheKnownOnes) {
  PaperWorld w;
  const TensorId x = w.Input("x", {2, 4}), g = w.Parameter("g", {4});
  EXPECT_EQ(w.Refusal("rms_norm", {x, g}, {{"epsilon", 1e-5}}),
            "rms_norm(@x, @g): unknown attribute 'epsilon'; known: eps");
  EXPECT_EQ(w.Refusal("relu", {x}, {{"slope", 0.1}}),
            "relu(@x): unknown attribute 'slope'; this op has none");
}

TEST(Attributes, MissingAndWronglyTypedOnesAreRefused) {
  PaperWorld w;
  const TensorId x = w.Input("x", {2, 4});
  EXPECT_EQ(w.Refusal("scale", {x}), "scale(@x): attribute 'factor' is required");
  EXPECT_EQ(w.Refusal("scale", {x}, {{"factor", std::string("two")}}),
            "scale(@x): attribute 'factor' must be a number");
  EXPECT_EQ(w.Refusal("gelu", {x}, {{"approximate", std::string("erf")}}),
            "gelu(@x): attribute 'approximate' must be one of tanh, none, not 'erf'");
  EXPECT_EQ(w.Refusal("cast", {x}, {{"dtype", std::string("float")}}),
            "cast(@x): attribute 'dtype' must be a dtype such as f32 or bf16, not 'float'");
  EXPECT_EQ(w.Refusal("reshape", {x}, {{"shape", int64_t{8}}}),
            "reshape(@x): attribute 'shape' must be a list of integers");
}

TEST(Cost, ProductsCountTwoOperationsAMultiplyAdd) {
  PaperWorld w;
  const TensorId x = w.Input("x", {2, 3, 8}), weight = w.Parameter("w", {5, 8});
  const OpId linear = *w.TryOp("linear", {x, weight});
  EXPECT_EQ(OpFlops(w.program(), linear), 2.0 * 6 * 8 * 5);
  const absl::StatusOr<OpCost> cost = w.program().Cost(linear);
  EXPECT_EQ(cost->bytes_read, 4.0 * (48 + 40));
  EXPECT_EQ(cost->bytes_written, 4.0 * 30);
  const TensorId dy = w.Input("dy", {2, 3, 5});
  EXPECT_EQ(OpFlops(w.program(), *w.TryOp("linear_dx", {dy, weight})), 2.0 * 6 * 8 * 5);
  EXPECT_EQ(OpFlops(w.program(), *w.TryOp("linear_dw", {x, dy})), 2.0 * 6 * 8 * 5);
  const TensorId a = w.Input("a", {4, 7, 3}), b = w.Input("b", {4, 7, 5});
  EXPECT_EQ(OpFlops(w.program(), *w.TryOp("matmul", {a, b}, {{"transpose_a", int64_t{1}}})),
            2.0 * 4 * 3 * 5 * 7);
}

TEST(Cost, CausalAttentionCountsHalfAndBackwardTwoAndAHalfTimesForward) {
  PaperWorld w;
  const TensorId q = w.Input("q", {2, 16, 12}), k = w.Input("k", {2, 16, 4});
  const Attrs full{{"head_dim", int64_t{4}}, {"causal", int64_t{0}}};
  const Attrs causal{{"head_dim", int64_t{4}}};
  const double forward = 2.0 * 2 * 2 * 3 * 16 * 16 * 4;
  EXPECT_EQ(OpFlops(w.program(), *w.TryOp("attention", {q, k, k}, full)), forward);
  const OpId op = *w.TryOp("attention", {q, k, k}, causal);
  EXPECT_EQ(OpFlops(w.program(), op), forward / 2);
  const std::vector<TensorId> o = w.program().op(op).outputs;
  const OpId back = *w.TryOp("attention_grad", {o[0], q, k, k, o[0], o[1]}, causal);
  EXPECT_EQ(OpFlops(w.program(), back), 2.5 * forward / 2);
}

TEST(Cost, LookupsReadTheRowsTheyName) {
  PaperWorld w;
  const TensorId ids = w.Input("ids", {2, 3}, "", "i32"), table = w.Parameter("table", {1000, 8});
  const absl::StatusOr<OpCost> cost = w.program().Cost(*w.TryOp("embedding", {ids, table}));
  EXPECT_EQ(cost->bytes_read, 4.0 * 6 + 4.0 * 48);
  EXPECT_EQ(cost->bytes_written, 4.0 * 48);
}

TEST(Cost, UpdatesReadAndWriteTheirStates) {
  PaperWorld w;
  const TensorId g = w.Input("g", {10}), lr = w.Input("lr", {1}), s = w.Input("s", {1});
  const TensorId p = w.Parameter("p", {10});
  const absl::StatusOr<OpCost> cost =
      w.program().Cost(*w.TryOp("sgd_plain", {g, lr, s}, {{"weight_decay", 0.0}}, {p}));
  EXPECT_EQ(cost->bytes_read, 4.0 * (10 + 1 + 1 + 10));
  EXPECT_EQ(cost->bytes_written, 40.0);
}

}  // namespace
}  // namespace capstan
