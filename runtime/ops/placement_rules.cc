#include "runtime/ops/placement_rules.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "runtime/status.h"
#include "runtime/strings.h"

namespace capstan::ops {
namespace {

bool Contains(const std::string& set, char label) { return set.find(label) != std::string::npos; }

// One axis of one op.
class AxisRule {
 public:
  AxisRule(const InferContext& ctx, const PlacementRule& rule, const Labels& labels,
           std::string axis)
      : ctx_(ctx), rule_(rule), labels_(labels), axis_(std::move(axis)) {
    for (size_t i = 0; i < ctx.inputs.size(); ++i) {
      const bool ignored =
          std::find(rule.ignored.begin(), rule.ignored.end(), i) != rule.ignored.end();
      AxisPlacement item;
      item.axis = axis_;
      if (ctx.has(i) && !ignored) item = PlacementOn(ctx.inputs[i]->placement(), axis_);
      items_.push_back(item);
      present_.push_back(ctx.has(i) && !ignored);
    }
  }

  absl::StatusOr<std::vector<AxisPlacement>> Resolve() {
    AxisPlacement none;
    none.axis = axis_;
    result_.assign(labels_.out.size(), none);
    absl::Status s;
    if (First(CAPSTAN_VARYING) >= 0) {
      s = ResolveVarying();
    } else if (First(CAPSTAN_PARTIAL) >= 0) {
      s = ResolvePartial();
    } else if (First(CAPSTAN_SHARD) >= 0) {
      s = ResolveShard();
    }
    if (!s.ok()) return s;
    CAPSTAN_RETURN_IF_ERROR(CheckBias());
    return result_;
  }

 private:
  int First(char kind) const {
    for (size_t i = 0; i < items_.size(); ++i) {
      if (present_[i] && items_[i].kind == kind) return static_cast<int>(i);
    }
    return -1;
  }

  std::string N(size_t i) const { return Name(*ctx_.inputs[i]); }
  std::string Is(size_t i) const { return StrCat(N(i), " is ", PlacementWords(items_[i])); }

  // "insert reduce_from_group(%11) over tp (or reduce_scatter) before this op"
  std::string MendPartial(size_t i) const {
    const char* kind = items_[i].reduce == CAPSTAN_MAX ? "all_reduce" : "reduce_from_group";
    return StrCat("insert ", kind, "(", N(i), ") over ", axis_,
                  " (or reduce_scatter) before this op");
  }

  void FillResult(char kind, int reduce) {
    for (AxisPlacement& out : result_) {
      out.kind = kind;
      out.reduce = reduce;
    }
  }

  absl::Status ResolveVarying() {
    const size_t v = First(CAPSTAN_VARYING);
    for (size_t i = 0; i < items_.size(); ++i) {
      const bool fits = items_[i].kind == CAPSTAN_VARYING || items_[i].kind == CAPSTAN_REPLICATE;
      if (!present_[i] || fits) continue;
      return UsageError(ctx_.op, ": ", N(v), " is varying (V) over ", axis_, " but ", Is(i),
                        "; a varying value meets only replicated or varying ones; insert "
                        "broadcast_from(",
                        N(v), ") or all_gather(", N(v), ") over ", axis_, " before this op");
    }
    FillResult(CAPSTAN_VARYING, CAPSTAN_SUM);
    return absl::OkStatus();
  }

