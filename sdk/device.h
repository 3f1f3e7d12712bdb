// Kind "device": write a class, get a vtable; and kernels as plain value types.
//
//   class MyDevice {
//    public:
//     static int32_t probe(const sdk::Host&);                // a score, or throw why not
//     MyDevice(const sdk::Host&, const sdk::Options&);
//     capstan_device_id id() const noexcept;
//     const char* description() const noexcept;
//     void memory(capstan_memory_info* out);                 // fill the fields, not struct_size
//     void* allocate(const char* region, uint64_t bytes);
//     void free(void* memory) noexcept;
//     void copy(void* to, const void* from, uint64_t bytes);
//     void* queue_create();
//     void queue_destroy(void* queue) noexcept;
//     void queue_wait(void* queue);
//     void* queue_native(void* queue) noexcept;
//     bool supports(const capstan_kernel_request&) noexcept;
//     void prepare(const capstan_kernel_request&, capstan_kernel* out);  // ends in
//     make_kernel(...) void measure(capstan_dtype, capstan_roofline* out);
//     // Optional: fusions() noexcept; event_create/event_destroy/event_record/queue_wait_event;
//     //           std::pair<int32_t fd, uint64_t offset> export_memory(void*)
//     //           void* allocate_shared(const char* region, uint64_t bytes);
//   };
#ifndef CAPSTAN_SDK_DEVICE_H_
#define CAPSTAN_SDK_DEVICE_H_

#include <memory>
#include <tuple>
#include <utility>

#include "plugin_api/device.h"
#include "sdk/plugin.h"

namespace capstan::sdk {

// Hands a prepared kernel to the host. K is a value type with
//   void run(const capstan_kernel_args&) const;       // may throw; on success no allocation or
//   lock size_t workspace_bytes() const noexcept;          // optional, 0
// `name` must be a literal. One indirect call reaches K::run.
template <class K>
void make_kernel(K kernel, const char* name, capstan_kernel* out) {
  size_t workspace = 0;
  if constexpr (requires { kernel.workspace_bytes(); }) workspace = kernel.workspace_bytes();
  auto state = std::make_unique<K>(std::move(kernel));
  out->workspace_bytes = workspace;
  out->name = name;
  out->run = [](void* self, const capstan_kernel_args* args) noexcept -> capstan_status* {
    return guard([&] { static_cast<K*>(self)->run(*args); });
  };
  out->release = [](void* self) noexcept { delete static_cast<K*>(self); };
  out->state = state.release();
}

namespace internal {

template <class T>
struct DeviceThunks {
  static T& of(void* self) noexcept { return component<T>(self); }

  static capstan_status* probe(const capstan_host* host, int32_t* score) noexcept {
    return guard([&] { *score = T::probe(Host(host)); });
  }
  static capstan_status* memory(void* self, capstan_memory_info* out) noexcept {
    return guard([&] { of(self).memory(out); });
  }
  static capstan_status* allocate(void* self, const char* region, uint64_t bytes,
                                  void** out) noexcept {
    return guard([&] { *out = of(self).allocate(region, bytes); });
  }
  static capstan_status* copy(void* self, void* to, const void* from, uint64_t bytes) noexcept {
    return guard([&] { of(self).copy(to, from, bytes); });
  }
  static capstan_status* queue_create(void* self, void** queue) noexcept {
    return guard([&] { *queue = of(self).queue_create(); });
  }
  static capstan_status* queue_wait(void* self, void* queue) noexcept {
    return guard([&] { of(self).queue_wait(queue); });
  }
  static capstan_status* prepare(void* self, const capstan_kernel_request* request,
                                 capstan_kernel* out) noexcept {
    return guard([&] { of(self).prepare(*request, out); });
  }
  static capstan_status* measure(void* self, capstan_dtype dtype, capstan_roofline* out) noexcept {
    return guard([&] { of(self).measure(dtype, out); });
  }
  static constexpr void add_events(capstan_device_v1& v) {
    v.event_create = [](void* self, void** event) noexcept {
      return guard([&] { *event = of(self).event_create(); });
    };
    v.event_destroy = [](void* self, void* event) noexcept { of(self).event_destroy(event); };
    v.event_record = [](void* self, void* event, void* queue) noexcept {
      return guard([&] { of(self).event_record(event, queue); });
    };
    v.queue_wait_event = [](void* self, void* queue, void* event) noexcept {
      return guard([&] { of(self).queue_wait_event(queue, event); });
    };
  }
  static constexpr capstan_device_v1 vtable() {
    auto v = sized<capstan_device_v1>();
    v.probe = &probe;
    v.create = &create_with_options<T>;
    v.destroy = &destroy<T>;
    v.id = [](void* self) noexcept { return of(self).id(); };
    v.description = [](void* self) noexcept -> const char* { return of(self).description(); };
    v.memory = &memory;
    v.allocate = &allocate;
    v.free = [](void* self, void* memory) noexcept { of(self).free(memory); };
    v.copy = &copy;
    v.queue_create = &queue_create;
    v.queue_destroy = [](void* self, void* queue) noexcept { of(self).queue_destroy(queue); };
    v.queue_wait = &queue_wait;
    v.queue_native = [](void* self, void* queue) noexcept { return of(self).queue_native(queue); };
    v.supports = [](void* self, const capstan_kernel_request* request) noexcept -> int32_t {
      return of(self).supports(*request) ? 1 : 0;
    };
    v.prepare = &prepare;
    v.measure = &measure;
    if constexpr (requires(T & t) { t.fusions(); }) {
      v.fusions = [](void* self) noexcept -> const char* const* { return of(self).fusions(); };
    }
    if constexpr (requires(T & t) { t.event_create(); }) add_events(v);
    if constexpr (requires(T & t, void* m) { t.export_memory(m); }) {
      v.export_memory = [](void* self, void* memory, int32_t* fd, uint64_t* offset) noexcept {
        return guard([&] { std::tie(*fd, *offset) = of(self).export_memory(memory); });
      };
    }
    if constexpr (requires(T & t, const char* region) { t.allocate_shared(region, 1u); }) {
      v.allocate_shared = [](void* self, const char* region, uint64_t bytes, void** out) noexcept {
        return guard([&] { *out = of(self).allocate_shared(region, bytes); });
      };
    }
    return v;
  }
};
template <class T>
inline constexpr capstan_device_v1 kDeviceVtable = DeviceThunks<T>::vtable();

}  // namespace internal

template <class T>
constexpr capstan_component device_component(const char* id, const char* version, const char* doc,
                                             std::span<const capstan_option> options = {}) {
  return internal::make_component("device", CAPSTAN_DEVICE_INTERFACE, id, version, doc, options,
                                  &internal::kDeviceVtable<T>);
}

}  // namespace capstan::sdk

#endif  // CAPSTAN_SDK_DEVICE_H_
