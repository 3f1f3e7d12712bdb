// Kind "dataset": write a class, get a vtable.
//
//   class MyDataset {
//    public:
//     MyDataset(const sdk::Host&, const sdk::Options&, const capstan_dataset_request&);
//     int64_t epoch_size() const noexcept;
//     void read(const capstan_sample_request&) const;    // any thread
//     const char* description() const noexcept;
//   };
#ifndef CAPSTAN_SDK_DATASET_H_
#define CAPSTAN_SDK_DATASET_H_

#include "plugin_api/dataset.h"
#include "sdk/plugin.h"

namespace capstan::sdk {
namespace internal {

template <class T>
struct DatasetThunks {
  static capstan_status* create_dataset(const capstan_host* host, const capstan_options* options,
                                        const capstan_dataset_request* request,
                                        void** self) noexcept {
    return create<T>(host, self, Options(options), *request);
  }
  static int64_t epoch_size(void* self) noexcept {
    static_assert(noexcept(component<T>(self).epoch_size()), "epoch_size() must be noexcept");
    return component<T>(self).epoch_size();
  }
  static capstan_status* read(void* self, const capstan_sample_request* request) noexcept {
    return guard([&] { component<T>(self).read(*request); });
  }
  static const char* description(void* self) noexcept {
    static_assert(noexcept(component<T>(self).description()), "description() must be noexcept");
    return component<T>(self).description();
  }
  static constexpr capstan_dataset_v1 vtable() {
    auto v = sized<capstan_dataset_v1>();
    v.create = &create_dataset;
    v.destroy = &destroy<T>;
    v.epoch_size = &epoch_size;
    v.read = &read;
    v.description = &description;
    return v;
  }
};
template <class T>
inline constexpr capstan_dataset_v1 kDatasetVtable = DatasetThunks<T>::vtable();

}  // namespace internal

template <class T>
constexpr capstan_component dataset_component(const char* id, const char* version, const char* doc,
                                              std::span<const capstan_option> options = {}) {
  return internal::make_component("dataset", CAPSTAN_DATASET_INTERFACE, id, version, doc, options,
                                  &internal::kDatasetVtable<T>);
}

}  // namespace capstan::sdk

#endif  // CAPSTAN_SDK_DATASET_H_
