/* Interface "capstan.tracker/1": takes metrics and events. */
#ifndef CAPSTAN_PLUGIN_API_TRACKER_H_
#define CAPSTAN_PLUGIN_API_TRACKER_H_

#include "plugin_api/base.h"
#include "plugin_api/plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct capstan_metric {
  size_t struct_size;
  const char* name; /* "loss" */
  double value;
  int32_t integer; /* 1: print without a fraction */
  int32_t reserved;
} capstan_metric;

#define CAPSTAN_TRACKER_INTERFACE "capstan.tracker/1"
typedef struct capstan_tracker_v1 {
  size_t struct_size;
  /* run_directory exists. resume_step: steps above it that an earlier process logged are dropped; -1
   * starts afresh. */
  capstan_status* (*create)(const capstan_host* host, const capstan_options* options,
                            const char* run_directory, int64_t resume_step, void** self);
  void (*destroy)(void* self); /* flushes */
  /* scope: "train", "validation". Never blocks the step on a slow disk: a bounded queue, drops
   * counted. [main thread] */
  capstan_status* (*metrics)(void* self, const char* scope, int64_t step,
                             const capstan_metric* metrics, size_t count);
  capstan_status* (*event)(void* self, const char* name, int64_t step, const char* text);
  capstan_status* (*flush)(void* self);
} capstan_tracker_v1;

#ifdef __cplusplus
}
#endif
#endif /* CAPSTAN_PLUGIN_API_TRACKER_H_ */
