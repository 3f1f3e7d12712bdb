/* Capstan plugin ABI: the vocabulary shared by every interface.
 *
 * C99, self-contained, also valid C++. Nothing here is a closed enum: codes are int32_t constants,
 * interfaces are string ids. Every struct that crosses the boundary starts with `struct_size`, and
 * fields are only ever appended; read an appended field through CAPSTAN_HAS. An array of such structs
 * is stepped through by the struct_size of its elements, never by sizeof. */
#ifndef CAPSTAN_PLUGIN_API_BASE_H_
#define CAPSTAN_PLUGIN_API_BASE_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CAPSTAN_ABI_MAJOR 1
#define CAPSTAN_ABI_MINOR 0

/* True when the maker of `*s` knew the field: its declared size reaches past it. Never compare sizes
 * for equality; a newer peer's struct is larger and still good. */
#define CAPSTAN_HAS(s, field) \
  ((s)->struct_size >= (size_t)((const char*)&(s)->field - (const char*)(s)) + sizeof((s)->field))

#if defined(_WIN32)
#define CAPSTAN_EXPORT __declspec(dllexport)
#else
#define CAPSTAN_EXPORT __attribute__((visibility("default")))
#endif

/* ---- status -------------------------------------------------------------------------------- */

/* Stable classes of failure: a launcher decides from the class alone whether to restart, exclude a
 * node, or stop and tell the user. */
#define CAPSTAN_USAGE 1       /* the user's configuration or call is wrong */
#define CAPSTAN_DATA 2        /* input data (weights, tokens, checkpoint) is wrong */
#define CAPSTAN_RESOURCE 3    /* memory, disk or another resource ran out */
#define CAPSTAN_TIMEOUT 4     /* a deadline passed */
#define CAPSTAN_PEER_LOST 5   /* another rank is gone */
#define CAPSTAN_DEVICE_LOST 6 /* this rank's device failed */
#define CAPSTAN_PREEMPTED 7   /* asked to stop */
#define CAPSTAN_UNSUPPORTED 8 /* valid, but this component does not offer it */
#define CAPSTAN_BUG 9         /* a broken promise between components */

/* NULL means success. A non-NULL status is owned by the caller, who must call `release` exactly once;
 * the memory stays the maker's (release frees it with the maker's allocator). [any thread] */
typedef struct capstan_status {
  size_t struct_size;
  int32_t code;         /* one of the classes above */
  int32_t retryable;    /* 1: the same call may succeed later */
  int32_t culprit_rank; /* the rank to blame, -1 unknown */
  int32_t reserved;
  const char*
      message; /* UTF-8 sentence naming the thing, the place and the remedy; lives till release */
  void (*release)(struct capstan_status* self);
} capstan_status;

/* ---- data types and tensors: the layout of DLPack's DLDataType, DLDevice and DLTensor --------- */

#define CAPSTAN_DTYPE_INT 0
#define CAPSTAN_DTYPE_UINT 1
#define CAPSTAN_DTYPE_FLOAT 2
#define CAPSTAN_DTYPE_BFLOAT 4
#define CAPSTAN_DTYPE_BOOL 6
#define CAPSTAN_DTYPE_FLOAT8_E4M3FN 10
#define CAPSTAN_DTYPE_FLOAT8_E5M2 12

typedef struct capstan_dtype {
  uint8_t code;   /* CAPSTAN_DTYPE_* (DLPack's DLDataTypeCode) */
  uint8_t bits;   /* bits of one element */
  uint16_t lanes; /* 1 */
} capstan_dtype;

#define CAPSTAN_DEVICE_CPU 1
#define CAPSTAN_DEVICE_CUDA 2

typedef struct capstan_device_id {
  int32_t type; /* CAPSTAN_DEVICE_* (DLPack's DLDeviceType) */
  int32_t id;
} capstan_device_id;

typedef struct capstan_dl_tensor {
  void* data;
  capstan_device_id device;
  int32_t ndim;
  capstan_dtype dtype;
  int64_t* shape;   /* elements */
  int64_t* strides; /* elements; NULL: dense row-major */
  uint64_t byte_offset;
} capstan_dl_tensor;

/* ---- options: validated by the host against the component's own declaration ------------------- */

#define CAPSTAN_OPTION_BOOL 1
#define CAPSTAN_OPTION_INT 2
#define CAPSTAN_OPTION_FLOAT 3
#define CAPSTAN_OPTION_STRING 4
#define CAPSTAN_OPTION_INTS 5
#define CAPSTAN_OPTION_FLOATS 6
#define CAPSTAN_OPTION_STRINGS 7
#define CAPSTAN_OPTION_PATH 8 /* a string; relative paths are resolved against the config file */
#define CAPSTAN_OPTION_SECRET \
  9 /* given only as {env = "..."} or {file = "..."}; never printed or saved */

/* One option a component understands. `name` is the TOML key inside the component's table; a dot
 * enters a sub-table ("schedule.kind"); "[]" marks a list of tables ("source[].path"). */
typedef struct capstan_option {
  size_t struct_size;
  const char* name;
  int32_t type;     /* CAPSTAN_OPTION_* */
  int32_t required; /* 1: no default */
  const char*
      default_value; /* TOML text of the default ("6e-4", "\"shuffle\"", "[0.9, 0.95]"); NULL
                                when required or when absence means something */
  double minimum,
      maximum; /* closed range of a number (or of each in a list), used when has_range */
  int32_t has_range;
  int32_t reserved;
  const char* choices; /* strings: allowed values separated by '|'; NULL: any */
  const char* doc;     /* one sentence, with units */
} capstan_option;

/* One validated value. Keys of list tables carry an index: "source.0.path". All pointers live until
 * the `create` that received them returns. */
typedef struct capstan_option_value {
  size_t struct_size;
  const char* key;
  int32_t type;      /* CAPSTAN_OPTION_* */
  int32_t from_user; /* 0: the declared default */
  int64_t i;         /* BOOL (0/1), INT */
  double f;          /* FLOAT (also set for INT) */
  const char* s;     /* STRING, PATH, SECRET */
  size_t count;      /* lists: elements */
  const int64_t* ints;
  const double* floats;
  const char* const* strings;
} capstan_option_value;

typedef struct capstan_options {
  size_t struct_size;
  size_t count;
  const capstan_option_value* values; /* sorted as declared */
} capstan_options;

/* ---- attributes of ops -------------------------------------------------------------------- */

#define CAPSTAN_ATTR_INT 1
#define CAPSTAN_ATTR_FLOAT 2
#define CAPSTAN_ATTR_STRING 3
#define CAPSTAN_ATTR_INTS 4

typedef struct capstan_attr {
  size_t struct_size;
  const char* name;
  int32_t type; /* CAPSTAN_ATTR_* */
  int32_t reserved;
  int64_t i;
  double f;
  const char* s;
  size_t count;
  const int64_t* ints;
} capstan_attr;

#ifdef __cplusplus
}
#endif
#endif /* CAPSTAN_PLUGIN_API_BASE_H_ */
