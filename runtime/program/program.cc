#include "runtime/program/program.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_join.h"
#include "runtime/strings.h"

namespace capstan {
namespace {

constexpr int64_t kMostTensorBytes = int64_t{1} << 50;

}  // namespace

Program::Program(const OpRegistry* registry, Options options)
    : registry_(registry), options_(std::move(options)) {}

// ---- tensors -----------------------------------------------------------------------------------

bool Program::TensorAlive(TensorId t) const {
  return t >= 0 && t < tensor_limit() && tensor_alive_[t];
}

bool Program::OpAlive(OpId o) const { return o >= 0 && o < op_limit() && op_alive_[o]; }

absl::Status Program::CheckId(TensorId t, std::string_view what) const {
  if (TensorAlive(t)) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat(what, ": tensor id ", t, " does not exist in program '",
                                           options_.name, "' (removed, or of another program)"));
}

absl::Status Program::CheckGuard(const When& when) const {
  if (when.guard == kNone) return absl::OkStatus();
  if (absl::Status s = CheckId(when.guard, "guard"); !s.ok()) return s;
  const Tensor& t = tensors_[when.guard];
  if (SameDType(t.dtype(), kBool) && t.elements() == 1) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat("guard ", TensorName(when.guard), " is ",
                                           DTypeName(t.dtype()), ShapeString(t.shape()),
                                           "; it must be one boolean"));
}

absl::StatusOr<TensorId> Program::AddTensor(Tensor tensor) {
  if (!tensor.name.empty() && by_name_.contains(tensor.name)) {
    return absl::AlreadyExistsError(StrCat("program '", options_.name, "' already has a tensor '",
                                           tensor.name, "'; give the new one another name"));
  }
  const bool needs_name = tensor.persistent() || tensor.kind == CAPSTAN_INPUT;
  if (needs_name && tensor.name.empty()) {
    return absl::InvalidArgumentError("a persistent or input tensor needs a name");
  }
  int64_t bytes = DTypeBytes(tensor.dtype());
  for (int64_t d : tensor.shape()) {
    if (d < 0) {
      return absl::InvalidArgumentError(StrCat("tensor '", tensor.name, "' has shape ",
                                               ShapeString(tensor.shape()),
                                               "; every dim must be at least 0"));
    }
    // Sums of many tensors must stay within 64 bits too.
    if (__builtin_mul_overflow(bytes, d, &bytes) || bytes > kMostTensorBytes) {
      return absl::InvalidArgumentError(StrCat("tensor '", tensor.name, "' of shape ",
                                               ShapeString(tensor.shape()),
                                               " is larger than any memory; check the sizes of the "
                                               "model and the batch"));
    }
  }
  if (tensor.view_of != kNone) {
    if (absl::Status s = CheckId(tensor.view_of, "view"); !s.ok()) return s;
    const Tensor& base = tensors_[tensor.view_of];
    if (!tensor.persistent() || !base.persistent()) {
      return absl::InvalidArgumentError(
          StrCat("view '", tensor.name, "' of '", base.name,
                 "': only persistent tensors are views, of persistent ones; use slice"));
    }
    const int64_t end = tensor.view_offset + tensor.elements();
    if (tensor.view_offset < 0 || end > base.elements() ||
        !SameDType(base.dtype(), tensor.dtype())) {
      return absl::InvalidArgumentError(StrCat(
          "view '", tensor.name, "' takes elements ", tensor.view_offset, " to ", end, " of '",
          base.name, "', which has ", base.elements(), " of dtype ", DTypeName(base.dtype())));
    }
  }
  if (tensor.global_shape.empty()) tensor.global_shape = tensor.shape();
  if (tensor.slice_start.empty()) tensor.slice_start.assign(tensor.shape().size(), 0);
  const TensorId id = tensor_limit();
  tensor.id = id;
  if (!tensor.name.empty()) by_name_[tensor.name] = id;
  tensors_.push_back(std::move(tensor));
  tensor_alive_.push_back(true);
  readers_.emplace_back();
  writers_.emplace_back();
  return id;
}

