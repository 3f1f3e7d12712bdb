#include "runtime/exec/device.h"

#include <numeric>
#include <utility>

#include "runtime/program/c_types.h"
#include "runtime/status.h"

namespace capstan {

namespace {

// The slice that `shard` takes of its operand on this rank.
Attrs ShardAsSlice(const Program& program, const Op& op) {
  const MeshView& mesh = program.options().mesh;
  const std::string axis = op.attrs.String("axis", "");
  const Dims counts = op.attrs.Ints("counts");
  const int64_t index = op.attrs.Int("index", mesh.Index(axis)), dim = op.attrs.Int("dim", 0);
  const int64_t size = program.tensor(op.outputs[0]).shape()[dim];
  const int64_t start = counts.empty()
                            ? index * size
                            : std::accumulate(counts.begin(), counts.begin() + index, int64_t{0});
  return Attrs{{"dim", dim}, {"start", start}, {"size", size}};
}

}  // namespace

DeviceMemory::~DeviceMemory() {
  if (data_ != nullptr) device_->vtable_->free(device_->self_, data_);
}

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Kernel::~Kernel() {
  if (kernel_.release != nullptr) kernel_.release(kernel_.state);
}

Kernel& Kernel::operator=(Kernel&& other) noexcept {
  std::swap(kernel_, other.kernel_);
  return *this;
}

absl::StatusOr<std::unique_ptr<Device>> Device::Create(const capstan_device_v1* vtable,
                                                       const capstan_host* host,
                                                       const capstan_options* options,
                                                       std::string name) {
  int32_t score = 0;
  if (vtable->probe != nullptr) CAPSTAN_RETURN_IF_ERROR(vtable->probe(host, &score));
  std::unique_ptr<Device> device(new Device());
  device->name_ = std::move(name);
  void* self = nullptr;
  CAPSTAN_RETURN_IF_ERROR(vtable->create(host, options, &self));
  device->vtable_ = vtable;
  device->self_ = self;
  CAPSTAN_RETURN_IF_ERROR(vtable->queue_create(self, &device->queue_));
  return device;
}

Device::~Device() {
  if (vtable_ == nullptr) return;
  if (queue_ != nullptr) vtable_->queue_destroy(self_, queue_);
  vtable_->destroy(self_);
}

absl::StatusOr<DeviceMemory> Device::Allocate(const std::string& region, uint64_t bytes) {
  if (bytes == 0) return DeviceMemory();
  void* data = nullptr;
  CAPSTAN_RETURN_IF_ERROR(vtable_->allocate(self_, region.c_str(), bytes, &data));
  return DeviceMemory(this, data, bytes);
}

absl::StatusOr<Device::Shared> Device::AllocateShared(const std::string& region, uint64_t bytes) {
  Shared shared;
  const bool can = vtable_->export_memory != nullptr;
  const bool apart = CAPSTAN_HAS(vtable_, allocate_shared) && vtable_->allocate_shared != nullptr;
  if (bytes == 0 || !can || !apart) {
    CAPSTAN_ASSIGN_OR_RETURN(shared.memory, Allocate(region, bytes));
  } else {
    void* data = nullptr;
    CAPSTAN_RETURN_IF_ERROR(vtable_->allocate_shared(self_, region.c_str(), bytes, &data));
    shared.memory = DeviceMemory(this, data, bytes);
  }
  if (bytes == 0 || !can) return shared;
  CAPSTAN_RETURN_IF_ERROR(
      vtable_->export_memory(self_, shared.memory.data(), &shared.fd, &shared.offset));
  return shared;
}

absl::Status Device::Copy(void* to, const void* from, uint64_t bytes) {
  return FromC(vtable_->copy(self_, to, from, bytes));
}

absl::StatusOr<capstan_memory_info> Device::Memory() const {
  capstan_memory_info info{};
  info.struct_size = sizeof(info);
  CAPSTAN_RETURN_IF_ERROR(vtable_->memory(self_, &info));
  return info;
}

absl::StatusOr<capstan_roofline> Device::Measure(DType dtype) const {
  capstan_roofline roofline{};
  roofline.struct_size = sizeof(roofline);
  CAPSTAN_RETURN_IF_ERROR(vtable_->measure(self_, dtype, &roofline));
  return roofline;
}

std::vector<std::string> Device::Fusions() const {
  std::vector<std::string> fusions;
  if (vtable_->fusions == nullptr) return fusions;
  const char* const* list = vtable_->fusions(self_);
  for (; list != nullptr && *list != nullptr; ++list) fusions.emplace_back(*list);
  return fusions;
}

absl::Status Device::Wait() { return FromC(vtable_->queue_wait(self_, queue_)); }

absl::StatusOr<Kernel> Device::Prepare(const Program& program, OpId id,
                                       const std::vector<bool>& unwanted, uint64_t seed) {
  const Op& op = program.op(id);
  const capstan_device_id where = vtable_->id(self_);
  auto describe = [&](TensorId t, bool omit) {
    capstan_dl_tensor d{};
    d.device = where;
    d.ndim = -1;
    if (t == kNone || omit) return d;
    const Tensor& tensor = program.tensor(t);
    d.ndim = static_cast<int32_t>(tensor.shape().size());
    d.dtype = tensor.dtype();
    d.shape = const_cast<int64_t*>(tensor.shape().data());
    return d;
  };
  std::vector<capstan_dl_tensor> inputs, outputs;
  for (TensorId t : op.inputs) inputs.push_back(describe(t, false));
  for (size_t j = 0; j < op.outputs.size(); ++j)
    outputs.push_back(describe(op.outputs[j], unwanted[j]));
  // This rank's part of a tensor is a slice to the device, which knows nothing of ranks.
  const bool shard = op.kind() == "shard";
  const AttrsView attrs(shard ? ShardAsSlice(program, op) : op.attrs);
  capstan_kernel_request request{sizeof(capstan_kernel_request),
                                 shard ? "slice" : op.kind().c_str(),
                                 inputs.size(),
                                 inputs.data(),
                                 outputs.size(),
                                 outputs.data(),
                                 attrs.list.size(),
                                 attrs.list.data(),
                                 seed};
  capstan_kernel kernel{};
  kernel.struct_size = sizeof(kernel);
  if (op.def->plugin != nullptr && op.def->plugin->kernels != nullptr) {
    for (const capstan_kernel_def* const* k = op.def->plugin->kernels; *k != nullptr; ++k) {
      if (name_ != (*k)->device) continue;
      CAPSTAN_RETURN_IF_ERROR(FromC((*k)->prepare(&request, &kernel)));
      return Kernel(kernel);
    }
  }
  if (vtable_->supports(self_, &request) == 0) {
    std::string types;
    for (TensorId t : op.inputs) {
      if (t != kNone)
        StrAppend(&types, types.empty() ? "" : ", ", DTypeName(program.tensor(t).dtype()));
    }
    return UnsupportedError("device '", name_, "' has no kernel for op '", op.kind(), "' (", types,
                            ") as in ", program.OpText(id),
                            "; use another device or precision, or a plugin that brings one");
  }
  absl::Status prepared = FromC(vtable_->prepare(self_, &request, &kernel));
  if (!prepared.ok()) return Annotate(prepared, StrCat("preparing ", program.OpText(id)));
  return Kernel(kernel);
}

}  // namespace capstan
