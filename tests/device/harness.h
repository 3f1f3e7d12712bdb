// Runs single ops on a device through the ABI, on arrays of doubles.
//
//   test::CpuDevice device({.kernels = "reference"});
//   test::Call call{"linear", {test::f64({2, 3}, x), test::f64({4, 3}, w)}, {},
//                   {test::like({2, 4})}};
//   const std::vector<test::Array> y = device.run(call);
//
// Every operand lies in memory of its own with guard bytes behind it, outputs start as NaN or as
// the values given, and the workspace is exactly what the kernel asked for: a kernel that writes
// past its operands, or reads what it should not, is caught here. Failures of the device throw sdk::Error.
#ifndef CAPSTAN_TESTS_DEVICE_HARNESS_H_
#define CAPSTAN_TESTS_DEVICE_HARNESS_H_

#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cpu/convert.h"
#include "plugin_api/device.h"
#include "sdk/device.h"

namespace capstan::test {

using Shape = std::vector<int64_t>;

// A tensor whose elements, whatever their dtype, are held as doubles (exact up to 53 bits).
struct Array {
  capstan_dtype dtype = sdk::kF64;
  Shape shape;
  std::vector<double> values;  // outputs: the initial contents; empty: NaN (0 for integers)
  bool present = true;         // false: an omitted input, an output that nothing reads

  int64_t size() const {
    int64_t n = 1;
    for (const int64_t extent : shape) n *= extent;
    return n;
  }
};

inline Array array(capstan_dtype dtype, Shape shape, std::vector<double> values = {}) {
  return {dtype, std::move(shape), std::move(values), true};
}
inline Array f64(Shape shape, std::vector<double> values) {
  return array(sdk::kF64, std::move(shape), std::move(values));
}
inline Array f32(Shape shape, std::vector<double> values) {
  return array(sdk::kF32, std::move(shape), std::move(values));
}
inline Array i32(Shape shape, std::vector<double> values) {
  return array(sdk::kI32, std::move(shape), std::move(values));
}
inline Array i64(Shape shape, std::vector<double> values) {
  return array(sdk::kI64, std::move(shape), std::move(values));
}
// An output to be written.
inline Array like(Shape shape, capstan_dtype dtype = sdk::kF64) {
  return array(dtype, std::move(shape));
}
inline Array none() { return {sdk::kF64, {}, {}, false}; }

struct Call {
  std::string op;
  std::vector<Array> inputs;
  sdk::Attrs attrs;
  std::vector<Array> outputs;
  uint64_t accumulate = 0;  // bit i: add to output i
  uint64_t seed = 1;
  bool in_place = false;  // output 0 is the memory of input 0
};

namespace internal {

template <class T>
void store(const std::vector<double>& values, char* to) {
  for (size_t i = 0; i < values.size(); ++i) {
    const T element = cpu::convert<T>(values[i]);
    std::memcpy(to + i * sizeof(T), &element, sizeof(T));
  }
}

template <class T>
void load(const char* from, std::vector<double>& values) {
  for (size_t i = 0; i < values.size(); ++i) {
    T element;
    std::memcpy(&element, from + i * sizeof(T), sizeof(T));
    values[i] = cpu::convert<double>(element);
  }
}

// Calls visit(T{}) with the type of the elements.
template <class Visit>
void with_type(capstan_dtype d, Visit&& visit) {
  if (sdk::same_dtype(d, sdk::kF32)) return visit(float{});
  if (sdk::same_dtype(d, sdk::kF64)) return visit(double{});
  if (sdk::same_dtype(d, sdk::kBF16)) return visit(cpu::Bf16{});
  if (sdk::same_dtype(d, sdk::kF16)) return visit(cpu::F16{});
  if (sdk::same_dtype(d, sdk::kI32)) return visit(int32_t{});
  if (sdk::same_dtype(d, sdk::kI64)) return visit(int64_t{});
  if (sdk::same_dtype(d, sdk::kI8)) return visit(int8_t{});
  if (sdk::same_dtype(d, sdk::kBool)) return visit(cpu::Bool{});
  throw std::logic_error("the harness does not know dtype " + sdk::dtype_name(d));
}

// One operand's memory, 64-byte aligned, with guard bytes behind it.
class Memory {
 public:
  explicit Memory(size_t bytes) : bytes_(bytes) {
    const size_t whole = (bytes + kGuard + 63) / 64 * 64;
    data_.reset(static_cast<char*>(std::aligned_alloc(64, whole)));
    if (data_ == nullptr) throw std::bad_alloc();
    std::memset(data_.get(), kGuardByte, whole);
  }
  char* data() const { return data_.get(); }
  bool intact() const {
    const char* guard = data_.get() + bytes_;
    return std::all_of(guard, guard + kGuard, [](char c) { return c == kGuardByte; });
  }

