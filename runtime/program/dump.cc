#include <algorithm>
#include <charconv>

#include "absl/strings/str_join.h"
#include "runtime/program/program.h"
#include "runtime/strings.h"

namespace capstan {
namespace {

std::string FloatText(double v) {
  char buffer[40];
  auto [end, ec] = std::to_chars(buffer, buffer + sizeof(buffer), v);
  std::string text(buffer, ec == std::errc() ? end : buffer);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

std::string AttrText(const AttrValue& value) {
  if (const auto* i = std::get_if<int64_t>(&value)) return StrCat(*i);
  if (const auto* f = std::get_if<double>(&value)) return FloatText(*f);
  if (const auto* s = std::get_if<std::string>(&value)) return *s;
  return ShapeString(std::get<Dims>(value));
}

std::string TypeText(const Tensor& t) {
  return StrCat(DTypeName(t.dtype()), ShapeString(t.shape()));
}

// Placements over every mesh axis larger than one; "P->R" where a collective changes it.
std::string PlacementText(const Program& program, const Op& op) {
  std::vector<std::string> parts;
  for (const auto& [axis, size] : program.options().mesh.axes) {
    if (size <= 1 || op.outputs.empty()) continue;
    const AxisPlacement out = PlacementOn(program.tensor(op.outputs[0]).placement(), axis);
    std::string text = PlacementString(out);
    if (op.def->is(CAPSTAN_OP_COLLECTIVE) && !op.inputs.empty() && op.inputs[0] != kNone) {
      const AxisPlacement in = PlacementOn(program.tensor(op.inputs[0]).placement(), axis);
      if (!(in == out)) text = StrCat(PlacementString(in), "->", text);
    }
    parts.push_back(StrCat(axis, ":", text));
  }
  return parts.empty() ? "" : StrCat("  {", absl::StrJoin(parts, ", "), "}");
}

std::string WhenText(const Program& program, const When& when) {
  std::string text;
  if (when.microbatch == CAPSTAN_FIRST_MICROBATCH) text += "  when=first";
  if (when.microbatch == CAPSTAN_LAST_MICROBATCH) text += "  when=last";
  if (when.start != 0 || when.stop >= 0 || when.every != 1 || when.offset != 0) {
    StrAppend(&text, "  steps={start=", when.start, " stop=", when.stop, " every=", when.every,
              " offset=", when.offset, "}");
  }
  if (when.guard != kNone) StrAppend(&text, "  if=", program.TensorName(when.guard));
  return text;
}

std::string OutputText(const Program& program, const Op& op, size_t j) {
  const char* mark = "";
  if (op.def->effect(j) == CAPSTAN_UPDATE) mark = "!";
  const Tensor& t = program.tensor(op.outputs[j]);
  if (op.def->effect(j) == CAPSTAN_ACCUMULATE) mark = "+";
  return StrCat(mark, program.TensorName(op.outputs[j]), " : ", TypeText(t));
}

std::string OpLine(const Program& program, OpId o) {
  const Op& op = program.op(o);
  std::vector<std::string> outputs;
  for (size_t j = 0; j < op.outputs.size(); ++j) outputs.push_back(OutputText(program, op, j));
  std::string line = StrCat("  ", absl::StrJoin(outputs, ", "), outputs.empty() ? "" : " = ",
                            program.OpText(o, op.inputs.size()));
  for (const auto& [name, value] : op.attrs.items()) {
    StrAppend(&line, "  ", name, "=", AttrText(value));
  }
  if (op.layer >= 0) StrAppend(&line, "  layer=", op.layer);
  if (op.role == CAPSTAN_ROLE_WEIGHT_GRADIENT) line += "  weight_gradient";
  StrAppend(&line, WhenText(program, op.when), PlacementText(program, op));
  return line;
}

const char* KindText(int kind) {
  switch (kind) {
    case CAPSTAN_PARAMETER:
      return "parameter";
    case CAPSTAN_GRADIENT:
      return "gradient";
    case CAPSTAN_STATE:
      return "state";
    case CAPSTAN_INPUT:
      return "input";
    case CAPSTAN_CONSTANT:
      return "constant";
    default:
      return "activation";
  }
}

std::string TensorLine(const Program& program, const Tensor& t) {
  std::string line = StrCat("  @", t.name, " : ", TypeText(t), "  ", KindText(t.kind));
  if (t.kind == CAPSTAN_PARAMETER && !t.trainable) line += " frozen";
  if (t.kind == CAPSTAN_INPUT) {
    line += t.scope == CAPSTAN_SCOPE_MICROBATCH ? " per microbatch" : " per step";
  }
  if (t.global_shape != t.shape()) {
    StrAppend(&line, "  global=", ShapeString(t.global_shape),
              " start=", ShapeString(t.slice_start));
  }
  if (!t.dim_axes.empty()) StrAppend(&line, "  dims=[", absl::StrJoin(t.dim_axes, ","), "]");
  if (t.view_of != kNone) {
    StrAppend(&line, "  view=", program.TensorName(t.view_of), "+", t.view_offset);
  }
  if (!t.placement().empty()) StrAppend(&line, "  ", PlacementString(t.placement()));
  return line;
}

// "forward/0 x4" for runs would hide the order; entries are printed as they stand, many to a line.
std::string ScheduleText(const Program& program) {
  std::string text = "schedule:";
  std::string line = " ";
  for (const ScheduleEntry& e : program.schedule()) {
    std::string item = " " + e.segment;
    if (e.microbatch >= 0) StrAppend(&item, ".", e.microbatch);
    if (line.size() + item.size() > 100) {
      StrAppend(&text, "\n", line);
      line = " ";
    }
    line += item;
  }
  return StrCat(text, "\n", line, "\n");
}

}  // namespace

std::string DumpProgram(const Program& program) {
  const Program::Options& o = program.options();
  std::string text = StrCat("program ", o.name, "  microbatches=", o.microbatches,
                            " micro_batch=", o.micro_batch_size, " sequence=", o.sequence_length);
  for (const auto& [axis, size] : o.mesh.axes) {
    if (size > 1) StrAppend(&text, " ", axis, "=", size);
  }
  text += "\ntensors:\n";
  for (TensorId t = 0; t < program.tensor_limit(); ++t) {
    if (!program.TensorAlive(t) || program.tensor(t).kind == CAPSTAN_ACTIVATION) continue;
    StrAppend(&text, TensorLine(program, program.tensor(t)), "\n");
  }
  for (const Segment& segment : program.segments()) {
    if (segment.ops.empty()) continue;
    StrAppend(&text, segment.name, ":\n");
    for (OpId op : segment.ops) StrAppend(&text, OpLine(program, op), "\n");
  }
  if (!program.schedule().empty()) text += ScheduleText(program);
  return text;
}

}  // namespace capstan
