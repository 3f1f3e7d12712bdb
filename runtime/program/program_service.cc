#include "runtime/program/program_service.h"

#include <deque>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/program/c_types.h"
#include "runtime/status.h"
#include "sdk/error.h"

// What the opaque handle holds: the Program and the memory behind borrowed answers. Descriptions
// are kept one a tensor or op, so an answer lives until the same thing is asked again or edited.
struct capstan_program {
  capstan::Program* program = nullptr;
  std::unordered_map<capstan_tensor, capstan::TensorView> tensors;
  std::unordered_map<capstan_op, capstan::OpView> ops;
  std::unordered_map<capstan_tensor, std::vector<capstan_op>> users;
  std::vector<capstan_schedule_entry> schedule;
};

namespace capstan {
namespace {

template <typename F>
capstan_status* Edit(capstan_program* p, F&& f) {
  return ToC(f(*p->program));
}

capstan_program* Scratch(const capstan_program* p) { return const_cast<capstan_program*>(p); }

const char* GetName(const capstan_program* p) { return p->program->options().name.c_str(); }
int64_t GetMicrobatches(const capstan_program* p) { return p->program->options().microbatches; }
int64_t GetMicroBatchSize(const capstan_program* p) {
  return p->program->options().micro_batch_size;
}
int64_t GetSequence(const capstan_program* p) { return p->program->options().sequence_length; }

capstan_tensor TensorLimit(const capstan_program* p) { return p->program->tensor_limit(); }
int32_t TensorAlive(const capstan_program* p, capstan_tensor t) {
  return p->program->TensorAlive(t);
}

capstan_status* TensorGet(const capstan_program* p, capstan_tensor t, capstan_tensor_desc* out) {
  if (!p->program->TensorAlive(t)) {
    return ToC(UsageError("tensor id ", t, " does not exist in program '",
                          p->program->options().name, "'"));
  }
  TensorView& view = Scratch(p)->tensors[t];
  view.Fill(p->program->tensor(t));
  CopySized(view.desc, out);
  return nullptr;
}

capstan_tensor TensorFind(const capstan_program* p, const char* name) {
  return p->program->FindTensor(name);
}

capstan_status* TensorAdd(capstan_program* p, const capstan_tensor_desc* desc,
                          capstan_tensor* out) {
  absl::StatusOr<Tensor> tensor = TensorFromC(*desc);
  if (!tensor.ok()) return ToC(tensor.status());
  absl::StatusOr<TensorId> id = p->program->AddTensor(*std::move(tensor));
  if (!id.ok()) return ToC(id.status());
  *out = *id;
  return nullptr;
}

capstan_status* TensorSet(capstan_program* p, capstan_tensor t, const capstan_tensor_desc* desc) {
  if (!p->program->TensorAlive(t)) return ToC(UsageError("tensor id ", t, " does not exist"));
  absl::StatusOr<Tensor> tensor = TensorFromC(*desc);
  if (!tensor.ok()) return ToC(tensor.status());
  Tensor& existing = p->program->mutable_tensor(t);
  if (tensor->name != existing.name) {
    return ToC(
        UsageError("tensor '", existing.name, "' cannot be renamed to '", tensor->name, "'"));
  }
  tensor->id = t;
  if (tensor->global_shape.empty()) tensor->global_shape = tensor->type.shape;
  if (tensor->slice_start.empty()) tensor->slice_start.assign(tensor->type.shape.size(), 0);
  existing = *std::move(tensor);
  return nullptr;
}

capstan_op TensorProducer(const capstan_program* p, capstan_tensor t) {
  return p->program->Producer(t);
}

capstan_status* TensorUsers(const capstan_program* p, capstan_tensor t, const capstan_op** ops,
                            size_t* count) {
  if (!p->program->TensorAlive(t)) return ToC(UsageError("tensor id ", t, " does not exist"));
  std::vector<capstan_op>& users = Scratch(p)->users[t];
  users = p->program->Users(t);
  *ops = users.data();
  *count = users.size();
  return nullptr;
}

size_t SegmentCount(const capstan_program* p) { return p->program->segments().size(); }

const char* SegmentName(const capstan_program* p, size_t i) {
  return i < p->program->segments().size() ? p->program->segments()[i].name.c_str() : nullptr;
}

capstan_status* SegmentOps(const capstan_program* p, const char* segment, const capstan_op** ops,
                           size_t* count) {
  const int index = p->program->FindSegment(segment);
  if (index < 0) {
    return ToC(UsageError("program '", p->program->options().name, "' has no segment '",
                          std::string(segment), "'"));
  }
  const std::vector<OpId>& list = p->program->segments()[index].ops;
  *ops = list.data();
  *count = list.size();
  return nullptr;
}

int32_t OpAlive(const capstan_program* p, capstan_op op) { return p->program->OpAlive(op); }

absl::Status NoSuchOp(const capstan_program* p, capstan_op op) {
  return UsageError("op id ", op, " does not exist in program '", p->program->options().name, "'");
}

capstan_status* OpGet(const capstan_program* p, capstan_op op, capstan_op_desc* out) {
  if (!p->program->OpAlive(op)) return ToC(NoSuchOp(p, op));
  OpView& view = Scratch(p)->ops[op];
  view.Fill(p->program->op(op));
  CopySized(view.desc, out);
  return nullptr;
}

const char* OpSegment(const capstan_program* p, capstan_op op) {
  if (!p->program->OpAlive(op)) return nullptr;
  return p->program->segments()[p->program->op(op).segment].name.c_str();
}

InsertPoint PositionFromC(const capstan_position& at) {
  return InsertPoint{at.segment == nullptr ? "" : at.segment, at.before};
}

capstan_status* OpAdd(capstan_program* p, const capstan_position* at, const capstan_op_desc* desc,
                      capstan_op* op, capstan_tensor* outputs, size_t capacity) {
  absl::StatusOr<NewOp> fresh = OpFromC(*desc);
  if (!fresh.ok()) return ToC(fresh.status());
  const OpDef* def = p->program->registry().Find(fresh->kind);
  if (outputs != nullptr && def != nullptr && capacity < def->outputs(fresh->inputs.size())) {
    return ToC(UsageError("op '", fresh->kind, "' has ", def->outputs(fresh->inputs.size()),
                          " outputs, the caller has room for ", capacity));
  }
  absl::StatusOr<OpId> id = p->program->AddOp(PositionFromC(*at), *std::move(fresh));
  if (!id.ok()) return ToC(id.status());
  const std::vector<TensorId>& made = p->program->op(*id).outputs;
  if (outputs != nullptr) std::copy(made.begin(), made.end(), outputs);
  if (op != nullptr) *op = *id;
  return nullptr;
}

capstan_status* OpRemove(capstan_program* p, capstan_op op) {
  return Edit(p, [&](Program& program) { return program.RemoveOp(op); });
}
capstan_status* OpMove(capstan_program* p, capstan_op op, const capstan_position* to) {
  return Edit(p, [&](Program& program) { return program.MoveOp(op, PositionFromC(*to)); });
}
capstan_status* OpSetInput(capstan_program* p, capstan_op op, size_t i, capstan_tensor t) {
  return Edit(p, [&](Program& program) { return program.SetInput(op, i, t); });
}
capstan_status* OpSetOutput(capstan_program* p, capstan_op op, size_t i, capstan_tensor t) {
  return Edit(p, [&](Program& program) { return program.SetOutput(op, i, t); });
}
capstan_status* OpSetAttr(capstan_program* p, capstan_op op, const capstan_attr* attr) {
  absl::StatusOr<AttrValue> value = AttrFromC(*attr);
  if (!value.ok()) return ToC(value.status());
  return Edit(p,
              [&](Program& program) { return program.SetAttr(op, attr->name, *std::move(value)); });
}
capstan_status* OpSetWhen(capstan_program* p, capstan_op op, const capstan_when* when) {
  return Edit(p, [&](Program& program) { return program.SetWhen(op, WhenFromC(when)); });
}
capstan_status* ReplaceUses(capstan_program* p, capstan_tensor from, capstan_tensor to,
                            capstan_op except) {
  return Edit(p, [&](Program& program) { return program.ReplaceUses(from, to, except); });
}
uint32_t OpFlags(const capstan_program* p, capstan_op op) {
  return p->program->OpAlive(op) ? p->program->op(op).def->flags : 0;
}
capstan_status* Infer(capstan_program* p) {
  return Edit(p, [](Program& program) { return program.Infer(); });
}

capstan_status* ScheduleGet(const capstan_program* p, const capstan_schedule_entry** entries,
                            size_t* count) {
  auto& list = Scratch(p)->schedule;
  list.clear();
  for (const ScheduleEntry& e : p->program->schedule()) {
    list.push_back({sizeof(capstan_schedule_entry), e.segment.c_str(), e.microbatch, 0});
  }
  *entries = list.data();
  *count = list.size();
  return nullptr;
}

capstan_status* OpInfer(capstan_program* p, capstan_op op) {
  if (!p->program->OpAlive(op)) return ToC(UsageError("op ", op, " does not exist"));
  return ToC(p->program->Infer(op));
}

capstan_status* GetOpCost(const capstan_program* p, capstan_op op, double* flops, double* read,
                          double* written) {
  if (!p->program->OpAlive(op)) return ToC(UsageError("op ", op, " does not exist"));
  const absl::StatusOr<OpCost> cost = p->program->Cost(op);
  if (!cost.ok()) return ToC(cost.status());
  *flops = cost->flops;
  *read = cost->bytes_read;
  *written = cost->bytes_written;
  return nullptr;
}

capstan_status* TensorRemove(capstan_program* p, capstan_tensor t) {
  return ToC(p->program->RemoveTensor(t));
}

capstan_status* ScheduleSet(capstan_program* p, const capstan_schedule_entry* entries,
                            size_t count) {
  std::vector<ScheduleEntry> list;
  for (size_t i = 0; i < count; ++i) {
    const capstan_schedule_entry& entry = sdk::item_of(entries, i);
    if (entry.segment == nullptr) return ToC(UsageError("schedule entry ", i, " has no segment"));
    list.push_back({entry.segment, entry.microbatch});
  }
  return Edit(p, [&](Program& program) { return program.SetSchedule(std::move(list)); });
}

constexpr capstan_program_service kService = {
    sizeof(capstan_program_service),
    GetName,
    GetMicrobatches,
    GetMicroBatchSize,
    GetSequence,
    TensorLimit,
    TensorAlive,
    TensorGet,
    TensorFind,
    TensorAdd,
    TensorSet,
    TensorProducer,
    TensorUsers,
    SegmentCount,
    SegmentName,
    SegmentOps,
    OpAlive,
    OpGet,
    OpSegment,
    OpAdd,
    OpRemove,
    OpMove,
    OpSetInput,
    OpSetOutput,
    OpSetAttr,
    OpSetWhen,
    ReplaceUses,
    OpFlags,
    Infer,
    ScheduleGet,
    ScheduleSet,
    OpInfer,
    GetOpCost,
    TensorRemove,
};

// ---- ops of plugins ----------------------------------------------------------------------------

// Lends an InferContext to a plugin's type or cost rule.
class LentInfer {
 public:
  explicit LentInfer(InferContext& ctx) : ctx_(ctx), views_(ctx.inputs.size()), attrs_(*ctx.attrs) {
    for (size_t i = 0; i < ctx.inputs.size(); ++i) {
      if (ctx.inputs[i] != nullptr) views_[i].Fill(*ctx.inputs[i]);
      descs_.push_back(ctx.inputs[i] != nullptr ? &views_[i].desc : nullptr);
    }
    c_.struct_size = sizeof(c_);
    c_.input_count = descs_.size();
    c_.inputs = descs_.data();
    c_.attr_count = attrs_.list.size();
    c_.attrs = attrs_.list.data();
    c_.host = this;
    c_.add_output = &LentInfer::AddOutput;
  }
  capstan_infer* get() { return &c_; }