TensorId Program::FindTensor(std::string_view name) const {
  auto it = by_name_.find(ToAbsl(name));
  return it == by_name_.end() ? kNone : it->second;
}

absl::Status Program::RemoveTensor(TensorId t) {
  if (absl::Status s = CheckId(t, "remove tensor"); !s.ok()) return s;
  if (!readers_[t].empty() || !writers_[t].empty()) {
    return absl::FailedPreconditionError(
        StrCat("tensor ", TensorName(t), " is still used by ",
               OpText(readers_[t].empty() ? writers_[t].front() : readers_[t].front())));
  }
  if (!tensors_[t].name.empty()) by_name_.erase(tensors_[t].name);
  tensor_alive_[t] = false;
  return absl::OkStatus();
}

absl::Status Program::NameTensor(TensorId t, std::string name) {
  if (absl::Status s = CheckId(t, "name tensor"); !s.ok()) return s;
  if (!tensors_[t].name.empty() || by_name_.contains(name)) {
    return absl::AlreadyExistsError(StrCat("cannot name ", TensorName(t), " '", name,
                                           "': it has a name, or another tensor has that one"));
  }
  by_name_[name] = t;
  tensors_[t].name = std::move(name);
  return absl::OkStatus();
}

std::string Program::TensorName(TensorId t) const {
  if (t == kNone) return "_";
  if (t < 0 || t >= tensor_limit()) return StrCat("%?", t);
  const std::string& name = tensors_[t].name;
  return name.empty() ? StrCat("%", t) : StrCat("@", name);
}

// ---- uses --------------------------------------------------------------------------------------

void Program::AddUse(TensorId t, OpId o) {
  if (t != kNone) readers_[t].push_back(o);
}

void Program::DropUse(TensorId t, OpId o) {
  if (t == kNone) return;
  auto it = std::find(readers_[t].begin(), readers_[t].end(), o);
  if (it != readers_[t].end()) readers_[t].erase(it);
}

OpId Program::Producer(TensorId t) const {
  return TensorAlive(t) && !writers_[t].empty() ? writers_[t].front() : kNone;
}

std::vector<OpId> Program::Users(TensorId t) const {
  if (!TensorAlive(t)) return {};
  std::vector<OpId> users = readers_[t];
  std::sort(users.begin(), users.end());
  users.erase(std::unique(users.begin(), users.end()), users.end());
  if (users.size() < 2) return users;
  std::vector<std::pair<std::pair<int, ptrdiff_t>, OpId>> placed;
  for (OpId o : users) {
    const auto& list = segments_[ops_[o].segment].ops;
    placed.push_back({{ops_[o].segment, std::find(list.begin(), list.end(), o) - list.begin()}, o});
  }
  std::sort(placed.begin(), placed.end());
  for (size_t i = 0; i < placed.size(); ++i) users[i] = placed[i].second;
  return users;
}

std::string Program::OpText(OpId o, size_t most) const {
  if (o < 0 || o >= op_limit()) return StrCat("op ", o);
  const Op& op = ops_[o];
  const size_t shown = std::min(most, op.inputs.size());
  std::string text = StrCat(
      op.kind(), "(",
      absl::StrJoin(op.inputs.begin(), op.inputs.begin() + static_cast<ptrdiff_t>(shown), ", ",
                    [&](std::string* out, TensorId t) { StrAppend(out, TensorName(t)); }));
  if (shown < op.inputs.size()) StrAppend(&text, " and ", op.inputs.size() - shown, " more");
  return StrCat(text, ")");
}

// ---- segments ----------------------------------------------------------------------------------

int Program::FindSegment(std::string_view name) const {
  auto it = segment_index_.find(ToAbsl(name));
  return it == segment_index_.end() ? -1 : it->second;
}

