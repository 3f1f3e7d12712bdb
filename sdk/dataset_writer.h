// Kind "dataset_writer": write a class, get a vtable.
//
//   class MyWriter {
//    public:
//     static constexpr char kExtension[] = ".mine";
//     MyWriter(const sdk::Host&, const sdk::Options&, const capstan_dataset_writer_request&);
//     void append(std::span<const uint32_t> ids);
//     void finish();                    // destroyed after; destroyed without finish = abort
//   };
#ifndef CAPSTAN_SDK_DATASET_WRITER_H_
#define CAPSTAN_SDK_DATASET_WRITER_H_

#include <memory>
#include <span>

#include "plugin_api/dataset_writer.h"
#include "sdk/plugin.h"

namespace capstan::sdk {
namespace internal {

template <class T>
struct DatasetWriterThunks {
  static capstan_status* create_writer(const capstan_host* host, const capstan_options* options,
                                       const capstan_dataset_writer_request* request,
                                       void** self) noexcept {
    return create<T>(host, self, Options(options), *request);
  }
  static capstan_status* append(void* self, const uint32_t* ids, size_t count) noexcept {
    return guard([&] { component<T>(self).append(std::span<const uint32_t>(ids, count)); });
  }
  static capstan_status* finish(void* self) noexcept {
    return guard([&] {
      const std::unique_ptr<Instance<T>> owned(&Instance<T>::of(self));
      owned->component.finish();
    });
  }
  static constexpr capstan_dataset_writer_v1 vtable() {
    auto v = sized<capstan_dataset_writer_v1>();
    v.extension = T::kExtension;
    v.create = &create_writer;
    v.append = &append;
    v.finish = &finish;
    v.abort = &destroy<T>;
    return v;
  }
};
template <class T>
inline constexpr capstan_dataset_writer_v1 kDatasetWriterVtable = DatasetWriterThunks<T>::vtable();

}  // namespace internal

template <class T>
constexpr capstan_component dataset_writer_component(const char* id, const char* version,
                                                     const char* doc,
                                                     std::span<const capstan_option> options = {}) {
  return internal::make_component("dataset_writer", CAPSTAN_DATASET_WRITER_INTERFACE, id, version,
                                  doc, options, &internal::kDatasetWriterVtable<T>);
}

}  // namespace capstan::sdk

#endif  // CAPSTAN_SDK_DATASET_WRITER_H_
