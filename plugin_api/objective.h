/* Interface "capstan.objective/1": the loss, and the fields of a batch it needs. */
#ifndef CAPSTAN_PLUGIN_API_OBJECTIVE_H_
#define CAPSTAN_PLUGIN_API_OBJECTIVE_H_

#include "plugin_api/base.h"
#include "plugin_api/model.h"
#include "plugin_api/plugin.h"
#include "plugin_api/program.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A field of a batch, one row a sequence. The host makes it an input tensor [B, per_sequence...]. */
typedef struct capstan_field {
  size_t struct_size;
  const char* name; /* "tokens", "targets", "position" */
  capstan_dtype dtype;
  int32_t per_position; /* 1: [B,T], 0: [B] */
} capstan_field;

typedef struct capstan_loss {
  size_t struct_size;
  capstan_program* program;
  capstan_position position;
  const capstan_emitted* model;
  const capstan_tensor* fields; /* in the order of `field` */
  size_t field_count;
  capstan_tensor count; /* f32[1]: the step's global weight N in this objective's unit */
  int32_t training;
} capstan_loss;

#define CAPSTAN_OBJECTIVE_INTERFACE "capstan.objective/1"
typedef struct capstan_objective_v1 {
  size_t struct_size;
  capstan_status* (*create)(const capstan_host* host, const capstan_options* options, void** self);
  void (*destroy)(void* self);
  const capstan_field* (*field)(void* self, size_t index); /* NULL past the end */
  const char* (*unit)(void* self);                         /* "target tokens" */
  /* Weight of one sequence in that unit, from its fields (pointers in the order of `field`). */
  double (*weight)(void* self, const void* const* fields, int64_t sequence_length);
  /* Emits the loss, a scalar summed over this microbatch and divided by count. */
  capstan_status* (*emit)(void* self, const capstan_loss* loss, capstan_tensor* out);
} capstan_objective_v1;

#ifdef __cplusplus
}
#endif
#endif /* CAPSTAN_PLUGIN_API_OBJECTIVE_H_ */
