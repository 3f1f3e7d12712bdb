/* Service "capstan.program/1": read and rewrite a Program.
 *
 * A Program is what one rank does in one step: tensors, ops in segments, a schedule. Ids are small
 * integers, valid for the Program that gave them until the thing is removed; -1 is "none". Strings and
 * arrays returned by the service are borrowed: they live until the next edit of the same Program.
 * All calls are [the thread that was handed the program]. On error, out-parameters are untouched. */
#ifndef CAPSTAN_PLUGIN_API_PROGRAM_H_
#define CAPSTAN_PLUGIN_API_PROGRAM_H_

#include "plugin_api/base.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CAPSTAN_PROGRAM_SERVICE "capstan.program/1"

typedef struct capstan_program capstan_program; /* opaque, the host's */
typedef int32_t capstan_tensor;
typedef int32_t capstan_op;
#define CAPSTAN_NONE (-1)

/* ---- placement ---------------------------------------------------------------------------- */

#define CAPSTAN_REPLICATE 'R'
#define CAPSTAN_SHARD 'S'
#define CAPSTAN_PARTIAL 'P'
#define CAPSTAN_VARYING 'V'

#define CAPSTAN_SUM 0
#define CAPSTAN_MAX 1

/* How a tensor lies over one mesh axis or named group. Axes not listed: replicated. */
typedef struct capstan_placement {
  size_t struct_size;
  const char* axis;
  int32_t kind;   /* CAPSTAN_REPLICATE ... */
  int32_t dim;    /* SHARD: which dim */
  int32_t reduce; /* PARTIAL: CAPSTAN_SUM or CAPSTAN_MAX */
  int32_t range_count;
  const int64_t*
      ranges; /* SHARD: this rank's global [begin, end) pairs along dim; NULL: even blocks */
} capstan_placement;

/* ---- tensors ------------------------------------------------------------------------------ */

#define CAPSTAN_PARAMETER 1 /* persistent, trained or frozen */
#define CAPSTAN_GRADIENT 2  /* persistent through a step */
#define CAPSTAN_STATE 3     /* persistent: optimizer moments, KV caches, metrics */
#define CAPSTAN_INPUT 4    /* filled by the host: tokens (each microbatch) or scalars (each step) */
#define CAPSTAN_CONSTANT 5 /* filled once from init */
#define CAPSTAN_ACTIVATION 6 /* produced and consumed within a step */

#define CAPSTAN_INIT_ZEROS 0
#define CAPSTAN_INIT_CONSTANT 1 /* init_a */
#define CAPSTAN_INIT_NORMAL 2   /* mean init_a, standard deviation init_b */
#define CAPSTAN_INIT_UNIFORM 3  /* [init_a, init_b) */

#define CAPSTAN_SCOPE_STEP 0       /* an input that has one value a step */
#define CAPSTAN_SCOPE_MICROBATCH 1 /* an input that has a value for every microbatch */

#define CAPSTAN_SAVE_AUTO 0 /* kept for the backward pass if the backward pass reads it */
#define CAPSTAN_SAVE_NO 1   /* recomputed by re-emitting its op before first use in backward */

/* Where a logical parameter lives in the weights of the published model: a hyper-rectangle of a named
 * external tensor, possibly transposed (external = logical^T, two dims). */
typedef struct capstan_external {
  size_t struct_size;
  const char* name;     /* "transformer.h.0.attn.c_attn.weight"; NULL: same as the tensor's name */
  int32_t ndim;         /* of the external tensor; 0: same shape as the tensor's global shape */
  int32_t transposed;   /* 1: the external tensor stores the transpose */
  const int64_t* shape; /* of the whole external tensor, in its own orientation */
  const int64_t* start; /* where this parameter begins in it, in its own orientation */
} capstan_external;

