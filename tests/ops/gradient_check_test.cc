// Every differentiable op: the gradient that its rule gives against central differences, in f64,
// through the host's differentiation, memory plan, executor and the cpu device's plain kernels.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "tests/ops/gradient_world.h"

namespace capstan {
namespace {

using Build = std::function<void(GradientWorld&)>;

struct GradientCase {
  std::string name;
  Build build;  // ends with SumToLoss or MarkLoss
};

Attrs Ints(std::initializer_list<std::pair<const std::string, AttrValue>> items) {
  return Attrs(items);
}
AttrValue I(int64_t i) { return i; }

std::string Text(const Dims& d) {
  std::string text;
  for (int64_t n : d) text += (text.empty() ? "" : "x") + std::to_string(n);
  return text.empty() ? "scalar" : text;
}

void AddCase(std::vector<GradientCase>& cases, std::string name, Build build) {
  cases.push_back({std::move(name), std::move(build)});
}

// ---- dense layers

void LinearCases(std::vector<GradientCase>& cases) {
  for (const auto& [lead, k, n] : std::vector<std::tuple<Dims, int64_t, int64_t>>{
           {{4}, 3, 2}, {{1}, 1, 1}, {{2, 3}, 5, 7}, {{}, 3, 4}, {{2, 1, 3}, 1, 17}}) {
    Dims x = lead;
    x.push_back(k);
    const std::string at = Text(lead) + "_" + std::to_string(k) + "_" + std::to_string(n);
    AddCase(cases, "linear_" + at, [=](GradientWorld& w) {
      w.SumToLoss(w.Op("linear", {w.P("x", x), w.P("w", {n, k}), w.P("b", {n})})[0]);
    });
    AddCase(cases, "linear_without_bias_" + at, [=](GradientWorld& w) {
      w.SumToLoss(w.Op("linear", {w.P("x", x), w.P("w", {n, k})})[0]);
    });
    for (const char* approximate : {"tanh", "none"}) {
      const std::string mode = approximate;
      AddCase(cases, "linear_gelu_" + mode + "_" + at, [=](GradientWorld& w) {
        const std::vector<TensorId> y = w.Op(
            "linear_gelu", {w.P("x", x), w.P("w", {n, k}), w.P("b", {n})}, {{"approximate", mode}});
        w.SumToLoss(w.Op("add", {y[0], y[1]})[0]);  // both outputs have cotangents
      });
    }
  }
}

void MatmulCases(std::vector<GradientCase>& cases) {
  for (int64_t ta : {0, 1}) {
    for (int64_t tb : {0, 1}) {
      for (const Dims& lead : {Dims{}, Dims{3}, Dims{2, 1}}) {
        const std::string at = std::to_string(ta) + std::to_string(tb) + "_" + Text(lead);
        AddCase(cases, "matmul_" + at, [=](GradientWorld& w) {
          Dims a = lead, b = lead;
          a.insert(a.end(), ta ? std::initializer_list<int64_t>{4, 3}
                               : std::initializer_list<int64_t>{3, 4});
          b.insert(b.end(), tb ? std::initializer_list<int64_t>{5, 4}
                               : std::initializer_list<int64_t>{4, 5});
          w.SumToLoss(w.Op("matmul", {w.P("a", a), w.P("b", b)},
                           Ints({{"transpose_a", I(ta)}, {"transpose_b", I(tb)}}))[0]);
        });
      }
    }
  }
}

void LookupCases(std::vector<GradientCase>& cases) {
  for (const Dims& ids : {Dims{1}, Dims{2, 5}, Dims{3, 1, 2}}) {
    AddCase(cases, "embedding_" + Text(ids), [=](GradientWorld& w) {
      w.SumToLoss(w.Op("embedding", {w.Ids("ids", ids, 0, 6), w.P("table", {6, 3})})[0]);
    });
    AddCase(cases, "embedding_of_a_shard_" + Text(ids), [=](GradientWorld& w) {
      w.SumToLoss(w.Op("embedding", {w.Ids("ids", ids, 0, 9), w.P("table", {4, 3})},
                       Ints({{"vocab_start", I(3)}}))[0]);
    });
    AddCase(cases, "gather_" + Text(ids), [=](GradientWorld& w) {
      w.SumToLoss(w.Op("gather", {w.P("rows", {6, 3}), w.Ids("ids", ids, 0, 6)})[0]);
    });
  }
  AddCase(cases, "tied_table", [](GradientWorld& w) {
    const TensorId table = w.P("table", {6, 4});
    const TensorId x = w.Op("embedding", {w.Ids("ids", {2, 3}, 0, 6), table})[0];
    w.SumToLoss(w.Op("linear", {x, table})[0]);
  });
}

// ---- norms and activations

void NormCases(std::vector<GradientCase>& cases) {
  for (const Dims& shape : {Dims{2, 3}, Dims{1, 2}, Dims{2, 3, 5}, Dims{3, 17}, Dims{4}}) {
    const int64_t c = shape.back();
    AddCase(cases, "layer_norm_" + Text(shape), [=](GradientWorld& w) {
      w.SumToLoss(
          w.Op("layer_norm", {w.P("x", shape), w.P("g", {c}), w.P("b", {c})}, {{"eps", 1e-3}})[0]);
    });
    AddCase(cases, "layer_norm_without_bias_" + Text(shape), [=](GradientWorld& w) {
      w.SumToLoss(w.Op("layer_norm", {w.P("x", shape), w.P("g", {c})}, {{"eps", 1e-2}})[0]);
    });
    AddCase(cases, "rms_norm_" + Text(shape), [=](GradientWorld& w) {
      w.SumToLoss(w.Op("rms_norm", {w.P("x", shape), w.P("g", {c})}, {{"eps", 1e-3}})[0]);
    });
    AddCase(cases, "softmax_" + Text(shape),
            [=](GradientWorld& w) { w.SumToLoss(w.Op("softmax", {w.P("x", shape, -2, 2)})[0]); });
  }
}

void ActivationCases(std::vector<GradientCase>& cases) {
  for (const Dims& shape : {Dims{2, 3}, Dims{1, 2}, Dims{2, 3, 5}, Dims{3, 17}, Dims{4}}) {
    for (const char* mode : {"tanh", "none"}) {
      AddCase(cases, std::string("gelu_") + mode + "_" + Text(shape), [=](GradientWorld& w) {
        w.SumToLoss(
            w.Op("gelu", {w.P("x", shape, -3, 3)}, {{"approximate", std::string(mode)}})[0]);
      });
    }
    AddCase(cases, "swiglu_" + Text(shape), [=](GradientWorld& w) {
      w.SumToLoss(w.Op("swiglu", {w.P("gate", shape, -3, 3), w.P("up", shape)})[0]);
    });
    for (const char* kind :
         {"relu", "silu", "sigmoid", "tanh", "exp", "square", "abs", "neg", "reciprocal"}) {
      AddCase(cases, std::string(kind) + "_" + Text(shape),
              [=](GradientWorld& w) { w.SumToLoss(w.Op(kind, {w.AwayFromZero("x", shape)})[0]); });
    }
    for (const char* kind : {"log", "sqrt", "rsqrt"}) {
      AddCase(cases, std::string(kind) + "_" + Text(shape),
              [=](GradientWorld& w) { w.SumToLoss(w.Op(kind, {w.P("x", shape, 0.5, 2)})[0]); });
    }
  }
}

void DropoutCases(std::vector<GradientCase>& cases) {
  for (const Dims& shape : {Dims{1, 1, 1}, Dims{2, 3, 5}, Dims{3, 2, 8}}) {
    AddCase(cases, "dropout_" + Text(shape), [=](GradientWorld& w) {
      std::vector<int64_t> samples(shape[0]);
      for (int64_t i = 0; i < shape[0]; ++i) samples[i] = 100 + 7 * i;
      const TensorId step = w.Integers("step", "i64", {1}, {3});
      const TensorId sample = w.Integers("sample", "i64", {shape[0]}, samples);
      const TensorId position = w.Ids("position", {shape[0], shape[1]}, 0, 50);
      w.SumToLoss(w.Op("dropout", {w.P("x", shape), step, sample, position},
                       {{"p", 0.4}, {"key", int64_t{11}}, {"channel_start", int64_t{5}}})[0]);
    });
  }
}

// ---- attention

void AttentionCases(std::vector<GradientCase>& cases) {
  struct Size {
    int64_t b, t, s, h, g, d;
  };
  for (const Size& z : {Size{1, 1, 1, 1, 1, 2}, Size{2, 3, 3, 2, 2, 3}, Size{1, 5, 5, 4, 2, 2},
                        Size{2, 4, 4, 3, 1, 5}, Size{1, 3, 7, 2, 1, 4}}) {
    for (int64_t causal : {0, 1}) {
      for (double dropout : {0.0, 0.3}) {
        const std::string at = Text({z.b, z.t, z.s, z.h, z.g, z.d}) + (causal ? "_causal" : "") +
                               (dropout > 0 ? "_dropout" : "");
        AddCase(cases, "attention_" + at, [=](GradientWorld& w) {
          std::vector<TensorId> inputs = {w.P("q", {z.b, z.t, z.h * z.d}),
                                          w.P("k", {z.b, z.s, z.g * z.d}),
                                          w.P("v", {z.b, z.s, z.g * z.d})};
          Attrs attrs{{"head_dim", z.d}, {"causal", causal}};
          if (dropout > 0) {
            std::vector<int64_t> samples(z.b, 41);
            inputs.push_back(w.Integers("step", "i64", {1}, {3}));
            inputs.push_back(w.Integers("sample", "i64", {z.b}, samples));
            attrs.Set("dropout", dropout);
            attrs.Set("key", int64_t{5});
            attrs.Set("head_start", int64_t{2});
            attrs.Set("scale", 0.4);
          }
          w.SumToLoss(w.Op("attention", inputs, attrs)[0]);
        });
      }
    }
  }
}

void RotaryCases(std::vector<GradientCase>& cases) {
  for (int64_t interleaved : {0, 1}) {
    for (int64_t inverse : {0, 1}) {
      AddCase(cases, "rotary_" + std::to_string(interleaved) + std::to_string(inverse),
              [=](GradientWorld& w) {
                const TensorId position = w.Ids("position", {2, 3}, 0, 40);
                w.SumToLoss(w.Op("rotary", {w.P("x", {2, 3, 12}), position},
                                 {{"head_dim", int64_t{4}},
                                  {"interleaved", interleaved},
                                  {"inverse", inverse},
                                  {"theta", 100.0},
                                  {"scaling_factor", 4.0},
                                  {"original_max_position", int64_t{16}}})[0]);
              });
    }
  }
}

// ---- losses

void LossCases(std::vector<GradientCase>& cases) {
  struct Size {
    Dims lead;
    int64_t k, v, valid;
  };
  for (const Size& z :
       {Size{{1}, 1, 2, 0}, Size{{5}, 3, 7, 0}, Size{{2, 3}, 4, 9, 6}, Size{{17}, 2, 3, 3}}) {
    Dims h = z.lead;
    h.push_back(z.k);
    Dims logits = z.lead;
    logits.push_back(z.v);
    const int64_t vocabulary = z.valid == 0 ? z.v : z.valid;
    // As the root, in one pass with its gradient; and on the way to it, scaled.
    for (bool root : {true, false}) {
      const std::string at = Text(h) + "_" + std::to_string(z.v) + (root ? "_root" : "_inner");
      auto finish = [root](GradientWorld& w, TensorId loss) {
        root ? w.MarkLoss(loss) : w.SumToLoss(loss);
      };
      AddCase(cases, "linear_cross_entropy_" + at, [=](GradientWorld& w) {
        const TensorId targets = w.Ids("targets", z.lead, -1, vocabulary),
                       count = w.Fixed("count", {1}, 3, 4);
        finish(w, w.Op("linear_cross_entropy", {w.P("h", h), w.P("w", {z.v, z.k}), targets, count},
                       {{"valid_vocab", z.valid}})[0]);
      });
      AddCase(cases, "cross_entropy_" + at, [=](GradientWorld& w) {
        const TensorId targets = w.Ids("targets", z.lead, -1, vocabulary),
                       count = w.Fixed("count", {1}, 3, 4);
        finish(w, w.Op("cross_entropy", {w.P("logits", logits), targets, count},
                       {{"valid_vocab", z.valid}})[0]);
      });
      AddCase(cases, "lce_merge_" + at, [=](GradientWorld& w) {
        const TensorId targets = w.Ids("targets", z.lead, -1, vocabulary),
                       count = w.Fixed("count", {1}, 3, 4);
        const TensorId hidden = w.P("h", h), head = w.P("w", {z.v, z.k});
        const Attrs attrs{{"vocab_start", int64_t{0}}, {"valid_vocab", z.valid}};
        const TensorId stats = w.Op("lce_stats", {hidden, head, targets}, attrs)[0];
        Dims shape = z.lead;
        shape.insert(shape.begin(), 1);
        shape.push_back(3);
        const TensorId all = w.Op("reshape", {stats}, {{"shape", shape}})[0];
        finish(w, w.Op("lce_merge", {all, targets, count, hidden, head}, attrs)[0]);
      });
      AddCase(cases, "lce_merge_kept_" + at, [=](GradientWorld& w) {
        const TensorId targets = w.Ids("targets", z.lead, -1, vocabulary),
                       count = w.Fixed("count", {1}, 3, 4);
        const TensorId hidden = w.P("h", h), head = w.P("w", {z.v, z.k});
        const Attrs attrs{{"vocab_start", int64_t{0}}, {"valid_vocab", z.valid}};
        const TensorId kept = w.Op("linear", {hidden, head}, {})[0];
        const TensorId stats = w.Op("ce_stats", {kept, targets}, attrs)[0];
        Dims shape = z.lead;
        shape.insert(shape.begin(), 1);
        shape.push_back(3);
        const TensorId all = w.Op("reshape", {stats}, {{"shape", shape}})[0];
        finish(w, w.Op("lce_merge", {all, targets, count, hidden, head, kept}, attrs)[0]);
      });
    }
  }
}

// ---- element-wise arithmetic and shape

void ArithmeticCases(std::vector<GradientCase>& cases) {
  const Dims a = {2, 3, 4};
  for (const char* kind : {"add", "sub", "mul", "div"}) {
    for (const Dims& b : {Dims{2, 3, 4}, Dims{3, 4}, Dims{4}, Dims{1}, Dims{}}) {
      AddCase(cases, std::string(kind) + "_" + Text(b), [=](GradientWorld& w) {
        w.SumToLoss(w.Op(kind, {w.P("a", a), w.P("b", b, 0.5, 2)})[0]);
      });
    }
    AddCase(cases, std::string(kind) + "_with_itself", [=](GradientWorld& w) {
      const TensorId x = w.P("x", a, 0.5, 2);
      w.SumToLoss(w.Op(kind, {x, x})[0]);
    });
  }
  AddCase(cases, "scale", [=](GradientWorld& w) {
    w.SumToLoss(w.Op("scale", {w.P("x", a)}, {{"factor", -2.5}})[0]);
  });
  AddCase(cases, "copy", [=](GradientWorld& w) { w.SumToLoss(w.Op("copy", {w.P("x", a)})[0]); });
  AddCase(cases, "cast", [=](GradientWorld& w) {
    w.SumToLoss(w.Op("cast", {w.P("x", a)}, {{"dtype", std::string("f64")}})[0]);
  });
  AddCase(cases, "copy_to_group", [=](GradientWorld& w) {
    w.SumToLoss(w.Op("copy_to_group", {w.P("x", a)}, {{"axis", std::string("tp")}})[0]);
  });
  AddCase(cases, "reinterpret", [=](GradientWorld& w) {
    w.SumToLoss(w.Op("reinterpret", {w.P("x", a)},
                     {{"placement", std::string("{}")}, {"reason", std::string("test")}})[0]);
  });
}

void ShapeCases(std::vector<GradientCase>& cases) {
  const Dims a = {2, 3, 4};
  auto one = [&](std::string name, std::string kind, Attrs attrs) {
    AddCase(cases, std::move(name),
            [=](GradientWorld& w) { w.SumToLoss(w.Op(kind, {w.P("x", a)}, attrs)[0]); });
  };
  one("reshape_merge", "reshape", {{"shape", Dims{6, 4}}});
  one("reshape_split", "reshape", {{"shape", Dims{2, 3, 2, 2, 1}}});
  one("transpose_rotate", "transpose", {{"perm", Dims{2, 0, 1}}});
  one("transpose_swap", "transpose", {{"perm", Dims{0, 2, 1}}});
  for (int64_t dim : {0, 1, 2}) {
    const std::string at = std::to_string(dim);
    one("slice_" + at, "slice", Ints({{"dim", I(dim)}, {"start", I(1)}, {"size", I(a[dim] - 1)}}));
    one("pad_" + at, "pad", Ints({{"dim", I(dim)}, {"start", I(2)}, {"size", I(a[dim] + 5)}}));
    one("reduce_sum_" + at, "reduce_sum", Ints({{"dim", I(dim)}}));
    one("broadcast_" + at, "broadcast", Ints({{"dim", I(dim)}, {"size", I(5)}}));
    AddCase(cases, "concat_" + at, [=](GradientWorld& w) {
      Dims other = a;
      other[dim] = 5;
      w.SumToLoss(
          w.Op("concat", {w.P("x", a), w.P("y", other), w.P("z", a)}, Ints({{"dim", I(dim)}}))[0]);
    });
  }
  one("broadcast_3", "broadcast", Ints({{"dim", I(3)}, {"size", I(1)}}));
}

const std::vector<GradientCase>& Cases() {
  static const std::vector<GradientCase> cases = [] {
    std::vector<GradientCase> made;
    LinearCases(made);
    MatmulCases(made);
    LookupCases(made);
    NormCases(made);
    ActivationCases(made);
    DropoutCases(made);
    AttentionCases(made);
    RotaryCases(made);
    LossCases(made);
    ArithmeticCases(made);
    ShapeCases(made);
    return made;
  }();
  return cases;
}

class Gradient : public testing::TestWithParam<size_t> {};

TEST_P(Gradient, EqualsCentralDifferences) {
  GradientWorld w;
  Cases()[GetParam()].build(w);
  if (!HasFailure()) w.Check();
}

INSTANTIATE_TEST_SUITE_P(Ops, Gradient, testing::Range(size_t{0}, Cases().size()),
                         [](const testing::TestParamInfo<size_t>& i) {
                           return Cases()[i.param].name;
                         });

// Collectives and messages need several ranks; multi-rank tests run them.
TEST(GradientCases, CoverEveryDifferentiableOp) {
  std::set<std::string> wanted;
  for (const OpDef* def : PaperWorld::Registry()->All()) {
    const bool remote = def->is(CAPSTAN_OP_COLLECTIVE) || def->is(CAPSTAN_OP_SIDE_EFFECT);
    if (def->vjp && !remote && def->kind != "shard") wanted.insert(def->kind);
  }
  for (const GradientCase& c : Cases()) {
    GradientWorld w;
    c.build(w);
    for (const std::string& kind : w.Kinds()) wanted.erase(kind);
  }
  EXPECT_THAT(wanted, testing::IsEmpty());
}

}  // namespace
}  // namespace capstan
