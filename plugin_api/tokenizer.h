/* Interface "capstan.tokenizer/1": bytes of text to token ids and back. */
#ifndef CAPSTAN_PLUGIN_API_TOKENIZER_H_
#define CAPSTAN_PLUGIN_API_TOKENIZER_H_

#include "plugin_api/base.h"
#include "plugin_api/plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CAPSTAN_TOKENIZER_INTERFACE "capstan.tokenizer/1"
typedef struct capstan_tokenizer_v1 {
  size_t struct_size;
  capstan_status* (*create)(const capstan_host* host, const capstan_options* options, void** self);
  void (*destroy)(void* self);

  /* Facts, constant for the life of self. [any thread] */
  const char* (*name)(void* self); /* "bytes"; at most 127 bytes; borrowed until destroy */
  uint64_t (*fingerprint)(
      void* self); /* equal for tokenizers that give every text the same ids; not 0 */
  int64_t (*vocabulary)(void* self);  /* ids are 0 .. vocabulary - 1 */
  int64_t (*end_of_text)(void* self); /* the id that ends a document, -1: none */

  /* Encoding is a stream: pieces of any size, cut anywhere, give the ids of the whole. An encoder
   * holds what cannot be decided before more text is seen. [one thread per encoder] */
  capstan_status* (*encoder_create)(void* self, void** encoder);
  void (*encoder_destroy)(void* self, void* encoder);
  /* Takes all of `text`. `last` is 1 with the final piece (which may be empty); the encoder then
   * starts afresh. `ids` are the encoder's until its next call; count may be 0. */
  capstan_status* (*encode)(void* self, void* encoder, const char* text, size_t size, int32_t last,
                            const uint32_t** ids, size_t* count);

  /* The bytes of `count` ids, not necessarily whole UTF-8 characters. Writes at most `capacity`
   * bytes to `text` and the full size to `size`: ask with capacity 0, then call again, or give
   * enough at once. An id outside the vocabulary is an error. [any thread] */
  capstan_status* (*decode)(void* self, const uint32_t* ids, size_t count, char* text,
                            size_t capacity, size_t* size);
} capstan_tokenizer_v1;

#ifdef __cplusplus
}
#endif
#endif /* CAPSTAN_PLUGIN_API_TOKENIZER_H_ */