typedef struct capstan_tensor_desc {
  size_t struct_size;
  const char* name; /* unique among persistent tensors and inputs; activations may leave it NULL */
  capstan_dtype dtype;
  int32_t ndim;
  const int64_t* shape; /* local: what this rank holds */
  int32_t kind;         /* CAPSTAN_PARAMETER ... */
  int32_t trainable;    /* parameters: 1 gets a gradient */
  int32_t save;         /* activations: CAPSTAN_SAVE_* */
  int32_t scope;        /* inputs: CAPSTAN_SCOPE_* */
  size_t placement_count;
  const capstan_placement* placement;
  const int64_t* global_shape; /* NULL: as shape */
  const int64_t* slice_start;  /* NULL: zeros */
  const char* const*
      dim_axes;           /* parameters: logical axis name of each dim ("vocab", "embed", ...) */
  capstan_tensor view_of; /* CAPSTAN_NONE, or the tensor whose storage this is a window of; both
                                  persistent */
  int64_t view_offset;    /* elements from the start of view_of */
  int32_t init;           /* CAPSTAN_INIT_*, parameters, states and constants */
  int32_t layer;          /* -1 none */
  double init_a, init_b;
  const capstan_external* external; /* parameters; NULL: none */
  capstan_tensor of;                /* gradients and states: the parameter they belong to */
  int32_t loss_root;                /* 1: a scalar loss; differentiation starts here */
  const char* role;                 /* states: "exp_avg", "cache", "metric" ...; "" otherwise */
  const char* codec;                /* encoded tensors: codec id, "" plain */
  const char* const*
      dim_extents; /* bounded dims: names of scalar tensors with the run-time extent, NULL
                                       array or NULL entries: fixed */
} capstan_tensor_desc;

/* ---- ops ---------------------------------------------------------------------------------- */

#define CAPSTAN_EVERY_MICROBATCH 0
#define CAPSTAN_FIRST_MICROBATCH 1
#define CAPSTAN_LAST_MICROBATCH 2

/* Steps at which an op runs: start <= step < stop and (step - offset) % every == 0. */
typedef struct capstan_when {
  size_t struct_size;
  int32_t microbatch; /* CAPSTAN_EVERY_MICROBATCH ... */
  int32_t reserved;
  int64_t start, stop; /* stop < 0: no end */
  int64_t every, offset;
  capstan_tensor guard; /* boolean scalar; CAPSTAN_NONE: always */
} capstan_when;

#define CAPSTAN_ROLE_NONE 0
#define CAPSTAN_ROLE_DATA_GRADIENT 1   /* needed by earlier layers' backward */
#define CAPSTAN_ROLE_WEIGHT_GRADIENT 2 /* may be delayed */

typedef struct capstan_op_desc {
  size_t struct_size;
  const char* kind; /* an op of ops.h or one defined by a plugin */
  size_t input_count;
  const capstan_tensor* inputs; /* CAPSTAN_NONE for an omitted optional input */
  size_t output_count;          /* 0: as many as the op defines, all new */
  const capstan_tensor*
      outputs; /* existing tensors to write or update; CAPSTAN_NONE: make a new one */
  size_t attr_count;
  const capstan_attr* attrs;
  int32_t layer;            /* -1 none */
  int32_t role;             /* CAPSTAN_ROLE_* */
  const capstan_when* when; /* NULL: always */
} capstan_op_desc;

/* Where new ops go. before == CAPSTAN_NONE: at the end of the segment. */
typedef struct capstan_position {
  size_t struct_size;
  const char* segment; /* "begin", "forward/0", "backward/0", "update", ...; created when new */
  capstan_op before;
  int32_t reserved;
} capstan_position;

typedef struct capstan_schedule_entry {
  size_t struct_size;
  const char* segment;
  int32_t microbatch; /* -1: once a step */
  int32_t reserved;
} capstan_schedule_entry;

/* ---- differentiation rules (passed to an op's vjp) ------------------------------------------- */

/* One VJP evaluation. The ops it emits are inserted at `position` of the backward segment. */
typedef struct capstan_vjp {
  size_t struct_size;
  capstan_program* program;
  capstan_op op;
  capstan_position position;
  const capstan_tensor* output_cotangents; /* one per output, CAPSTAN_NONE: no gradient flows in */
  const int32_t* needs;                    /* one per input, 1: a cotangent is wanted */
  void* host;                              /* the host's, passed back */
  /* The gradient tensor that a weight-gradient op should accumulate into for this parameter input,
   * CAPSTAN_NONE when the input is not a trainable parameter. Name it among the op's outputs. */
  capstan_tensor (*gradient_of)(struct capstan_vjp* ctx, size_t input);
  /* State the cotangent of an input. Contributions of several uses are summed by the host. Not for
   * inputs whose gradient_of was written directly. */
  capstan_status* (*set_cotangent)(struct capstan_vjp* ctx, size_t input, capstan_tensor cotangent);
} capstan_vjp;

/* ---- the service -------------------------------------------------------------------------- */