 private:
  static constexpr size_t kGuard = 128;
  static constexpr char kGuardByte = 0x5a;
  struct Free {
    void operator()(char* p) const { std::free(p); }
  };
  size_t bytes_;
  std::unique_ptr<char, Free> data_;
};

inline Memory place(const Array& a) {
  Memory memory(static_cast<size_t>(a.size()) * (a.dtype.bits / 8u));
  std::vector<double> values = a.values;
  if (values.empty()) {
    values.assign(static_cast<size_t>(a.size()), std::numeric_limits<double>::quiet_NaN());
  }
  if (values.size() != static_cast<size_t>(a.size())) {
    throw std::logic_error("an array's values do not fill its shape");
  }
  with_type(a.dtype, [&]<class T>(T) { store<T>(values, memory.data()); });
  return memory;
}

inline capstan_dl_tensor describe(const Array& a) {
  capstan_dl_tensor out{};
  out.device = {CAPSTAN_DEVICE_CPU, 0};
  out.ndim = a.present ? static_cast<int32_t>(a.shape.size()) : -1;
  out.dtype = a.dtype;
  out.shape = const_cast<int64_t*>(a.shape.data());
  return out;
}

}  // namespace internal

// What a device under test is made with; fields as its options.
struct DeviceOptions {
  std::string kernels = "fast";
  int64_t threads = 2;
  bool huge_pages = true;
  bool bind = false;
  bool flush_subnormals = true;
  int64_t local_rank = 0;  // what the host's mesh service says
  int64_t local_ranks = 1;
};

// The plugin's device, loaded from the shared library as a host would.
class CpuDevice {
 public:
  explicit CpuDevice(DeviceOptions options = {}) : options_(std::move(options)) {
    const capstan_component& component = find();
    vtable_ = static_cast<const capstan_device_v1*>(component.vtable);
    host_.struct_size = sizeof(TestHost);
    host_.name = "test";
    host_.version = "0";
    host_.get_service = &service;
    host_.options = &options_;
    const std::vector<capstan_option_value> values = option_values();
    auto raw = sdk::sized<capstan_options>();
    raw.count = values.size();
    raw.values = values.data();
    sdk::check(vtable_->create(&host_, &raw, &self_));
    sdk::check(vtable_->queue_create(self_, &queue_));
  }
  ~CpuDevice() {
    if (queue_ != nullptr) vtable_->queue_destroy(self_, queue_);
    if (self_ != nullptr) vtable_->destroy(self_);
  }
  CpuDevice(const CpuDevice&) = delete;
  CpuDevice& operator=(const CpuDevice&) = delete;

  const capstan_device_v1& vtable() const { return *vtable_; }
  void* self() const { return self_; }
  const capstan_host* host() const { return &host_; }
  const capstan_component& component() const { return find(); }

  bool supports(const Call& call) const {
    const Request request(call);
    return vtable_->supports(self_, &request.raw) == 1;
  }

  // The outputs, in order; those that nothing reads come back as they were given.
  std::vector<Array> run(const Call& call) const {
    const Request request(call);
    auto kernel = sdk::sized<capstan_kernel>();
    sdk::check(vtable_->prepare(self_, &request.raw, &kernel));
    struct Release {
      capstan_kernel& kernel;
      ~Release() { kernel.release(kernel.state); }
    } release{kernel};
    return launch(call, kernel);
  }

  // The name of the kernel that would run.
  std::string kernel_name(const Call& call) const {
    const Request request(call);
    auto kernel = sdk::sized<capstan_kernel>();
    sdk::check(vtable_->prepare(self_, &request.raw, &kernel));
    const std::string name = kernel.name;
    kernel.release(kernel.state);
    return name;
  }

 private:
  struct TestHost : capstan_host {
    const DeviceOptions* options = nullptr;
  };

