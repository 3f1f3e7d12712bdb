// Kind "optimizer": write a class, get a vtable.
//
//   class MyOptimizer {
//    public:
//     MyOptimizer(const sdk::Host&, const sdk::Options&);
//     int32_t granularity() const noexcept;          // CAPSTAN_GRANULARITY_*
//     std::span<const capstan_optimizer_state> states(const capstan_tensor_desc&) const noexcept;
//     void emit(sdk::Graph& g, const sdk::Update& update);   // g already carries the guard
//   };
#ifndef CAPSTAN_SDK_OPTIMIZER_H_
#define CAPSTAN_SDK_OPTIMIZER_H_

#include <vector>

#include "plugin_api/optimizer.h"
#include "sdk/graph.h"
#include "sdk/model.h"
#include "sdk/plugin.h"

namespace capstan::sdk {

// What one update is given; see capstan_update.
struct Update {
  Tensor parameter, gradient;
  std::vector<Tensor> states;  // in the order of states()
  Tensor learning_rate, step, gradient_scale, guard;
  double weight_decay = 0;
};

constexpr capstan_optimizer_state make_state(const char* role, capstan_dtype dtype,
                                             double initial = 0, bool scalar = false) {
  auto out = sized<capstan_optimizer_state>();
  out.role = role;
  out.dtype = dtype;
  out.initial = initial;
  out.scalar = scalar ? 1 : 0;
  return out;
}

namespace internal {

template <class T>
struct OptimizerThunks {
  static int32_t granularity(void* self) noexcept {
    static_assert(noexcept(component<T>(self).granularity()), "granularity() must be noexcept");
    return component<T>(self).granularity();
  }
  static const capstan_optimizer_state* state(void* self, const capstan_tensor_desc* parameter,
                                              size_t index) noexcept {
    static_assert(noexcept(component<T>(self).states(*parameter)), "states() must be noexcept");
    return element(component<T>(self).states(*parameter), index);
  }
  static capstan_status* emit(void* self, const capstan_update* raw) noexcept {
    return guard([&] {
      Update update;
      update.parameter = {raw->parameter};
      update.gradient = {raw->gradient};
      for (size_t i = 0; i < raw->state_count; ++i) update.states.push_back({raw->states[i]});
      update.learning_rate = {raw->learning_rate};
      update.step = {raw->step};
      update.gradient_scale = {raw->gradient_scale};
      update.guard = {raw->guard};
      update.weight_decay = raw->weight_decay;
      Graph graph(Instance<T>::of(self).host.program(raw->program), position_of(raw->position));
      if (update.guard) {
        capstan_when when = always();
        when.guard = update.guard.id;
        graph.set_when(when);
      }
      component<T>(self).emit(graph, update);
    });
  }
  static constexpr capstan_optimizer_v1 vtable() {
    auto v = sized<capstan_optimizer_v1>();
    v.create = &create_with_options<T>;
    v.destroy = &destroy<T>;
    v.granularity = &granularity;
    v.state = &state;
    v.emit = &emit;
    return v;
  }
};
template <class T>
inline constexpr capstan_optimizer_v1 kOptimizerVtable = OptimizerThunks<T>::vtable();

}  // namespace internal

template <class T>
constexpr capstan_component optimizer_component(const char* id, const char* version,
                                                const char* doc,
                                                std::span<const capstan_option> options = {}) {
  return internal::make_component("optimizer", CAPSTAN_OPTIMIZER_INTERFACE, id, version, doc,
                                  options, &internal::kOptimizerVtable<T>);
}

}  // namespace capstan::sdk

#endif  // CAPSTAN_SDK_OPTIMIZER_H_
