/* Loads one library in a process that holds nothing of the host: whatever symbol is missing here, the
 * library took from the host. */
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char** argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: dlopen_probe LIBRARY\n");
    return 2;
  }
  void* library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  if (dlsym(library, "capstan_plugin_entry") == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  return 0;
}