  struct Request {
    explicit Request(const Call& call) : attrs(call.attrs.raw()) {
      for (const Array& a : call.inputs) inputs.push_back(internal::describe(a));
      for (const Array& a : call.outputs) outputs.push_back(internal::describe(a));
      raw = sdk::sized<capstan_kernel_request>();
      raw.op = call.op.c_str();
      raw.input_count = inputs.size();
      raw.inputs = inputs.data();
      raw.output_count = outputs.size();
      raw.outputs = outputs.data();
      raw.attr_count = attrs.size();
      raw.attrs = attrs.data();
      raw.seed = call.seed;
    }
    std::vector<capstan_dl_tensor> inputs, outputs;
    std::vector<capstan_attr> attrs;
    capstan_kernel_request raw;
  };

  std::vector<Array> launch(const Call& call, const capstan_kernel& kernel) const {
    std::vector<internal::Memory> memory;
    std::vector<void*> inputs, outputs;
    for (const Array& a : call.inputs) {
      memory.push_back(internal::place(a));
      inputs.push_back(a.present ? memory.back().data() : nullptr);
    }
    for (const Array& a : call.outputs) {
      memory.push_back(internal::place(a));
      outputs.push_back(a.present ? memory.back().data() : nullptr);
    }
    if (call.in_place) outputs.at(0) = inputs.at(0);
    const internal::Memory workspace(kernel.workspace_bytes);

    auto args = sdk::sized<capstan_kernel_args>();
    args.inputs = inputs.data();
    args.outputs = outputs.data();
    args.workspace = workspace.data();
    args.queue = queue_;
    args.accumulate = call.accumulate;
    sdk::check(kernel.run(kernel.state, &args));

    for (const internal::Memory& m : memory) {
      if (!m.intact()) throw std::runtime_error(call.op + " wrote past the end of an operand");
    }
    if (!workspace.intact()) throw std::runtime_error(call.op + " wrote past its workspace");
    std::vector<Array> results = call.outputs;
    for (size_t i = 0; i < results.size(); ++i) {
      if (!results[i].present) continue;
      results[i].values.resize(static_cast<size_t>(results[i].size()));
      internal::with_type(results[i].dtype, [&]<class T>(T) {
        internal::load<T>(static_cast<const char*>(outputs[i]), results[i].values);
      });
    }
    return results;
  }

  // The library stays loaded, as in a host.
  static const capstan_component& find() {
    static const capstan_plugin* const plugin = [] {
      void* library = dlopen(CAPSTAN_TEST_CPU_PLUGIN, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
      if (library == nullptr) throw std::runtime_error(dlerror());
      return static_cast<const capstan_plugin*>(dlsym(library, CAPSTAN_PLUGIN_SYMBOL));
    }();
    if (plugin == nullptr || plugin->magic != CAPSTAN_PLUGIN_MAGIC) {
      throw std::runtime_error("the library is no Capstan plugin");
    }
    return *plugin->get_component(0);
  }

  std::vector<capstan_option_value> option_values() const {
    const auto value = [](const char* key, int32_t type, int64_t i, const char* s) {
      auto out = sdk::sized<capstan_option_value>();
      out.key = key;
      out.type = type;
      out.i = i;
      out.f = static_cast<double>(i);
      out.s = s;
      return out;
    };
    return {value("threads", CAPSTAN_OPTION_INT, options_.threads, nullptr),
            value("kernels", CAPSTAN_OPTION_STRING, 0, options_.kernels.c_str()),
            value("huge_pages", CAPSTAN_OPTION_BOOL, options_.huge_pages, nullptr),
            value("bind", CAPSTAN_OPTION_BOOL, options_.bind, nullptr),
            value("flush_subnormals", CAPSTAN_OPTION_BOOL, options_.flush_subnormals, nullptr)};
  }

  static const void* service(const capstan_host*, const char* id) {
    static const capstan_mesh_service mesh = {
        sizeof(capstan_mesh_service),
        [](const capstan_host*) -> int64_t { return 0; },
        [](const capstan_host*) -> int64_t { return 1; },
        [](const capstan_host*, const char*) -> int64_t { return 1; },
        [](const capstan_host*, const char*) -> int64_t { return 0; },
        [](const capstan_host* h) { return static_cast<const TestHost*>(h)->options->local_rank; },
        [](const capstan_host* h) { return static_cast<const TestHost*>(h)->options->local_ranks; },
    };
    return std::strcmp(id, CAPSTAN_MESH_SERVICE) == 0 ? &mesh : nullptr;
  }

  DeviceOptions options_;
  TestHost host_{};
  const capstan_device_v1* vtable_ = nullptr;
  void* self_ = nullptr;
  void* queue_ = nullptr;
};

}  // namespace capstan::test

#endif  // CAPSTAN_TESTS_DEVICE_HARNESS_H_
