#include "runtime/exec/communicator.h"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <numeric>

#include "absl/strings/str_join.h"
#include "runtime/status.h"
#include "sdk/comm.h"

namespace capstan {
namespace {

// The pieces of a request, alive while the backend copies them.
struct Request {
  capstan_comm_request c{};
  std::vector<capstan_comm_item> items;
  std::vector<std::vector<uint64_t>> counts;  // items point into them
  std::string label;
};

int64_t Product(const Dims& shape, size_t begin, size_t end) {
  return std::accumulate(shape.begin() + static_cast<ptrdiff_t>(begin),
                         shape.begin() + static_cast<ptrdiff_t>(end), int64_t{1},
                         std::multiplies<>());
}

capstan_comm_item Item(const void* send, void* recv, int64_t count) {
  return {sizeof(capstan_comm_item), send, recv, static_cast<uint64_t>(count), nullptr, nullptr};
}

// How dim `dim` of operand i is divided: attribute counts, or even.
std::vector<int64_t> Shares(const Op& op, size_t i, int64_t whole, int64_t ranks) {
  const Dims counts = op.attrs.Ints("counts");
  if (counts.empty()) return std::vector<int64_t>(static_cast<size_t>(ranks), whole / ranks);
  const auto first = counts.begin() + static_cast<ptrdiff_t>(i) * ranks;
  return {first, first + ranks};
}

// Gather and scatter along a dim: one item for every index of the dims before it.
void DivideItems(const Op& op, const Tensor& whole, size_t i, int64_t ranks, int64_t index,
                 char* full, char* part, bool gather, Request& request) {
  const auto dim = static_cast<size_t>(op.attrs.Int("dim", 0));
  const std::vector<int64_t> shares = Shares(op, i, whole.shape()[dim], ranks);
  const int64_t inner = Product(whole.shape(), dim + 1, whole.shape().size());
  const int64_t outer = Product(whole.shape(), 0, dim);
  const int64_t size = DTypeBytes(whole.dtype());
  std::vector<uint64_t> counts;
  for (const int64_t share : shares) counts.push_back(static_cast<uint64_t>(share * inner));
  request.counts.push_back(std::move(counts));
  const uint64_t* list = request.counts.back().data();
  const int64_t row = whole.shape()[dim] * inner, own = shares[static_cast<size_t>(index)] * inner;
  for (int64_t o = 0; o < outer; ++o) {
    char* const f = full + o * row * size;
    char* const p = part + o * own * size;
    capstan_comm_item item = gather ? Item(p, f, row) : Item(f, p, row);
    (gather ? item.recv_counts : item.send_counts) = list;
    request.items.push_back(item);
  }
}

// The op as every rank of the group knows it: ids of unnamed values differ between pipeline stages.
std::string LabelOf(const Program& program, const Op& op) {
  constexpr size_t kMost = 6;
  std::string label = op.kind();
  size_t named = 0;
  for (TensorId t : op.inputs) {
    const std::string& name = program.tensor(t).name;
    if (name.empty() || ++named > kMost) continue;
    StrAppend(&label, named == 1 ? " " : ", ", "@", name);
  }
  if (named > kMost) StrAppend(&label, " and ", named - kMost, " more");
  return label;
}

int32_t OperationOf(const std::string& kind) {
  if (kind == "all_gather") return CAPSTAN_COMM_ALL_GATHER;
  if (kind == "reduce_scatter") return CAPSTAN_COMM_REDUCE_SCATTER;
  if (kind == "broadcast_from") return CAPSTAN_COMM_BROADCAST;
  if (kind == "send" || kind == "send_grad") return CAPSTAN_COMM_SEND;
  if (kind == "recv" || kind == "recv_grad") return CAPSTAN_COMM_RECV;
  if (kind == "all_reduce" || kind == "reduce_from_group" || kind == "reduce_gradient")
    return CAPSTAN_COMM_ALL_REDUCE;
  return 0;
}

// -1: none of the interface's.
int32_t ReductionOf(const std::string& reduce) {
  if (reduce == "sum") return CAPSTAN_COMM_SUM;
  if (reduce == "max") return CAPSTAN_COMM_MAX;
  if (reduce == "average") return CAPSTAN_COMM_AVERAGE;
  return -1;
}

}  // namespace

bool IsCommunication(const Op& op) {
  return op.def->is(CAPSTAN_OP_COLLECTIVE) || OperationOf(op.kind()) != 0;
}

absl::Status CheckCommunicable(const Program& program, const Op& op) {
  if (OperationOf(op.kind()) == 0) {
    return UnsupportedError(program.OpText(op.id), ", segment ",
                            program.segments()[op.segment].name, ": the host cannot run ",
                            op.kind(), " yet; use a strategy that does without it");
  }
  const std::string reduce = op.attrs.String("reduce", "sum");
  if (ReductionOf(reduce) < 0) {
    return UnsupportedError(program.OpText(op.id), ", segment ",
                            program.segments()[op.segment].name, ": reduce = '", reduce,
                            "' is none of sum, max and average");
  }
  return absl::OkStatus();
}

uint64_t CommunicatedBytes(const Program& program, const Op& op) {
  const bool gathers = op.kind() == "all_gather" || op.inputs.empty();
  int64_t bytes = 0;
  for (TensorId t : gathers ? op.outputs : op.inputs) bytes += program.tensor(t).bytes();
  return static_cast<uint64_t>(bytes);
}

int32_t ChannelOf(const Op& op) {
  const bool cotangent = op.kind() == "send_grad" || op.kind() == "recv_grad";
  return static_cast<int32_t>(2 * op.attrs.Int("channel", 0) + (cotangent ? 1 : 0));
}

bool IsAlias(const Op& op) { return op.kind() == "copy_to_group" || op.kind() == "reinterpret"; }

CommOperation::~CommOperation() { owner_->vtable_->release(owner_->self_, handle_); }

capstan_status* CommOperation::Start(void* state, const capstan_kernel_args* args) {
  auto* operation = static_cast<CommOperation*>(state);
  const Communicator& owner = *operation->owner_;
  *operation->counted_ += operation->bytes_;
  void* const queue = owner.capabilities_.stream_order != 0 ? args->queue : nullptr;
  return owner.vtable_->start(owner.self_, operation->handle_, queue);
}

capstan_status* CommOperation::Wait(void* state, const capstan_kernel_args*) {
  auto* operation = static_cast<CommOperation*>(state);
  Communicator& owner = *operation->owner_;
  owner.awaited_.store(operation->group_, std::memory_order_relaxed);
  capstan_status* status = owner.vtable_->wait(owner.self_, operation->handle_, owner.timeout_s_);
  owner.awaited_.store(nullptr, std::memory_order_relaxed);
  return status;
}

absl::StatusOr<std::unique_ptr<Communicator>> Communicator::Create(const capstan_comm_v1* vtable,
                                                                   const capstan_host* host,
                                                                   const capstan_options* options,
                                                                   const Mesh* mesh, int64_t rank,
                                                                   double timeout_s) {
  int32_t score = 0;
  CAPSTAN_RETURN_IF_ERROR(FromC(vtable->probe(host, &score)));
  std::unique_ptr<Communicator> made(new Communicator());
  made->vtable_ = vtable;
  made->mesh_ = mesh;
  made->rank_ = rank;
  made->timeout_s_ = timeout_s;
  CAPSTAN_RETURN_IF_ERROR(FromC(vtable->create(host, options, &made->self_)));
  CAPSTAN_RETURN_IF_ERROR(made->ReadCapabilities());
  // All at once and in the mesh's order: making a group may wait for its members.
  for (const MeshAxis& axis : mesh->axes()) {
    if (axis.size > 1) CAPSTAN_RETURN_IF_ERROR(made->Group(axis.name).status());
  }
  return made;
}

absl::Status Communicator::ReadCapabilities() {
  capabilities_.struct_size = sizeof(capabilities_);
  CAPSTAN_RETURN_IF_ERROR(FromC(vtable_->capabilities(self_, &capabilities_)));
  const int32_t most = capabilities_.max_group;
  for (const MeshAxis& axis : mesh_->axes()) {
    if (most <= 0 || mesh_->Size(axis.name) <= most) continue;
    return UnsupportedError(
        "mesh axis ", axis.name, " has ", mesh_->Size(axis.name),
        " ranks, but this communication backend makes groups of at most ", most,
        "; divide the ranks over several axes, or choose another [comm] plugin");
  }
  return absl::OkStatus();
}

bool Communicator::Moves(DType dtype) const {
  const capstan_dtype* const all = capabilities_.dtypes;
  const size_t count = capabilities_.dtype_count;
  return count == 0 || std::any_of(all, all + count, [&](DType d) { return SameDType(d, dtype); });
}

absl::Status Communicator::RequireDType(DType dtype, const std::string& label) const {
  if (Moves(dtype)) return absl::OkStatus();
  const capstan_dtype* const all = capabilities_.dtypes;
  const size_t count = capabilities_.dtype_count;
  std::vector<std::string> names;
  for (size_t i = 0; i < count; ++i) names.push_back(DTypeName(all[i]));
  return UnsupportedError(label, ": this communication backend does not move ", DTypeName(dtype),
                          "; it has ", absl::StrJoin(names, ", "),
                          ": choose another [comm] plugin, or another precision");
}

Communicator::~Communicator() {
  if (watch_.joinable()) {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    stopped_.notify_all();
    watch_.join();
  }
  if (self_ == nullptr) return;
  for (const auto& [ranks, group] : groups_) vtable_->group_destroy(self_, group.handle);
  vtable_->destroy(self_);
}

void Communicator::Report(RankStatus* status) {
  if (status == nullptr || watch_.joinable()) return;
  status_ = status;
  sigset_t all, before;  // signals are the main thread's to take
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  watch_ = std::thread([this] { Watch(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

// The watching thread: asks the backend only when one wait spans two looks.
void Communicator::Watch() {
  const std::chrono::duration<double> between(std::clamp(timeout_s_ / 10, 0.05, 1.0));
  uint64_t before = 0;
  std::unique_lock lock(mutex_);
  while (!stopped_.wait_for(lock, between, [this] { return stop_; })) {
    lock.unlock();
    const uint64_t writes = status_->writes();
    void* const group = awaited_.load(std::memory_order_relaxed);
    if (group != nullptr && writes == before) {
      capstan_comm_progress progress{};
      progress.struct_size = sizeof(progress);
      progress.waiting_for = -1;
      const absl::Status polled = FromC(vtable_->poll(self_, group, &progress));
      if (polled.ok()) status_->SetAwaited(writes, progress.waiting_for);
    }
    before = writes;
    lock.lock();
  }
}

absl::Status Communicator::Register(void* memory, uint64_t bytes, int32_t fd, uint64_t offset) {
  return FromC(vtable_->memory_register(self_, memory, bytes, fd, offset));
}

void Communicator::Unregister(void* memory) {
  if (vtable_->memory_unregister != nullptr) vtable_->memory_unregister(self_, memory);
}

absl::StatusOr<Communicator::Joined*> Communicator::Group(const std::string& axis) {
  std::vector<int32_t> ranks = mesh_->Group({axis}, rank_);
  {
    const std::lock_guard lock(mutex_);
    const auto found = groups_.find(ranks);
    if (found != groups_.end()) return &found->second;
  }
  Joined joined;  // others may abort while this waits for its members
  CAPSTAN_RETURN_IF_ERROR(
      Annotate(FromC(vtable_->group_create(self_, ranks.data(), ranks.size(), 0, &joined.handle)),
               StrCat("making the group of axis ", axis)));
  const std::lock_guard lock(mutex_);
  if (!aborted_.empty()) vtable_->abort(self_, joined.handle, aborted_.c_str());
  return &groups_.emplace(std::move(ranks), joined).first->second;
}

absl::StatusOr<std::unique_ptr<CommOperation>> Communicator::Prepare(const Program& program,
                                                                     const Op& op,
                                                                     std::span<void* const> inputs,
                                                                     std::span<void* const> outputs,
                                                                     int microbatch) {
  const std::string axis = op.attrs.String("axis", "");
  const int64_t ranks = mesh_->Size(axis), index = mesh_->Index(axis, rank_);
  Request request;
  request.label = LabelOf(program, op);
  capstan_comm_request& c = request.c;
  c.struct_size = sizeof(c);
  c.operation = OperationOf(op.kind());
  CAPSTAN_RETURN_IF_ERROR(CheckCommunicable(program, op));
  c.reduce = ReductionOf(op.attrs.String("reduce", "sum"));
  c.root = static_cast<int32_t>(op.attrs.Int("root", 0));
  c.peer = static_cast<int32_t>(op.attrs.Int("peer", 0));
  c.channel = ChannelOf(op);
  c.tag = microbatch;
  const std::vector<TensorId>& tensors = op.inputs.empty() ? op.outputs : op.inputs;
  c.dtype = program.tensor(tensors.front()).dtype();
  CAPSTAN_RETURN_IF_ERROR(RequireDType(c.dtype, request.label));
  const size_t count = tensors.size();
  request.counts.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    char* in = op.inputs.empty() ? nullptr : static_cast<char*>(inputs[i]);
    char* out = op.outputs.empty() ? nullptr : static_cast<char*>(outputs[i]);
    if (c.operation == CAPSTAN_COMM_ALL_GATHER) {
      DivideItems(op, program.tensor(op.outputs[i]), i, ranks, index, out, in, true, request);
    } else if (c.operation == CAPSTAN_COMM_REDUCE_SCATTER) {
      DivideItems(op, program.tensor(op.inputs[i]), i, ranks, index, in, out, false, request);
    } else {
      request.items.push_back(Item(in, out, program.tensor(tensors[i]).elements()));
    }
  }
  c.item_count = request.items.size();
  c.items = request.items.data();
  c.label = request.label.c_str();
  CAPSTAN_ASSIGN_OR_RETURN(Joined * group, Group(axis));
  void* handle = nullptr;
  CAPSTAN_RETURN_IF_ERROR(
      Annotate(FromC(vtable_->prepare(self_, group->handle, &c, &handle)), request.label));
  return std::make_unique<CommOperation>(this, group->handle, handle,
                                         &group->planned[static_cast<size_t>(c.operation)],
                                         CommunicatedBytes(program, op));
}

absl::Status Communicator::AllGather(const std::string& axis, const std::string& label, DType dtype,
                                     const void* part, size_t count, void* all) {
  capstan_comm_request request{};
  request.operation = CAPSTAN_COMM_ALL_GATHER;
  request.dtype = dtype;
  request.label = label.c_str();
  const int64_t whole = static_cast<int64_t>(count) * AxisSize(axis);
  return Perform(axis, request, Item(part, all, whole),
                 static_cast<uint64_t>(whole * DTypeBytes(dtype)));
}

absl::Status Communicator::AllToAll(const std::string& axis, const std::string& label,
                                    const void* sent, const std::vector<uint64_t>& sends,
                                    void* received, const std::vector<uint64_t>& receives) {
  capstan_comm_request request{};
  request.operation = CAPSTAN_COMM_ALL_TO_ALL;
  request.dtype = kU8;
  request.label = label.c_str();
  const uint64_t bytes = std::accumulate(sends.begin(), sends.end(), uint64_t{0});
  capstan_comm_item item = Item(sent, received, static_cast<int64_t>(bytes));
  item.send_counts = sends.data();
  item.recv_counts = receives.data();
  return Perform(axis, request, item, bytes);
}

absl::Status Communicator::Perform(const std::string& axis, capstan_comm_request request,
                                   const capstan_comm_item& item, uint64_t bytes) {
  request.struct_size = sizeof(request);
  request.item_count = 1;
  request.items = &item;
  CAPSTAN_RETURN_IF_ERROR(RequireDType(request.dtype, request.label));
  CAPSTAN_ASSIGN_OR_RETURN(Joined * group, Group(axis));
  void* handle = nullptr;
  CAPSTAN_RETURN_IF_ERROR(
      Annotate(FromC(vtable_->prepare(self_, group->handle, &request, &handle)), request.label));
  CommOperation operation(this, group->handle, handle,
                          &group->planned[static_cast<size_t>(request.operation)], bytes);
  const capstan_kernel_args none{};
  CAPSTAN_RETURN_IF_ERROR(FromC(CommOperation::Start(&operation, &none)));
  return FromC(CommOperation::Wait(&operation, &none));
}

absl::Status Communicator::CheckVolumes() const {
  const std::lock_guard lock(mutex_);
  for (const auto& [ranks, group] : groups_) {
    capstan_comm_progress progress{};
    progress.struct_size = sizeof(progress);
    CAPSTAN_RETURN_IF_ERROR(FromC(vtable_->poll(self_, group.handle, &progress)));
    Volumes counted{};
    std::copy_n(progress.bytes, counted.size(), counted.begin());
    if (counted == Volumes{}) continue;  // the backend does not count
    for (size_t i = 0; i < counted.size(); ++i) {
      if (counted[i] == group.planned[i]) continue;
      return BugError("rank ", rank_, ", group of ranks ", absl::StrJoin(ranks, ", "), ": ",
                      group.planned[i], " bytes of ", sdk::operation_name(static_cast<int32_t>(i)),
                      " were planned, and the backend finished ", counted[i]);
    }
  }
  return absl::OkStatus();
}

void Communicator::Abort(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (aborted_.empty()) aborted_ = reason.empty() ? "aborted" : reason;
  for (const auto& [ranks, group] : groups_) vtable_->abort(self_, group.handle, reason.c_str());
}

}  // namespace capstan
