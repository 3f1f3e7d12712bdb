/* Interface "capstan.store/1": slices of named tensors and small blobs, written and read atomically.
 *
 * A *bundle* is a set of named tensors and text blobs that appears whole or not at all: a checkpoint,
 * or the weights of a published model. */
#ifndef CAPSTAN_PLUGIN_API_STORE_H_
#define CAPSTAN_PLUGIN_API_STORE_H_

#include "plugin_api/base.h"
#include "plugin_api/plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A tensor of a bundle. `group` says which file family it belongs to: "model" for weights in
 * published form, "optimizer" for states. */
typedef struct capstan_store_tensor {
  size_t struct_size;
  const char* name;
  const char* group;
  capstan_dtype dtype;
  int32_t ndim;
  const int64_t* shape;
} capstan_store_tensor;

/* A dense hyper-rectangle of a stored tensor, row-major at `data`. */
typedef struct capstan_store_slice {
  size_t struct_size;
  const char* name;
  const char* group;
  int32_t ndim;
  const int64_t* start;
  const int64_t* extent;
  void* data; /* read from by put, written to by get */
} capstan_store_slice;

#define CAPSTAN_STORE_INTERFACE "capstan.store/1"
typedef struct capstan_store_v1 {
  size_t struct_size;
  capstan_status* (*create)(const capstan_host* host, const capstan_options* options, void** self);
  void (*destroy)(void* self);

  /* Writing. begin declares every tensor, so layout and free space are known before the first byte
   * (a full disk is refused here where possible). `path` is the final place; nothing is visible there
   * until commit, which fsyncs, renames, and fsyncs the parent. abort (or a crash) leaves only a
   * temporary that `clean` removes. [one thread per writer] */
  capstan_status* (*begin)(void* self, const char* path, const capstan_store_tensor* tensors,
                           size_t count, void** writer);
  capstan_status* (*put)(void* self, void* writer, const capstan_store_slice* slice);
  /* A text file inside the bundle: "config.json", "capstan.json". */
  capstan_status* (*put_text)(void* self, void* writer, const char* name, const char* text,
                              size_t size);
  capstan_status* (*commit)(void* self, void* writer); /* consumes the writer, also on failure */
  void (*abort)(void* self, void* writer);             /* consumes the writer */

  /* Reading. open checks headers wholly before it returns. */
  capstan_status* (*open)(void* self, const char* path, void** reader);
  void (*close)(void* self, void* reader);
  size_t (*tensor_count)(void* self, void* reader);
  capstan_status* (*tensor)(void* self, void* reader, size_t index, capstan_store_tensor* out);
  capstan_status* (*get)(void* self, void* reader, const capstan_store_slice* slice);
  /* Text borrowed until close; a missing file gives a status of class DATA. */
  capstan_status* (*get_text)(void* self, void* reader, const char* name, const char** text,
                              size_t* size);

  /* Bundles under a directory: complete ones by name, ascending. `names` is the store's until the next
   * call. remove deletes one whole bundle; clean removes temporaries of crashed writers. */
  capstan_status* (*list)(void* self, const char* directory, const char* const** names,
                          size_t* count);
  capstan_status* (*remove)(void* self, const char* path);
  capstan_status* (*clean)(void* self, const char* directory);

  /* One bundle written by several processes. The leader begins it and asks for its ticket, with which
   * the others join, declaring the same tensors in the same order; each puts its own slices. `commit`
   * of a writer that joined makes its slices last and ends it, without making the bundle visible; the
   * leader commits after all of them have. Both may be NULL: one process writes a bundle.
   * *text is the store's until the leader's writer ends. */
  capstan_status* (*ticket)(void* self, void* writer, const char** text);
  capstan_status* (*join)(void* self, const char* ticket, const capstan_store_tensor* tensors,
                          size_t count, void** writer);
} capstan_store_v1;

#ifdef __cplusplus
}
#endif
#endif /* CAPSTAN_PLUGIN_API_STORE_H_ */
