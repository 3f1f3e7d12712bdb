// From an adapter's lambda to a prepared kernel.
//
//   void prepare_relu(const Request& r, capstan_kernel* out) {
//     const int64_t n = r.in(0).size();
//     emit(r, out, "relu", [n](const Launch& l) { relu(n, l.in<float>(0), l.out<float>(0)); });
//   }
//
// What the lambda captures is the kernel's state: all shapes and attributes are read once, before.
#ifndef CAPSTAN_PLUGINS_DEVICE_CPU_KERNEL_H_
#define CAPSTAN_PLUGINS_DEVICE_CPU_KERNEL_H_

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "plugins/device/cpu/launch_scope.h"
#include "plugins/device/cpu/request.h"
#include "sdk/device.h"

namespace capstan::cpu_device {

// A part of the workspace: taken at prepare, its address asked for at run.
template <class T>
struct Slot {
  size_t offset = 0;
};

// Lays the workspace of one kernel out, every slot 64-byte aligned.
class Workspace {
 public:
  template <class T>
  Slot<T> take(int64_t count) {
    return {raw(static_cast<size_t>(count) * sizeof(T))};
  }
  Slot<char> take_bytes(size_t bytes) { return {raw(bytes)}; }
  size_t bytes() const { return bytes_; }

 private:
  size_t raw(size_t bytes) {
    const size_t offset = bytes_;
    bytes_ += (bytes + 63) / 64 * 64;
    return offset;
  }
  size_t bytes_ = 0;
};

// The arguments of one launch.
class Launch {
 public:
  explicit Launch(const capstan_kernel_args& args) : args_(&args) {}

  template <class T = float>
  const T* in(size_t i) const {
    return static_cast<const T*>(args_->inputs[i]);
  }
  template <class T = float>
  T* out(size_t i) const {
    return static_cast<T*>(args_->outputs[i]);
  }
  bool accumulates(size_t i) const { return (args_->accumulate >> i & 1) != 0; }
  double read(ScalarInput s) const {
    return s.is_f64 ? *in<double>(s.index) : static_cast<double>(*in<float>(s.index));
  }
  void write(ScalarOutput s, double value) const {
    if (s.index < 0) return;
    const size_t i = static_cast<size_t>(s.index);
    if (s.is_f64) {
      *out<double>(i) = value;
    } else {
      *out<float>(i) = static_cast<float>(value);
    }
  }
  template <class T>
  T* at(Slot<T> slot) const {
    return reinterpret_cast<T*>(static_cast<char*>(args_->workspace) + slot.offset);
  }
  // Output i, or the slot when nothing reads it and the kernel insists on writing it.
  template <class T>
  T* out_or(size_t i, Slot<T> slot) const {
    return args_->outputs[i] != nullptr ? out<T>(i) : at(slot);
  }

 private:
  const capstan_kernel_args* args_;
};

namespace internal {

template <class F>
struct BoundKernel {
  Settings settings;
  const char* name;
  size_t workspace;
  uint64_t accumulable;  // bit i: output i may be added to
  mutable F body;

  size_t workspace_bytes() const noexcept { return workspace; }
  void run(const capstan_kernel_args& args) const {
    if ((args.accumulate & ~accumulable) != 0) {
      throw sdk::bug_error(sdk::text("device cpu: kernel ", name,
                                     " was asked to add to an output that it only overwrites"));
    }
    const LaunchScope scope(settings);
    try {
      body(Launch(args));
    } catch (const std::runtime_error& error) {  // a library's, for want of memory
      throw sdk::resource_error(sdk::text("device cpu: kernel ", name, ": ", error.what()));
    }
  }
};

}  // namespace internal

// Hands the kernel to the host. `name` is a literal. `accumulable`: outputs that the body can add
// to.
template <class F>
void emit(const Request& r, capstan_kernel* out, const char* name, F body, uint64_t accumulable = 0,
          size_t workspace = 0) {
  sdk::make_kernel(
      internal::BoundKernel<F>{r.settings(), name, workspace, accumulable, std::move(body)}, name,
      out);
}

// Bits of outputs for `accumulable`.
constexpr uint64_t outputs(std::initializer_list<int> indices) {
  uint64_t bits = 0;
  for (const int i : indices) bits |= uint64_t{1} << i;
  return bits;
}

// Picks between a fast kernel (f32) and plain loops: fast(), or plain(T{}) with T float or double.
template <class Fast, class Plain>
void by_dtype(const Request& r, const Operand& x, Fast&& fast, Plain&& plain) {
  if (x.is(sdk::kF64)) return plain(double{});
  if (!x.is(sdk::kF32)) r.refuse_dtypes();
  return r.settings().reference ? plain(float{}) : fast();
}

// One flag for outputs of one kernel call that may begin differently: whether to add to them all.
// Outputs that begin afresh while another adds are cleared first. Null outputs take no part.
template <class T>
struct GradientOutput {
  size_t index;
  T* data;
  int64_t size;
};
template <class T>
bool accumulate_jointly(const Launch& l, std::initializer_list<GradientOutput<T>> gradients) {
  bool any = false;
  for (const auto& g : gradients) any |= g.data != nullptr && l.accumulates(g.index);
  if (!any) return false;
  for (const auto& g : gradients) {
    if (g.data != nullptr && !l.accumulates(g.index)) std::fill_n(g.data, g.size, T(0));
  }
  return true;
}

// The dtype of T.
template <class T>
constexpr capstan_dtype dtype_of();
template <>
constexpr capstan_dtype dtype_of<float>() {
  return sdk::kF32;
}
template <>
constexpr capstan_dtype dtype_of<double>() {
  return sdk::kF64;
}

// One op of the catalogue. `prepare` throws UNSUPPORTED for dtypes it has no kernel for.
struct Adapter {
  const char* op;
  void (*prepare)(const Request& request, capstan_kernel* out);
};

// By section of the catalogue (plugin_api/ops.h).
std::span<const Adapter> dense_adapters();
std::span<const Adapter> norm_adapters();
std::span<const Adapter> activation_adapters();
std::span<const Adapter> attention_adapters();
std::span<const Adapter> loss_adapters();
std::span<const Adapter> arithmetic_adapters();
std::span<const Adapter> layout_adapters();
std::span<const Adapter> random_adapters();
std::span<const Adapter> update_adapters();

// nullptr: no such op.
const Adapter* find_adapter(std::string_view op);

}  // namespace capstan::cpu_device

#endif  // CAPSTAN_PLUGINS_DEVICE_CPU_KERNEL_H_
