/* A plugin whose every promise can be broken, one macro at a time. Unbroken it offers the tracker
 * "good" and counts its own init and deinit through the component "counter". */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "plugin_api/plugin.h"
#include "plugin_api/tracker.h"

#ifndef ENTRY
#define ENTRY capstan_plugin_entry
#endif
#ifndef MAGIC
#define MAGIC CAPSTAN_PLUGIN_MAGIC
#endif
#ifndef ABI_MAJOR
#define ABI_MAJOR CAPSTAN_ABI_MAJOR
#endif
#ifndef ABI_MINOR
#define ABI_MINOR CAPSTAN_ABI_MINOR
#endif
#ifndef DESCRIPTOR_SIZE
#define DESCRIPTOR_SIZE sizeof(capstan_plugin)
#endif
#ifndef PLUGIN_NAME
#define PLUGIN_NAME "variant"
#endif
#ifndef GET_COMPONENT
#define GET_COMPONENT get_component
#endif
#ifndef COMPONENT_SIZE
#define COMPONENT_SIZE sizeof(capstan_component)
#endif
#ifndef KIND
#define KIND "tracker"
#endif
#ifndef COMPONENT_ID
#define COMPONENT_ID "good"
#endif
#ifndef INTERFACE_ID
#define INTERFACE_ID CAPSTAN_TRACKER_INTERFACE
#endif
#ifndef VTABLE
#define VTABLE &vtable
#endif
#ifndef VTABLE_SIZE
#define VTABLE_SIZE sizeof(capstan_tracker_v1)
#endif
#ifndef FLUSH
#define FLUSH flush
#endif
#ifndef OPTION_NAME
#define OPTION_NAME "path"
#endif
#ifndef OPTION_SIZE
#define OPTION_SIZE sizeof(capstan_option)
#endif
#ifndef SECOND_ID
#define SECOND_ID "counter"
#define SECOND_KIND "test"
#endif
#ifndef INIT_RESULT
#define INIT_RESULT NULL
#endif

static void release(capstan_status* self) { free(self); }

capstan_status* refuse(void);
capstan_status* refuse(void) {
  capstan_status* status = calloc(1, sizeof(*status));
  if (status == NULL) return NULL;
  status->struct_size = sizeof(*status);
  status->code = CAPSTAN_UNSUPPORTED;
  status->culprit_rank = -1;
  status->message = "this machine has no flux capacitor";
  status->release = release;
  return status;
}

static capstan_status* create(const capstan_host* host, const capstan_options* options,
                              const char* run_directory, int64_t resume_step, void** self) {
  (void)host, (void)options, (void)run_directory, (void)resume_step;
  *self = NULL;
  return NULL;
}
static void destroy(void* self) { (void)self; }
static capstan_status* metrics(void* self, const char* scope, int64_t step,
                               const capstan_metric* values, size_t count) {
  (void)self, (void)scope, (void)step, (void)values, (void)count;
  return NULL;
}
static capstan_status* event(void* self, const char* name, int64_t step, const char* text) {
  (void)self, (void)name, (void)step, (void)text;
  return NULL;
}
capstan_status* flush(void* self);
capstan_status* flush(void* self) {
  (void)self;
  return NULL;
}

const capstan_tracker_v1 vtable = {VTABLE_SIZE, create, destroy, metrics, event, FLUSH};

static const capstan_option options[] = {
    {OPTION_SIZE, OPTION_NAME, CAPSTAN_OPTION_PATH, 0, "\"x\"", 0, 0, 0, 0, NULL, "A path."}};

/* What tests read: how often init and deinit ran, and the host that init was given. */
struct counter {
  size_t struct_size;
  int32_t inits, deinits;
  const capstan_host* host;
};
static struct counter counter = {sizeof(struct counter), 0, 0, NULL};

const capstan_component components[2] = {
    {COMPONENT_SIZE, KIND, COMPONENT_ID, INTERFACE_ID, "1.0.0", "A tracker.", options, 1, VTABLE},
    {sizeof(capstan_component), SECOND_KIND, SECOND_ID, "test.counter/1", "1.0.0", "Counts.", NULL,
     0, &counter}};

const capstan_component* get_component(size_t index);
const capstan_component* get_component(size_t index) {
#ifdef ENDLESS
  static capstan_component made[ENDLESS];
  static char ids[ENDLESS][8];
  const size_t i = index % ENDLESS;
  snprintf(ids[i], sizeof(ids[i]), "%u", (unsigned)i);
  made[i] = components[1];
  made[i].id = ids[i];
  return &made[i];
#elif defined(NO_COMPONENTS)
  (void)index;
  return NULL;
#else
  return index < 2 ? &components[index] : NULL;
#endif
}

static capstan_status* init(const capstan_host* host) {
  ++counter.inits;
  counter.host = host;
  return INIT_RESULT;
}
static void deinit(void) { ++counter.deinits; }

#ifdef UNRESOLVED
int capstan_test_symbol_of_nobody(void);
CAPSTAN_EXPORT int use_it(void);
int use_it(void) { return capstan_test_symbol_of_nobody(); }
#endif

CAPSTAN_EXPORT const capstan_plugin ENTRY = {
    MAGIC,  0,    DESCRIPTOR_SIZE, ABI_MAJOR,    ABI_MINOR, PLUGIN_NAME, "2.5.0", "Apache-2.0",
    "Test", init, deinit,          GET_COMPONENT};
