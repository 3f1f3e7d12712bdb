// Kind "precision": write a class, get a vtable.
//
//   class MyPrecision {
//    public:
//     MyPrecision(const sdk::Host&, const sdk::Options&);
//     capstan_dtype dtype(int32_t role) const noexcept;      // CAPSTAN_ROLE_*
//     void rewrite(sdk::Program& program);
//     // Optional:
//     sdk::Tensor finish(sdk::Program& program);             // the guard, or Tensor{}
//     int32_t equivalence(double* tolerance) const noexcept;
//   };
#ifndef CAPSTAN_SDK_PRECISION_H_
#define CAPSTAN_SDK_PRECISION_H_

#include "plugin_api/precision.h"
#include "sdk/graph.h"
#include "sdk/plugin.h"

namespace capstan::sdk {
namespace internal {

template <class T>
struct PrecisionThunks {
  static capstan_dtype dtype(void* self, int32_t role) noexcept {
    static_assert(noexcept(component<T>(self).dtype(role)), "dtype() must be noexcept");
    return component<T>(self).dtype(role);
  }
  static capstan_status* rewrite(void* self, capstan_program* raw) noexcept {
    return guard([&] {
      Program program = Instance<T>::of(self).host.program(raw);
      component<T>(self).rewrite(program);
    });
  }
  static constexpr capstan_precision_v1 vtable() {
    auto v = sized<capstan_precision_v1>();
    v.create = &create_with_options<T>;
    v.destroy = &destroy<T>;
    v.dtype = &dtype;
    v.rewrite = &rewrite;
    if constexpr (requires(T & t, Program & p) { t.finish(p); }) {
      v.finish = [](void* self, capstan_program* raw, capstan_tensor* guard_out) noexcept {
        return guard([&] {
          Program program = Instance<T>::of(self).host.program(raw);
          const Tensor made = component<T>(self).finish(program);
          if (made) *guard_out = made.id;
        });
      };
    }
    if constexpr (requires(T & t, double* d) { t.equivalence(d); }) {
      v.equivalence = [](void* self, double* tolerance) noexcept -> int32_t {
        return component<T>(self).equivalence(tolerance);
      };
    }
    return v;
  }
};
template <class T>
inline constexpr capstan_precision_v1 kPrecisionVtable = PrecisionThunks<T>::vtable();

}  // namespace internal

template <class T>
constexpr capstan_component precision_component(const char* id, const char* version,
                                                const char* doc,
                                                std::span<const capstan_option> options = {}) {
  return internal::make_component("precision", CAPSTAN_PRECISION_INTERFACE, id, version, doc,
                                  options, &internal::kPrecisionVtable<T>);
}

}  // namespace capstan::sdk

#endif  // CAPSTAN_SDK_PRECISION_H_