 private:
  static capstan_status* AddOutput(capstan_infer* c, capstan_dtype dtype, int32_t ndim,
                                   const int64_t* shape, const capstan_placement* placement,
                                   size_t count) {
    auto* self = static_cast<LentInfer*>(c->host);
    if (ndim < 0 || ndim > kMostDims || (ndim > 0 && shape == nullptr)) {
      return ToC(UsageError(self->ctx_.op, ": its type rule gave an output of ", ndim,
                            " dims; 0 to ", kMostDims, " are allowed"));
    }
    TensorType type;
    type.dtype = dtype;
    type.shape.assign(shape, shape + ndim);
    if (placement != nullptr) {
      type.placement = PlacementFromC(placement, count);
    } else {
      absl::Status s = self->ElementwisePlacement(type.placement);
      if (!s.ok()) return ToC(s);
    }
    self->ctx_.outputs.push_back(std::move(type));
    return nullptr;
  }

  absl::Status ElementwisePlacement(Placement& placement) {
    if (ctx_.inputs.empty() || ctx_.inputs[0] == nullptr) return absl::OkStatus();
    for (const Tensor* t : ctx_.inputs) {
      if (t == nullptr) continue;
      for (const AxisPlacement& item : t->placement()) {
        if (item.kind != CAPSTAN_PARTIAL) continue;
        return UsageError(
            ctx_.op, ": an operand is partial over ", item.axis,
            ", and the op does not say that it is linear; insert reduce_from_group over ",
            item.axis, " before it");
      }
    }
    placement = ctx_.inputs[0]->placement();
    return absl::OkStatus();
  }

