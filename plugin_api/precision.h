/* Interface "capstan.precision/1": dtypes by role, masters, scaling and finite checks. */
#ifndef CAPSTAN_PLUGIN_API_PRECISION_H_
#define CAPSTAN_PLUGIN_API_PRECISION_H_

#include "plugin_api/base.h"
#include "plugin_api/plugin.h"
#include "plugin_api/program.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CAPSTAN_ROLE_PARAMETER 1 /* what forward and backward read */
#define CAPSTAN_ROLE_COMPUTE 2   /* activations */
#define CAPSTAN_ROLE_GRADIENT 3  /* accumulated gradients */
#define CAPSTAN_ROLE_MASTER 4    /* what the optimizer updates; same as PARAMETER: no master */

#define CAPSTAN_PRECISION_INTERFACE "capstan.precision/1"
typedef struct capstan_precision_v1 {
  size_t struct_size;
  capstan_status* (*create)(const capstan_host* host, const capstan_options* options, void** self);
  void (*destroy)(void* self);
  capstan_dtype (*dtype)(void* self,
                         int32_t role); /* of tensors created by the host for that role */
  /* Phase "precision" of the forward graph: casts, dtypes, scaling inputs. */
  capstan_status* (*rewrite)(void* self, capstan_program* program);
  /* Phase "finish": unscale and finite check. Sets *guard to a boolean tensor or leaves it. May be
   * NULL. */
  capstan_status* (*finish)(void* self, capstan_program* program, capstan_tensor* guard);
  int32_t (*equivalence)(void* self, double* tolerance); /* as strategies; NULL: exact */
} capstan_precision_v1;

#ifdef __cplusplus
}
#endif
#endif /* CAPSTAN_PLUGIN_API_PRECISION_H_ */
