#include "runtime/program/flow.h"

#include <map>

#include "runtime/status.h"

namespace capstan {
namespace {

class Flow {
 public:
  explicit Flow(const Program& program) : program_(program) {}

  absl::Status Run() {
    for (int turn = 0; turn < 3; ++turn) {  // as Program::Infer
      for (const Segment& segment : program_.segments()) {
        const int due = segment.name == "begin" ? 0 : segment.name == "update" ? 2 : 1;
        if (due != turn) continue;
        for (OpId o : segment.ops) CAPSTAN_RETURN_IF_ERROR(Visit(program_.op(o)));
      }
    }
    if (stale_.empty()) return absl::OkStatus();
    const auto& [whole, part] = *stale_.begin();
    return UsageError(Describe(whole, part), " at the end of the step",
                      stale_.size() == 1 ? "" : StrCat(" (and ", stale_.size() - 1, " more)"),
                      "; gather it, for example all_gather(", program_.TensorName(part.tensor),
                      ") into ", program_.TensorName(whole), " in phase publish");
  }

 private:
  struct Part {
    TensorId tensor;
    OpId writer;
  };

  static bool Kept(const Tensor& t) {
    return t.kind == CAPSTAN_PARAMETER || t.kind == CAPSTAN_STATE;
  }

  std::string Describe(TensorId whole, const Part& part) const {
    std::string axes;
    for (const AxisPlacement& item : program_.tensor(part.tensor).placement()) {
      if (item == PlacementOn(program_.tensor(whole).placement(), item.axis)) continue;
      StrAppend(&axes, axes.empty() ? "" : ", ", item.axis);
    }
    return StrCat(program_.TensorName(whole), " is out of date: ", program_.OpText(part.writer),
                  " wrote only ", program_.TensorName(part.tensor), ", this rank's part over ",
                  axes);
  }

  absl::Status Visit(const Op& op) {
    for (TensorId t : op.inputs) {
      const auto found = t == kNone ? stale_.end() : stale_.find(t);
      if (found == stale_.end()) continue;
      return UsageError(program_.OpText(op.id), ": ", Describe(t, found->second),
                        "; gather it before this op");
    }
    for (TensorId t : op.outputs) {
      const Tensor& out = program_.tensor(t);
      if (!Kept(out)) continue;
      stale_.erase(t);
      if (out.view_of == kNone) continue;
      const Tensor& base = program_.tensor(out.view_of);
      if (base.placement() != out.placement()) stale_[base.id] = {t, op.id};
    }
    return absl::OkStatus();
  }

  const Program& program_;
  std::map<TensorId, Part> stale_;
};

}  // namespace

absl::Status CheckFlow(const Program& program) { return Flow(program).Run(); }

}  // namespace capstan
