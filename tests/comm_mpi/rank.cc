#include "tests/comm_mpi/rank.h"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <deque>
#include <stdexcept>
#include <vector>

#include "plugin_api/plugin.h"
#include "sdk/error.h"

namespace capstan::test {
namespace {

// A declared default or a given value, as the host's config would have it.
capstan_option_value value_of(const capstan_option& option, const std::string& text) {
  auto value = sdk::sized<capstan_option_value>();
  value.key = option.name;
  value.type = option.type;
  value.s = text.c_str();
  if (option.type == CAPSTAN_OPTION_INT || option.type == CAPSTAN_OPTION_BOOL) {
    value.i = std::strtoll(text.c_str(), nullptr, 10);
  }
  value.f = std::strtod(text.c_str(), nullptr);
  return value;
}

std::string default_of(const capstan_option& option) {
  std::string text = option.default_value == nullptr ? "" : option.default_value;
  if (text.size() >= 2 && text.front() == '"') text = text.substr(1, text.size() - 2);
  return text;
}

}  // namespace

LaunchedAs launched_as() {
  const auto number = [](const char* name, int fallback) {
    const char* text = std::getenv(name);
    return text == nullptr ? fallback : std::atoi(text);
  };
  if (std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr) {
    return {number("OMPI_COMM_WORLD_RANK", 0), number("OMPI_COMM_WORLD_SIZE", 1)};
  }
  return {number("PMI_RANK", 0), number("PMI_SIZE", 1)};
}

MpiHost::MpiHost(LaunchedAs place) {
  host_.struct_size = sizeof(capstan_host);
  host_.abi_major = CAPSTAN_ABI_MAJOR;
  host_.abi_minor = CAPSTAN_ABI_MINOR;
  host_.name = "test";
  host_.version = "0";
  host_.get_service = &service;
  host_.place = place;
}

const void* MpiHost::service(const capstan_host*, const char* id) {
  static const auto place = [](const capstan_host* host) {
    return static_cast<const Raw*>(host)->place;
  };
  static const capstan_mesh_service mesh = {
      sizeof(capstan_mesh_service),
      [](const capstan_host* h) -> int64_t { return place(h).rank; },
      [](const capstan_host* h) -> int64_t { return place(h).world; },
      [](const capstan_host*, const char*) -> int64_t { return 1; },
      [](const capstan_host*, const char*) -> int64_t { return 0; },
      [](const capstan_host* h) -> int64_t { return place(h).rank; },
      [](const capstan_host* h) -> int64_t { return place(h).world; },
  };
  return std::strcmp(id, CAPSTAN_MESH_SERVICE) == 0 ? &mesh : nullptr;
}

const capstan_component& load_comm(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) throw std::runtime_error(dlerror());
  const auto* plugin = static_cast<const capstan_plugin*>(dlsym(library, CAPSTAN_PLUGIN_SYMBOL));
  if (plugin == nullptr || plugin->magic != CAPSTAN_PLUGIN_MAGIC) {
    throw std::runtime_error(path + " is no Capstan plugin");
  }
  return *plugin->get_component(0);
}

MpiComm::MpiComm(const capstan_component& component, const MpiHost& host,
                 const OptionTexts& options)
    : vtable_(*static_cast<const capstan_comm_v1*>(component.vtable)) {
  std::deque<std::string> texts;  // addresses stay
  std::vector<capstan_option_value> values;
  for (size_t i = 0; i < component.option_count; ++i) {
    const capstan_option& option = sdk::item_of(component.options, i);
    const auto given = options.find(option.name);
    texts.push_back(given == options.end() ? default_of(option) : given->second);
    values.push_back(value_of(option, texts.back()));
  }
  auto raw = sdk::sized<capstan_options>();
  raw.count = values.size();
  raw.values = values.data();
  sdk::check(vtable_.create(host.raw(), &raw, &self_));
}

MpiComm::~MpiComm() { vtable_.destroy(self_); }

}  // namespace capstan::test