int Program::AddSegment(std::string_view name) {
  const int found = FindSegment(name);
  if (found >= 0) return found;
  const int index = static_cast<int>(segments_.size());
  segments_.push_back(Segment{std::string(name), {}});
  segment_index_[std::string(name)] = index;
  return index;
}

absl::Status Program::Insert(OpId o, const InsertPoint& at) {
  if (at.segment.empty()) return absl::InvalidArgumentError("a position needs a segment");
  const int index = AddSegment(at.segment);
  auto& list = segments_[index].ops;
  auto where = list.end();
  if (at.before != kNone) {
    where = std::find(list.begin(), list.end(), at.before);
    if (where == list.end()) {
      return absl::InvalidArgumentError(
          StrCat("position: ", OpText(at.before), " is not in segment '", at.segment, "'"));
    }
  }
  list.insert(where, o);
  ops_[o].segment = index;
  return absl::OkStatus();
}

void Program::Unlink(OpId o) {
  auto& list = segments_[ops_[o].segment].ops;
  auto it = std::find(list.begin(), list.end(), o);
  if (it != list.end()) list.erase(it);
}

// ---- ops ---------------------------------------------------------------------------------------

absl::StatusOr<OpId> Program::AddOp(const InsertPoint& at, NewOp fresh) {
  absl::StatusOr<const OpDef*> found = registry_->Get(fresh.kind);
  if (!found.ok()) return found.status();
  const OpDef* def = *found;
  if (fresh.inputs.size() < def->min_inputs || fresh.inputs.size() > def->max_inputs) {
    return absl::InvalidArgumentError(StrCat("op '", fresh.kind, "' takes ", def->min_inputs,
                                             " to ", def->max_inputs, " inputs, given ",
                                             fresh.inputs.size()));
  }
  for (TensorId t : fresh.inputs) {
    if (t == kNone) continue;
    if (absl::Status s = CheckId(t, fresh.kind); !s.ok()) return s;
  }
  const size_t output_count = def->outputs(fresh.inputs.size());
  if (!fresh.outputs.empty() && fresh.outputs.size() != output_count) {
    return absl::InvalidArgumentError(StrCat("op '", fresh.kind, "' has ", output_count,
                                             " outputs, given ", fresh.outputs.size()));
  }
  for (TensorId t : fresh.outputs) {
    if (t == kNone) continue;
    if (absl::Status s = CheckId(t, fresh.kind); !s.ok()) return s;
  }
  if (absl::Status s = CheckGuard(fresh.when); !s.ok()) return s;
  Op op;
  op.id = op_limit();
  op.def = def;
  op.inputs = std::move(fresh.inputs);
  op.outputs = std::move(fresh.outputs);
  op.outputs.resize(output_count, kNone);
  op.attrs = std::move(fresh.attrs);
  op.layer = fresh.layer;
  op.role = fresh.role;
  op.when = fresh.when;

  InferContext ctx;
  if (absl::Status s = InferOp(op, ctx); !s.ok()) return s;
  if (absl::Status s = ApplyTypes(op, ctx, true); !s.ok()) return s;
  const OpId id = op.id;
  ops_.push_back(std::move(op));
  op_alive_.push_back(true);
  if (absl::Status s = Insert(id, at); !s.ok()) {
    op_alive_[id] = false;
    return s;
  }
  const Op& added = ops_[id];
  for (TensorId t : added.inputs) AddUse(t, id);
  for (size_t j = 0; j < added.outputs.size(); ++j) {
    writers_[added.outputs[j]].push_back(id);
    if (def->effect(j) == CAPSTAN_UPDATE) AddUse(added.outputs[j], id);
  }
  if (added.when.guard != kNone) AddUse(added.when.guard, id);
  return id;
}