  absl::Status ResolvePartial() {
    const size_t p = First(CAPSTAN_PARTIAL);
    const int reduce = items_[p].reduce;
    const bool listed =
        std::find(rule_.linear_in.begin(), rule_.linear_in.end(), p) != rule_.linear_in.end();
    const bool linear = rule_.partial == Partial::kLinear && listed && reduce == CAPSTAN_SUM;
    const bool joint = rule_.partial == Partial::kMove ||
                       (rule_.partial == Partial::kJoint && reduce == CAPSTAN_SUM);
    if (!linear && !joint) {
      return UsageError(ctx_.op, ": ", N(p), " is ", PlacementWords(items_[p]), " over ", axis_,
                        " and this op is not linear in it; ", MendPartial(p));
    }
    for (size_t i = 0; i < items_.size(); ++i) {
      if (!present_[i] || i == p) continue;
      const bool fits = joint ? items_[i].kind == CAPSTAN_PARTIAL && items_[i].reduce == reduce
                              : items_[i].kind == CAPSTAN_REPLICATE;
      if (fits) continue;
      if (joint && items_[i].kind == CAPSTAN_SHARD) {
        return UsageError(ctx_.op, ": ", N(p), " is partial (P) over ", axis_, " but ", Is(i),
                          "; insert reduce_scatter(", N(p), ") over ", axis_, " along dim ",
                          items_[i].dim, " before this op");
      }
      return UsageError(ctx_.op, ": ", N(p), " is ", PlacementWords(items_[p]), " over ", axis_,
                        " but ", Is(i), "; ", MendPartial(p));
    }
    FillResult(CAPSTAN_PARTIAL, reduce);
    return absl::OkStatus();
  }

  char LabelOf(size_t i) const {
    const std::string& dims = labels_.in[i];
    const size_t d = static_cast<size_t>(items_[i].dim);
    return d < dims.size() ? dims[d] : '.';
  }
  // Labels tied to each other count as one.
  char Class(char label) const { return Contains(rule_.tied, label) ? rule_.tied[0] : label; }
  int DimOf(const std::string& dims, char klass) const {
    for (size_t d = 0; d < dims.size(); ++d) {
      if (dims[d] != '.' && Class(dims[d]) == klass) return static_cast<int>(d);
    }
    return -1;
  }
  bool Listed(const std::string& set, char label) const {
    return Contains(set, label) || (Contains(set, '*') && Contains(labels_.lead, label));
  }

  absl::Status ResolveShard() {
    const size_t s = First(CAPSTAN_SHARD);
    const char label = LabelOf(s);
    if (!MayCut(label)) return NeedsWhole(s);
    std::map<char, size_t> cutter;  // by label, the operand whose ranges count
    for (size_t i = 0; i < items_.size(); ++i) {
      if (present_[i]) CAPSTAN_RETURN_IF_ERROR(CheckOperand(i, s, Class(label), cutter));
    }
    for (size_t j = 0; j < result_.size(); ++j) {
      AxisPlacement& out = result_[j];
      const int dim = DimOf(labels_.out[j], Class(label));
      if (dim >= 0) {
        out.kind = CAPSTAN_SHARD;
        out.dim = dim;
        auto it = cutter.find(labels_.out[j][dim]);
        if (it != cutter.end()) out.ranges = items_[it->second].ranges;
      } else if (Listed(rule_.sum, label)) {
        out.kind = CAPSTAN_PARTIAL;
        out.reduce = rule_.reduce;
      } else {
        out.kind = CAPSTAN_VARYING;
      }
    }
    return absl::OkStatus();
  }

  // Every output has the label, or knows what it is without it.
  bool MayCut(char label) const {
    if (label == '.' || Listed(rule_.whole, label)) return false;
    if (Listed(rule_.sum, label) || Listed(rule_.varying, label)) return true;
    return std::all_of(labels_.out.begin(), labels_.out.end(),
                       [&](const std::string& dims) { return DimOf(dims, Class(label)) >= 0; });
  }

  absl::Status NeedsWhole(size_t s) const {
    return UsageError(ctx_.op, ": ", Is(s), " over ", axis_, ", along a dim this op needs whole; ",
                      rule_.hint.empty() ? StrCat("insert all_gather(", N(s), ") over ", axis_,
                                                  " along dim ", items_[s].dim, " before this op")
                                         : rule_.hint);
  }

