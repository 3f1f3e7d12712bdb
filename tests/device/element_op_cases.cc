#include <limits>

#include "tests/device/op_cases.h"

namespace capstan::test {
namespace {

// ---- arithmetic, shapes, constants

void add_arithmetic(Table& t) {
  for (const char* op : {"add", "sub", "mul", "div"}) {
    t[op] = [op](const Sizes& s, Random& r) -> Cases {
      Cases cases;
      for (const Shape& b :
           {Shape{s.B, s.T, s.C}, Shape{s.T, s.C}, Shape{s.C}, Shape{1}, Shape{}}) {
        cases.push_back({{op, {r.f({s.B, s.T, s.C}), r.f(b, 0.5, 2)}, {}, {like({s.B, s.T, s.C})}},
                         {kWrite},
                         false,
                         true});
      }
      return cases;
    };
  }
  t["scale"] = [](const Sizes& s, Random& r) -> Cases {
    return {{{"scale", {r.f({s.B, s.C})}, {{"factor", -0.75}}, {like({s.B, s.C})}},
             {kWrite},
             false,
             true}};
  };
  t["accumulate"] = [](const Sizes& s, Random& r) -> Cases {
    return {{{"accumulate", {r.f({s.B, s.C})}, {}, {like({s.B, s.C})}}, {kAccumulate}}};
  };
  t["cast"] = [](const Sizes& s, Random& r) -> Cases {
    Cases cases;
    const Array x = r.f({s.B, s.C}, -200, 200);
    for (const capstan_dtype to : {sdk::kF32, sdk::kBF16, sdk::kF16, sdk::kI32, sdk::kI64}) {
      cases.push_back(
          {{"cast", {x}, {{"dtype", sdk::dtype_name(to)}}, {like({s.B, s.C}, to)}}, {kWrite}});
    }
    return cases;
  };
  t["reduce_sum"] = [](const Sizes& s, Random& r) -> Cases {
    const Array x = r.f({s.B, s.T, s.C});
    return {{{"reduce_sum", {x}, {{"dim", 0}}, {like({s.T, s.C})}}, {kWrite}},
            {{"reduce_sum", {x}, {{"dim", 1}}, {like({s.B, s.C})}}, {kWrite}},
            {{"reduce_sum", {x}, {{"dim", -1}}, {like({s.B, s.T})}}, {kWrite}}};
  };
  t["reduce_max"] = [](const Sizes& s, Random& r) -> Cases {
    const Array x = r.f({s.B, s.T, s.C});
    return {{{"reduce_max", {x}, {{"dim", 0}}, {like({s.T, s.C})}}, {kWrite}},
            {{"reduce_max", {x}, {{"dim", 1}}, {like({s.B, s.C})}}, {kWrite}},
            {{"reduce_max", {x}, {{"dim", 2}}, {like({s.B, s.T})}}, {kWrite}}};
  };
  // Codes may differ by one where a value lies half-way between two.
  t["quantize"] = [](const Sizes& s, Random& r) -> Cases {
    const int64_t blocks = (s.C + 7) / 8;
    return {{{"quantize",
              {r.f({s.C})},
              {{"block", 8}},
              {like({s.C}, sdk::kI8), like({blocks}, sdk::kF32)}},
             {kWrite, kWrite},
             false,
             false,
             1.0 / 127 + 1e-6}};
  };
  t["dequantize"] = [](const Sizes& s, Random& r) -> Cases {
    const int64_t blocks = (s.C + 7) / 8;
    Array codes = array(sdk::kI8, {s.C}, r.integers(s.C, -127, 127));
    Array scales = f32({blocks}, r.uniform(blocks, 0, 0.1));
    return {{{"dequantize", {codes, scales}, {{"block", 8}}, {like({s.C})}}, {kWrite}}};
  };
}

void add_shapes(Table& t) {
  for (const char* op : {"copy", "reinterpret", "copy_to_group"}) {
    t[op] = [op](const Sizes& s, Random& r) -> Cases {
      return {{{op, {r.f({s.B, s.C})}, {}, {like({s.B, s.C})}}, {kWrite}, false, true}};
    };
  }
  t["reshape"] = [](const Sizes& s, Random& r) -> Cases {
    return {{{"reshape",
              {r.f({s.B, s.T, s.C})},
              {{"shape", Shape{s.B * s.T, s.C}}},
              {like({s.B * s.T, s.C})}},
             {kWrite}}};
  };
  t["transpose"] = [](const Sizes& s, Random& r) -> Cases {
    return {
        {{"transpose",
          {r.f({s.B, s.T, s.H, s.D})},
          {{"perm", Shape{0, 2, 1, 3}}},
          {like({s.B, s.H, s.T, s.D})}},
         {kWrite}},
        {{"transpose", {r.f({s.N, s.K})}, {{"perm", Shape{1, 0}}}, {like({s.K, s.N})}}, {kWrite}}};
  };
  t["slice"] = [](const Sizes& s, Random& r) -> Cases {
    return {{{"slice",
              {r.f({s.B, s.T + 3, s.C})},
              {{"dim", 1}, {"start", 2}, {"size", s.T}},
              {like({s.B, s.T, s.C})}},
             {kWrite}}};
  };
  t["pad"] = [](const Sizes& s, Random& r) -> Cases {
    return {{{"pad",
              {r.f({s.B, s.T, s.C})},
              {{"dim", 1}, {"start", 2}, {"size", s.T + 3}},
              {like({s.B, s.T + 3, s.C})}},
             {kWrite}}};
  };
  t["concat"] = [](const Sizes& s, Random& r) -> Cases {
    return {{{"concat",
              {r.f({s.B, s.T, s.C}), r.f({s.B, 2, s.C}), r.f({s.B, 1, s.C})},
              {{"dim", 1}},
              {like({s.B, s.T + 3, s.C})}},
             {kWrite}}};
  };
  t["broadcast"] = [](const Sizes& s, Random& r) -> Cases {
    return {{{"broadcast", {r.f({s.B, s.C})}, {{"dim", 1}, {"size", s.T}}, {like({s.B, s.T, s.C})}},
             {kWrite}},
            {{"broadcast", {r.f({s.B, s.C})}, {{"dim", -1}, {"size", 3}}, {like({s.B, s.C, 3})}},
             {kWrite}}};
  };
  t["fill"] = [](const Sizes& s, Random&) -> Cases {
    return {
        {{"fill", {}, {{"value", 2.5}, {"shape", Shape{s.B, s.C}}}, {like({s.B, s.C})}}, {kWrite}}};
  };
  t["random_normal"] = [](const Sizes& s, Random&) -> Cases {
    return {{{"random_normal", {}, {{"key", 5}, {"mean", 1.0}, {"std", 0.02}}, {like({s.N, s.K})}},
             {kWrite}}};
  };
  t["random_uniform"] = [](const Sizes& s, Random&) -> Cases {
    return {{{"random_uniform", {}, {{"key", 5}, {"low", -2.0}, {"high", 3.0}}, {like({s.N, s.K})}},
             {kWrite}}};
  };
}

// ---- update

void add_updates(Table& t) {
  t["sum_squares"] = [](const Sizes& s, Random& r) -> Cases {
    return {{{"sum_squares", {r.f({s.N, s.K}), r.f({s.C})}, {}, {like({1}, sdk::kF32)}}, {kWrite}}};
  };
  t["all_finite"] = [](const Sizes& s, Random& r) -> Cases {
    const Array good = r.f({s.N, s.K});
    Array bad = r.f({s.C});
    bad.values.back() = std::numeric_limits<double>::infinity();
    return {{{"all_finite", {good}, {}, {like({1}, sdk::kBool)}}, {kWrite}},
            {{"all_finite", {good, bad}, {}, {like({1}, sdk::kBool)}}, {kWrite}}};
  };
  t["clip_scale"] = [](const Sizes&, Random&) -> Cases {
    const std::vector<Array> out = {like({1}), like({1})};
    return {{{"clip_scale", {scalar(16)}, {{"clip", 1.0}}, out}, {kWrite, kWrite}, true},
            {{"clip_scale", {scalar(0.25)}, {{"clip", 1.0}}, out}, {kWrite, kWrite}, true}};
  };
  t["adamw"] = [](const Sizes& s, Random& r) -> Cases {
    const Shape shape = {s.N, s.K};
    return {{{"adamw",
              {r.f(shape), scalar(0.0625), step(3), scalar(0.5)},
              {{"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"weight_decay", 0.1}},
              {r.f(shape), r.f(shape, -0.1, 0.1), r.f(shape, 0.01, 0.1)}},
             {kUpdate, kUpdate, kUpdate}}};
  };
  t["sgd"] = [](const Sizes& s, Random& r) -> Cases {
    const Shape shape = {s.N, s.K};
    Cases cases;
    for (const int nesterov : {0, 1}) {
      cases.push_back({{"sgd",
                        {r.f(shape), scalar(0.0625), scalar(0.5)},
                        {{"momentum", 0.9}, {"nesterov", nesterov}, {"weight_decay", 0.1}},
                        {r.f(shape), r.f(shape)}},
                       {kUpdate, kUpdate}});
    }
    return cases;
  };
  t["sgd_plain"] = [](const Sizes& s, Random& r) -> Cases {
    return {{{"sgd_plain",
              {r.f({s.N, s.K}), scalar(0.0625), scalar(0.5)},
              {{"weight_decay", 0.1}},
              {r.f({s.N, s.K})}},
             {kUpdate}}};
  };
}

}  // namespace

void add_element_op_cases(Table& t) {
  add_arithmetic(t);
  add_shapes(t);
  add_updates(t);
}

}  // namespace capstan::test
