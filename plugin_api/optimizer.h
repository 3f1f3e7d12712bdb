/* Interface "capstan.optimizer/1": which states a parameter needs, and the ops that update it. */
#ifndef CAPSTAN_PLUGIN_API_OPTIMIZER_H_
#define CAPSTAN_PLUGIN_API_OPTIMIZER_H_

#include "plugin_api/base.h"
#include "plugin_api/plugin.h"
#include "plugin_api/program.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CAPSTAN_GRANULARITY_ELEMENT 1 /* any slice of a parameter may be updated by itself */
#define CAPSTAN_GRANULARITY_ROW 2
#define CAPSTAN_GRANULARITY_WHOLE 3

/* A state of one parameter: same shape as what is updated unless scalar. */
typedef struct capstan_optimizer_state {
  size_t struct_size;
  const char* role; /* "exp_avg": the state is named <parameter>.<role> */
  capstan_dtype dtype;
  int32_t scalar; /* 1: shape [1] */
  double initial; /* value at the start */
} capstan_optimizer_state;

/* What the update of one parameter (or one shard of it) is given. Scalars are input tensors [1]. */
typedef struct capstan_update {
  size_t struct_size;
  capstan_program* program;
  capstan_position position;
  capstan_tensor parameter; /* to update, in the dtype the precision policy keeps masters in */
  capstan_tensor gradient;
  const capstan_tensor* states; /* in the order of `state` */
  size_t state_count;
  capstan_tensor learning_rate;  /* f32[1], follows the schedule */
  capstan_tensor step;           /* i64[1], 1 at the first update */
  capstan_tensor gradient_scale; /* f32[1]: multiply gradients by it (clipping, loss scale) */
  capstan_tensor guard;          /* boolean [1] or CAPSTAN_NONE: skip when false */
  double weight_decay;           /* resolved for this parameter */
} capstan_update;

#define CAPSTAN_OPTIMIZER_INTERFACE "capstan.optimizer/1"
typedef struct capstan_optimizer_v1 {
  size_t struct_size;
  capstan_status* (*create)(const capstan_host* host, const capstan_options* options, void** self);
  void (*destroy)(void* self);
  int32_t (*granularity)(void* self);
  /* The index-th state of a parameter of this dtype and shape; NULL past the end. Borrowed until the
   * next call. */
  const capstan_optimizer_state* (*state)(void* self, const capstan_tensor_desc* parameter,
                                          size_t index);
  capstan_status* (*emit)(void* self, const capstan_update* update);
} capstan_optimizer_v1;

#ifdef __cplusplus
}
#endif
#endif /* CAPSTAN_PLUGIN_API_OPTIMIZER_H_ */
