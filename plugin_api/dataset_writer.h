/* Interface "capstan.dataset_writer/1": writes what a dataset of the same id reads, one file at a
 * time, atomically. Optional beside "capstan.dataset/1"; without it `capstan data` cannot write
 * that format. */
#ifndef CAPSTAN_PLUGIN_API_DATASET_WRITER_H_
#define CAPSTAN_PLUGIN_API_DATASET_WRITER_H_

#include "plugin_api/base.h"
#include "plugin_api/plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct capstan_dataset_writer_request {
  size_t struct_size;
  const char* path;      /* the final file, which must not exist; its directory is created */
  int64_t vocabulary;    /* every id is below it; decides the width of an id on disk */
  int64_t end_of_text;   /* the id that ends a document, -1: none */
  const char* tokenizer; /* its name, NULL: unknown */
  uint64_t tokenizer_fingerprint; /* 0: unknown */
} capstan_dataset_writer_request;

#define CAPSTAN_DATASET_WRITER_INTERFACE "capstan.dataset_writer/1"
typedef struct capstan_dataset_writer_v1 {
  size_t struct_size;
  const char* extension; /* of the files it writes: ".ctok" */

  /* One self is one file; nothing is visible at `path` before finish. [one thread per self] */
  capstan_status* (*create)(const capstan_host* host, const capstan_options* options,
                            const capstan_dataset_writer_request* request, void** self);
  capstan_status* (*append)(void* self, const uint32_t* ids, size_t count);
  capstan_status* (*finish)(void* self); /* fsync, rename, fsync the directory; consumes self, also
                                            on failure */
  void (*abort)(void* self);             /* removes the temporary; consumes self */
} capstan_dataset_writer_v1;

#ifdef __cplusplus
}
#endif
#endif /* CAPSTAN_PLUGIN_API_DATASET_WRITER_H_ */