absl::Status Program::RemoveOp(OpId o) {
  if (!OpAlive(o)) return absl::InvalidArgumentError(StrCat("op ", o, " does not exist"));
  Op& op = ops_[o];
  for (TensorId t : op.outputs) {
    const bool sole_writer = writers_[t].size() == 1;
    if (tensors_[t].kind == CAPSTAN_ACTIVATION && sole_writer) {
      for (OpId reader : readers_[t]) {
        if (reader == o) continue;
        return absl::FailedPreconditionError(StrCat("cannot remove ", OpText(o), ": ",
                                                    TensorName(t), " is still read by ",
                                                    OpText(reader), "; replace its uses first"));
      }
    }
  }
  Unlink(o);
  for (TensorId t : op.inputs) DropUse(t, o);
  if (op.when.guard != kNone) DropUse(op.when.guard, o);
  for (size_t j = 0; j < op.outputs.size(); ++j) {
    const TensorId t = op.outputs[j];
    auto& writers = writers_[t];
    writers.erase(std::find(writers.begin(), writers.end(), o));
    if (op.def->effect(j) == CAPSTAN_UPDATE) DropUse(t, o);
    if (tensors_[t].kind == CAPSTAN_ACTIVATION && writers.empty() && readers_[t].empty()) {
      if (!tensors_[t].name.empty()) by_name_.erase(tensors_[t].name);
      tensor_alive_[t] = false;
    }
  }
  op_alive_[o] = false;
  return absl::OkStatus();
}

absl::Status Program::MoveOp(OpId o, const InsertPoint& to) {
  if (!OpAlive(o)) return absl::InvalidArgumentError(StrCat("op ", o, " does not exist"));
  if (to.before == o) return absl::OkStatus();
  const int from = ops_[o].segment;
  const std::vector<OpId> saved = segments_[from].ops;
  Unlink(o);
  absl::Status s = Insert(o, to);
  if (!s.ok()) segments_[from].ops = saved;
  return s;
}

absl::Status Program::SetInput(OpId o, size_t index, TensorId t) {
  if (!OpAlive(o)) return absl::InvalidArgumentError(StrCat("op ", o, " does not exist"));
  if (index >= ops_[o].inputs.size()) {
    return absl::InvalidArgumentError(StrCat(OpText(o), " has no input ", index));
  }
  if (t != kNone) {
    if (absl::Status s = CheckId(t, "set input"); !s.ok()) return s;
  }
  DropUse(ops_[o].inputs[index], o);
  ops_[o].inputs[index] = t;
  AddUse(t, o);
  return absl::OkStatus();
}

absl::Status Program::SetOutput(OpId o, size_t index, TensorId t) {
  if (!OpAlive(o)) return absl::InvalidArgumentError(StrCat("op ", o, " does not exist"));
  if (index >= ops_[o].outputs.size()) {
    return absl::InvalidArgumentError(StrCat(OpText(o), " has no output ", index));
  }
  if (absl::Status s = CheckId(t, "set output"); !s.ok()) return s;
  const TensorId old = ops_[o].outputs[index];
  auto& writers = writers_[old];
  writers.erase(std::find(writers.begin(), writers.end(), o));
  const bool updates = ops_[o].def->effect(index) == CAPSTAN_UPDATE;
  if (updates) DropUse(old, o);
  ops_[o].outputs[index] = t;
  writers_[t].push_back(o);
  if (updates) AddUse(t, o);
  return absl::OkStatus();
}

absl::Status Program::SetAttr(OpId o, std::string name, AttrValue value) {
  if (!OpAlive(o)) return absl::InvalidArgumentError(StrCat("op ", o, " does not exist"));
  ops_[o].attrs.Set(std::move(name), std::move(value));
  return absl::OkStatus();
}

absl::Status Program::SetWhen(OpId o, When when) {
  if (!OpAlive(o)) return absl::InvalidArgumentError(StrCat("op ", o, " does not exist"));
  if (absl::Status s = CheckGuard(when); !s.ok()) return s;
  if (ops_[o].when.guard != kNone) DropUse(ops_[o].when.guard, o);
  ops_[o].when = when;
  if (when.guard != kNone) AddUse(when.guard, o);
  return absl::OkStatus();
}

