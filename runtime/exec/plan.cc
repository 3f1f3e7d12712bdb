#include "runtime/exec/plan.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "runtime/exec/communicator.h"
#include "runtime/exec/pack.h"
#include "runtime/status.h"

namespace capstan {
namespace {

int64_t Align(int64_t bytes) {
  return (bytes + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
}

// Microbatch inputs are filled for the whole step before it starts, so each has a copy a
// microbatch.
int64_t Copies(const Program& program, const Tensor& t) {
  const bool each = t.kind == CAPSTAN_INPUT && t.scope == CAPSTAN_SCOPE_MICROBATCH;
  return each ? program.options().microbatches : 1;
}

// Persistent tensors are shared by name; inputs are each Program's own, whose batches differ in shape.
std::pair<const Program*, std::string> Key(const Program& program, const Tensor& t) {
  return {t.kind == CAPSTAN_INPUT ? &program : nullptr, t.name};
}

bool InArena(const Tensor& t) { return t.kind == CAPSTAN_ACTIVATION; }

bool ReducesInPlace(const Op& op) {
  return op.kind() == "all_reduce" || op.kind() == "reduce_from_group" ||
         op.kind() == "reduce_gradient";
}

}  // namespace

const char* RegionOf(const Tensor& t) {
  switch (t.kind) {
    case CAPSTAN_PARAMETER:
      return kParameters;
    case CAPSTAN_GRADIENT:
      return kGradients;
    case CAPSTAN_STATE:
      return t.of != kNone ? kOptimizerState : kState;
    case CAPSTAN_INPUT:
      return kInputs;
    case CAPSTAN_CONSTANT:
      return kConstants;
    default:
      return kArena;
  }
}

std::vector<bool> UnwantedOutputs(const Program& program, OpId id) {
  const Op& op = program.op(id);
  std::vector<bool> unwanted(op.outputs.size(), false);
  for (size_t j = 0; j < op.outputs.size(); ++j) {
    const Tensor& t = program.tensor(op.outputs[j]);
    unwanted[j] = t.kind == CAPSTAN_ACTIVATION && t.name.empty() && !t.loss_root &&
                  !program.IsRead(t.id) && op.outputs.size() > 1;
  }
  return unwanted;
}

int64_t MemoryPlan::total_bytes() const {
  return std::accumulate(region_bytes_.begin(), region_bytes_.end(), int64_t{0},
                         [](int64_t sum, const auto& r) { return sum + r.second; });
}

absl::Status MemoryPlan::Add(const Program& program, Device* device, uint64_t seed) {
  PlannedProgram plan;
  CAPSTAN_RETURN_IF_ERROR(PlacePersistent(program));
  CAPSTAN_RETURN_IF_ERROR(Linearise(program, plan));
  CAPSTAN_RETURN_IF_ERROR(FindLifetimes(program, plan));
  ShareInPlace(program, plan, true);
  FindWaits(program, plan);
  ShareInPlace(program, plan, false);
  for (TensorId t = 0; t < static_cast<TensorId>(plan.instance_of.size()); ++t) {
    for (const int i : plan.instance_of[t]) {
      if (i < 0 || plan.instances[i].bytes > 0 || program.tensor(t).elements() == 0) continue;
      return BugError(program.TensorName(t), " has no place in the arena");
    }
  }
  if (device != nullptr) CAPSTAN_RETURN_IF_ERROR(AddWorkspace(program, device, seed, plan));
  Pack(program, plan);
  programs_[&program] = std::move(plan);
  return absl::OkStatus();
}

absl::Status MemoryPlan::PlacePersistent(const Program& program) {
  for (TensorId id = 0; id < program.tensor_limit(); ++id) {
    if (!program.TensorAlive(id)) continue;
    const Tensor& t = program.tensor(id);
    if (InArena(t) || t.view_of != kNone) continue;
    const int64_t bytes = Align(t.bytes()) * Copies(program, t);
    auto [it, fresh] = persistent_.try_emplace(Key(program, t));
    if (!fresh) {
      if (it->second.second == bytes) continue;
      return BugError("tensor '", t.name, "' has ", bytes, " bytes in program '",
                      program.options().name, "' and ", it->second.second,
                      " in another; shared tensors must agree");
    }
    int64_t& region = region_bytes_[RegionOf(t)];
    it->second = {Place{RegionOf(t), region}, bytes};
    region += bytes;
  }
  return absl::OkStatus();
}

// Expands the schedule to launches and settles, in that order, which writes overwrite and which
// add.
absl::Status MemoryPlan::Linearise(const Program& program, PlannedProgram& plan) {
  std::map<std::string, int> first_seen, last_seen;  // by segment, position in the schedule
  const std::vector<ScheduleEntry>& schedule = program.schedule();
  for (size_t i = 0; i < schedule.size(); ++i) {
    first_seen.try_emplace(schedule[i].segment, static_cast<int>(i));
    last_seen[schedule[i].segment] = static_cast<int>(i);
  }
  plan.alias.resize(program.tensor_limit());
  std::iota(plan.alias.begin(), plan.alias.end(), 0);
  for (const Segment& segment : program.segments()) {
    for (OpId id : segment.ops) {
      const Op& op = program.op(id);
      if (IsAlias(op)) {
        plan.alias[op.outputs[0]] = plan.alias[op.inputs[0]];
      } else if (IsCommunication(op)) {
        CAPSTAN_RETURN_IF_ERROR(CheckCommunicable(program, op));
      }
    }
  }
  std::vector<std::vector<bool>> written(program.tensor_limit());
  for (size_t i = 0; i < schedule.size(); ++i) {
    const ScheduleEntry& entry = schedule[i];
    const int segment = program.FindSegment(entry.segment);
    const bool first = first_seen[entry.segment] == static_cast<int>(i);
    const bool last = last_seen[entry.segment] == static_cast<int>(i);
    for (OpId id : program.segments()[segment].ops) {
      const Op& op = program.op(id);
      if (IsAlias(op)) continue;
      if (op.when.microbatch == CAPSTAN_FIRST_MICROBATCH && !first) continue;
      if (op.when.microbatch == CAPSTAN_LAST_MICROBATCH && !last) continue;
      PlannedLaunch launch{id, entry.microbatch, 0, {}};
      for (size_t j = 0; j < op.outputs.size(); ++j) {
        const Tensor& t = program.tensor(op.outputs[j]);
        if (op.def->effect(j) != CAPSTAN_ACCUMULATE) {
          // What is added after it is added to it.
          if (t.kind == CAPSTAN_GRADIENT) written[t.id].assign(1, true);
          continue;
        }
        const size_t slot = InArena(t) ? entry.microbatch + 1 : 0;
        std::vector<bool>& seen = written[t.id];
        if (seen.size() <= slot) seen.resize(slot + 1, false);
        if (seen[slot]) launch.accumulate |= uint64_t{1} << j;
        const bool conditional = op.when.guard != kNone || !op.when.EveryStep();
        if (!seen[slot] && conditional) {
          return UnsupportedError(
              program.OpText(id), " writes ", program.TensorName(t.id),
              " first, but runs only under a condition; make its first write unconditional");
        }
        seen[slot] = true;
      }
      plan.launches.push_back(launch);
    }
  }
  return absl::OkStatus();
}

absl::Status MemoryPlan::FindLifetimes(const Program& program, PlannedProgram& plan) {
  plan.instance_of.resize(program.tensor_limit());
  std::vector<std::vector<bool>> unwanted_of(program.op_limit());  // microbatches repeat ops
  auto slot = [&](TensorId t, int microbatch) -> int& {
    std::vector<int>& list = plan.instance_of[plan.alias[t]];
    if (list.size() <= static_cast<size_t>(microbatch + 1)) list.resize(microbatch + 2, -1);
    return list[microbatch + 1];
  };
  for (size_t i = 0; i < plan.launches.size(); ++i) {
    const PlannedLaunch& launch = plan.launches[i];
    const Op& op = program.op(launch.op);
    const std::string& segment = program.segments()[op.segment].name;
    const int now = static_cast<int>(i);
    std::vector<TensorId> reads = op.inputs;
    if (op.when.guard != kNone) reads.push_back(op.when.guard);
    for (TensorId t : reads) {
      if (t == kNone || !InArena(program.tensor(plan.alias[t]))) continue;
      int found = slot(t, launch.microbatch);
      if (found < 0) found = slot(t, -1);
      if (found < 0) {
        return BugError("segment ", segment, ", microbatch ", launch.microbatch, ": ",
                        program.OpText(op.id), " reads ", program.TensorName(t),
                        " before the schedule has run what makes it");
      }
      plan.instances[found].last = now;
    }
    if (unwanted_of[op.id].empty()) unwanted_of[op.id] = UnwantedOutputs(program, op.id);
    const std::vector<bool>& unwanted = unwanted_of[op.id];
    for (size_t j = 0; j < op.outputs.size(); ++j) {
      const Tensor& t = program.tensor(op.outputs[j]);
      if (!InArena(t) || unwanted[j]) continue;
      int& found = slot(t.id, launch.microbatch);
      if (found >= 0) {
        plan.instances[found].last = now;
        continue;
      }
      Instance instance;
      instance.bytes = Align(t.bytes());
      instance.first = instance.last = now;
      instance.microbatch = launch.microbatch;
      instance.communication = IsCommunication(op);
      instance.backward = segment.starts_with("backward");
      found = static_cast<int>(plan.instances.size());
      plan.instances.push_back(instance);
    }
  }
  for (TensorId t = 0; t < program.tensor_limit();
       ++t) {  // named values are the host's to read afterwards
    if (!program.TensorAlive(t) || program.tensor(t).name.empty() ||
        !InArena(program.tensor(plan.alias[t])))
      continue;
    for (int found : plan.instance_of[plan.alias[t]]) {
      if (found < 0) continue;
      plan.instances[found].last = static_cast<int>(plan.launches.size()) - 1;
      plan.instances[found].named = true;
    }
  }
  return absl::OkStatus();
}

// An element-wise op writes over its first operand where that dies, and so does a reduction over
// ranks: the two become one instance.
void MemoryPlan::ShareInPlace(const Program& program, PlannedProgram& plan, bool communication) {
  // Several tensors may be one instance already, so what it becomes part of is kept by instance.
  std::vector<int> part_of(plan.instances.size());
  std::iota(part_of.begin(), part_of.end(), 0);
  const auto whole = [&](int instance) {
    while (part_of[instance] != instance) instance = part_of[instance];
    return instance;
  };
  const auto find = [&](TensorId t, int microbatch) {
    const std::vector<int>& list = plan.instance_of[plan.alias[t]];
    const auto at = static_cast<size_t>(microbatch + 1);
    if (at < list.size() && list[at] >= 0) return whole(list[at]);
    return !list.empty() && list[0] >= 0 ? whole(list[0]) : -1;
  };
  for (size_t i = 0; i < plan.launches.size(); ++i) {
    const PlannedLaunch& launch = plan.launches[i];
    const Op& op = program.op(launch.op);
    if (op.inputs.empty() || op.inputs[0] == kNone) continue;
    const bool reduces = communication && ReducesInPlace(op);
    if (!reduces && (communication || !op.def->is(CAPSTAN_OP_ELEMENTWISE))) continue;
    for (size_t j = 0; j < (reduces ? op.outputs.size() : 1); ++j) {
      const Tensor& in = program.tensor(plan.alias[op.inputs[j]]);
      const Tensor& out = program.tensor(op.outputs[j]);
      if (!InArena(in) || !InArena(out) || !SameDType(in.dtype(), out.dtype())) continue;
      const int from = find(in.id, launch.microbatch), to = find(out.id, launch.microbatch);
      if (from < 0 || to < 0 || from == to) continue;
      Instance& source = plan.instances[from];
      Instance& result = plan.instances[to];
      const int now = static_cast<int>(i);
      if (source.named || source.last != now || result.first != now || source.bytes != result.bytes)
        continue;
      source.last = result.last;
      source.named = result.named;
      result.bytes = 0;
      part_of[to] = from;
    }
  }
  for (std::vector<int>& list : plan.instance_of) {
    for (int& instance : list) {
      if (instance >= 0) instance = whole(instance);
    }
  }
}

// Communication runs beside the launches after it, until one of them needs what it touches. Its
// operands stay where they are until then.
void MemoryPlan::FindWaits(const Program& program, PlannedProgram& plan) {
  // Memory by instance, or by (negative) persistent tensor; who is in flight over it.
  struct Pending {
    std::vector<int> writers, readers;
  };
  std::map<int, Pending> pending;
  std::map<std::tuple<std::string, int64_t, int64_t>, std::vector<int>> in_flight;  // sends
  std::vector<bool> waited(plan.launches.size(), false);
  auto memory = [&](TensorId t, int microbatch) {
    t = plan.alias[t];
    while (program.tensor(t).view_of != kNone) t = program.tensor(t).view_of;
    if (!InArena(program.tensor(t))) return -1 - t;
    const std::vector<int>& list = plan.instance_of[t];
    const auto at = static_cast<size_t>(microbatch + 1);
    if (at < list.size() && list[at] >= 0) return list[at];
    return list.empty() ? std::numeric_limits<int>::max() : list[0];  // nothing reads it
  };
  std::vector<std::vector<int>> touched(plan.launches.size());  // instances of communication
  auto extend = [&](int communication, int until) {
    for (int instance : touched[communication]) {
      if (instance < 0 || instance == std::numeric_limits<int>::max()) continue;
      plan.instances[instance].last = std::max(plan.instances[instance].last, until);
    }
  };
  for (size_t i = 0; i < plan.launches.size(); ++i) {
    PlannedLaunch& launch = plan.launches[i];
    const Op& op = program.op(launch.op);
    std::vector<int> reads, writes;
    for (TensorId t : op.inputs) {
      if (t != kNone) reads.push_back(memory(t, launch.microbatch));
    }
    if (op.when.guard != kNone) reads.push_back(memory(op.when.guard, launch.microbatch));
    for (TensorId t : op.outputs) writes.push_back(memory(t, launch.microbatch));
    auto wait = [&](std::vector<int>& list) {
      for (int communication : list) {
        if (waited[communication]) continue;
        waited[communication] = true;
        launch.waits.push_back(communication);
        extend(communication, static_cast<int>(i));
      }
      list.clear();
    };
    for (const std::vector<int>* list : {&reads, &writes}) {
      for (int m : *list) {
        const auto found = pending.find(m);
        if (found == pending.end()) continue;
        wait(found->second.writers);
        if (list == &writes) wait(found->second.readers);
      }
    }
    if (op.kind() == "send" || op.kind() == "send_grad") {
      // One message a channel in flight, so that its operand need not live for the whole step.
      std::vector<int>& before =
          in_flight[{op.attrs.String("axis", ""), op.attrs.Int("peer", 0), ChannelOf(op)}];
      wait(before);
      before.push_back(static_cast<int>(i));
    }
    std::sort(launch.waits.begin(), launch.waits.end());
    if (!IsCommunication(op)) continue;
    for (const std::vector<TensorId>* list : {&op.inputs, &op.outputs}) {
      for (TensorId t : *list) {
        communicates_.insert(RegionOf(program.tensor(plan.alias[t])));
      }
    }
    for (int m : reads) pending[m].readers.push_back(static_cast<int>(i));
    for (int m : writes) pending[m].writers.push_back(static_cast<int>(i));
    touched[i] = std::move(reads);
    touched[i].insert(touched[i].end(), writes.begin(), writes.end());
  }
  const int last = static_cast<int>(plan.launches.size()) - 1;
  for (size_t i = 0; i < plan.launches.size(); ++i) {
    if (waited[i] || !IsCommunication(program.op(plan.launches[i].op))) continue;
    plan.unfinished.push_back(static_cast<int>(i));
    extend(static_cast<int>(i), last);
  }
}

absl::Status MemoryPlan::AddWorkspace(const Program& program, Device* device, uint64_t seed,
                                      PlannedProgram& plan) {
  plan.kernels.resize(program.op_limit());
  std::vector<bool> ready(program.op_limit(), false);
  plan.workspace_of.assign(plan.launches.size(), -1);
  for (size_t i = 0; i < plan.launches.size(); ++i) {
    const OpId op = plan.launches[i].op;
    if (IsCommunication(program.op(op))) continue;
    if (!ready[op]) {
      CAPSTAN_ASSIGN_OR_RETURN(plan.kernels[op],
                               device->Prepare(program, op, UnwantedOutputs(program, op), seed));
      ready[op] = true;
    }
    const size_t bytes = plan.kernels[op].get().workspace_bytes;
    if (bytes == 0) continue;
    Instance instance;
    instance.bytes = Align(static_cast<int64_t>(bytes));
    instance.first = instance.last = static_cast<int>(i);
    instance.workspace = true;
    plan.workspace_of[i] = static_cast<int>(plan.instances.size());
    plan.instances.push_back(instance);
  }
  return absl::OkStatus();
}

void MemoryPlan::Pack(const Program& program, PlannedProgram& plan) {
  std::vector<Span> spans;
  spans.reserve(plan.instances.size());
  for (const Instance& i : plan.instances) spans.push_back({i.bytes, i.first, i.last});
  const std::vector<int64_t> offsets = PackSpans(spans, plan.launches.size());
  int64_t peak = 0;
  for (size_t i = 0; i < offsets.size(); ++i) {
    plan.instances[i].offset = offsets[i];
    peak = std::max(peak, offsets[i] + plan.instances[i].bytes);
  }
  int64_t& arena = region_bytes_[kArena];
  if (peak <= arena && arena > 0) return;
  arena = peak;
  // Which launch has most alive, and what that is.
  std::vector<int64_t> at(plan.launches.size() + 1, 0);
  for (const Instance& i : plan.instances) {
    at[i.first] += i.bytes;
    at[i.last + 1] -= i.bytes;
  }
  int64_t sum = 0, best = -1;
  int where = 0;
  for (size_t i = 0; i < plan.launches.size(); ++i) {
    sum += at[i];
    if (sum > best) best = sum, where = static_cast<int>(i);
  }
  peak_ = ArenaPeak{};
  for (const Instance& i : plan.instances) {
    if (i.first > where || i.last < where) continue;
    int64_t& use = i.workspace       ? peak_.workspace
                   : i.communication ? peak_.communication
                   : i.backward      ? peak_.gradients_of_activations
                                     : peak_.activations;
    use += i.bytes;
    if (&use == &peak_.activations && i.bytes > 0 && i.microbatch >= 0) {
      peak_.by_microbatch[i.microbatch] += i.bytes;
    }
  }
  peak_.padding = peak - std::max<int64_t>(best, 0);
  if (!plan.launches.empty()) {
    const PlannedLaunch& launch = plan.launches[where];
    peak_.at = StrCat(program.segments()[program.op(launch.op).segment].name, ".",
                      launch.microbatch, " ", program.OpText(launch.op));
  }
}

const std::vector<PlannedLaunch>& MemoryPlan::launches(const Program& program) const {
  return programs_.at(&program).launches;
}

const std::vector<int>& MemoryPlan::unfinished(const Program& program) const {
  return programs_.at(&program).unfinished;
}

std::vector<Kernel>& MemoryPlan::kernels(const Program& program) {
  return programs_.at(&program).kernels;
}

std::optional<MemoryPlan::Place> MemoryPlan::Find(const Program& program, TensorId id,
                                                  int microbatch) const {
  if (id == kNone) return std::nullopt;
  const PlannedProgram& plan = programs_.at(&program);
  id = plan.alias[id];
  const Tensor& t = program.tensor(id);
  if (InArena(t)) {
    const std::vector<int>& list = plan.instance_of[id];
    int found = -1;
    if (static_cast<size_t>(microbatch + 1) < list.size()) found = list[microbatch + 1];
    if (found < 0 && !list.empty()) found = list[0];
    if (found < 0) return std::nullopt;
    return Place{kArena, plan.instances[found].offset};
  }
  if (t.view_of != kNone) {
    std::optional<Place> base = Find(program, t.view_of, microbatch);
    if (base) base->offset += t.view_offset * DTypeBytes(t.dtype());
    return base;
  }
  Place place = persistent_.at(Key(program, t)).first;
  if (microbatch > 0 && Copies(program, t) > 1) place.offset += microbatch * Align(t.bytes());
  return place;
}

int64_t MemoryPlan::workspace_offset(const Program& program, size_t launch) const {
  const PlannedProgram& plan = programs_.at(&program);
  if (plan.workspace_of.empty() || plan.workspace_of[launch] < 0) return -1;
  return plan.instances[plan.workspace_of[launch]].offset;
}

}  // namespace capstan
