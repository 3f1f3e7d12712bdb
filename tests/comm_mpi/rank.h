// One rank of an MPI job as a host would be: its mesh, the plugin loaded as the loader does, and
// components made of it.
#ifndef CAPSTAN_TESTS_COMM_MPI_RANK_H_
#define CAPSTAN_TESTS_COMM_MPI_RANK_H_

#include <cstdint>
#include <map>
#include <string>

#include "plugin_api/comm.h"

namespace capstan::test {

// Options by name as TOML would give them: numbers in digits, else strings.
using OptionTexts = std::map<std::string, std::string>;

// What the launcher's environment says; rank 0 of 1 without one.
struct LaunchedAs {
  int rank = 0;
  int world = 1;
};
LaunchedAs launched_as();

// A host whose mesh is `rank` of `world`.
class MpiHost {
 public:
  explicit MpiHost(LaunchedAs place);
  const capstan_host* raw() const { return &host_; }

 private:
  struct Raw : capstan_host {
    LaunchedAs place;
  };
  static const void* service(const capstan_host* host, const char* id);
  Raw host_{};
};

// The comm component of a plugin, opened with the loader's flags.
const capstan_component& load_comm(const std::string& path);

// A component with its declared defaults, but for `options`. Throws sdk::Error.
class MpiComm {
 public:
  MpiComm(const capstan_component& component, const MpiHost& host, const OptionTexts& options);
  ~MpiComm();
  MpiComm(const MpiComm&) = delete;
  MpiComm& operator=(const MpiComm&) = delete;

  const capstan_comm_v1& vtable() const { return vtable_; }
  void* self() const { return self_; }

 private:
  const capstan_comm_v1& vtable_;
  void* self_ = nullptr;
};

}  // namespace capstan::test

#endif  // CAPSTAN_TESTS_COMM_MPI_RANK_H_
