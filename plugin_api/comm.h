/* Interface "capstan.comm/1": groups of ranks, collectives and point-to-point messages.
 *
 * Operations are prepared once (memory is registered, algorithms picked) and issued by `start`, which
 * does not block; `wait` blocks with a deadline. Collectives of one group match in the order they are
 * started. Messages match in order per (source, destination, channel); tags only check. */
#ifndef CAPSTAN_PLUGIN_API_COMM_H_
#define CAPSTAN_PLUGIN_API_COMM_H_

#include "plugin_api/base.h"
#include "plugin_api/plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Service "capstan.bootstrap/1": a small key-value exchange among the ranks of the job, used to form
 * groups. Blocks with the job's deadline. [any thread] */
#define CAPSTAN_BOOTSTRAP_SERVICE "capstan.bootstrap/1"
typedef struct capstan_bootstrap_service {
  size_t struct_size;
  capstan_status* (*put)(const capstan_host* host, const char* key, const void* value, size_t size);
  /* *value is the host's until the next get on this thread. */
  capstan_status* (*get)(const capstan_host* host, const char* key, const void** value,
                         size_t* size);
  const char* (*job)(const capstan_host* host); /* unguessable id of this job */
} capstan_bootstrap_service;

#define CAPSTAN_COMM_ALL_REDUCE 1
#define CAPSTAN_COMM_REDUCE_SCATTER 2
#define CAPSTAN_COMM_ALL_GATHER 3
#define CAPSTAN_COMM_BROADCAST 4
#define CAPSTAN_COMM_ALL_TO_ALL 5
#define CAPSTAN_COMM_SEND 6
#define CAPSTAN_COMM_RECV 7
#define CAPSTAN_COMM_BARRIER 8

#define CAPSTAN_COMM_SUM 0
#define CAPSTAN_COMM_MAX 1
#define CAPSTAN_COMM_AVERAGE 2

/* One tensor of a coalesced operation. counts: elements per rank of the group (uneven allowed, zero
 * allowed) where the operation splits or joins it; NULL: even. */
typedef struct capstan_comm_item {
  size_t struct_size;
  const void* send;
  void* recv; /* may equal send where the operation allows it in place */
  uint64_t count;
  const uint64_t* send_counts;
  const uint64_t* recv_counts;
} capstan_comm_item;

typedef struct capstan_comm_request {
  size_t struct_size;
  int32_t operation; /* CAPSTAN_COMM_* */
  int32_t reduce;    /* CAPSTAN_COMM_SUM ... */
  capstan_dtype dtype;
  int32_t root;    /* broadcast: index in the group */
  int32_t peer;    /* send, recv: index in the group */
  int32_t channel; /* send, recv */
  int32_t tag;
  size_t item_count;
  const capstan_comm_item* items;
  const char* label; /* for messages: op and tensor */
} capstan_comm_request;

typedef struct capstan_comm_capabilities {
  size_t struct_size;
  int32_t uneven;              /* per-rank counts without packing */
  int32_t tags;                /* tags are checked */
  int32_t stream_order;        /* start enqueues on the device queue */
  int32_t max_group;           /* 0: no limit */
  const int32_t* device_types; /* zero-terminated */
  const capstan_dtype* dtypes;
  size_t dtype_count;
} capstan_comm_capabilities;

typedef struct capstan_comm_progress {
  size_t struct_size;
  uint64_t started, finished; /* operations on this group */
  int32_t waiting_for;        /* a rank of the world not heard from, -1 none */
  int32_t reserved;
} capstan_comm_progress;

#define CAPSTAN_COMM_INTERFACE "capstan.comm/1"
typedef struct capstan_comm_v1 {
  size_t struct_size;
  capstan_status* (*probe)(const capstan_host* host, int32_t* score);
  capstan_status* (*create)(const capstan_host* host, const capstan_options* options, void** self);
  void (*destroy)(void* self);
  capstan_status* (*capabilities)(void* self, capstan_comm_capabilities* out);
  /* Bytes/s and seconds between two ranks as the backend knows them; UNSUPPORTED where it does not. */
  capstan_status* (*link)(void* self, int32_t from, int32_t to, double* bandwidth, double* latency);

  /* Memory the backend must own or know (shared arenas, registration). Both may be NULL. */
  capstan_status* (*memory_register)(void* self, void* memory, uint64_t bytes, int32_t fd,
                                     uint64_t offset);
  void (*memory_unregister)(void* self, void* memory);

  /* A group of ranks of the world, the same list on every member; made lazily. epoch: raised when
   * membership changes. */
  capstan_status* (*group_create)(void* self, const int32_t* ranks, size_t count, int64_t epoch,
                                  void** group);
  void (*group_destroy)(void* self, void* group);

  capstan_status* (*prepare)(void* self, void* group, const capstan_comm_request* request,
                             void** operation);
  void (*release)(void* self, void* operation);
  capstan_status* (*start)(void* self, void* operation, void* queue);
  capstan_status* (*wait)(void* self, void* operation, double timeout_s);

  capstan_status* (*poll)(void* self, void* group,
                          capstan_comm_progress* out); /* asynchronous errors */
  void (*abort)(void* self, void* group,
                const char* reason); /* [any thread] waiters return PEER_LOST */
} capstan_comm_v1;

#ifdef __cplusplus
}
#endif
#endif /* CAPSTAN_PLUGIN_API_COMM_H_ */
