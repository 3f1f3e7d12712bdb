// Kind "tracker": write a class, get a vtable.
//
//   class MyTracker {
//    public:
//     MyTracker(const sdk::Host&, const sdk::Options&, const char* run_directory, int64_t
//     resume_step); void metrics(const char* scope, int64_t step, std::span<const capstan_metric>);
//     void event(const char* name, int64_t step, const char* text);
//     void flush();
//   };                                                      // the destructor flushes
#ifndef CAPSTAN_SDK_TRACKER_H_
#define CAPSTAN_SDK_TRACKER_H_

#include <span>

#include "plugin_api/tracker.h"
#include "sdk/plugin.h"
#include "sdk/store.h"

namespace capstan::sdk {
namespace internal {

template <class T>
struct TrackerThunks {
  static capstan_status* create_tracker(const capstan_host* host, const capstan_options* options,
                                        const char* run_directory, int64_t resume_step,
                                        void** self) noexcept {
    return create<T>(host, self, Options(options), run_directory, resume_step);
  }
  static capstan_status* metrics(void* self, const char* scope, int64_t step,
                                 const capstan_metric* metrics, size_t count) noexcept {
    return guard([&] {
      const std::vector<capstan_metric> all = repack(metrics, count);
      component<T>(self).metrics(scope, step, std::span<const capstan_metric>(all));
    });
  }
  static capstan_status* event(void* self, const char* name, int64_t step,
                               const char* text) noexcept {
    return guard([&] { component<T>(self).event(name, step, text); });
  }
  static capstan_status* flush(void* self) noexcept {
    return guard([&] { component<T>(self).flush(); });
  }
  static constexpr capstan_tracker_v1 vtable() {
    auto v = sized<capstan_tracker_v1>();
    v.create = &create_tracker;
    v.destroy = &destroy<T>;
    v.metrics = &metrics;
    v.event = &event;
    v.flush = &flush;
    return v;
  }
};
template <class T>
inline constexpr capstan_tracker_v1 kTrackerVtable = TrackerThunks<T>::vtable();

}  // namespace internal

template <class T>
constexpr capstan_component tracker_component(const char* id, const char* version, const char* doc,
                                              std::span<const capstan_option> options = {}) {
  return internal::make_component("tracker", CAPSTAN_TRACKER_INTERFACE, id, version, doc, options,
                                  &internal::kTrackerVtable<T>);
}

}  // namespace capstan::sdk

#endif  // CAPSTAN_SDK_TRACKER_H_
