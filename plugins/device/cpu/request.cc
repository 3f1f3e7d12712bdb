#include "plugins/device/cpu/request.h"

#include <sstream>

namespace capstan::cpu_device {
namespace {

std::vector<Operand> operands(const capstan_dl_tensor* raw, size_t count) {
  std::vector<Operand> out(count);
  for (size_t i = 0; i < count; ++i) {
    if (raw[i].ndim < 0) continue;
    out[i].present = true;
    out[i].dtype = raw[i].dtype;
    out[i].shape.assign(raw[i].shape, raw[i].shape + raw[i].ndim);
  }
  return out;
}

void print(std::ostream& out, const std::vector<Operand>& operands) {
  out << '(';
  for (size_t i = 0; i < operands.size(); ++i) {
    if (i > 0) out << ", ";
    if (!operands[i].present) {
      out << '-';
      continue;
    }
    out << sdk::dtype_name(operands[i].dtype) << '[';
    for (size_t d = 0; d < operands[i].shape.size(); ++d) {
      out << (d > 0 ? "," : "") << operands[i].shape[d];
    }
    out << ']';
  }
  out << ')';
}

}  // namespace

int64_t Operand::size() const {
  int64_t n = 1;
  for (const int64_t extent : shape) n *= extent;
  return n;
}

int64_t Operand::dim(int i) const {
  const int at = i < 0 ? rank() + i : i;
  if (at < 0 || at >= rank()) {
    throw sdk::bug_error(sdk::text("a kernel asked for dim ", i, " of a tensor of rank ", rank()));
  }
  return shape[static_cast<size_t>(at)];
}

int64_t Operand::rows() const {
  int64_t n = 1;
  for (int d = 0; d + 1 < rank(); ++d) n *= shape[static_cast<size_t>(d)];
  return n;
}

Request::Request(const capstan_kernel_request& raw, const Settings& settings)
    : op_(raw.op),
      inputs_(operands(raw.inputs, raw.input_count)),
      outputs_(operands(raw.outputs, raw.output_count)),
      attrs_(raw.attrs, raw.attr_count),
      seed_(raw.seed),
      settings_(&settings) {}

const Operand& Request::in(size_t i) const {
  require(has(i), "a required input is missing");
  return inputs_[i];
}

const Operand& Request::out(size_t i) const {
  require(wants(i), "an output that this op cannot leave out is missing");
  return outputs_[i];
}

int64_t Request::need_int(const char* name) const {
  const sdk::Attr* attr = attrs_.find(name);
  require(attr != nullptr && attr->type == CAPSTAN_ATTR_INT, name);
  return attr->i;
}

double Request::need_float(const char* name) const {
  require(attrs_.has(name), name);
  return get_float(name, 0.0);
}

int Request::dim(const char* name, const Operand& x, bool may_be_rank) const {
  const int64_t value = need_int(name);
  const int64_t limit = x.rank() + (may_be_rank ? 1 : 0);
  const int64_t at = value < 0 ? limit + value : value;
  require(at >= 0 && at < limit, name);
  return static_cast<int>(at);
}

const Operand& Request::in(size_t i, capstan_dtype dtype, int64_t size) const {
  const Operand& x = in(i);
  if (!x.is(dtype)) refuse_dtypes();
  require(size < 0 || x.size() == size, "an input's shape does not fit the others'");
  return x;
}

ScalarInput Request::scalar(size_t i) const {
  const Operand& x = in(i);
  if (!x.is(sdk::kF32) && !x.is(sdk::kF64)) refuse_dtypes();
  require(x.size() == 1, "a scalar input must have one element");
  return {i, x.is(sdk::kF64)};
}

ScalarOutput Request::scalar_out(size_t i) const {
  if (!wants(i)) return {-1, false};
  const Operand& y = out(i);
  if (!y.is(sdk::kF32) && !y.is(sdk::kF64)) refuse_dtypes();
  require(y.size() == 1, "a scalar output must have one element");
  return {static_cast<int>(i), y.is(sdk::kF64)};
}

void Request::expect_in(size_t i, int64_t size) const {
  require(in(i).size() == size, "an input's shape does not fit the others'");
}

void Request::expect_out(size_t i, int64_t size) const {
  require(!wants(i) || outputs_[i].size() == size, "an output's shape does not fit the inputs'");
}

void Request::require(bool holds, const char* what) const {
  if (holds) return;
  throw sdk::bug_error(
      sdk::text("device cpu: malformed request for a kernel of ", describe(), ": ", what));
}

void Request::refuse_dtypes() const {
  throw sdk::unsupported_error(sdk::text("device cpu has no kernel for ", describe(),
                                         "; it computes in f32, and in f64 by plain loops"));
}

std::string Request::describe() const {
  std::ostringstream out;
  out << op_;
  print(out, inputs_);
  out << " -> ";
  print(out, outputs_);
  return out.str();
}

}  // namespace capstan::cpu_device
