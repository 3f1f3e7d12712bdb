/* The one exported symbol of a plugin, the components it offers, and the host it is given. */
#ifndef CAPSTAN_PLUGIN_API_PLUGIN_H_
#define CAPSTAN_PLUGIN_API_PLUGIN_H_

#include "plugin_api/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a plugin sees of the host. Valid from `init` (or a component's `create`) until the matching
 * `deinit` (or `destroy`). Services are const tables found by id; an unknown id gives NULL, and a
 * plugin must then do without or refuse in a sentence. [any thread] */
typedef struct capstan_host {
  size_t struct_size;
  uint32_t abi_major, abi_minor;
  const char* name;
  const char* version;
  const void* (*get_service)(const struct capstan_host* host, const char* id);
} capstan_host;

/* Service "capstan.log/1". Levels: 0 debug, 1 info, 2 warning, 3 error. The host rate-limits. */
#define CAPSTAN_LOG_SERVICE "capstan.log/1"
typedef struct capstan_log_service {
  size_t struct_size;
  void (*log)(const capstan_host* host, int32_t level, const char* component, const char* message);
} capstan_log_service;

/* Service "capstan.mesh/1": where this rank stands. [any thread] */
#define CAPSTAN_MESH_SERVICE "capstan.mesh/1"
typedef struct capstan_mesh_service {
  size_t struct_size;
  int64_t (*rank)(const capstan_host* host);
  int64_t (*world_size)(const capstan_host* host);
  int64_t (*axis_size)(const capstan_host* host, const char* axis); /* 1 when the axis is omitted */
  int64_t (*axis_index)(const capstan_host* host, const char* axis); /* this rank's coordinate */
  int64_t (*local_rank)(const capstan_host* host);  /* among the ranks of this machine */
  int64_t (*local_ranks)(const capstan_host* host); /* how many ranks share this machine */
} capstan_mesh_service;

/* Service "capstan.run/1": facts of the run that a component may need. */
#define CAPSTAN_RUN_SERVICE "capstan.run/1"
typedef struct capstan_run_service {
  size_t struct_size;
  uint64_t (*seed)(const capstan_host* host);
} capstan_run_service;

/* One thing a plugin offers. `vtable` points to the const table of the interface. */
typedef struct capstan_component {
  size_t struct_size;
  const char* kind;         /* "strategy", "optimizer", ... an open list */
  const char* id;           /* name used in TOML: plugin = "adamw" */
  const char* interface_id; /* "capstan.optimizer/1" */
  const char* version;      /* of the component, "1.2.0" */
  const char* doc;          /* one sentence */
  const capstan_option* options;
  size_t option_count;
  const void* vtable;
} capstan_component;

#define CAPSTAN_PLUGIN_MAGIC 0x4e545043u /* "CPTN" */
#define CAPSTAN_PLUGIN_SYMBOL "capstan_plugin_entry"

/* The descriptor a plugin exports as `const capstan_plugin capstan_plugin_entry`.
 * init/deinit are matched, counted by the host and may happen several times in one process; either
 * may be NULL. get_component returns NULL past the end and is valid between init and deinit.
 * [main thread] */
typedef struct capstan_plugin {
  uint32_t magic;
  uint32_t reserved;
  size_t struct_size;
  uint32_t abi_major, abi_minor; /* what the plugin was built against */
  const char* name;
  const char* version;
  const char* licence; /* SPDX */
  const char* description;
  capstan_status* (*init)(const capstan_host* host);
  void (*deinit)(void);
  const capstan_component* (*get_component)(size_t index);
} capstan_plugin;

#ifdef __cplusplus
}
#endif
#endif /* CAPSTAN_PLUGIN_API_PLUGIN_H_ */