  // Operand i against operand s, which is cut along `klass`.
  absl::Status CheckOperand(size_t i, size_t s, char klass, std::map<char, size_t>& cutter) {
    const int wanted = DimOf(labels_.in[i], klass);
    if (items_[i].kind == CAPSTAN_SHARD) {
      const char label = LabelOf(i);
      if (label == '.') return NeedsWhole(i);
      if (Class(label) != klass) {
        return UsageError(ctx_.op, ": ", Is(s), " and ", Is(i), " over ", axis_,
                          ", which cut different dims of the op; an axis may cut only one: insert "
                          "all_gather(",
                          N(s), ") or all_gather(", N(i), ") over ", axis_, " before this op");
      }
      auto [it, fresh] = cutter.try_emplace(label, i);
      if (fresh || items_[it->second].ranges == items_[i].ranges) return absl::OkStatus();
      return UsageError(ctx_.op, ": ", Is(it->second), " but ", Is(i), " over ", axis_,
                        ": the ranges differ; cut both alike");
    }
    if (wanted < 0) return absl::OkStatus();
    return UsageError(ctx_.op, ": ", Is(s), " over ", axis_, " but ", Is(i), "; insert all_gather(",
                      N(s), ") over ", axis_, " along dim ", items_[s].dim, " (or shard(", N(i),
                      ") along dim ", wanted, ") before this op");
  }

  absl::Status CheckBias() const {
    if (rule_.bias < 0 || !ctx_.has(rule_.bias)) return absl::OkStatus();
    for (const AxisPlacement& out : result_) {
      if (out.kind != CAPSTAN_PARTIAL) continue;
      return UsageError(ctx_.op, ": the product is partial (P) over ", axis_, ", so ",
                        N(rule_.bias), " would be added once by every rank; leave it out and add ",
                        "the bias after reduce_from_group over ", axis_);
    }
    return absl::OkStatus();
  }

