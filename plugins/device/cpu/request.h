// A capstan_kernel_request as adapters read it: owned shapes, checked operands, typed attributes.
#ifndef CAPSTAN_PLUGINS_DEVICE_CPU_REQUEST_H_
#define CAPSTAN_PLUGINS_DEVICE_CPU_REQUEST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "plugins/device/cpu/settings.h"
#include "sdk/device.h"

namespace capstan::cpu_device {

struct Operand {
  bool present = false;  // false: an omitted optional input, or an output that nothing reads
  capstan_dtype dtype{};
  std::vector<int64_t> shape;

  int rank() const { return static_cast<int>(shape.size()); }
  int64_t size() const;      // elements
  int64_t dim(int i) const;  // negative: from the last
  int64_t last() const { return dim(-1); }
  int64_t rows() const;  // elements of all dims but the last
  bool is(capstan_dtype wanted) const { return sdk::same_dtype(dtype, wanted); }
  size_t element_size() const { return dtype.bits / 8u; }
  int64_t bytes() const { return size() * static_cast<int64_t>(element_size()); }
};

// The element at a one-element operand of f32 or f64, as a launch reads it.
struct ScalarInput {
  size_t index;
  bool is_f64;
};

// A one-element f32 or f64 output; nothing reads it where index is negative.
struct ScalarOutput {
  int index;
  bool is_f64;
};

// Every getter throws a BUG error that prints the whole request when the host broke the op's
// contract: a kernel must not touch memory by shapes it did not check.
class Request {
 public:
  Request(const capstan_kernel_request& raw, const Settings& settings);

  const std::string& op() const { return op_; }
  const Settings& settings() const { return *settings_; }
  uint64_t seed() const { return seed_; }

  size_t input_count() const { return inputs_.size(); }
  bool has(size_t i) const { return i < inputs_.size() && inputs_[i].present; }
  bool wants(size_t i) const { return i < outputs_.size() && outputs_[i].present; }
  const Operand& in(size_t i) const;   // required
  const Operand& out(size_t i) const;  // required

  const sdk::Attrs& attrs() const { return attrs_; }
  int64_t get_int(const char* name, int64_t fallback) const {
    return attrs_.get_int(name, fallback);
  }
  double get_float(const char* name, double fallback) const {
    return attrs_.get_float(name, fallback);
  }
  bool get_flag(const char* name, bool fallback) const { return get_int(name, fallback) != 0; }
  // An attribute without a default.
  int64_t need_int(const char* name) const;
  double need_float(const char* name) const;
  // A dim attribute of an operand, from the last when negative.
  int dim(const char* name, const Operand& x, bool may_be_rank = false) const;

  // Input i of this dtype, and of this many elements unless negative.
  const Operand& in(size_t i, capstan_dtype dtype, int64_t size = -1) const;
  ScalarInput scalar(size_t i) const;
  ScalarOutput scalar_out(size_t i) const;

  // Wanted operands of exactly this many elements; outputs that nothing reads pass.
  void expect_in(size_t i, int64_t size) const;
  void expect_out(size_t i, int64_t size) const;
  void require(bool holds, const char* what) const;

  // UNSUPPORTED for the dtypes at hand.
  [[noreturn]] void refuse_dtypes() const;
  // "linear(f32[4,768], f32[50257,768], -) -> (f32[4,50257])"
  std::string describe() const;

 private:
  std::string op_;
  std::vector<Operand> inputs_, outputs_;
  sdk::Attrs attrs_;
  uint64_t seed_ = 0;
  const Settings* settings_;
};

}  // namespace capstan::cpu_device

#endif  // CAPSTAN_PLUGINS_DEVICE_CPU_REQUEST_H_