  InferContext& ctx_;
  std::deque<TensorView> views_;
  std::vector<const capstan_tensor_desc*> descs_;
  AttrsView attrs_;
  capstan_infer c_{};
};

// Lends a VjpContext to a plugin's differentiation rule.
class LentVjp {
 public:
  explicit LentVjp(VjpContext& ctx, std::string segment)
      : ctx_(ctx), handle_(ctx.program()), segment_(std::move(segment)) {
    const Op& op = ctx.op();
    for (size_t j = 0; j < op.outputs.size(); ++j) cotangents_.push_back(ctx.cotangent(j));
    for (size_t i = 0; i < op.inputs.size(); ++i) needs_.push_back(ctx.needs(i));
    c_.struct_size = sizeof(c_);
    c_.program = handle_.get();
    c_.op = op.id;
    c_.position = {sizeof(capstan_position), segment_.c_str(), kNone, 0};
    c_.output_cotangents = cotangents_.data();
    c_.needs = needs_.data();
    c_.host = this;
    c_.gradient_of = [](capstan_vjp* c, size_t input) {
      return static_cast<LentVjp*>(c->host)->ctx_.gradient_of(input);
    };
    c_.set_cotangent = [](capstan_vjp* c, size_t input, capstan_tensor t) {
      return ToC(static_cast<LentVjp*>(c->host)->ctx_.SetCotangent(input, t));
    };
  }
  capstan_vjp* get() { return &c_; }