absl::Status Program::ReplaceUses(TensorId from, TensorId to, OpId except) {
  if (absl::Status s = CheckId(from, "replace uses"); !s.ok()) return s;
  if (absl::Status s = CheckId(to, "replace uses"); !s.ok()) return s;
  for (OpId o : Users(from)) {
    if (o == except) continue;
    for (size_t i = 0; i < ops_[o].inputs.size(); ++i) {
      if (ops_[o].inputs[i] != from) continue;
      if (absl::Status s = SetInput(o, i, to); !s.ok()) return s;
    }
    if (ops_[o].when.guard != from) continue;
    When when = ops_[o].when;
    when.guard = to;
    if (absl::Status s = SetWhen(o, when); !s.ok()) return s;
  }
  return absl::OkStatus();
}

// ---- types -------------------------------------------------------------------------------------

void Program::Describe(const Op& op, InferContext& ctx) const {
  ctx.op =
      StrCat(op.kind(), "(",
             absl::StrJoin(op.inputs, ", ",
                           [&](std::string* out, TensorId t) { StrAppend(out, TensorName(t)); }),
             ")");
  ctx.inputs.clear();
  for (TensorId t : op.inputs) ctx.inputs.push_back(t == kNone ? nullptr : &tensors_[t]);
  ctx.attrs = &op.attrs;
  ctx.given_outputs.clear();
  for (TensorId t : op.outputs) ctx.given_outputs.push_back(t == kNone ? nullptr : &tensors_[t]);
  ctx.axis_size = [this](const std::string& axis) { return options_.mesh.Size(axis); };
  ctx.outputs.clear();
}

absl::Status Program::InferOp(const Op& op, InferContext& ctx) const {
  Describe(op, ctx);
  if (absl::Status s = op.def->infer(ctx); !s.ok()) return s;
  if (ctx.outputs.size() != op.def->outputs(op.inputs.size())) {
    return absl::InternalError(StrCat(ctx.op, ": its type rule gave ", ctx.outputs.size(),
                                      " outputs, its definition says ",
                                      op.def->outputs(op.inputs.size())));
  }
  return absl::OkStatus();
}

