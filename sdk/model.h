// Kind "model": write a class, get a vtable.
//
//   class MyModel {
//    public:
//     MyModel(const sdk::Host&, const sdk::Options&, const std::string* config_json);
//     capstan_model_info info() const noexcept;      // start from sized<capstan_model_info>()
//     sdk::Emitted emit(sdk::Graph& g, const sdk::Emit& request);
//     const std::string& config_json() const noexcept;
//   };
#ifndef CAPSTAN_SDK_MODEL_H_
#define CAPSTAN_SDK_MODEL_H_

#include <optional>
#include <string>

#include "plugin_api/model.h"
#include "sdk/graph.h"
#include "sdk/plugin.h"

namespace capstan::sdk {

// What is asked for; see capstan_emit.
struct Emit {
  int32_t mode = CAPSTAN_MODE_FORWARD;
  bool training = false;
  int64_t batch = 0, sequence = 0, cache_length = 0;
  capstan_dtype dtype = kF32;
  Tensor tokens, position, sample, step, cache_position, last;

  bool uses_cache() const { return mode != CAPSTAN_MODE_FORWARD; }
  RandomCoordinates coordinates() const { return {step, sample, position}; }
};

struct Emitted {
  Tensor hidden, head_weight;
  int64_t valid_vocabulary = 0;
};

namespace internal {

inline Position position_of(const capstan_position& raw) {
  return {owned(raw.segment), {raw.before}};
}

template <class T>
struct ModelThunks {
  static capstan_status* create_model(const capstan_host* host, const capstan_options* options,
                                      const char* config_json, void** self) noexcept {
    return guard([&] {
      std::optional<std::string> config;
      if (config_json != nullptr) config = config_json;
      check(create<T>(host, self, Options(options), config ? &*config : nullptr));
    });
  }
  static capstan_status* info(void* self, capstan_model_info* out) noexcept {
    static_assert(noexcept(component<T>(self).info()), "info() must be noexcept");
    const size_t room = out->struct_size;
    const capstan_model_info info = component<T>(self).info();
    // Only the fields the caller has room for.
    std::memcpy(out, &info, room < sizeof info ? room : sizeof info);
    out->struct_size = room;
    return nullptr;
  }
  static capstan_status* emit(void* self, const capstan_emit* raw, capstan_emitted* out) noexcept {
    return guard([&] {
      Emit request{raw->mode,     raw->training != 0,    raw->batch,
                   raw->sequence, raw->cache_length,     raw->dtype,
                   {raw->tokens}, {raw->token_position}, {raw->sample},
                   {raw->step},   {raw->cache_position}, {raw->last}};
      Graph graph(Instance<T>::of(self).host.program(raw->program), position_of(raw->position));
      const Emitted made = component<T>(self).emit(graph, request);
      out->hidden = made.hidden.id;
      out->head_weight = made.head_weight.id;
      out->valid_vocabulary = made.valid_vocabulary;
    });
  }
  static capstan_status* config_json(void* self, const char** text) noexcept {
    static_assert(noexcept(component<T>(self).config_json()), "config_json() must be noexcept");
    *text = component<T>(self).config_json().c_str();
    return nullptr;
  }
  static constexpr capstan_model_v1 vtable() {
    auto v = sized<capstan_model_v1>();
    v.create = &create_model;
    v.destroy = &destroy<T>;
    v.info = &info;
    v.emit = &emit;
    v.config_json = &config_json;
    return v;
  }
};
template <class T>
inline constexpr capstan_model_v1 kModelVtable = ModelThunks<T>::vtable();

}  // namespace internal

template <class T>
constexpr capstan_component model_component(const char* id, const char* version, const char* doc,
                                            std::span<const capstan_option> options = {}) {
  return internal::make_component("model", CAPSTAN_MODEL_INTERFACE, id, version, doc, options,
                                  &internal::kModelVtable<T>);
}

}  // namespace capstan::sdk

#endif  // CAPSTAN_SDK_MODEL_H_
