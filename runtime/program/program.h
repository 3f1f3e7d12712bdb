// A Program: everything one rank does in one step, as plain data.
//
// Edits keep it consistent: every op's output types come from its definition, uses are indexed, a
// removed tensor has no reader. Not thread-safe; one thread edits at a time.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/program/op_def.h"
#include "runtime/program/types.h"

namespace capstan {

// The mesh's axes and named groups as the type rules need them: sizes, and this rank's place.
struct MeshView {
  std::vector<std::pair<std::string, int64_t>> axes;
  std::vector<int64_t> indices;  // as axes; empty: 0 on all of them
  int64_t Size(std::string_view axis) const {
    for (const auto& [name, size] : axes) {
      if (name == axis) return size;
    }
    return 1;
  }
  int64_t Index(std::string_view axis) const {
    for (size_t i = 0; i < indices.size(); ++i) {
      if (axes[i].first == axis) return indices[i];
    }
    return 0;
  }
};

// Where new ops go.
struct InsertPoint {
  std::string segment;
  OpId before = kNone;  // kNone: at the end
};

struct NewOp {
  std::string kind;
  std::vector<TensorId> inputs;
  Attrs attrs = {};
  std::vector<TensorId> outputs = {};  // empty: all new; kNone entries: new
  int layer = -1;
  int role = CAPSTAN_ROLE_NONE;
  When when = {};
};

class Program {
 public:
  struct Options {
    std::string name = "train";
    int64_t microbatches = 1;
    int64_t micro_batch_size = 1;
    int64_t sequence_length = 1;
    MeshView mesh;
  };
  Program(const OpRegistry* registry, Options options);

  const Options& options() const { return options_; }
  const OpRegistry& registry() const { return *registry_; }

  // ---- tensors
  absl::StatusOr<TensorId> AddTensor(Tensor tensor);  // id is assigned; names must be unique
  TensorId tensor_limit() const { return static_cast<TensorId>(tensors_.size()); }
  bool TensorAlive(TensorId t) const;
  const Tensor& tensor(TensorId t) const { return tensors_[t]; }
  Tensor& mutable_tensor(TensorId t) { return tensors_[t]; }  // keep name and id; then Infer()
  TensorId FindTensor(std::string_view name) const;
  absl::Status RemoveTensor(TensorId t);                  // no readers or writers may be left
  absl::Status NameTensor(TensorId t, std::string name);  // an activation the host reads by name
  std::string TensorName(TensorId t) const;               // "@name" or "%id"

  // ---- ops
  absl::StatusOr<OpId> AddOp(const InsertPoint& at, NewOp op);
  OpId op_limit() const { return static_cast<OpId>(ops_.size()); }
  bool OpAlive(OpId o) const;
  const Op& op(OpId o) const { return ops_[o]; }
  absl::Status RemoveOp(OpId o);  // refused while an activation it makes is read
  absl::Status MoveOp(OpId o, const InsertPoint& to);
  absl::Status SetInput(OpId o, size_t index, TensorId t);
  absl::Status SetOutput(OpId o, size_t index, TensorId t);
  absl::Status SetAttr(OpId o, std::string name, AttrValue value);
  absl::Status SetWhen(OpId o, When when);
  absl::Status ReplaceUses(TensorId from, TensorId to, OpId except = kNone);

  // The op that first writes t, kNone for inputs and parameters.
  OpId Producer(TensorId t) const;
  // Ops that read t (or update it), in program order.
  std::vector<OpId> Users(TensorId t) const;
  bool IsRead(TensorId t) const {
    return TensorAlive(t) && !readers_[t].empty();
  }  // cheaper than Users
  // "linear(%7, @h.0.q.weight)"; of lists longer than `most` the first: "all_reduce(@a, @b and 9 more)".
  std::string OpText(OpId o, size_t most = 6) const;

  // ---- segments and schedule
  const std::vector<Segment>& segments() const { return segments_; }
  int FindSegment(std::string_view name) const;  // -1: none
  int AddSegment(std::string_view name);         // finds or appends
  const std::vector<ScheduleEntry>& schedule() const { return schedule_; }
  absl::Status SetSchedule(std::vector<ScheduleEntry> entries);
  // begin; for each microbatch every forward/c then backward/c (reverse) then backward_weight/c;
  // update.
  void SetDefaultSchedule();

  // ---- types
  // Infers one op as it stands: used by AddOp and Infer; fills `ctx` (with outputs) for cost rules.
  absl::Status InferOp(const Op& op, InferContext& ctx) const;
  // Re-infers every op in segment order and updates activation and gradient types.
  absl::Status Infer();
  // Re-infers one op from its inputs as they stand.
  absl::Status Infer(OpId o);
  absl::StatusOr<OpCost> Cost(OpId o) const;

 private:
  void Describe(const Op& op, InferContext& ctx) const;
  absl::Status ApplyTypes(Op& op, const InferContext& ctx, bool fresh);
  absl::Status CheckId(TensorId t, std::string_view what) const;
  absl::Status CheckGuard(const When& when) const;
  absl::Status Insert(OpId o, const InsertPoint& at);
  void Unlink(OpId o);
  void AddUse(TensorId t, OpId o);
  void DropUse(TensorId t, OpId o);

  const OpRegistry* registry_;
  Options options_;
  std::deque<Tensor> tensors_;  // deques: references survive additions
  std::vector<bool> tensor_alive_;
  std::vector<std::vector<OpId>> readers_;  // by tensor, unordered, an op once per use
  std::vector<std::vector<OpId>> writers_;  // by tensor, in order of addition
  std::deque<Op> ops_;
  std::vector<bool> op_alive_;
  absl::flat_hash_map<std::string, TensorId> by_name_;
  std::vector<Segment> segments_;
  absl::flat_hash_map<std::string, int> segment_index_;
  std::vector<ScheduleEntry> schedule_;
};

// The whole Program as readable text, one op a line, stable from run to run.
std::string DumpProgram(const Program& program);

}  // namespace capstan
