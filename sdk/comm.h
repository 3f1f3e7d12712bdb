// Kind "comm": write a class, get a vtable.
//
//   class MyComm {
//    public:
//     static int32_t probe(const sdk::Host&);                       // a score, or throw why not
//     MyComm(const sdk::Host&, const sdk::Options&);
//     const capstan_comm_capabilities& capabilities() const noexcept;
//     void link(int32_t from, int32_t to, double* bandwidth, double* latency);
//     void* group_create(std::span<const int32_t> ranks, int64_t epoch);
//     void group_destroy(void* group) noexcept;
//     void* prepare(void* group, const capstan_comm_request&);
//     void release(void* operation) noexcept;
//     void start(void* operation, void* queue);
//     void wait(void* operation, double timeout_s);
//     void poll(void* group, capstan_comm_progress* out);           // fill the fields, not
//     struct_size void abort(void* group, const char* reason) noexcept;         // any thread
//     // Optional: void memory_register(void*, uint64_t bytes, int32_t fd, uint64_t offset);
//     //           void memory_unregister(void*) noexcept;
//   };
#ifndef CAPSTAN_SDK_COMM_H_
#define CAPSTAN_SDK_COMM_H_

#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "plugin_api/comm.h"
#include "sdk/plugin.h"

namespace capstan::sdk {

// The key-value exchange among the ranks of a job; blocks with the job's deadline.
// Of a CAPSTAN_COMM_* operation, for messages.
inline const char* operation_name(int32_t operation) {
  switch (operation) {
    case CAPSTAN_COMM_ALL_REDUCE:
      return "all-reduce";
    case CAPSTAN_COMM_REDUCE_SCATTER:
      return "reduce-scatter";
    case CAPSTAN_COMM_ALL_GATHER:
      return "all-gather";
    case CAPSTAN_COMM_BROADCAST:
      return "broadcast";
    case CAPSTAN_COMM_ALL_TO_ALL:
      return "all-to-all";
    case CAPSTAN_COMM_SEND:
      return "send";
    case CAPSTAN_COMM_RECV:
      return "recv";
    case CAPSTAN_COMM_BARRIER:
      return "barrier";
    default:
      return "unknown operation";
  }
}

class Bootstrap {
 public:
  explicit Bootstrap(const Host& host)
      : host_(host), s_(host.require<capstan_bootstrap_service>(CAPSTAN_BOOTSTRAP_SERVICE)) {}

  void put(const std::string& key, std::string_view value) const {
    check(s_.put(host_.raw(), key.c_str(), value.data(), value.size()));
  }
  std::string get(const std::string& key) const {
    const void* value = nullptr;
    size_t size = 0;
    check(s_.get(host_.raw(), key.c_str(), &value, &size));
    return std::string(static_cast<const char*>(value), size);
  }
  std::string job() const { return s_.job(host_.raw()); }

 private:
  Host host_;
  const capstan_bootstrap_service& s_;
};

namespace internal {

template <class T>
struct CommThunks {
  static T& of(void* self) noexcept { return component<T>(self); }

  static capstan_status* probe(const capstan_host* host, int32_t* score) noexcept {
    return guard([&] { *score = T::probe(Host(host)); });
  }
  static capstan_status* capabilities(void* self, capstan_comm_capabilities* out) noexcept {
    static_assert(noexcept(of(self).capabilities()), "capabilities() must be noexcept");
    const capstan_comm_capabilities& made = of(self).capabilities();
    const size_t room = out->struct_size;
    std::memcpy(out, &made, room < sizeof made ? room : sizeof made);
    out->struct_size = room;
    return nullptr;
  }
  static capstan_status* link(void* self, int32_t from, int32_t to, double* bandwidth,
                              double* latency) noexcept {
    return guard([&] { of(self).link(from, to, bandwidth, latency); });
  }
  static capstan_status* group_create(void* self, const int32_t* ranks, size_t count, int64_t epoch,
                                      void** group) noexcept {
    return guard([&] { *group = of(self).group_create(std::span(ranks, count), epoch); });
  }
  static void group_destroy(void* self, void* group) noexcept { of(self).group_destroy(group); }
  static capstan_status* prepare(void* self, void* group, const capstan_comm_request* request,
                                 void** operation) noexcept {
    return guard([&] { *operation = of(self).prepare(group, *request); });
  }
  static void release(void* self, void* operation) noexcept { of(self).release(operation); }
  static capstan_status* start(void* self, void* operation, void* queue) noexcept {
    return guard([&] { of(self).start(operation, queue); });
  }
  static capstan_status* wait(void* self, void* operation, double timeout_s) noexcept {
    return guard([&] { of(self).wait(operation, timeout_s); });
  }
  static capstan_status* poll(void* self, void* group, capstan_comm_progress* out) noexcept {
    return guard([&] { of(self).poll(group, out); });
  }
  static void abort(void* self, void* group, const char* reason) noexcept {
    of(self).abort(group, reason);
  }
  static constexpr capstan_comm_v1 vtable() {
    auto v = sized<capstan_comm_v1>();
    v.probe = &probe;
    v.create = &create_with_options<T>;
    v.destroy = &destroy<T>;
    v.capabilities = &capabilities;
    v.link = &link;
    if constexpr (requires(T & t, void* m) { t.memory_unregister(m); }) {
      v.memory_register = [](void* self, void* memory, uint64_t bytes, int32_t fd,
                             uint64_t offset) noexcept {
        return guard([&] { of(self).memory_register(memory, bytes, fd, offset); });
      };
      v.memory_unregister = [](void* self, void* memory) noexcept {
        of(self).memory_unregister(memory);
      };
    }
    v.group_create = &group_create;
    v.group_destroy = &group_destroy;
    v.prepare = &prepare;
    v.release = &release;
    v.start = &start;
    v.wait = &wait;
    v.poll = &poll;
    v.abort = &abort;
    return v;
  }
};
template <class T>
inline constexpr capstan_comm_v1 kCommVtable = CommThunks<T>::vtable();

}  // namespace internal

template <class T>
constexpr capstan_component comm_component(const char* id, const char* version, const char* doc,
                                           std::span<const capstan_option> options = {}) {
  return internal::make_component("comm", CAPSTAN_COMM_INTERFACE, id, version, doc, options,
                                  &internal::kCommVtable<T>);
}

}  // namespace capstan::sdk

#endif  // CAPSTAN_SDK_COMM_H_