typedef struct capstan_program_service {
  size_t struct_size;

  /* facts */
  const char* (*name)(const capstan_program* p); /* "train", "eval", "prefill", "decode" */
  int64_t (*microbatches)(const capstan_program* p);
  int64_t (*micro_batch_size)(const capstan_program* p); /* sequences in one microbatch */
  int64_t (*sequence_length)(const capstan_program* p);

  /* tensors: ids run from 0 to tensor_limit - 1; removed ones give a status */
  capstan_tensor (*tensor_limit)(const capstan_program* p);
  int32_t (*tensor_alive)(const capstan_program* p, capstan_tensor t);
  capstan_status* (*tensor_get)(const capstan_program* p, capstan_tensor t,
                                capstan_tensor_desc* out);
  capstan_tensor (*tensor_find)(const capstan_program* p,
                                const char* name); /* CAPSTAN_NONE: none */
  capstan_status* (*tensor_add)(capstan_program* p, const capstan_tensor_desc* desc,
                                capstan_tensor* out);
  capstan_status* (*tensor_set)(capstan_program* p, capstan_tensor t,
                                const capstan_tensor_desc* desc);
  capstan_op (*tensor_producer)(const capstan_program* p,
                                capstan_tensor t); /* CAPSTAN_NONE: none */
  /* ops that read or update t, in program order */
  capstan_status* (*tensor_users)(const capstan_program* p, capstan_tensor t,
                                  const capstan_op** ops, size_t* count);

  /* segments, in order of first appearance */
  size_t (*segment_count)(const capstan_program* p);
  const char* (*segment_name)(const capstan_program* p, size_t i);
  capstan_status* (*segment_ops)(const capstan_program* p, const char* segment,
                                 const capstan_op** ops, size_t* count);

  /* ops */
  int32_t (*op_alive)(const capstan_program* p, capstan_op op);
  capstan_status* (*op_get)(const capstan_program* p, capstan_op op, capstan_op_desc* out);
  const char* (*op_segment)(const capstan_program* p, capstan_op op);
  /* Adds an op: the op's definition infers dtype, shape and placement of new outputs and checks all
   * operands. `outputs` (may be NULL) receives the ids of all its outputs, in order. */
  capstan_status* (*op_add)(capstan_program* p, const capstan_position* at,
                            const capstan_op_desc* desc, capstan_op* op, capstan_tensor* outputs,
                            size_t output_capacity);
  capstan_status* (*op_remove)(capstan_program* p,
                               capstan_op op); /* refused while an output is read */
  capstan_status* (*op_move)(capstan_program* p, capstan_op op, const capstan_position* to);
  capstan_status* (*op_set_input)(capstan_program* p, capstan_op op, size_t input,
                                  capstan_tensor t);
  capstan_status* (*op_set_output)(capstan_program* p, capstan_op op, size_t output,
                                   capstan_tensor t);
  capstan_status* (*op_set_attr)(capstan_program* p, capstan_op op, const capstan_attr* attr);
  capstan_status* (*op_set_when)(capstan_program* p, capstan_op op, const capstan_when* when);
  /* Every reader of `from` reads `to` instead, except `except` (CAPSTAN_NONE: no exception). */
  capstan_status* (*replace_uses)(capstan_program* p, capstan_tensor from, capstan_tensor to,
                                  capstan_op except);
  /* Effects and flags of an op, from its definition: CAPSTAN_OP_* of ops.h */
  uint32_t (*op_flags)(const capstan_program* p, capstan_op op);
  /* Re-infers dtypes, shapes and placements of all activations after the edits above. */
  capstan_status* (*infer)(capstan_program* p);

  /* schedule */
  capstan_status* (*schedule_get)(const capstan_program* p, const capstan_schedule_entry** entries,
                                  size_t* count);
  capstan_status* (*schedule_set)(capstan_program* p, const capstan_schedule_entry* entries,
                                  size_t count);
  /* Re-infers one op from its inputs as they stand: a rewrite that goes through a segment in order knows
   * the types of everything before. */
  capstan_status* (*op_infer)(capstan_program* p, capstan_op op);
  /* What one launch of an op costs: FLOPs, and bytes through the device's memory. */
  capstan_status* (*op_cost)(const capstan_program* p, capstan_op op, double* flops,
                             double* bytes_read, double* bytes_written);
  /* Removes a tensor that no op reads or writes: a parameter of another pipeline stage. */
  capstan_status* (*tensor_remove)(capstan_program* p, capstan_tensor t);
} capstan_program_service;

#ifdef __cplusplus
}
#endif
#endif /* CAPSTAN_PLUGIN_API_PROGRAM_H_ */
