/* Interface "capstan.dataset/1": sample i, a pure function of seed and index. */
#ifndef CAPSTAN_PLUGIN_API_DATASET_H_
#define CAPSTAN_PLUGIN_API_DATASET_H_

#include "plugin_api/base.h"
#include "plugin_api/plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CAPSTAN_SPLIT_TRAIN 0
#define CAPSTAN_SPLIT_VALIDATION 1

typedef struct capstan_dataset_request {
  size_t struct_size;
  int32_t split; /* CAPSTAN_SPLIT_* */
  int32_t reserved;
  int64_t sequence_length;
  int64_t vocabulary; /* of the model: a token at or above it is an error naming file and offset */
  uint64_t seed;
} capstan_dataset_request;

typedef struct capstan_sample_request {
  size_t struct_size;
  int64_t index; /* global sample index, any value >= 0 (epochs follow one another) */
  size_t field_count;
  const char* const* fields; /* "tokens" i32[T], "targets" i32[T] (-1 ignored), "position" i32[T] */
  void* const* buffers;      /* the host's, one per field */
} capstan_sample_request;

#define CAPSTAN_DATASET_INTERFACE "capstan.dataset/1"
typedef struct capstan_dataset_v1 {
  size_t struct_size;
  capstan_status* (*create)(const capstan_host* host, const capstan_options* options,
                            const capstan_dataset_request* request, void** self);
  void (*destroy)(void* self);
  int64_t (*epoch_size)(void* self); /* samples in one pass; 0: unbounded */
  capstan_status* (*read)(void* self, const capstan_sample_request* request); /* [any thread] */
  const char* (*description)(void* self); /* "3 shards, 4.2M tokens"; borrowed until destroy */
} capstan_dataset_v1;

#ifdef __cplusplus
}
#endif
#endif /* CAPSTAN_PLUGIN_API_DATASET_H_ */
