/* Interface "capstan.comm/1": groups of ranks, collectives and point-to-point messages.
 *
 * Operations are prepared once (memory is registered, algorithms picked) and issued by `start`, which
 * does not block; `wait` blocks with a deadline. Collectives of one group match in the order they are
 * started. Messages match in order per (source, destination, channel); tags only check.
 *
 * Failure: a deadline that passed, a lost peer, an abort or a mismatch between ranks ends the group on
 * every rank. All its waiters return, and every later start and wait says the same: TIMEOUT,
 * PEER_LOST, or BUG for a mismatch, with the culprit's rank where it is known and a sentence that
 * names the operation's label. Only group_destroy, release and poll are of use then. What received
 * memory holds is undefined, and a stopped rank that wakes may still write into registered memory:
 * end it before that memory is used again. */
#ifndef CAPSTAN_PLUGIN_API_COMM_H_
#define CAPSTAN_PLUGIN_API_COMM_H_

#include "plugin_api/base.h"
#include "plugin_api/plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Service "capstan.bootstrap/1": a small key-value exchange among the ranks of the job, used to form
 * groups. `get` blocks until some rank has put the key, with the job's deadline; a key is put once and
 * stays. Only ranks of the job can read or write it. [any thread] */
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
#define CAPSTAN_COMM_OPERATIONS 16 /* with room for more */

#define CAPSTAN_COMM_SUM 0
#define CAPSTAN_COMM_MAX 1
#define CAPSTAN_COMM_AVERAGE 2

/* Reductions are element by element, in a fixed order: the result is bit-identical on every rank and
 * from run to run. AVERAGE is the sum divided by the group's size, of floating types only. f16 and
 * bf16 are summed in f32 and rounded once. Integers wrap. The sum and the maximum of bool are "or". A
 * maximum with a NaN is a NaN. (A backend whose library orders sums by itself says so.) */

/* One tensor of a coalesced operation. `count` is the number of elements of the whole tensor, n the
 * group's size, i this rank's index in the group:
 *
 *   operation       send                         recv                          counts
 *   ALL_REDUCE      count                        count                         -
 *   BROADCAST       count, the root's only       count                         -
 *   REDUCE_SCATTER  count                        part i                        send_counts: the parts
 *   ALL_GATHER      part i                       count                         recv_counts: the parts
 *   ALL_TO_ALL      count, part j goes to j      part j comes from j           both
 *   SEND, RECV      count                        count                         -
 *   BARRIER         no items
 *
 * Parts lie one behind the other in the order of the group; zero is allowed. Counts NULL: n equal
 * parts, which must divide `count`; else they sum to `count` (recv_counts of ALL_TO_ALL: to whatever
 * they do). Every rank passes the same parts (ALL_TO_ALL: send_counts[j] here is recv_counts[i]
 * there).
 *
 * In place: ALL_REDUCE and BROADCAST with recv == send; ALL_GATHER with send, and REDUCE_SCATTER with
 * recv, at part i of the whole tensor. Memory may not overlap in any other way, nor with other
 * operations in flight, except where all only read. A pointer to zero elements may be NULL. */
typedef struct capstan_comm_item {
  size_t struct_size;
  const void* send;
  void* recv;
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
  int32_t channel; /* send, recv: an order of messages of its own */
  int32_t tag;     /* send, recv: equal on both sides, or the ranks disagree about the message */
  size_t item_count;
  const capstan_comm_item* items; /* read by `prepare` only; the memory is used until release */
  const char* label; /* op and tensor, for messages; the same on every rank of a collective */
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
  uint64_t started, finished; /* operations of this rank on this group */
  int32_t waiting_for; /* the rank of the world that the oldest unfinished one lacks, -1 none */
  int32_t reserved;
  /* Of the finished ones, by operation: bytes of the tensors, whole where ranks have parts (the items'
   * counts). All 0 from a backend built before this field. */
  uint64_t bytes[CAPSTAN_COMM_OPERATIONS];
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

  /* Memory the backend must own or know (shared arenas, registration). Both may be NULL. `memory` is
   * mapped from `fd` (the device's export_memory; -1: not shareable) at `offset`. The backend keeps a
   * duplicate of fd, the caller its own. Register before the operations on it are prepared, unregister
   * after they are released. [any thread] */
  capstan_status* (*memory_register)(void* self, void* memory, uint64_t bytes, int32_t fd,
                                     uint64_t offset);
  void (*memory_unregister)(void* self, void* memory);

  /* A group of ranks of the world, the same list on every member, this rank among them. Members need
   * not call at the same moment, nor make several groups in the same order, as long as groups of equal
   * lists and epochs are made in the same order. epoch: raised when membership changes.
   * group_destroy while others still need this rank fails them with PEER_LOST. [any thread] */
  capstan_status* (*group_create)(void* self, const int32_t* ranks, size_t count, int64_t epoch,
                                  void** group);
  void (*group_destroy)(void* self, void* group);

  /* An operation is local to the rank: preparing and releasing need no other rank. It may be started
   * again once its wait has returned; released while in flight, its memory must live on until the
   * others are done. USAGE names what is wrong with a request. [any thread] */
  capstan_status* (*prepare)(void* self, void* group, const capstan_comm_request* request,
                             void** operation);
  void (*release)(void* self, void* operation);
  /* [one thread a group at a time] queue: of the device where `stream_order` is 1, else NULL. */
  capstan_status* (*start)(void* self, void* operation, void* queue);
  /* Until the operation's memory is this rank's again and holds the result. timeout_s < 0: no
   * deadline. [any thread] */
  capstan_status* (*wait)(void* self, void* operation, double timeout_s);

  /* How far the group is; the status that ended it, if one did. [any thread] */
  capstan_status* (*poll)(void* self, void* group, capstan_comm_progress* out);
  void (*abort)(void* self, void* group,
                const char* reason); /* waiters on every rank return PEER_LOST. [any thread] */
} capstan_comm_v1;

#ifdef __cplusplus
}
#endif
#endif /* CAPSTAN_PLUGIN_API_COMM_H_ */
