/* Interface "capstan.device/1": memory, queues and kernels of one device.
 *
 * The step loop calls only `run` of prepared kernels; everything else happens before the first step. */
#ifndef CAPSTAN_PLUGIN_API_DEVICE_H_
#define CAPSTAN_PLUGIN_API_DEVICE_H_

#include "plugin_api/base.h"
#include "plugin_api/plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- kernels ------------------------------------------------------------------------------ */

/* An op as the kernel will see it: shapes, dtypes and attributes fixed, data pointers NULL. */
typedef struct capstan_kernel_request {
  size_t struct_size;
  const char* op;
  size_t input_count;
  const capstan_dl_tensor* inputs; /* ndim -1: omitted optional input */
  size_t output_count;
  const capstan_dl_tensor*
      outputs; /* ndim -1: nothing reads it, its pointer will be NULL: skip it */
  size_t attr_count;
  const capstan_attr* attrs;
  uint64_t seed; /* the run's */
} capstan_kernel_request;

/* Arguments of one launch. The host owns the arrays; they live as long as the prepared program, so a
 * kernel may not keep them but may read them during run. */
typedef struct capstan_kernel_args {
  size_t struct_size;
  void* const* inputs;  /* NULL entry: omitted optional input */
  void* const* outputs; /* NULL entry: nothing reads it */
  void* workspace;      /* workspace_bytes, 64-byte aligned, contents undefined between launches */
  void* queue;          /* from queue_create */
  uint64_t accumulate;  /* bit i: add to output i instead of overwriting it */
} capstan_kernel_args;

/* A prepared kernel; `state` is the maker's until `release`. */
typedef struct capstan_kernel {
  size_t struct_size;
  void* state;
  size_t workspace_bytes;
  const char* name; /* implementation picked, for traces; lives as long as the kernel */
  /* NULL: done (or enqueued). No allocation, lock or lookup on success. [thread of the queue] */
  capstan_status* (*run)(void* state, const capstan_kernel_args* args);
  void (*release)(void* state);
} capstan_kernel;

/* A kernel a plugin brings for its own op. */
typedef struct capstan_kernel_def {
  size_t struct_size;
  const char* device; /* "cpu" */
  capstan_status* (*prepare)(const capstan_kernel_request* request, capstan_kernel* out);
} capstan_kernel_def;

/* ---- the device --------------------------------------------------------------------------- */

/* Measured peaks of this device, for MFU and for the simulator. */
typedef struct capstan_roofline {
  size_t struct_size;
  double matmul_flops; /* FLOP/s of a large matrix product in the dtype asked for */
  double memory_bytes; /* bytes/s of a triad */
} capstan_roofline;

typedef struct capstan_memory_info {
  size_t struct_size;
  uint64_t total_bytes;     /* of the device */
  uint64_t free_bytes;      /* now */
  uint64_t allocated_bytes; /* by `allocate`, of this instance, exact sum of sizes asked for */
  uint64_t external_bytes;  /* upper bound on what libraries take for themselves */
} capstan_memory_info;

#define CAPSTAN_DEVICE_INTERFACE "capstan.device/1"
typedef struct capstan_device_v1 {
  size_t struct_size;
  /* A score (> 0 usable, higher better) or a status saying why not. Cheap, no side effects. */
  capstan_status* (*probe)(const capstan_host* host, int32_t* score);
  capstan_status* (*create)(const capstan_host* host, const capstan_options* options, void** self);
  void (*destroy)(void* self);

  capstan_device_id (*id)(void* self);
  const char* (*description)(void* self); /* "2 threads, avx512, oneDNN 2.6.3" */
  capstan_status* (*memory)(void* self, capstan_memory_info* out);

  /* Memory. 2 MiB aligned, prefaulted, contents zero. `region` names it in traces. Of a device whose id
   * has the type CAPSTAN_DEVICE_CPU the host reads and writes it in place, between launches. */
  capstan_status* (*allocate)(void* self, const char* region, uint64_t bytes, void** out);
  void (*free)(void* self, void* memory);
  /* Copies between any two of host and device memory, complete on return. */
  capstan_status* (*copy)(void* self, void* to, const void* from, uint64_t bytes);

  /* Queues run launches in order. The CPU has one, synchronous. */
  capstan_status* (*queue_create)(void* self, void** queue);
  void (*queue_destroy)(void* self, void* queue);
  capstan_status* (*queue_wait)(void* self, void* queue);
  void* (*queue_native)(void* self, void* queue); /* cudaStream_t, or NULL */

  /* Kernels of standard ops. supports: 1 yes, 0 no (the host then decomposes or refuses). */
  int32_t (*supports)(void* self, const capstan_kernel_request* request);
  capstan_status* (*prepare)(void* self, const capstan_kernel_request* request,
                             capstan_kernel* out);

  capstan_status* (*measure)(void* self, capstan_dtype dtype, capstan_roofline* out);

  /* Fusions this device is faster with, NULL-terminated: "linear_gelu". May be NULL. */
  const char* const* (*fusions)(void* self);

  /* Events order queues. May be NULL on synchronous devices. */
  capstan_status* (*event_create)(void* self, void** event);
  void (*event_destroy)(void* self, void* event);
  capstan_status* (*event_record)(void* self, void* event, void* queue);
  capstan_status* (*queue_wait_event)(void* self, void* queue, void* event);

  /* Shareable memory, for comm backends of one machine. May be NULL: not shareable.
   * export_memory gives a file descriptor owned by the caller and an offset. */
  capstan_status* (*export_memory)(void* self, void* memory, int32_t* fd, uint64_t* offset);

  /* Memory as `allocate` gives it that export_memory can share with other processes of this machine;
   * freed by `free`, whoever still maps it then finds zeros. May be NULL: what export_memory can share
   * comes from `allocate`. Appended: read it through CAPSTAN_HAS. [any thread] */
  capstan_status* (*allocate_shared)(void* self, const char* region, uint64_t bytes, void** out);
} capstan_device_v1;

#ifdef __cplusplus
}
#endif
#endif /* CAPSTAN_PLUGIN_API_DEVICE_H_ */
