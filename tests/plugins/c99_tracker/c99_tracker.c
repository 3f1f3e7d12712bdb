/* A tracker in plain C99, against plugin_api/ alone; see README.md. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugin_api/tracker.h"

typedef struct tracker {
  FILE* file;
} tracker;

/* ---- statuses ---- */

typedef struct owned_status {
  capstan_status base; /* first, so that one pointer serves for both */
  char message[512];
} owned_status;

static void release_status(capstan_status* self) { free(self); }

static void release_nothing(capstan_status* self) { (void)self; }

/* Shared and never freed: for when there is no memory to say so with. */
static capstan_status out_of_memory = {sizeof(capstan_status),       CAPSTAN_RESOURCE, 0, -1, 0,
                                       "c99 tracker: out of memory", release_nothing};

static capstan_status* fail(int32_t code, const char* what, const char* path) {
  owned_status* status = (owned_status*)calloc(1, sizeof *status);
  if (status == NULL) return &out_of_memory;
  snprintf(status->message, sizeof status->message, "c99 tracker: %.80s '%.380s'", what, path);
  status->base.struct_size = sizeof(capstan_status);
  status->base.code = code;
  status->base.culprit_rank = -1;
  status->base.message = status->message;
  status->base.release = release_status;
  return &status->base;
}

/* ---- the tracker ---- */

/* The step of a line, the third word of it; -1 when it has none. */
static long long step_of(const char* line) {
  long long step = -1;
  if (sscanf(line, "metric %*s %lld", &step) == 1 || sscanf(line, "event %*s %lld", &step) == 1)
    return step;
  return -1;
}

/* Rewrites the file without the lines of steps after `last`. */
static int drop_later_steps(const char* path, int64_t last) {
  char line[4096];
  long kept = 0;
  FILE* copy = tmpfile();
  FILE* file = fopen(path, "r");
  if (copy == NULL) {
    if (file != NULL) fclose(file);
    return 0;
  }
  while (file != NULL && fgets(line, sizeof line, file) != NULL) {
    if (step_of(line) > (long long)last) continue;
    fputs(line, copy);
    ++kept;
  }
  if (file != NULL) fclose(file);
  file = fopen(path, "w");
  if (file == NULL) {
    fclose(copy);
    return 0;
  }
  rewind(copy);
  while (kept-- > 0 && fgets(line, sizeof line, copy) != NULL) fputs(line, file);
  fclose(copy);
  return fclose(file) == 0;
}

static const char* option_string(const capstan_options* options, const char* key,
                                 const char* fallback) {
  size_t i;
  const char* at = (const char*)options->values;
  for (i = 0; i < options->count; ++i) {
    const capstan_option_value* value = (const capstan_option_value*)(const void*)at;
    if (strcmp(value->key, key) == 0 && value->s != NULL) return value->s;
    at += value->struct_size;
  }
  return fallback;
}

static capstan_status* create(const capstan_host* host, const capstan_options* options,
                              const char* run_directory, int64_t resume_step, void** self) {
  char path[4096];
  tracker* t;
  const char* name = option_string(options, "file", "c99_tracker.txt");
  (void)host;
  if ((size_t)snprintf(path, sizeof path, "%s/%s", run_directory, name) >= sizeof path) {
    return fail(CAPSTAN_USAGE, "the path is too long:", run_directory);
  }
  if (resume_step >= 0 && !drop_later_steps(path, resume_step)) {
    return fail(CAPSTAN_RESOURCE, "cannot rewrite", path);
  }
  t = (tracker*)calloc(1, sizeof *t);
  if (t == NULL) return &out_of_memory;
  t->file = fopen(path, resume_step >= 0 ? "a" : "w");
  if (t->file == NULL) {
    free(t);
    return fail(CAPSTAN_RESOURCE, "cannot open", path);
  }
  *self = t;
  return NULL;
}

static void destroy(void* self) {
  tracker* t = (tracker*)self;
  fclose(t->file);
  free(t);
}

static capstan_status* metrics(void* self, const char* scope, int64_t step,
                               const capstan_metric* list, size_t count) {
  tracker* t = (tracker*)self;
  size_t i;
  const char* at = (const char*)list;
  for (i = 0; i < count; ++i) {
    const capstan_metric* m = (const capstan_metric*)(const void*)at;
    fprintf(t->file, "metric %s %lld %s %.17g\n", scope, (long long)step, m->name, m->value);
    at += m->struct_size;
  }
  return ferror(t->file) ? fail(CAPSTAN_RESOURCE, "cannot write metrics of", scope) : NULL;
}

static capstan_status* event(void* self, const char* name, int64_t step, const char* text) {
  tracker* t = (tracker*)self;
  fprintf(t->file, "event %s %lld %s\n", name, (long long)step, text);
  return ferror(t->file) ? fail(CAPSTAN_RESOURCE, "cannot write event", name) : NULL;
}

static capstan_status* flush(void* self) {
  tracker* t = (tracker*)self;
  return fflush(t->file) == 0 ? NULL : fail(CAPSTAN_RESOURCE, "cannot flush", "the file");
}

/* ---- the descriptor ---- */

static const capstan_tracker_v1 vtable = {
    sizeof(capstan_tracker_v1), create, destroy, metrics, event, flush};

static const capstan_option tracker_options[] = {
    {sizeof(capstan_option), "file", CAPSTAN_OPTION_STRING, 0, "\"c99_tracker.txt\"", 0, 0, 0, 0,
     NULL, "File name in the run directory."}};

static const capstan_component components[] = {
    {sizeof(capstan_component), "tracker", "c99", CAPSTAN_TRACKER_INTERFACE, "1.0.0",
     "One metric a line, from plain C.", tracker_options,
     sizeof tracker_options / sizeof tracker_options[0], &vtable}};

static const capstan_component* get_component(size_t index) {
  return index < sizeof components / sizeof components[0] ? &components[index] : NULL;
}

CAPSTAN_EXPORT const capstan_plugin capstan_plugin_entry = {CAPSTAN_PLUGIN_MAGIC,
                                                            0,
                                                            sizeof(capstan_plugin),
                                                            CAPSTAN_ABI_MAJOR,
                                                            CAPSTAN_ABI_MINOR,
                                                            "c99",
                                                            "1.0.0",
                                                            "Apache-2.0",
                                                            "A tracker in C99.",
                                                            NULL,
                                                            NULL,
                                                            get_component};
