// Kind "strategy": write a class, get a vtable.
//
//   class MyStrategy {
//    public:
//     MyStrategy(const sdk::Host&, const sdk::Options&);
//     std::span<const capstan_phase> phases() const noexcept;
//     void rewrite(std::string_view phase, sdk::Program& program);
//     // Optional, each with the default of the ABI when absent:
//     std::span<const capstan_axis_use> axes() const noexcept;
//     const char* const* conflicts() const noexcept;         // NULL-terminated
//     const char* const* needs() const noexcept;             // NULL-terminated
//     int32_t equivalence(double* tolerance) const noexcept;
//     sdk::Blob save();  void load(std::span<const std::byte> data, int32_t version);
//   };
#ifndef CAPSTAN_SDK_STRATEGY_H_
#define CAPSTAN_SDK_STRATEGY_H_

#include <cstddef>
#include <span>
#include <string_view>

#include "plugin_api/strategy.h"
#include "sdk/graph.h"
#include "sdk/plugin.h"

namespace capstan::sdk {

// Saved private state; `data` is the strategy's until its next call.
struct Blob {
  std::span<const std::byte> data;
  int32_t version = 0;
};

// A standard phase, or one of the strategy's own placed after and before others.
constexpr capstan_phase make_phase(const char* id, const char* after = nullptr,
                                   const char* before = nullptr) {
  auto out = sized<capstan_phase>();
  out.id = id;
  out.after = after;
  out.before = before;
  return out;
}

constexpr capstan_axis_use make_axis(const char* axis, int32_t role) {
  auto out = sized<capstan_axis_use>();
  out.axis = axis;
  out.role = role;
  return out;
}

namespace internal {

template <class T>
struct StrategyThunks {
  static const capstan_phase* phase(void* self, size_t index) noexcept {
    static_assert(noexcept(component<T>(self).phases()), "phases() must be noexcept");
    return element(component<T>(self).phases(), index);
  }
  static capstan_status* rewrite(void* self, const char* phase, capstan_program* raw) noexcept {
    return guard([&] {
      Program program = Instance<T>::of(self).host.program(raw);
      component<T>(self).rewrite(std::string_view(phase), program);
    });
  }
  static constexpr capstan_strategy_v1 vtable() {
    auto v = sized<capstan_strategy_v1>();
    v.create = &create_with_options<T>;
    v.destroy = &destroy<T>;
    v.phase = &phase;
    v.rewrite = &rewrite;
    if constexpr (requires(T & t) { t.axes(); }) {
      v.axis = [](void* self, size_t index) noexcept -> const capstan_axis_use* {
        static_assert(noexcept(component<T>(self).axes()), "axes() must be noexcept");
        return element(component<T>(self).axes(), index);
      };
    }
    if constexpr (requires(T & t) { t.conflicts(); }) {
      v.conflicts = [](void* self) noexcept { return component<T>(self).conflicts(); };
    }
    if constexpr (requires(T & t) { t.needs(); }) {
      v.needs = [](void* self) noexcept { return component<T>(self).needs(); };
    }
    if constexpr (requires(T & t, double* d) { t.equivalence(d); }) {
      v.equivalence = [](void* self, double* tolerance) noexcept -> int32_t {
        return component<T>(self).equivalence(tolerance);
      };
    }
    if constexpr (requires(T & t) { t.save(); }) {
      v.save = [](void* self, const void** data, size_t* size,
                  int32_t* version) noexcept -> capstan_status* {
        return guard([&] {
          const Blob blob = component<T>(self).save();
          *data = blob.data.data();
          *size = blob.data.size();
          *version = blob.version;
        });
      };
      v.load = [](void* self, const void* data, size_t size,
                  int32_t version) noexcept -> capstan_status* {
        return guard([&] {
          component<T>(self).load(std::span(static_cast<const std::byte*>(data), size), version);
        });
      };
    }
    return v;
  }
};
template <class T>
inline constexpr capstan_strategy_v1 kStrategyVtable = StrategyThunks<T>::vtable();

}  // namespace internal

template <class T>
constexpr capstan_component strategy_component(const char* id, const char* version, const char* doc,
                                               std::span<const capstan_option> options = {}) {
  return internal::make_component("strategy", CAPSTAN_STRATEGY_INTERFACE, id, version, doc, options,
                                  &internal::kStrategyVtable<T>);
}

}  // namespace capstan::sdk

#endif  // CAPSTAN_SDK_STRATEGY_H_
