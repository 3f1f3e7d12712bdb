/* Interface "capstan.model/1": the forward ops of an architecture. */
#ifndef CAPSTAN_PLUGIN_API_MODEL_H_
#define CAPSTAN_PLUGIN_API_MODEL_H_

#include "plugin_api/base.h"
#include "plugin_api/plugin.h"
#include "plugin_api/program.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CAPSTAN_MODE_FORWARD 0 /* whole sequences: train, eval, score */
#define CAPSTAN_MODE_PREFILL \
  1 /* as FORWARD, and fills the KV cache; hidden of the last position only */
#define CAPSTAN_MODE_DECODE 2 /* one position a sequence, reading and extending the KV cache */

/* What a model is asked to emit. The host has added these input tensors before the call; a model uses
 * those its mode needs and leaves the rest:
 *   tokens i32[B,T] (microbatch), position i32[B,T] (microbatch), sample i64[B] (microbatch: global
 *   sample ids, for dropout), step i64[1], and for PREFILL and DECODE: cache_position i32[B] (tokens
 *   already cached) and last i32[B] (index in [0,T) of the last real token). */
typedef struct capstan_emit {
  size_t struct_size;
  capstan_program* program;
  capstan_position position; /* in "forward/0" */
  int32_t mode;              /* CAPSTAN_MODE_* */
  int32_t training;          /* 1: dropout is active */
  int64_t batch, sequence;   /* B, T */
  int64_t cache_length;      /* S of KV caches, PREFILL and DECODE */
  capstan_dtype dtype;       /* of parameters and activations before the precision phase */
  capstan_tensor tokens, token_position, sample, step, cache_position, last;
} capstan_emit;

/* What came out. The objective or sampler puts the head on. */
typedef struct capstan_emitted {
  size_t struct_size;
  capstan_tensor hidden;      /* [B,T,C] after the final norm; [B,1,C] for PREFILL and DECODE */
  capstan_tensor head_weight; /* [V,C], tied or not */
  int64_t valid_vocabulary;   /* rows of head_weight that are real; the rest is padding */
} capstan_emitted;

typedef struct capstan_model_info {
  size_t struct_size;
  int64_t vocabulary;   /* real token ids are below this */
  int64_t max_sequence; /* longest sequence, 0: no limit */
  int64_t layers, width, heads, kv_heads, head_dim;
  int64_t eos_token; /* -1: none */
} capstan_model_info;

#define CAPSTAN_MODEL_INTERFACE "capstan.model/1"
typedef struct capstan_model_v1 {
  size_t struct_size;
  /* `config_json`: the text of the published model's config.json when weights are given, else NULL;
   * options the user set win only where they do not contradict it (a contradiction is refused). */
  capstan_status* (*create)(const capstan_host* host, const capstan_options* options,
                            const char* config_json, void** self);
  void (*destroy)(void* self);
  capstan_status* (*info)(void* self, capstan_model_info* out);
  capstan_status* (*emit)(void* self, const capstan_emit* emit, capstan_emitted* out);
  /* config.json of this model in its published (Hugging Face) form. Borrowed until destroy. */
  capstan_status* (*config_json)(void* self, const char** text);
} capstan_model_v1;

#ifdef __cplusplus
}
#endif
#endif /* CAPSTAN_PLUGIN_API_MODEL_H_ */
