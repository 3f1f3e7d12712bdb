// What every plugin needs: the host, and the one exported symbol.
//
//   class Recompute { public: Recompute(const sdk::Host&, const sdk::Options&); ... };
//   constexpr capstan_option kOptions[] = {sdk::string_option("policy", "\"full\"", "...")};
//   CAPSTAN_PLUGIN_ENTRY("recompute", "1.0.0", "Apache-2.0", "Activation recomputation.",
//                        sdk::strategy_component<Recompute>("recompute", "1.0.0", "...", kOptions))
//
// The descriptor, the components and their vtables are constant data: loading runs no code.
#ifndef CAPSTAN_SDK_PLUGIN_H_
#define CAPSTAN_SDK_PLUGIN_H_

#include <cstddef>
#include <iterator>
#include <span>
#include <string>

#include "plugin_api/plugin.h"
#include "plugin_api/program.h"
#include "sdk/error.h"
#include "sdk/options.h"
#include "sdk/program.h"

namespace capstan::sdk {

enum class LogLevel : int32_t { kDebug = 0, kInfo = 1, kWarning = 2, kError = 3 };

// The host, valid as long as the component it was given to. Copy it freely.
class Host {
 public:
  explicit Host(const capstan_host* raw) : raw_(raw) {}

  const capstan_host* raw() const { return raw_; }
  std::string name() const { return raw_->name; }
  std::string version() const { return raw_->version; }

  // A service table, nullptr when this host has none.
  template <class Service>
  const Service* service(const char* id) const {
    return static_cast<const Service*>(raw_->get_service(raw_, id));
  }
  template <class Service>
  const Service& require(const char* id) const {
    const Service* found = service<Service>(id);
    if (found == nullptr) {
      throw unsupported_error(text("this host offers no service '", id, "'; use a newer one"));
    }
    return *found;
  }

  void log(LogLevel level, const char* component, const std::string& message) const {
    const auto* s = service<capstan_log_service>(CAPSTAN_LOG_SERVICE);
    if (s != nullptr) s->log(raw_, static_cast<int32_t>(level), component, message.c_str());
  }

  // The mesh; a host without one is a world of one rank.
  int64_t rank() const {
    return mesh([&](auto& s) { return s.rank(raw_); }, 0);
  }
  int64_t world_size() const {
    return mesh([&](auto& s) { return s.world_size(raw_); }, 1);
  }
  int64_t axis_size(const std::string& axis) const {
    return mesh([&](auto& s) { return s.axis_size(raw_, axis.c_str()); }, 1);
  }
  int64_t axis_index(const std::string& axis) const {
    return mesh([&](auto& s) { return s.axis_index(raw_, axis.c_str()); }, 0);
  }
  int64_t local_rank() const {
    return mesh([&](auto& s) { return s.local_rank(raw_); }, 0);
  }
  int64_t local_ranks() const {
    return mesh([&](auto& s) { return s.local_ranks(raw_); }, 1);
  }

  uint64_t seed() const { return require<capstan_run_service>(CAPSTAN_RUN_SERVICE).seed(raw_); }

  Program program(capstan_program* p) const {
    return Program(&require<capstan_program_service>(CAPSTAN_PROGRAM_SERVICE), p);
  }

 private:
  template <class Ask>
  int64_t mesh(Ask ask, int64_t alone) const {
    const auto* s = service<capstan_mesh_service>(CAPSTAN_MESH_SERVICE);
    return s == nullptr ? alone : ask(*s);
  }

  const capstan_host* raw_;
};

namespace internal {

// What `self` points to at the ABI: the author's object and the host it came with.
template <class T>
struct Instance {
  template <class... Args>
  explicit Instance(const capstan_host* raw, Args&&... args)
      : host(raw), component(host, std::forward<Args>(args)...) {}

  static Instance& of(void* self) noexcept { return *static_cast<Instance*>(self); }

  Host host;
  T component;
};

template <class T, class... Args>
capstan_status* create(const capstan_host* host, void** self, Args&&... args) noexcept {
  return guard([&] { *self = new Instance<T>(host, std::forward<Args>(args)...); });
}

template <class T>
capstan_status* create_with_options(const capstan_host* host, const capstan_options* options,
                                    void** self) noexcept {
  return create<T>(host, self, Options(options));
}

template <class T>
void destroy(void* self) noexcept {
  delete static_cast<Instance<T>*>(self);
}

template <class T>
T& component(void* self) noexcept {
  return Instance<T>::of(self).component;
}

// Element `index` of a span, NULL past the end: the shape of every list in the ABI.
template <class Span>
auto element(const Span& items, size_t index) -> decltype(items.data()) {
  return index < items.size() ? items.data() + index : nullptr;
}

constexpr capstan_component make_component(const char* kind, const char* interface_id,
                                           const char* id, const char* version, const char* doc,
                                           std::span<const capstan_option> options,
                                           const void* vtable) {
  auto out = sized<capstan_component>();
  out.kind = kind;
  out.id = id;
  out.interface_id = interface_id;
  out.version = version;
  out.doc = doc;
  out.options = options.data();
  out.option_count = options.size();
  out.vtable = vtable;
  return out;
}

template <const auto& kComponents>
const capstan_component* get_component(size_t index) noexcept {
  return index < std::size(kComponents) ? &kComponents[index] : nullptr;
}

constexpr capstan_plugin make_plugin(const char* name, const char* version, const char* licence,
                                     const char* description,
                                     const capstan_component* (*get)(size_t)) {
  capstan_plugin out{};
  out.magic = CAPSTAN_PLUGIN_MAGIC;
  out.struct_size = sizeof(capstan_plugin);
  out.abi_major = CAPSTAN_ABI_MAJOR;
  out.abi_minor = CAPSTAN_ABI_MINOR;
  out.name = name;
  out.version = version;
  out.licence = licence;
  out.description = description;
  out.get_component = get;
  return out;
}

}  // namespace internal
}  // namespace capstan::sdk

// Exports the plugin; once, at namespace scope, in one source file. After the four strings come the
// components, in the order the host should list them.
#define CAPSTAN_PLUGIN_ENTRY(name, version, licence, description, ...)                         \
  namespace {                                                                                  \
  constexpr capstan_component capstan_sdk_components[] = {__VA_ARGS__};                        \
  }                                                                                            \
  extern "C" {                                                                                 \
  extern CAPSTAN_EXPORT const capstan_plugin capstan_plugin_entry;                             \
  constinit const capstan_plugin capstan_plugin_entry = ::capstan::sdk::internal::make_plugin( \
      name, version, licence, description,                                                     \
      &::capstan::sdk::internal::get_component<capstan_sdk_components>);                       \
  }                                                                                            \
  static_assert(true, "")

#endif  // CAPSTAN_SDK_PLUGIN_H_