  const InferContext& ctx_;
  const PlacementRule& rule_;
  const Labels& labels_;
  const std::string axis_;
  std::vector<AxisPlacement> items_;
  std::vector<bool> present_;
  std::vector<AxisPlacement> result_;
};

// Axes in order of first appearance: outermost first, as each operand lists them.
std::vector<std::string> AxesOf(const InferContext& ctx, const PlacementRule& rule) {
  std::vector<std::string> axes;
  for (size_t i = 0; i < ctx.inputs.size(); ++i) {
    const bool ignored =
        std::find(rule.ignored.begin(), rule.ignored.end(), i) != rule.ignored.end();
    if (!ctx.has(i) || ignored) continue;
    for (const AxisPlacement& item : ctx.inputs[i]->placement()) {
      if (std::find(axes.begin(), axes.end(), item.axis) == axes.end()) axes.push_back(item.axis);
    }
  }
  return axes;
}

// Two axes that cut one dim must nest the same way in every operand.
absl::Status CheckNesting(const InferContext& ctx, const std::vector<std::string>& axes) {
  auto rank = [&](const std::string& axis) {
    return std::find(axes.begin(), axes.end(), axis) - axes.begin();
  };
  for (const Tensor* t : ctx.inputs) {
    if (t == nullptr) continue;
    const Placement& p = t->placement();
    for (size_t a = 0; a < p.size(); ++a) {
      for (size_t b = a + 1; b < p.size(); ++b) {
        const bool one_dim =
            p[a].kind == CAPSTAN_SHARD && p[b].kind == CAPSTAN_SHARD && p[a].dim == p[b].dim;
        if (!one_dim || rank(p[a].axis) <= rank(p[b].axis)) continue;
        return UsageError(ctx.op, ": ", Name(*t), " is cut by ", p[a].axis, " outside ", p[b].axis,
                          " but another operand the other way round; cut both in one order");
      }
    }
  }
  return absl::OkStatus();
}

absl::Status BadPlacement(std::string_view text, std::string_view part) {
  return UsageError("placement '", std::string(text), "': cannot read '", std::string(part),
                    "'; write it as \"{dp:S(0), tp:P}\" with R, S(dim), P, P(max) or V");
}

absl::StatusOr<AxisPlacement> ParseItem(std::string_view text, absl::string_view part) {
  const std::pair<absl::string_view, absl::string_view> halves =
      absl::StrSplit(part, absl::MaxSplits(':', 1));
  AxisPlacement item;
  item.axis = std::string(absl::StripAsciiWhitespace(halves.first));
  absl::string_view kind = absl::StripAsciiWhitespace(halves.second);
  const bool simple = kind == "R" || kind == "P" || kind == "V" || kind == "P(max)";
  if (item.axis.empty() || kind.empty()) return BadPlacement(text, ToStd(part));
  item.kind = kind[0];
  if (simple) {
    if (kind == "P(max)") item.reduce = CAPSTAN_MAX;
    return item;
  }
  absl::string_view dim = kind;
  const size_t close = kind.find(')');
  if (!absl::ConsumePrefix(&dim, "S(") || close == absl::string_view::npos ||
      !absl::SimpleAtoi(dim.substr(0, close - 2), &item.dim)) {
    return BadPlacement(text, ToStd(part));
  }
  absl::string_view ranges = kind.substr(close + 1);
  if (ranges.empty()) return item;
  if (!absl::ConsumePrefix(&ranges, "[") || !absl::ConsumeSuffix(&ranges, "]")) {
    return BadPlacement(text, ToStd(part));
  }
  for (absl::string_view n : absl::StrSplit(ranges, ':')) {
    if (!absl::SimpleAtoi(n, &item.ranges.emplace_back())) return BadPlacement(text, ToStd(part));
  }
  return item;
}

}  // namespace

std::string PlacementWords(const AxisPlacement& item) {
  const char* word = "replicated";
  if (item.kind == CAPSTAN_SHARD) word = "sharded";
  if (item.kind == CAPSTAN_PARTIAL) word = "partial";
  if (item.kind == CAPSTAN_VARYING) word = "varying";
  return StrCat(word, " (", PlacementString(item), ")");
}

absl::StatusOr<std::vector<Placement>> PlaceOutputs(const InferContext& ctx,
                                                    const PlacementRule& rule,
                                                    const Labels& labels) {
  std::vector<Placement> placements(labels.out.size());
  const std::vector<std::string> axes = AxesOf(ctx, rule);
  CAPSTAN_RETURN_IF_ERROR(CheckNesting(ctx, axes));
  for (const std::string& axis : axes) {
    CAPSTAN_ASSIGN_OR_RETURN(std::vector<AxisPlacement> items,
                             AxisRule(ctx, rule, labels, axis).Resolve());
    for (size_t j = 0; j < items.size(); ++j) SetPlacement(placements[j], std::move(items[j]));
  }
  return placements;
}

absl::StatusOr<Placement> CarryPlacement(const InferContext& ctx, const Tensor& x,
                                         const std::function<int(int dim)>& new_dim) {
  Placement placement;
  for (AxisPlacement item : x.placement()) {
    if (item.kind == CAPSTAN_SHARD) {
      const int dim = new_dim(item.dim);
      if (dim < 0) {
        return UsageError(ctx.op, ": ", Name(x), " is ", PlacementWords(item), " over ", item.axis,
                          ", along a dim this op needs whole; insert all_gather(", Name(x),
                          ") over ", item.axis, " along dim ", item.dim, " before this op");
      }
      item.dim = dim;
    }
    SetPlacement(placement, std::move(item));
  }
  return placement;
}

absl::Status RefusePartial(const InferContext& ctx, const Tensor& x, std::string_view why) {
  for (const AxisPlacement& item : x.placement()) {
    if (item.kind != CAPSTAN_PARTIAL) continue;
    return UsageError(ctx.op, ": ", Name(x), " is ", PlacementWords(item), " over ", item.axis, " ",
                      std::string(why), "; insert reduce_from_group(", Name(x), ") over ",
                      item.axis, " before this op");
  }
  return absl::OkStatus();
}

absl::StatusOr<Placement> ParsePlacement(std::string_view text) {
  Placement placement;
  absl::string_view body = absl::StripAsciiWhitespace(ToAbsl(text));
  absl::ConsumePrefix(&body, "{");
  absl::ConsumeSuffix(&body, "}");
  for (absl::string_view part : absl::StrSplit(body, ',', absl::SkipWhitespace())) {
    CAPSTAN_ASSIGN_OR_RETURN(AxisPlacement item, ParseItem(text, part));
    SetPlacement(placement, std::move(item));
  }
  return placement;
}

}  // namespace capstan::ops