absl::Status Program::ApplyTypes(Op& op, const InferContext& ctx, bool fresh) {
  for (size_t j = 0; j < op.outputs.size(); ++j) {
    const TensorType& type = ctx.outputs[j];
    if (op.outputs[j] == kNone) {
      Tensor made;
      made.type = type;
      made.layer = op.layer;
      absl::StatusOr<TensorId> id = AddTensor(std::move(made));
      if (!id.ok()) return id.status();
      op.outputs[j] = *id;
      continue;
    }
    Tensor& out = tensors_[op.outputs[j]];
    const int effect = op.def->effect(j);
    if (out.kind == CAPSTAN_ACTIVATION && effect != CAPSTAN_UPDATE && !fresh &&
        writers_[out.id].front() == op.id) {
      out.type = type;  // re-inference after an edit upstream
      continue;
    }
    const bool wider = effect == CAPSTAN_ACCUMULATE && IsFloat(out.dtype()) && IsFloat(type.dtype);
    if (out.shape() != type.shape || !(wider || SameDType(out.dtype(), type.dtype))) {
      return absl::InvalidArgumentError(StrCat(
          ctx.op, ": output ", j, " is ", DTypeName(type.dtype), ShapeString(type.shape), " but ",
          TensorName(out.id), " is ", DTypeName(out.dtype()), ShapeString(out.shape())));
    }
    const bool first = writers_[out.id].empty() || writers_[out.id].front() == op.id;
    // A collective leaves the gradient it reads in another placement, from there on.
    const bool in_place = out.kind == CAPSTAN_GRADIENT && effect == CAPSTAN_WRITE &&
                          op.def->is(CAPSTAN_OP_COLLECTIVE);
    if (effect != CAPSTAN_UPDATE && (first || in_place)) {
      if (out.kind != CAPSTAN_PARAMETER && out.kind != CAPSTAN_STATE) {
        out.type.placement = type.placement;
        continue;
      }
    }
    for (const Placement* list :
         {static_cast<const Placement*>(&out.type.placement), &type.placement}) {
      for (const AxisPlacement& item : *list) {
        const AxisPlacement have = PlacementOn(out.type.placement, item.axis);
        const AxisPlacement want = PlacementOn(type.placement, item.axis);
        if (have == want) continue;
        return absl::InvalidArgumentError(
            StrCat(ctx.op, ": writes ", PlacementString(want), " over ", item.axis, " into ",
                   TensorName(out.id), ", which is ", PlacementString(have),
                   "; convert the value with a collective over ", item.axis, " first"));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status Program::Infer() {
  // As the segments run: what `begin` makes is read everywhere, `update` reads what the others leave.
  for (int turn = 0; turn < 3; ++turn) {
    for (const Segment& segment : segments_) {
      const int due = segment.name == "begin" ? 0 : segment.name == "update" ? 2 : 1;
      if (due != turn) continue;
      for (OpId o : segment.ops) {
        if (absl::Status s = Infer(o); !s.ok()) return s;
      }
    }
  }
  return absl::OkStatus();
}

absl::Status Program::Infer(OpId o) {
  InferContext ctx;
  if (absl::Status s = InferOp(ops_[o], ctx); !s.ok()) return s;
  return ApplyTypes(ops_[o], ctx, false);
}

// From the types as they stand. (A gradient reduced in place is no longer partial, so inference from
// the finished Program's types would refuse the reduction.)
absl::StatusOr<OpCost> Program::Cost(OpId o) const {
  InferContext ctx;
  Describe(ops_[o], ctx);
  for (TensorId t : ops_[o].outputs) ctx.outputs.push_back(tensors_[t].type);
  return ops_[o].def->cost ? ops_[o].def->cost(ctx) : OperandBytes(ctx);
}

// ---- schedule ----------------------------------------------------------------------------------

absl::Status Program::SetSchedule(std::vector<ScheduleEntry> entries) {
  for (const ScheduleEntry& e : entries) {
    if (FindSegment(e.segment) < 0) {
      return absl::InvalidArgumentError(
          StrCat("schedule: program '", options_.name, "' has no segment '", e.segment, "'"));
    }
    if (e.microbatch >= options_.microbatches || e.microbatch < -1) {
      return absl::InvalidArgumentError(StrCat("schedule: microbatch ", e.microbatch, " of ",
                                               options_.microbatches, " in segment '", e.segment,
                                               "'"));
    }
  }
  schedule_ = std::move(entries);
  return absl::OkStatus();
}

void Program::SetDefaultSchedule() {
  schedule_.clear();
  auto matching = [&](std::string_view prefix) {
    std::vector<std::string> names;
    for (const Segment& s : segments_) {
      if (s.name.starts_with(prefix)) names.push_back(s.name);
    }
    std::sort(names.begin(), names.end(), [&](const std::string& a, const std::string& b) {
      return a.size() != b.size() ? a.size() < b.size() : a < b;
    });
    return names;
  };
  if (FindSegment("begin") >= 0) schedule_.push_back({"begin", -1});
  const std::vector<std::string> forward = matching("forward/");
  const std::vector<std::string> backward = [&] {
    std::vector<std::string> names = matching("backward/");
    std::reverse(names.begin(), names.end());
    return names;
  }();
  const std::vector<std::string> weight = matching("backward_weight/");
  for (int m = 0; m < options_.microbatches; ++m) {
    for (const auto* names : {&forward, &backward, &weight}) {
      for (const std::string& name : *names) schedule_.push_back({name, m});
    }
  }
  if (FindSegment("update") >= 0) schedule_.push_back({"update", -1});
}

}  // namespace capstan
