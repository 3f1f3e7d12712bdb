// Kind "objective": write a class, get a vtable.
//
//   class MyObjective {
//    public:
//     MyObjective(const sdk::Host&, const sdk::Options&);
//     std::span<const capstan_field> fields() const noexcept;
//     const char* unit() const noexcept;
//     double weight(std::span<const void* const> fields, int64_t sequence_length) const noexcept;
//     sdk::Tensor emit(sdk::Graph& g, const sdk::Loss& loss);
//   };
#ifndef CAPSTAN_SDK_OBJECTIVE_H_
#define CAPSTAN_SDK_OBJECTIVE_H_

#include <vector>

#include "plugin_api/objective.h"
#include "sdk/graph.h"
#include "sdk/model.h"
#include "sdk/plugin.h"

namespace capstan::sdk {

// What the loss is made of; see capstan_loss.
struct Loss {
  Emitted model;
  std::vector<Tensor> fields;  // in the order of fields()
  Tensor count;                // f32[1]
  bool training = false;
};

constexpr capstan_field make_field(const char* name, capstan_dtype dtype, bool per_position) {
  auto out = sized<capstan_field>();
  out.name = name;
  out.dtype = dtype;
  out.per_position = per_position ? 1 : 0;
  return out;
}

namespace internal {

template <class T>
struct ObjectiveThunks {
  static const capstan_field* field(void* self, size_t index) noexcept {
    static_assert(noexcept(component<T>(self).fields()), "fields() must be noexcept");
    return element(component<T>(self).fields(), index);
  }
  static const char* unit(void* self) noexcept {
    static_assert(noexcept(component<T>(self).unit()), "unit() must be noexcept");
    return component<T>(self).unit();
  }
  static double weight(void* self, const void* const* fields, int64_t sequence_length) noexcept {
    T& object = component<T>(self);
    const std::span<const void* const> all(fields, object.fields().size());
    static_assert(noexcept(object.weight(all, sequence_length)), "weight() must be noexcept");
    return object.weight(all, sequence_length);
  }
  static capstan_status* emit(void* self, const capstan_loss* raw, capstan_tensor* out) noexcept {
    return guard([&] {
      Loss loss;
      loss.model = {{raw->model->hidden}, {raw->model->head_weight}, raw->model->valid_vocabulary};
      for (size_t i = 0; i < raw->field_count; ++i) loss.fields.push_back({raw->fields[i]});
      loss.count = {raw->count};
      loss.training = raw->training != 0;
      Graph graph(Instance<T>::of(self).host.program(raw->program), position_of(raw->position));
      *out = component<T>(self).emit(graph, loss).id;
    });
  }
  static constexpr capstan_objective_v1 vtable() {
    auto v = sized<capstan_objective_v1>();
    v.create = &create_with_options<T>;
    v.destroy = &destroy<T>;
    v.field = &field;
    v.unit = &unit;
    v.weight = &weight;
    v.emit = &emit;
    return v;
  }
};
template <class T>
inline constexpr capstan_objective_v1 kObjectiveVtable = ObjectiveThunks<T>::vtable();

}  // namespace internal

template <class T>
constexpr capstan_component objective_component(const char* id, const char* version,
                                                const char* doc,
                                                std::span<const capstan_option> options = {}) {
  return internal::make_component("objective", CAPSTAN_OBJECTIVE_INTERFACE, id, version, doc,
                                  options, &internal::kObjectiveVtable<T>);
}

}  // namespace capstan::sdk

#endif  // CAPSTAN_SDK_OBJECTIVE_H_
