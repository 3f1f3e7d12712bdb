/* Interface "capstan.strategy/1": a function from Program to Program. */
#ifndef CAPSTAN_PLUGIN_API_STRATEGY_H_
#define CAPSTAN_PLUGIN_API_STRATEGY_H_

#include "plugin_api/base.h"
#include "plugin_api/plugin.h"
#include "plugin_api/program.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The standard phases, in order. A strategy may name a phase of its own and place it with before /
 * after. */
#define CAPSTAN_PHASE_ADAPT "adapt"
#define CAPSTAN_PHASE_PRECISION "precision"
#define CAPSTAN_PHASE_EXPERT "expert"
#define CAPSTAN_PHASE_TENSOR "tensor"
#define CAPSTAN_PHASE_SEQUENCE "sequence"
#define CAPSTAN_PHASE_CONTEXT "context"
#define CAPSTAN_PHASE_PIPELINE "pipeline"
#define CAPSTAN_PHASE_DIFFERENTIATE "differentiate" /* the host's */
#define CAPSTAN_PHASE_RECOMPUTE "recompute"
#define CAPSTAN_PHASE_GRADIENT "gradient"
#define CAPSTAN_PHASE_COMPRESS "compress"
#define CAPSTAN_PHASE_FINISH "finish" /* host: global norm, clip */
#define CAPSTAN_PHASE_UPDATE "update" /* host: the optimizers */
#define CAPSTAN_PHASE_PUBLISH "publish"
#define CAPSTAN_PHASE_OFFLOAD "offload"
#define CAPSTAN_PHASE_FUSE "fuse"
#define CAPSTAN_PHASE_SCHEDULE "schedule"

typedef struct capstan_phase {
  size_t struct_size;
  const char* id;
  const char*
      after; /* for a phase of the strategy's own: a phase it follows; NULL: standard phase */
  const char* before; /* ... and one it precedes, or NULL */
} capstan_phase;

/* How its training on several ranks compares with one rank that has the same components: equal but for
 * the order of sums; within a tolerance a step, which it tells; or by its nature another (then
 * `capstan verify` refuses it where one of its axes has several ranks). */
#define CAPSTAN_EQUIVALENCE_EXACT 1
#define CAPSTAN_EQUIVALENCE_BOUNDED 2
#define CAPSTAN_EQUIVALENCE_REFERENCE 3

#define CAPSTAN_AXIS_DATA 1 /* the batch is sharded over it */
#define CAPSTAN_AXIS_INDEPENDENT 2
#define CAPSTAN_AXIS_SEQUENCE 3
#define CAPSTAN_AXIS_MODEL 4

typedef struct capstan_axis_use {
  size_t struct_size;
  const char* axis;
  int32_t role; /* CAPSTAN_AXIS_* */
  int32_t reserved;
} capstan_axis_use;

#define CAPSTAN_STRATEGY_INTERFACE "capstan.strategy/1"
typedef struct capstan_strategy_v1 {
  size_t struct_size;
  capstan_status* (*create)(const capstan_host* host, const capstan_options* options, void** self);
  void (*destroy)(void* self);
  const capstan_phase* (*phase)(void* self, size_t index); /* NULL past the end */
  /* Rewrites one Program in one phase. Called for every Program of a run ("train", "eval", ...); look
   * at its name. [main thread] */
  capstan_status* (*rewrite)(void* self, const char* phase, capstan_program* program);
  const capstan_axis_use* (*axis)(void* self, size_t index); /* NULL past the end; may be NULL */
  /* Ids of strategies it cannot be combined with, or needs; NULL-terminated, may be NULL. */
  const char* const* (*conflicts)(void* self);
  const char* const* (*needs)(void* self);
  int32_t (*equivalence)(void* self, double* tolerance); /* CAPSTAN_EQUIVALENCE_*; NULL: exact */
  /* Versioned private state saved with checkpoints. Both may be NULL. `data` is the strategy's until
   * the next call. */
  capstan_status* (*save)(void* self, const void** data, size_t* size, int32_t* version);
  capstan_status* (*load)(void* self, const void* data, size_t size, int32_t version);
} capstan_strategy_v1;

#ifdef __cplusplus
}
#endif
#endif /* CAPSTAN_PLUGIN_API_STRATEGY_H_ */
