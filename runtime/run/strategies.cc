// What strategies say of themselves: where their phases go, and whether they go together.
#include <algorithm>
#include <map>
#include <utility>

#include "runtime/run/compose.h"
#include "runtime/status.h"

namespace capstan {
namespace {

const std::vector<std::string>& StandardPhases() {
  static const std::vector<std::string> phases = {
      CAPSTAN_PHASE_ADAPT,    CAPSTAN_PHASE_PRECISION,     CAPSTAN_PHASE_EXPERT,
      CAPSTAN_PHASE_TENSOR,   CAPSTAN_PHASE_SEQUENCE,      CAPSTAN_PHASE_CONTEXT,
      CAPSTAN_PHASE_PIPELINE, CAPSTAN_PHASE_DIFFERENTIATE, CAPSTAN_PHASE_RECOMPUTE,
      CAPSTAN_PHASE_GRADIENT, CAPSTAN_PHASE_COMPRESS,      CAPSTAN_PHASE_FINISH,
      CAPSTAN_PHASE_UPDATE,   CAPSTAN_PHASE_PUBLISH,       CAPSTAN_PHASE_OFFLOAD,
      CAPSTAN_PHASE_FUSE,     CAPSTAN_PHASE_SCHEDULE};
  return phases;
}

using Strategy = Instance<capstan_strategy_v1>;

// A phase that a strategy adds to the standard ones.
struct OwnPhase {
  const Strategy* strategy;
  const capstan_phase* phase;
};

// Puts a phase where it says; false when what it names is not there (yet). Those with one anchor keep
// the order of the configuration.
bool Insert(const OwnPhase& own, std::vector<std::string>& order,
            std::map<std::string, std::string>& anchors) {
  const bool after = own.phase->after != nullptr;
  const char* anchor = after ? own.phase->after : own.phase->before;
  if (anchor == nullptr) return false;
  auto place = std::find(order.begin(), order.end(), anchor);
  if (place == order.end()) return false;
  if (after) {
    ++place;
    while (place != order.end() && anchors.contains(*place) && anchors[*place] == anchor) ++place;
    anchors[own.phase->id] = anchor;
  }
  order.insert(place, own.phase->id);
  return true;
}

// `id` as it stands in the configuration, with the plugin where that differs.
std::string NameOf(const Strategy& s) {
  return s.component.empty() || s.component == s.id
             ? StrCat("'", s.id, "'")
             : StrCat("'", s.id, "' (plugin \"", s.component, "\")");
}

bool Is(const Strategy& s, std::string_view component) {
  return s.component.empty() ? s.id == component : s.component == component;
}

const Strategy* Find(const Ingredients& in, std::string_view component) {
  const auto found = std::find_if(in.strategies.begin(), in.strategies.end(),
                                  [&](const Strategy& s) { return Is(s, component); });
  return found == in.strategies.end() ? nullptr : &*found;
}

absl::Status CheckNeighbours(const Ingredients& in, const Strategy& s) {
  const char* const* list = s.vtable->conflicts != nullptr ? s.vtable->conflicts(s.self) : nullptr;
  for (; list != nullptr && *list != nullptr; ++list) {
    if (const Strategy* other = Find(in, *list); other != nullptr && other != &s) {
      return UsageError("strategies ", NameOf(s), " and ", NameOf(*other),
                        " cannot be combined; remove one [[strategy]]");
    }
  }
  list = s.vtable->needs != nullptr ? s.vtable->needs(s.self) : nullptr;
  for (; list != nullptr && *list != nullptr; ++list) {
    if (Find(in, *list) == nullptr) {
      return UsageError("strategy ", NameOf(s), " needs strategy '", std::string(*list),
                        "'; add a [[strategy]] with plugin = \"", std::string(*list), "\"");
    }
  }
  return absl::OkStatus();
}

struct AxisUse {
  const Strategy* strategy;
  int32_t role;
};

const char* RoleText(int32_t role) {
  return role == CAPSTAN_AXIS_MODEL ? "cuts the model over it" : "shares the batch over it";
}

// An axis cuts the model for one strategy, or shares the batch, not both.
absl::Status CheckRoles(const std::string& axis, const std::vector<AxisUse>& uses) {
  for (size_t i = 0; i < uses.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const AxisUse &a = uses[j], &b = uses[i];
      if (a.strategy->component == b.strategy->component && !a.strategy->component.empty()) {
        return UsageError("strategies ", NameOf(*a.strategy), " and ", NameOf(*b.strategy),
                          " are the same over mesh.", axis, "; remove one [[strategy]]");
      }
      const bool model = a.role == CAPSTAN_AXIS_MODEL || b.role == CAPSTAN_AXIS_MODEL;
      const bool known = (a.role == CAPSTAN_AXIS_MODEL || a.role == CAPSTAN_AXIS_DATA) &&
                         (b.role == CAPSTAN_AXIS_MODEL || b.role == CAPSTAN_AXIS_DATA);
      if (!model || !known) continue;
      return UsageError("strategies ", NameOf(*a.strategy), " and ", NameOf(*b.strategy),
                        " both use mesh.", axis, ": the first ", RoleText(a.role), ", the second ",
                        RoleText(b.role), "; give each an axis of its own (option axis)");
    }
  }
  return absl::OkStatus();
}

// A plugin that cuts the model does so once.
absl::Status CheckCutters(const Ingredients& in) {
  std::map<std::string, const Strategy*> cutters;
  for (const Strategy& s : in.strategies) {
    for (const capstan_axis_use& use : AxisUses(s)) {
      if (use.role == CAPSTAN_AXIS_DATA || s.component.empty()) continue;
      const auto [first, fresh] = cutters.try_emplace(s.component, &s);
      if (fresh || first->second == &s) continue;
      return UsageError("strategies ", NameOf(*first->second), " and ", NameOf(s),
                        " are the same, which cuts the model once; remove one [[strategy]]");
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<capstan_axis_use> AxisUses(const Strategy& strategy) {
  std::vector<capstan_axis_use> uses;
  for (size_t i = 0; strategy.vtable->axis != nullptr; ++i) {
    const capstan_axis_use* use = strategy.vtable->axis(strategy.self, i);
    if (use == nullptr) break;
    uses.push_back(*use);
  }
  return uses;
}

absl::StatusOr<std::vector<std::string>> PhaseOrder(const Ingredients& in) {
  std::vector<std::string> order = StandardPhases();
  std::vector<OwnPhase> waiting;
  for (const Strategy& s : in.strategies) {
    for (size_t i = 0;; ++i) {
      const capstan_phase* phase = s.vtable->phase(s.self, i);
      if (phase == nullptr) break;
      const auto same = [&](const OwnPhase& own) {
        return std::string_view(own.phase->id) == phase->id;
      };
      if (std::find(order.begin(), order.end(), phase->id) != order.end()) continue;
      if (std::any_of(waiting.begin(), waiting.end(), same)) continue;
      waiting.push_back({&s, phase});
    }
  }
  // A phase may be placed by one of a strategy that comes later.
  std::map<std::string, std::string> anchors;
  while (!waiting.empty()) {
    const size_t before = waiting.size();
    std::erase_if(waiting, [&](const OwnPhase& own) { return Insert(own, order, anchors); });
    if (waiting.size() < before) continue;
    return UsageError("strategy ", NameOf(*waiting.front().strategy), " names phase '",
                      std::string(waiting.front().phase->id),
                      "', which is not a standard phase and is not placed after or before one");
  }
  return order;
}

absl::Status CheckStrategies(const Ingredients& in) {
  CAPSTAN_RETURN_IF_ERROR(CheckCutters(in));
  std::map<std::string, std::vector<AxisUse>> used;
  for (const Strategy& s : in.strategies) {
    CAPSTAN_RETURN_IF_ERROR(CheckNeighbours(in, s));
    for (const capstan_axis_use& use : AxisUses(s)) used[use.axis].push_back({&s, use.role});
  }
  for (const auto& [axis, size] : in.mesh.axes) {
    if (size <= 1) continue;
    const auto uses = used.find(axis);
    if (uses == used.end()) {
      return UsageError("mesh.", axis, " = ", size, ", but no strategy uses axis '", axis,
                        "'; add one or set it to 1");
    }
    CAPSTAN_RETURN_IF_ERROR(CheckRoles(axis, uses->second));
  }
  return absl::OkStatus();
}

}  // namespace capstan
