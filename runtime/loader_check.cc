#include "runtime/loader_check.h"

#include <cstddef>
#include <string_view>
#include <vector>

#include "plugin_api/comm.h"
#include "plugin_api/dataset.h"
#include "plugin_api/dataset_writer.h"
#include "plugin_api/device.h"
#include "plugin_api/model.h"
#include "plugin_api/objective.h"
#include "plugin_api/ops.h"
#include "plugin_api/optimizer.h"
#include "plugin_api/precision.h"
#include "plugin_api/store.h"
#include "plugin_api/strategy.h"
#include "plugin_api/tokenizer.h"
#include "plugin_api/tracker.h"
#include "runtime/loader.h"
#include "runtime/status.h"

namespace capstan {
namespace {

// The least size of a struct: up to and including the last field of its first revision. sizeof
// would grow when fields are appended and then refuse older plugins.
#define CAPSTAN_SIZE_THROUGH(type, field) (offsetof(type, field) + sizeof(type::field))

struct Slot {
  const char* name;
  size_t offset;
};
#define CAPSTAN_SLOT(type, field) \
  Slot { #field, offsetof(type, field) }

struct Interface {
  const char* kind;
  const char* id;
  size_t least_size;
  std::vector<Slot> required;  // pointers that may not be NULL
};

const std::vector<Interface>& Interfaces() {
  static const std::vector<Interface> interfaces = {
      {"comm",
       CAPSTAN_COMM_INTERFACE,
       CAPSTAN_SIZE_THROUGH(capstan_comm_v1, abort),
       {CAPSTAN_SLOT(capstan_comm_v1, probe), CAPSTAN_SLOT(capstan_comm_v1, create),
        CAPSTAN_SLOT(capstan_comm_v1, destroy), CAPSTAN_SLOT(capstan_comm_v1, capabilities),
        CAPSTAN_SLOT(capstan_comm_v1, group_create), CAPSTAN_SLOT(capstan_comm_v1, group_destroy),
        CAPSTAN_SLOT(capstan_comm_v1, prepare), CAPSTAN_SLOT(capstan_comm_v1, release),
        CAPSTAN_SLOT(capstan_comm_v1, start), CAPSTAN_SLOT(capstan_comm_v1, wait),
        CAPSTAN_SLOT(capstan_comm_v1, poll), CAPSTAN_SLOT(capstan_comm_v1, abort)}},
      {"dataset",
       CAPSTAN_DATASET_INTERFACE,
       CAPSTAN_SIZE_THROUGH(capstan_dataset_v1, description),
       {CAPSTAN_SLOT(capstan_dataset_v1, create), CAPSTAN_SLOT(capstan_dataset_v1, destroy),
        CAPSTAN_SLOT(capstan_dataset_v1, epoch_size), CAPSTAN_SLOT(capstan_dataset_v1, read),
        CAPSTAN_SLOT(capstan_dataset_v1, description)}},
      {"dataset_writer",
       CAPSTAN_DATASET_WRITER_INTERFACE,
       CAPSTAN_SIZE_THROUGH(capstan_dataset_writer_v1, abort),
       {CAPSTAN_SLOT(capstan_dataset_writer_v1, extension),
        CAPSTAN_SLOT(capstan_dataset_writer_v1, create),
        CAPSTAN_SLOT(capstan_dataset_writer_v1, append),
        CAPSTAN_SLOT(capstan_dataset_writer_v1, finish),
        CAPSTAN_SLOT(capstan_dataset_writer_v1, abort)}},
      {"device",
       CAPSTAN_DEVICE_INTERFACE,
       CAPSTAN_SIZE_THROUGH(capstan_device_v1, export_memory),
       {CAPSTAN_SLOT(capstan_device_v1, probe), CAPSTAN_SLOT(capstan_device_v1, create),
        CAPSTAN_SLOT(capstan_device_v1, destroy), CAPSTAN_SLOT(capstan_device_v1, id),
        CAPSTAN_SLOT(capstan_device_v1, description), CAPSTAN_SLOT(capstan_device_v1, memory),
        CAPSTAN_SLOT(capstan_device_v1, allocate), CAPSTAN_SLOT(capstan_device_v1, free),
        CAPSTAN_SLOT(capstan_device_v1, copy), CAPSTAN_SLOT(capstan_device_v1, queue_create),
        CAPSTAN_SLOT(capstan_device_v1, queue_destroy), CAPSTAN_SLOT(capstan_device_v1, queue_wait),
        CAPSTAN_SLOT(capstan_device_v1, queue_native), CAPSTAN_SLOT(capstan_device_v1, supports),
        CAPSTAN_SLOT(capstan_device_v1, prepare), CAPSTAN_SLOT(capstan_device_v1, measure)}},
      {"model",
       CAPSTAN_MODEL_INTERFACE,
       CAPSTAN_SIZE_THROUGH(capstan_model_v1, config_json),
       {CAPSTAN_SLOT(capstan_model_v1, create), CAPSTAN_SLOT(capstan_model_v1, destroy),
        CAPSTAN_SLOT(capstan_model_v1, info), CAPSTAN_SLOT(capstan_model_v1, emit),
        CAPSTAN_SLOT(capstan_model_v1, config_json)}},
      {"objective",
       CAPSTAN_OBJECTIVE_INTERFACE,
       CAPSTAN_SIZE_THROUGH(capstan_objective_v1, emit),
       {CAPSTAN_SLOT(capstan_objective_v1, create), CAPSTAN_SLOT(capstan_objective_v1, destroy),
        CAPSTAN_SLOT(capstan_objective_v1, field), CAPSTAN_SLOT(capstan_objective_v1, unit),
        CAPSTAN_SLOT(capstan_objective_v1, weight), CAPSTAN_SLOT(capstan_objective_v1, emit)}},
      {"ops",
       CAPSTAN_OPS_INTERFACE,
       CAPSTAN_SIZE_THROUGH(capstan_ops_v1, get),
       {CAPSTAN_SLOT(capstan_ops_v1, get)}},
      {"optimizer",
       CAPSTAN_OPTIMIZER_INTERFACE,
       CAPSTAN_SIZE_THROUGH(capstan_optimizer_v1, emit),
       {CAPSTAN_SLOT(capstan_optimizer_v1, create), CAPSTAN_SLOT(capstan_optimizer_v1, destroy),
        CAPSTAN_SLOT(capstan_optimizer_v1, granularity), CAPSTAN_SLOT(capstan_optimizer_v1, state),
        CAPSTAN_SLOT(capstan_optimizer_v1, emit)}},
      {"precision",
       CAPSTAN_PRECISION_INTERFACE,
       CAPSTAN_SIZE_THROUGH(capstan_precision_v1, equivalence),
       {CAPSTAN_SLOT(capstan_precision_v1, create), CAPSTAN_SLOT(capstan_precision_v1, destroy),
        CAPSTAN_SLOT(capstan_precision_v1, dtype), CAPSTAN_SLOT(capstan_precision_v1, rewrite)}},
      {"store",
       CAPSTAN_STORE_INTERFACE,
       CAPSTAN_SIZE_THROUGH(capstan_store_v1, clean),
       {CAPSTAN_SLOT(capstan_store_v1, create), CAPSTAN_SLOT(capstan_store_v1, destroy),
        CAPSTAN_SLOT(capstan_store_v1, begin), CAPSTAN_SLOT(capstan_store_v1, put),
        CAPSTAN_SLOT(capstan_store_v1, put_text), CAPSTAN_SLOT(capstan_store_v1, commit),
        CAPSTAN_SLOT(capstan_store_v1, abort), CAPSTAN_SLOT(capstan_store_v1, open),
        CAPSTAN_SLOT(capstan_store_v1, close), CAPSTAN_SLOT(capstan_store_v1, tensor_count),
        CAPSTAN_SLOT(capstan_store_v1, tensor), CAPSTAN_SLOT(capstan_store_v1, get),
        CAPSTAN_SLOT(capstan_store_v1, get_text), CAPSTAN_SLOT(capstan_store_v1, list),
        CAPSTAN_SLOT(capstan_store_v1, remove), CAPSTAN_SLOT(capstan_store_v1, clean)}},
      {"strategy",
       CAPSTAN_STRATEGY_INTERFACE,
       CAPSTAN_SIZE_THROUGH(capstan_strategy_v1, load),
       {CAPSTAN_SLOT(capstan_strategy_v1, create), CAPSTAN_SLOT(capstan_strategy_v1, destroy),
        CAPSTAN_SLOT(capstan_strategy_v1, phase), CAPSTAN_SLOT(capstan_strategy_v1, rewrite)}},
      {"tokenizer",
       CAPSTAN_TOKENIZER_INTERFACE,
       CAPSTAN_SIZE_THROUGH(capstan_tokenizer_v1, decode),
       {CAPSTAN_SLOT(capstan_tokenizer_v1, create), CAPSTAN_SLOT(capstan_tokenizer_v1, destroy),
        CAPSTAN_SLOT(capstan_tokenizer_v1, name), CAPSTAN_SLOT(capstan_tokenizer_v1, fingerprint),
        CAPSTAN_SLOT(capstan_tokenizer_v1, vocabulary),
        CAPSTAN_SLOT(capstan_tokenizer_v1, end_of_text),
        CAPSTAN_SLOT(capstan_tokenizer_v1, encoder_create),
        CAPSTAN_SLOT(capstan_tokenizer_v1, encoder_destroy),
        CAPSTAN_SLOT(capstan_tokenizer_v1, encode), CAPSTAN_SLOT(capstan_tokenizer_v1, decode)}},
      {"tracker",
       CAPSTAN_TRACKER_INTERFACE,
       CAPSTAN_SIZE_THROUGH(capstan_tracker_v1, flush),
       {CAPSTAN_SLOT(capstan_tracker_v1, create), CAPSTAN_SLOT(capstan_tracker_v1, destroy),
        CAPSTAN_SLOT(capstan_tracker_v1, metrics), CAPSTAN_SLOT(capstan_tracker_v1, event),
        CAPSTAN_SLOT(capstan_tracker_v1, flush)}},
  };
  return interfaces;
}

bool IsEmpty(const char* text) { return text == nullptr || *text == '\0'; }

std::string ComponentName(const capstan_component& component) {
  return StrCat(component.kind, " \"", component.id, "\"");
}

absl::Status CheckOptions(const capstan_component& component, const std::string& who) {
  if (component.option_count > 0 && component.options == nullptr) {
    return UsageError(who, " counts ", component.option_count, " options but lists none.");
  }
  const char* at = reinterpret_cast<const char*>(component.options);
  for (size_t i = 0; i < component.option_count; ++i) {
    // One array has one stride: that of the struct the plugin was built with.
    const auto& option =
        *reinterpret_cast<const capstan_option*>(at + i * component.options->struct_size);
    if (option.struct_size < CAPSTAN_SIZE_THROUGH(capstan_option, doc) ||
        option.struct_size != component.options->struct_size) {
      return UsageError(who, " declares option ", i, " with struct_size ", option.struct_size,
                        "; set it to sizeof(capstan_option).");
    }
    if (IsEmpty(option.name)) return UsageError(who, " declares option ", i, " without a name.");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckDescriptor(const capstan_plugin& plugin, const std::string& path) {
  if (plugin.magic != CAPSTAN_PLUGIN_MAGIC) {
    return UsageError(path, " exports ", CAPSTAN_PLUGIN_SYMBOL,
                      ", but not with the magic number of a plugin descriptor; rebuild it with the "
                      "SDK of ",
                      HostVersionText(), ".");
  }
  // The version is compared first: another major may lay out everything after it differently.
  if (plugin.abi_major != CAPSTAN_ABI_MAJOR) {
    return UsageError(path, " was built for plugin ABI ", plugin.abi_major, ".", plugin.abi_minor,
                      ", but this is ", HostVersionText(),
                      "; rebuild the plugin, or use a host of ABI ", plugin.abi_major, ".");
  }
  const size_t least = CAPSTAN_SIZE_THROUGH(capstan_plugin, get_component);
  if (plugin.struct_size < least) {
    return UsageError(path, " has a descriptor of ", plugin.struct_size,
                      " bytes, but plugin ABI 1 needs at least ", least,
                      "; set struct_size to sizeof(capstan_plugin).");
  }
  if (IsEmpty(plugin.name) || IsEmpty(plugin.version)) {
    return UsageError(path, " does not say its ", IsEmpty(plugin.name) ? "name" : "version",
                      "; fill that field of its descriptor.");
  }
  if (plugin.get_component == nullptr) {
    return UsageError(path, " (plugin \"", plugin.name, "\" ", plugin.version,
                      ") has no get_component, so it offers nothing.");
  }
  return absl::OkStatus();
}

absl::Status CheckComponent(const capstan_component& component, const std::string& plugin) {
  if (component.struct_size < CAPSTAN_SIZE_THROUGH(capstan_component, vtable)) {
    return UsageError(plugin, " has a component of ", component.struct_size,
                      " bytes; set struct_size to sizeof(capstan_component).");
  }
  if (IsEmpty(component.kind) || IsEmpty(component.id) || IsEmpty(component.interface_id)) {
    return UsageError(plugin, " has a component without kind, id or interface_id.");
  }
  const std::string who = StrCat(ComponentName(component), " of ", plugin);
  if (component.vtable == nullptr) return UsageError(who, " has no vtable.");
  CAPSTAN_RETURN_IF_ERROR(CheckOptions(component, who));
  for (const Interface& interface : Interfaces()) {
    if (std::string_view(component.interface_id) != interface.id) continue;
    const size_t size = *static_cast<const size_t*>(component.vtable);
    if (size < interface.least_size) {
      return UsageError(who, " has a vtable of ", size, " bytes, but ", interface.id,
                        " needs at least ", interface.least_size, "; set its struct_size.");
    }
    for (const Slot& slot : interface.required) {
      const char* at = static_cast<const char*>(component.vtable) + slot.offset;
      if (*reinterpret_cast<void* const*>(at) == nullptr) {
        return UsageError(who, " lacks ", slot.name, ", which ", interface.id, " requires.");
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckInterface(const capstan_component& component, const std::string& plugin) {
  for (const Interface& interface : Interfaces()) {
    if (std::string_view(component.kind) != interface.kind) continue;
    if (std::string_view(component.interface_id) == interface.id) continue;
    return UsageError(ComponentName(component), " of ", plugin, " speaks ", component.interface_id,
                      ", but ", HostVersionText(), " speaks ", interface.id,
                      "; use versions that agree.");
  }
  return absl::OkStatus();
}

}  // namespace capstan