 private:
  VjpContext& ctx_;
  ProgramHandle handle_;
  std::string segment_;
  std::vector<capstan_tensor> cotangents_;
  std::vector<int32_t> needs_;
  capstan_vjp c_{};
};

}  // namespace

const capstan_program_service* ProgramService() { return &kService; }

ProgramHandle::ProgramHandle(Program& program) : handle_(std::make_unique<capstan_program>()) {
  handle_->program = &program;
}
ProgramHandle::~ProgramHandle() = default;

absl::Status RegisterPluginOp(OpRegistry& registry, const capstan_op_def* c) {
  constexpr size_t kMostOutputs = 64;  // bits of capstan_kernel_args.accumulate
  if (!CAPSTAN_HAS(c, kernels)) {
    return UsageError("an op of a plugin has a definition of ", c->struct_size,
                      " bytes; set struct_size to sizeof(capstan_op_def)");
  }
  OpDef def;
  def.kind = c->kind == nullptr ? "" : c->kind;
  if (def.kind.find('.') == std::string::npos) {
    return UsageError("op '", def.kind,
                      "' of a plugin needs a prefix of its own (org.example.name); "
                      "names without a dot are the catalogue's");
  }
  if (c->output_count > kMostOutputs || (c->output_count > 0 && c->output_effects == nullptr)) {
    return UsageError("op '", def.kind, "' of a plugin counts ", c->output_count,
                      " outputs; give the effect of each, at most ", kMostOutputs);
  }
  def.semantics_version = c->semantics_version;
  def.flags = c->flags;
  def.min_inputs = c->min_inputs;
  def.max_inputs = c->max_inputs;
  def.output_effects.assign(c->output_effects, c->output_effects + c->output_count);
  def.doc = c->doc == nullptr ? "" : c->doc;
  def.plugin = c;
  if (c->infer == nullptr)
    return UsageError("op '", def.kind, "' of a plugin has no infer function");
  def.infer = [c](InferContext& ctx) {
    LentInfer lent(ctx);
    return FromC(c->infer(lent.get()));
  };
  if (c->vjp != nullptr) {
    def.vjp = [c](VjpContext& ctx) {
      LentVjp lent(ctx, ctx.segment());
      return FromC(c->vjp(lent.get()));
    };
  }
  if (c->cost != nullptr) {
    def.cost = [c](const InferContext& ctx) {
      InferContext copy = ctx;
      LentInfer lent(copy);
      capstan_cost cost{sizeof(capstan_cost), 0, 0, 0};
      if (absl::Status s = FromC(c->cost(lent.get(), &cost)); !s.ok()) return OperandBytes(ctx);
      return OpCost{cost.flops, cost.bytes_read, cost.bytes_written};
    };
  }
  return registry.Add(std::move(def));
}

}  // namespace capstan
