#include "tests/device/op_cases.h"

#include <cmath>

namespace capstan::test {
namespace {

// Mean and reciprocal standard deviation of rows of x [rows, C], in double.
struct RowStats {
  std::vector<double> mean, rstd, root;  // root: of the mean square
};
RowStats row_stats(const Array& x, int64_t channels, double eps) {
  RowStats s;
  for (size_t row = 0; row < x.values.size() / static_cast<size_t>(channels); ++row) {
    const double* v = x.values.data() + row * static_cast<size_t>(channels);
    double sum = 0, square = 0, centred = 0;
    for (int64_t c = 0; c < channels; ++c) sum += v[c], square += v[c] * v[c];
    const double n = static_cast<double>(channels), mean = sum / n;
    for (int64_t c = 0; c < channels; ++c) centred += (v[c] - mean) * (v[c] - mean);
    s.mean.push_back(mean);
    s.rstd.push_back(1.0 / std::sqrt(centred / n + eps));
    s.root.push_back(1.0 / std::sqrt(square / n + eps));
  }
  return s;
}

// ---- dense layers

void add_dense(Table& t) {
  t["embedding"] = [](const Sizes& s, Random& r) -> Cases {
    const Call whole{
        "embedding", {r.ids({s.B, s.T}, 0, s.V - 1), r.f({s.V, s.C})}, {}, {like({s.B, s.T, s.C})}};
    Call cut{"embedding",
             {r.ids({s.B, s.T}, 0, 3 * s.V), r.f({s.V, s.C})},
             {{"vocab_start", s.V}},
             {like({s.B, s.T, s.C})}};
    return {{whole, {kWrite}}, {cut, {kWrite}}};
  };
  t["embedding_grad"] = [](const Sizes& s, Random& r) -> Cases {
    const Call whole{"embedding_grad",
                     {r.ids({s.B, s.T}, 0, s.V - 1), r.f({s.B, s.T, s.C})},
                     {{"vocab", s.V}},
                     {like({s.V, s.C})}};
    const Call cut{"embedding_grad",
                   {r.ids({s.B, s.T}, 0, 3 * s.V), r.f({s.B, s.T, s.C})},
                   {{"vocab", s.V}, {"vocab_start", s.V}},
                   {like({s.V, s.C})}};
    return {{whole, {kAccumulate}}, {cut, {kAccumulate}}};
  };
  t["gather"] = [](const Sizes& s, Random& r) -> Cases {
    return {
        {{"gather", {r.f({s.V, s.C}), r.ids({s.B, s.T}, 0, s.V - 1)}, {}, {like({s.B, s.T, s.C})}},
         {kWrite}}};
  };
  t["gather_grad"] = [](const Sizes& s, Random& r) -> Cases {
    return {{{"gather_grad",
              {r.ids({s.T}, 0, s.V - 1), r.f({s.T, s.C})},
              {{"rows", s.V}},
              {like({s.V, s.C})}},
             {kWrite}}};
  };
  t["linear"] = [](const Sizes& s, Random& r) -> Cases {
    const Array x = r.f({s.B, s.T, s.K}), w = r.f({s.N, s.K}), b = r.f({s.N});
    return {{{"linear", {x, w, b}, {}, {like({s.B, s.T, s.N})}}, {kWrite}},
            {{"linear", {x, w, none()}, {}, {like({s.B, s.T, s.N})}}, {kWrite}},
            {{"linear", {x, w}, {}, {like({s.B, s.T, s.N})}}, {kWrite}}};
  };
  t["linear_dx"] = [](const Sizes& s, Random& r) -> Cases {
    return {{{"linear_dx", {r.f({s.B, s.T, s.N}), r.f({s.N, s.K})}, {}, {like({s.B, s.T, s.K})}},
             {kWrite}}};
  };
  t["linear_dw"] = [](const Sizes& s, Random& r) -> Cases {
    return {{{"linear_dw", {r.f({s.B, s.T, s.K}), r.f({s.B, s.T, s.N})}, {}, {like({s.N, s.K})}},
             {kAccumulate}}};
  };
  t["bias_grad"] = [](const Sizes& s, Random& r) -> Cases {
    return {{{"bias_grad", {r.f({s.B, s.T, s.N})}, {}, {like({s.N})}}, {kAccumulate}}};
  };
  t["linear_gelu"] = [](const Sizes& s, Random& r) -> Cases {
    Cases cases;
    for (const char* approximate : {"tanh", "none"}) {
      const Array x = r.f({s.B, s.T, s.K}), w = r.f({s.N, s.K}), b = r.f({s.N});
      const std::vector<Array> out = {like({s.B, s.T, s.N}), like({s.B, s.T, s.N})};
      cases.push_back({{"linear_gelu", {x, w, b}, {{"approximate", approximate}}, out},
                       {kWrite, kWrite},
                       true});
      cases.push_back(
          {{"linear_gelu", {x, w}, {{"approximate", approximate}}, out}, {kWrite, kWrite}, true});
    }
    return cases;
  };
  t["matmul"] = [](const Sizes& s, Random& r) -> Cases {
    Cases cases;
    for (const int ta : {0, 1}) {
      for (const int tb : {0, 1}) {
        const Shape a = ta ? Shape{s.B, s.H, s.K, s.T} : Shape{s.B, s.H, s.T, s.K};
        const Shape b = tb ? Shape{s.B, s.H, s.N, s.K} : Shape{s.B, s.H, s.K, s.N};
        const sdk::Attrs attrs = {{"transpose_a", ta}, {"transpose_b", tb}};
        cases.push_back(
            {{"matmul", {r.f(a), r.f(b)}, attrs, {like({s.B, s.H, s.T, s.N})}}, {kWrite}});
        const Shape flat = tb ? Shape{s.N, s.K} : Shape{s.K, s.N};
        cases.push_back(
            {{"matmul", {r.f(a), r.f(flat)}, attrs, {like({s.B, s.H, s.T, s.N})}}, {kWrite}});
      }
    }
    return cases;
  };
}

// ---- normalisation and activation

void add_norms(Table& t) {
  t["layer_norm"] = [](const Sizes& s, Random& r) -> Cases {
    const Array x = r.f({s.B, s.T, s.C}, -2, 3), w = r.f({s.C}), b = r.f({s.C});
    const std::vector<Array> out = {like({s.B, s.T, s.C}), like({s.B, s.T}), like({s.B, s.T})};
    const std::vector<Effect> effects = {kWrite, kWrite, kWrite};
    Cases cases = {{{"layer_norm", {x, w, b}, {{"eps", 1e-3}}, out}, effects, false, true},
                   {{"layer_norm", {x, w}, {}, out}, effects, false, true}};
    for (size_t unread : {1, 2}) {
      cases.push_back(cases[0]);
      cases.back().call.outputs[unread] = none();
    }
    return cases;
  };
  t["layer_norm_grad"] = [](const Sizes& s, Random& r) -> Cases {
    const Array x = r.f({s.B, s.T, s.C}, -2, 3);
    const RowStats stats = row_stats(x, s.C, 1e-3);
    return {{{"layer_norm_grad",
              {r.f({s.B, s.T, s.C}), x, r.f({s.C}), f64({s.B, s.T}, stats.mean),
               f64({s.B, s.T}, stats.rstd)},
              {},
              {like({s.B, s.T, s.C}), like({s.C}), like({s.C})}},
             {kWrite, kAccumulate, kAccumulate},
             true,
             false,
             2e-5,
             1.0}};
  };
  t["rms_norm"] = [](const Sizes& s, Random& r) -> Cases {
    const Array x = r.f({s.B, s.T, s.C}, -2, 3), w = r.f({s.C});
    OpCase all{{"rms_norm", {x, w}, {{"eps", 1e-6}}, {like({s.B, s.T, s.C}), like({s.B, s.T})}},
               {kWrite, kWrite},
               false,
               true};
    OpCase only_y = all;
    only_y.call.outputs[1] = none();
    return {all, only_y};
  };
  t["rms_norm_grad"] = [](const Sizes& s, Random& r) -> Cases {
    const Array x = r.f({s.B, s.T, s.C}, -2, 3);
    const RowStats stats = row_stats(x, s.C, 1e-3);
    return {{{"rms_norm_grad",
              {r.f({s.B, s.T, s.C}), x, r.f({s.C}), f64({s.B, s.T}, stats.root)},
              {},
              {like({s.B, s.T, s.C}), like({s.C})}},
             {kWrite, kAccumulate},
             true,
             false,
             2e-5,
             1.0}};
  };
  t["softmax"] = [](const Sizes& s, Random& r) -> Cases {
    return {{{"softmax", {r.f({s.B, s.T, s.V}, -8, 8)}, {}, {like({s.B, s.T, s.V})}},
             {kWrite},
             false,
             true}};
  };
  t["softmax_grad"] = [](const Sizes& s, Random& r) -> Cases {
    return {{{"softmax_grad",
              {r.f({s.B, s.T, s.V}), r.f({s.B, s.T, s.V}, 0, 0.1)},
              {},
              {like({s.B, s.T, s.V})}},
             {kWrite},
             false,
             true}};
  };
}

void add_activations(Table& t) {
  // Where each function is smooth and its value moderate.
  struct Domain {
    double low, high;
  };
  const std::map<std::string, Domain> unaries = {
      {"relu", {-2, 2}},        {"silu", {-6, 6}}, {"sigmoid", {-6, 6}}, {"tanh", {-3, 3}},
      {"exp", {-3, 3}},         {"log", {0.1, 4}}, {"sqrt", {0.1, 4}},   {"rsqrt", {0.1, 4}},
      {"reciprocal", {0.2, 4}}, {"neg", {-2, 2}},  {"square", {-2, 2}},  {"abs", {-2, 2}}};
  for (const auto& [name, domain] : unaries) {
    t[name] = [name = name, domain = domain](const Sizes& s, Random& r) -> Cases {
      return {{{name, {r.f({s.B, s.T, s.C}, domain.low, domain.high)}, {}, {like({s.B, s.T, s.C})}},
               {kWrite},
               false,
               true}};
    };
  }
  t["unary_grad"] = [unaries](const Sizes& s, Random& r) -> Cases {
    Cases cases;
    for (const auto& [name, domain] : unaries) {
      cases.push_back({{"unary_grad",
                        {r.f({s.B, s.C}), r.f({s.B, s.C}, domain.low, domain.high)},
                        {{"function", name}},
                        {like({s.B, s.C})}},
                       {kWrite},
                       false,
                       true});
    }
    return cases;
  };
  t["gelu"] = [](const Sizes& s, Random& r) -> Cases {
    Cases cases;
    for (const char* approximate : {"tanh", "none"}) {
      cases.push_back({{"gelu",
                        {r.f({s.B, s.T, s.C}, -6, 6)},
                        {{"approximate", approximate}},
                        {like({s.B, s.T, s.C})}},
                       {kWrite},
                       false,
                       true});
    }
    return cases;
  };
  t["gelu_grad"] = [](const Sizes& s, Random& r) -> Cases {
    Cases cases;
    for (const char* approximate : {"tanh", "none"}) {
      cases.push_back({{"gelu_grad",
                        {r.f({s.B, s.C}), r.f({s.B, s.C}, -6, 6)},
                        {{"approximate", approximate}},
                        {like({s.B, s.C})}},
                       {kWrite},
                       false,
                       true});
    }
    return cases;
  };
  t["swiglu"] = [](const Sizes& s, Random& r) -> Cases {
    return {{{"swiglu", {r.f({s.B, s.C}, -4, 4), r.f({s.B, s.C})}, {}, {like({s.B, s.C})}},
             {kWrite},
             false,
             true}};
  };
  t["swiglu_grad"] = [](const Sizes& s, Random& r) -> Cases {
    return {{{"swiglu_grad",
              {r.f({s.B, s.C}), r.f({s.B, s.C}, -4, 4), r.f({s.B, s.C})},
              {},
              {like({s.B, s.C}), like({s.B, s.C})}},
             {kWrite, kWrite},
             true,
             true}};
  };
  t["dropout"] = [](const Sizes& s, Random& r) -> Cases {
    Cases cases;
    for (const double p : {0.0, 0.25, 1.0}) {
      Array sample = i64({s.B}, r.integers(s.B, 0, 1 << 20));
      cases.push_back({{"dropout",
                        {r.f({s.B, s.T, s.C}), step(7), sample, r.ids({s.B, s.T}, 0, 4096)},
                        {{"p", p}, {"key", 77}, {"channel_start", 5}},
                        {like({s.B, s.T, s.C})}},
                       {kWrite},
                       false,
                       true});
    }
    return cases;
  };
}

// ---- attention

std::vector<Array> attention_inputs(const Sizes& s, Random& r) {
  return {r.f({s.B, s.T, s.H * s.D}), r.f({s.B, s.S, s.G * s.D}), r.f({s.B, s.S, s.G * s.D})};
}

std::vector<sdk::Attrs> attention_attrs(const Sizes& s) {
  return {{{"head_dim", s.D}},
          {{"head_dim", s.D}, {"causal", 0}, {"scale", 0.3}},
          {{"head_dim", s.D}, {"dropout", 0.2}, {"key", 9}, {"head_start", 3}}};
}

Cases attention_cases(const Sizes& s, Random& r) {
  Cases cases;
  for (const sdk::Attrs& attrs : attention_attrs(s)) {
    std::vector<Array> in = attention_inputs(s, r);
    if (attrs.has("dropout")) {
      in.push_back(step(3));
      in.push_back(i64({s.B}, r.integers(s.B, 0, 1 << 20)));
    }
    const std::vector<Array> out = {like({s.B, s.T, s.H * s.D}), like({s.B, s.H, s.T})};
    cases.push_back({{"attention", in, attrs, out}, {kWrite, kWrite}, false, false, 1e-5});
    cases.push_back(cases.back());
    cases.back().call.outputs[1] = none();
  }
  return cases;
}

void add_attention(Table& t) {
  t["rotary"] = [](const Sizes& s, Random& r) -> Cases {
    const Array x = r.f({s.B, s.T, s.H * s.D}), position = r.ids({s.B, s.T}, 0, 8000);
    Cases cases;
    for (const sdk::Attrs& attrs :
         {sdk::Attrs{{"head_dim", s.D}},
          sdk::Attrs{{"head_dim", s.D}, {"inverse", 1}, {"interleaved", 1}},
          sdk::Attrs{{"head_dim", s.D},
                     {"theta", 500000.0},
                     {"scaling_factor", 8.0},
                     {"original_max_position", 8192}}}) {
      cases.push_back({{"rotary", {x, position}, attrs, {like(x.shape)}}, {kWrite}, false, true});
    }
    return cases;
  };
  t["attention"] = attention_cases;
  t["attention_grad"] = [](const Sizes& s, Random& r) -> Cases {
    const CpuDevice plain;
    Cases cases;
    for (const OpCase& forward : attention_cases(s, r)) {
      if (!forward.call.outputs[1].present) continue;
      const std::vector<Array> result = plain.run(forward.call);
      std::vector<Array> in = forward.call.inputs;
      in.insert(in.begin(), r.f({s.B, s.T, s.H * s.D}));
      in.insert(in.begin() + 4, result.begin(), result.end());
      const std::vector<Array> out = {like({s.B, s.T, s.H * s.D}), like({s.B, s.S, s.G * s.D}),
                                      like({s.B, s.S, s.G * s.D})};
      cases.push_back({{"attention_grad", in, forward.call.attrs, out},
                       {kWrite, kWrite, kWrite},
                       true,
                       false,
                       1e-5});
    }
    return cases;
  };
  t["attention_cached"] = [](const Sizes& s, Random& r) -> Cases {
    const int64_t rows = s.T + 9;
    return {{{"attention_cached",
              {r.f({s.B, s.T, s.H * s.D}), r.f({s.B, rows, s.G * s.D}), r.f({s.B, rows, s.G * s.D}),
               r.ids({s.B}, 0, 9)},
              {{"head_dim", s.D}},
              {like({s.B, s.T, s.H * s.D})}},
             {kWrite},
             false,
             false,
             1e-5}};
  };
  t["cache_write"] = [](const Sizes& s, Random& r) -> Cases {
    Array cache = r.f({s.B, s.T + 4, s.C});
    return {{{"cache_write", {r.f({s.B, s.T, s.C}), r.ids({s.B}, 0, 4)}, {}, {cache}}, {kUpdate}}};
  };
  t["select_position"] = [](const Sizes& s, Random& r) -> Cases {
    return {{{"select_position",
              {r.f({s.B, s.T, s.C}), r.ids({s.B}, 0, s.T - 1)},
              {},
              {like({s.B, 1, s.C})}},
             {kWrite}}};
  };
}

// ---- losses

void add_losses(Table& t) {
  // valid_vocab 0 (all rows) and one less than V, where V allows.
  const auto attrs_of = [](const Sizes& s, int64_t valid) {
    return valid == s.V ? sdk::Attrs{} : sdk::Attrs{{"valid_vocab", valid}};
  };
  t["linear_cross_entropy"] = [attrs_of](const Sizes& s, Random& r) -> Cases {
    Cases cases;
    for (const int64_t valid : {s.V, s.V - 1}) {
      cases.push_back(
          {{"linear_cross_entropy",
            {r.f({s.B, s.T, s.K}), r.f({s.V, s.K}), r.ids({s.B, s.T}, -1, valid - 1), scalar(11)},
            attrs_of(s, valid),
            {like({1})}},
           {kWrite},
           false,
           false,
           1e-5});
    }
    return cases;
  };
  t["linear_cross_entropy_grad"] = [attrs_of](const Sizes& s, Random& r) -> Cases {
    Cases cases;
    for (const int64_t valid : {s.V, s.V - 1}) {
      cases.push_back(
          {{"linear_cross_entropy_grad",
            {r.f({s.B, s.T, s.K}), r.f({s.V, s.K}), r.ids({s.B, s.T}, -1, valid - 1), scalar(11)},
            attrs_of(s, valid),
            {like({1}), like({s.B, s.T, s.K}), like({s.V, s.K})}},
           {kWrite, kWrite, kAccumulate},
           true,
           false,
           1e-5});
    }
    return cases;
  };
  t["cross_entropy"] = [attrs_of](const Sizes& s, Random& r) -> Cases {
    Cases cases;
    for (const int64_t valid : {s.V, s.V - 1}) {
      cases.push_back({{"cross_entropy",
                        {r.f({s.B, s.T, s.V}, -5, 5), r.ids({s.B, s.T}, -1, valid - 1), scalar(11)},
                        attrs_of(s, valid),
                        {like({1})}},
                       {kWrite}});
    }
    return cases;
  };
  t["cross_entropy_grad"] = [attrs_of](const Sizes& s, Random& r) -> Cases {
    Cases cases;
    for (const int64_t valid : {s.V, s.V - 1}) {
      cases.push_back({{"cross_entropy_grad",
                        {r.f({s.B, s.T, s.V}, -5, 5), r.ids({s.B, s.T}, -1, valid - 1), scalar(11)},
                        attrs_of(s, valid),
                        {like({1}), like({s.B, s.T, s.V})}},
                       {kWrite, kWrite},
                       true});
    }
    return cases;
  };
  // Statistics of the second shard of a vocabulary; `inputs` before the targets.
  const auto stats = [](const char* op, const Sizes& s, Random& r, auto&& inputs) -> Cases {
    Cases cases;
    for (const int64_t valid : {int64_t{0}, 2 * s.V - 1}) {
      std::vector<Array> in = inputs();
      in.push_back(r.ids({s.B, s.T}, -1, 2 * s.V - 2));
      cases.push_back(
          {{op, in, {{"vocab_start", s.V}, {"valid_vocab", valid}}, {like({s.B, s.T, 3})}},
           {kWrite},
           false,
           false,
           1e-5});
    }
    return cases;
  };
  t["lce_stats"] = [stats](const Sizes& s, Random& r) {
    return stats("lce_stats", s, r, [&] {
      return std::vector<Array>{r.f({s.B, s.T, s.K}), r.f({s.V, s.K})};
    });
  };
  t["ce_stats"] = [stats](const Sizes& s, Random& r) {
    return stats("ce_stats", s, r, [&] { return std::vector<Array>{r.f({s.B, s.T, s.V}, -5, 5)}; });
  };
  t["lce_merge"] = [](const Sizes& s, Random& r) -> Cases {
    const Array targets = r.ids({s.B, s.T}, -1, 5), stats = r.f({3, s.B, s.T, 3}, 0.5, 4);
    const std::vector<Array> out = {like({1}), like({s.B, s.T})};
    return {
        {{"lce_merge", {stats, targets, scalar(11)}, {}, out}, {kWrite, kWrite}, true},
        {{"lce_merge",
          {stats, targets, scalar(11), r.f({s.B, s.T, s.K}), r.f({s.V, s.K})},
          {{"vocab_start", 0}},
          out},
         {kWrite, kWrite},
         true},
        {{"lce_merge",
          {stats, targets, scalar(11), r.f({s.B, s.T, s.K}), r.f({s.V, s.K}), r.f({s.B, s.T, s.V})},
          {{"vocab_start", 0}},
          out},
         {kWrite, kWrite},
         true}};
  };
  t["lce_grad"] = [](const Sizes& s, Random& r) -> Cases {
    Cases cases;
    for (const int64_t valid : {int64_t{0}, 2 * s.V - 1}) {
      cases.push_back({{"lce_grad",
                        {r.f({s.B, s.T, s.K}, -0.3, 0.3), r.f({s.V, s.K}),
                         r.ids({s.B, s.T}, -1, 2 * s.V - 2), r.f({s.B, s.T}, 3, 6), scalar(11)},
                        {{"vocab_start", s.V}, {"valid_vocab", valid}},
                        {like({s.B, s.T, s.K}), like({s.V, s.K})}},
                       {kWrite, kAccumulate},
                       true,
                       false,
                       1e-5});
      OpCase kept = cases.back();
      kept.call.inputs.push_back(r.f({s.B, s.T, s.V}, -2, 2));
      cases.push_back(std::move(kept));
    }
    return cases;
  };
}

}  // namespace

std::map<std::string, MakeCases> all_op_cases() {
  Table t;
  add_dense(t);
  add_norms(t);
  add_activations(t);
  add_attention(t);
  add_losses(t);
  add_element_op_cases(t);
  return t;
}

}  // namespace capstan::test
