// Kind "store": write a class with a Writer and a Reader, get a vtable.
//
//   class MyStore {
//    public:
//     MyStore(const sdk::Host&, const sdk::Options&);
//     struct Writer { void put(const capstan_store_slice&);
//                     void put_text(const char* name, std::string_view text);
//                     void commit(); };       // destroyed after; destroyed without commit = abort
//     struct Reader { size_t tensor_count() const noexcept;
//                     capstan_store_tensor tensor(size_t index);     // pointers live until close
//                     void get(const capstan_store_slice&);
//                     std::string_view get_text(const char* name);   // lives until close
//                   };
//     std::unique_ptr<Writer> begin(const char* path, std::span<const capstan_store_tensor>);
//     std::unique_ptr<Reader> open(const char* path);
//     std::vector<std::string> list(const char* directory);
//     void remove(const char* path);
//     void clean(const char* directory);
//   };
// Optional, where several processes may write one bundle (store.h of the ABI):
//     Writer also has const std::string& ticket();     // lives as long as the Writer
//     std::unique_ptr<Writer> join(const char* ticket, std::span<const capstan_store_tensor>);
// A Writer's destructor must not throw. The span handed to begin lives until it returns; its
// elements are of this build's size whatever the host's.
#ifndef CAPSTAN_SDK_STORE_H_
#define CAPSTAN_SDK_STORE_H_

#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plugin_api/store.h"
#include "sdk/plugin.h"

namespace capstan::sdk {
namespace internal {

// The author's store plus the list lent to the host until the next call.
template <class T>
struct ListingStore : T {
  using T::T;
  std::vector<std::string> names;
  std::vector<const char*> pointers;
};

// An array whose elements may be larger than this build's struct, by their own declared size.
template <class S>
std::vector<S> repack(const S* items, size_t count) {
  std::vector<S> out(count);
  const char* at = reinterpret_cast<const char*>(items);
  for (size_t i = 0; i < count; ++i) {
    const size_t size = reinterpret_cast<const S*>(at)->struct_size;
    std::memcpy(&out[i], at, size < sizeof(S) ? size : sizeof(S));
    at += size;
  }
  return out;
}

template <class T>
struct StoreThunks {
  using Self = ListingStore<T>;
  using Writer = typename T::Writer;
  using Reader = typename T::Reader;
  static Self& of(void* self) { return component<Self>(self); }
  static Writer& writer(void* w) { return *static_cast<Writer*>(w); }
  static Reader& reader(void* r) { return *static_cast<Reader*>(r); }

  static capstan_status* begin(void* self, const char* path, const capstan_store_tensor* tensors,
                               size_t count, void** out) noexcept {
    return guard([&] {
      const std::vector<capstan_store_tensor> all = repack(tensors, count);
      *out = of(self).begin(path, std::span<const capstan_store_tensor>(all)).release();
    });
  }
  static capstan_status* put(void*, void* w, const capstan_store_slice* slice) noexcept {
    return guard([&] { writer(w).put(*slice); });
  }
  static capstan_status* put_text(void*, void* w, const char* name, const char* text,
                                  size_t size) noexcept {
    return guard([&] { writer(w).put_text(name, std::string_view(text, size)); });
  }
  static capstan_status* commit(void*, void* w) noexcept {
    return guard([&] {
      const std::unique_ptr<Writer> owned(&writer(w));
      owned->commit();
    });
  }
  static void abort(void*, void* w) noexcept { delete &writer(w); }

  static capstan_status* open(void* self, const char* path, void** out) noexcept {
    return guard([&] { *out = of(self).open(path).release(); });
  }
  static void close(void*, void* r) noexcept { delete &reader(r); }
  static size_t tensor_count(void*, void* r) noexcept { return reader(r).tensor_count(); }
  static capstan_status* tensor(void*, void* r, size_t index, capstan_store_tensor* out) noexcept {
    return guard([&] {
      const capstan_store_tensor made = reader(r).tensor(index);
      const size_t room = out->struct_size;
      std::memcpy(out, &made, room < sizeof made ? room : sizeof made);
      out->struct_size = room;
    });
  }
  static capstan_status* get(void*, void* r, const capstan_store_slice* slice) noexcept {
    return guard([&] { reader(r).get(*slice); });
  }
  static capstan_status* get_text(void*, void* r, const char* name, const char** text,
                                  size_t* size) noexcept {
    return guard([&] {
      const std::string_view found = reader(r).get_text(name);
      *text = found.data();
      *size = found.size();
    });
  }

  static capstan_status* list(void* self, const char* directory, const char* const** names,
                              size_t* count) noexcept {
    return guard([&] {
      Self& store = of(self);
      std::vector<std::string> found = store.list(directory);
      std::vector<const char*> pointers;
      store.names = std::move(found);
      for (const std::string& name : store.names) pointers.push_back(name.c_str());
      store.pointers = std::move(pointers);
      *names = store.pointers.data();
      *count = store.pointers.size();
    });
  }
  static capstan_status* remove(void* self, const char* path) noexcept {
    return guard([&] { of(self).remove(path); });
  }
  static capstan_status* clean(void* self, const char* directory) noexcept {
    return guard([&] { of(self).clean(directory); });
  }

  static constexpr capstan_store_v1 vtable() {
    auto v = sized<capstan_store_v1>();
    v.create = &create_with_options<Self>;
    v.destroy = &destroy<Self>;
    v.begin = &begin;
    v.put = &put;
    v.put_text = &put_text;
    v.commit = &commit;
    v.abort = &abort;
    v.open = &open;
    v.close = &close;
    v.tensor_count = &tensor_count;
    v.tensor = &tensor;
    v.get = &get;
    v.get_text = &get_text;
    v.list = &list;
    v.remove = &remove;
    v.clean = &clean;
    if constexpr (requires(Self & s, std::span<const capstan_store_tensor> t) { s.join("", t); }) {
      v.ticket = [](void*, void* w, const char** text) noexcept {
        return guard([&] { *text = writer(w).ticket().c_str(); });
      };
      v.join = [](void* self, const char* ticket, const capstan_store_tensor* tensors, size_t count,
                  void** out) noexcept {
        return guard([&] {
          const std::vector<capstan_store_tensor> all = repack(tensors, count);
          *out = of(self).join(ticket, std::span<const capstan_store_tensor>(all)).release();
        });
      };
    }
    return v;
  }
};
template <class T>
inline constexpr capstan_store_v1 kStoreVtable = StoreThunks<T>::vtable();

}  // namespace internal

template <class T>
constexpr capstan_component store_component(const char* id, const char* version, const char* doc,
                                            std::span<const capstan_option> options = {}) {
  return internal::make_component("store", CAPSTAN_STORE_INTERFACE, id, version, doc, options,
                                  &internal::kStoreVtable<T>);
}

}  // namespace capstan::sdk

#endif  // CAPSTAN_SDK_STORE_H_
